"""A forked child has its parent's producer without its threads, and possibly with held locks.

Each public method raises at once there: none hangs, whichever locks were held at the fork.
"""

from __future__ import annotations

import concurrent.futures
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest
from support.programs.forked import ENOUGH_S, in_child, taken
from support.pure.idle_producer import idle_producer, idle_task_producer
from support.pure.public_methods import public_methods
from support.pure.pure_producer import TOPIC

from spark_kafka_sink.client import future as row_futures
from spark_kafka_sink.client.base_producer import BaseProducer
from spark_kafka_sink.errors import IllegalStateException
from spark_kafka_sink.model import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.plugins.interceptors import ProducerInterceptor

ROW = pa.record_batch({"value": ["v"]})
SILENT = {"close", "__exit__"}
NAMED: dict[str, dict[str, bool]] = {
    "join_transaction": {"adds_partitions": True, "withholds": False, "checks_duplicates": False}
}
ARGUMENTS: dict[str, list[object]] = {
    "append": [TOPIC, ROW],
    "join_transaction": ["tid", ProducerIdAndEpoch(1, 0), 2],
    "limit_messages": [{TOPIC: 1000}],
    "partition_counts": [{TOPIC: 1}],
    "partitions_for": [TOPIC],
    "send": [TOPIC, b"v"],
    "send_offsets_to_transaction": [
        {TopicPartition(TOPIC, 0): OffsetAndMetadata(1)},
        ConsumerGroupMetadata("group"),
    ],
    "slice_bytes": [1],
    "spread_evenly": [0],
    "__exit__": [None, None, None],
}


def call_of(producer: BaseProducer, name: str) -> Callable[[], object]:
    """Return what calls a method, or asks for a property."""
    return lambda: (
        getattr(producer, name)
        if isinstance(inspect.getattr_static(producer, name), property)
        else getattr(producer, name)(*ARGUMENTS.get(name, []), **NAMED.get(name, {}))
    )


class Noting(ProducerInterceptor):
    """Notes that it is called."""

    def on_send(self, record: Any) -> Any:  # noqa: ANN401 - handed on
        """Raise, because a child's rows must not be sent."""
        raise AssertionError(record)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("config", [{}, {"transactional_id": "tid"}])
def test_each_public_method_raises_at_once_in_a_child_whatever_locks_are_taken(
    config: dict[str, object],
) -> None:
    with idle_producer(1, **config) as producer:
        if not config:
            producer.send(TOPIC, b"v")
        queues = list(producer._rows._queues.values())
        check_each_method(producer, producer._feeder._lock, *(queue.lock for queue in queues))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_so_does_each_public_method_of_the_producer_of_a_task() -> None:
    with idle_task_producer(1) as producer:
        producer.append(TOPIC, ROW)
        check_each_method(producer)


def check_each_method(producer: BaseProducer, *locks: Any) -> None:  # noqa: ANN401 - of all kinds
    """Call each public method in a child while the producer's locks are held."""
    held = [producer._state.lock, producer._columns._appender.append_lock, *locks]
    # Those that close are the last: each of the others finds the producer open.
    names = sorted(public_methods(type(producer)), key=SILENT.__contains__)
    with taken(*held):
        found = in_child({name: call_of(producer, name) for name in names})
    assert found.keys() == set(names), "the first one that is missing hangs"
    for name, said in found.items():
        if name in SILENT:
            assert said == "nothing", name
        else:
            assert said.startswith("this KafkaProducer was created before a fork"), (name, said)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_does_not_ask_interceptors_of_its_parent(caplog: pytest.LogCaptureFixture) -> None:
    with idle_producer(1, interceptor_classes=[Noting()]) as producer:
        found = in_child(
            {
                "send": lambda: producer.send(TOPIC, b"v"),
                "log": lambda: pytest.fail(caplog.text) if caplog.text else None,
            }
        )
    assert found["send"].startswith("this KafkaProducer was created before a fork")
    assert found["log"] == "nothing"


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_futures_of_rows_of_the_parent_are_asked_in_a_child_without_waiting() -> None:
    with idle_producer(1) as producer:
        futures: dict[str, Future[Any]] = {}
        for kind in ("done", "watched and done", "pending", "watched and pending"):
            futures[kind] = producer.send(TOPIC, b"v", partition=0)
            if "watched" in kind:
                futures[kind].add_done_callback(lambda _: None)
            if "done" in kind:
                sent = futures[kind]._rows  # type: ignore[attr-defined]
                with producer._feeder._lock:
                    (chunk,) = producer._feeder._pending
                producer._feeder.convert(chunk, producer._rows._queues[TOPIC])
                with producer._state.lock:
                    (batch,) = producer._state.accumulator.incomplete
                    producer._state._completion.abandon(batch, IllegalStateException("given up"))
                    producer._state._collect()
                assert str(futures[kind].exception(ENOUGH_S)) == "given up"
        sent = [future._rows for future in futures.values()]  # type: ignore[attr-defined]
        watches = [
            future._watch.lock  # type: ignore[attr-defined]
            for kind, future in futures.items()
            if "watched" in kind
        ]
        calls: dict[str, Callable[[], object]] = {}
        for kind, future in futures.items():
            calls |= {
                f"{kind}, result": future.result,
                f"{kind}, exception": future.exception,
                f"{kind}, callback": lambda future=future: future.add_done_callback(  # type: ignore[misc]
                    lambda _: None
                ),
                f"{kind}, wait": lambda future=future: concurrent.futures.wait([future]),  # type: ignore[misc]
                f"{kind}, state": lambda future=future: (future.done(), future.running()),  # type: ignore[misc]
            }
        locks = [row_futures._making_watches, *{id(s): s._lock for s in sent}.values(), *watches]
        with taken(*locks):
            found = in_child(calls)
    assert found.keys() == calls.keys(), "the first one that is missing hangs"
    for name, said in found.items():
        kind, _, call = name.partition(", ")
        if call == "state" or ("done" in kind and call in ("callback", "wait")):
            assert said == "nothing", name
        elif "done" in kind:
            assert said == ("given up" if call == "result" else "nothing"), name
        else:
            assert said.startswith("this record was sent before a fork"), (name, said)

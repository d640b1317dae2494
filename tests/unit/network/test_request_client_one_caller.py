"""TopicReader and KafkaAdmin are for one thread at a time, and for the process that made them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.mock_cluster import MockCluster
from support.programs.forked import ENOUGH_S, found_by, in_child
from support.pure.public_methods import public_methods
from support.pure.unreachable import NOBODY, TOPIC

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.admin import KafkaAdmin, NewTopic
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.network.request_client import ConsumerNetworkClient

KINDS = [TopicReader, KafkaAdmin]
ARGUMENTS: dict[str, list[object]] = {
    "read": [TOPIC],
    "topics": [[TOPIC]],
    "topic_configs": [TOPIC, ["max.message.bytes"]],
    "configs_of_topics": [[TOPIC], ["max.message.bytes"]],
    "check_creation": [NewTopic()],
    "__exit__": [None, None, None],
}
SILENT = {"close", "__exit__"}
# Less than request.timeout.ms, after which a connection that was spoilt is replaced.
WAITS_MS = 10_000
IN_USE = (
    "this {} is in use by another thread: use it from one thread at a time, or create one per "
    "thread"
)
FORKED = "this {} was created before a fork: create one in the process that uses it"


def made(kind: type, bootstrap: str = NOBODY) -> Any:  # noqa: ANN401 - one of the two
    """Make one."""
    configs: dict[str, object] = {"bootstrap.servers": bootstrap}
    if kind is TopicReader:
        return TopicReader(configs | {"default.api.timeout.ms": WAITS_MS})
    return KafkaAdmin(producer_config(configs | {"max.block.ms": WAITS_MS}))


def calls_of(thing: Any) -> dict[str, Callable[[], object]]:  # noqa: ANN401 - one of the two
    """Return a call for each public method; those that close are the last."""
    names = sorted(public_methods(type(thing)), key=SILENT.__contains__)
    calls: dict[str, Callable[[], object]] = {
        name: lambda name=name: getattr(thing, name)(*ARGUMENTS.get(name, []))  # type: ignore[misc]
        for name in names
    }
    if isinstance(thing, TopicReader):
        begun = thing.read(TOPIC)
        calls = {"next": lambda: next(begun)} | calls
    return calls


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A cluster with a topic of one row."""
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC)
        with KafkaProducer({"bootstrap.servers": cluster.bootstrap}) as producer:
            producer.send(TOPIC, b"v")
        yield cluster.bootstrap


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_a_second_thread_is_refused_while_one_runs(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls, may_go_on = threading.Event(), threading.Event()

    def poll(_: object, __: float) -> None:
        polls.set()
        assert may_go_on.wait(ENOUGH_S)
        raise ZeroDivisionError

    with made(kind) as thing:
        calls = calls_of(thing)
        monkeypatch.setattr(ConsumerNetworkClient, "poll", poll)
        said: list[str] = []
        first = "next" if kind is TopicReader else "topics"
        user = threading.Thread(target=lambda: said.append(found_by(calls[first])))
        user.start()
        assert polls.wait(ENOUGH_S)
        for name, call in calls.items():
            assert found_by(call) == IN_USE.format(kind.__name__), name
        may_go_on.set()
        user.join(ENOUGH_S)
        assert said == ["ZeroDivisionError()"]
        # It is free again, for whichever thread, and within a call of its own.
        thing._caller.run(lambda: thing._caller.run(lambda: None))
        assert found_by(calls[first]) in ("ZeroDivisionError()", "StopIteration()")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_in_a_forked_child_is_refused_but_closing_which_does_nothing(
    kind: type,
) -> None:
    with made(kind) as thing:
        calls = calls_of(thing)
        found = thing._caller.run(lambda: in_child(calls))
    assert found.keys() == calls.keys(), "the first one that is missing hangs"
    for name, said in found.items():
        expected = "nothing" if name in SILENT else FORKED.format(kind.__name__)
        assert said == expected, name


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_closing_in_a_forked_child_leaves_the_connections_of_its_parent_alone(
    kind: type, bootstrap: str
) -> None:
    def use(thing: TopicReader | KafkaAdmin) -> int:
        if isinstance(thing, TopicReader):
            return sum(batch.num_rows for batch in thing.read(TOPIC))
        return thing.topics([TOPIC])[TOPIC].partitions

    with made(kind, bootstrap) as thing:
        assert use(thing) == 1
        assert in_child({"close": lambda: thing.__exit__(None, None, None)}) == {"close": "nothing"}
        assert use(thing) == 1

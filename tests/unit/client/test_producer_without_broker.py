"""What a producer does before a broker has its part in it: names, partitions, waits and limits.

Its thread runs, and no broker can be reached; what is known of the topic is put in by the test.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.pure.measured_metrics import measured
from support.pure.state_waits import wait_until
from support.pure.unreachable import NOBODY, TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import (
    ConfigException,
    DataException,
    IllegalStateException,
    KafkaException,
    RecordTooLargeException,
    SerializationException,
    TimeoutException,
)
from spark_kafka_sink.model import AppendFailure
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.wire.messages import MetadataResponseBroker

A_LONG_TIME_MS = 60_000
A_WHILE_S = 20


@contextmanager
def producing(leaders: list[int], **config: object) -> Iterator[KafkaProducer]:
    """Yield a producer that knows the topic and reaches no broker."""
    options = {name.replace("_", "."): value for name, value in config.items()}
    producer = KafkaProducer({"bootstrap.servers": NOBODY, "linger.ms": A_LONG_TIME_MS, **options})
    try:
        with producer._state.lock:
            producer._state.metadata.track(TOPIC, time.monotonic())
            producer._state.metadata.update(answer(leaders), time.monotonic())
        yield producer
    finally:
        producer.close(0)


def rows_by_partition(producer: KafkaProducer) -> dict[int, int]:
    """Return the number of rows in batches of each partition."""
    found: dict[int, int] = defaultdict(int)
    for batch in producer._state.accumulator.incomplete:
        found[batch.topic_partition.partition] += batch.record_count
    return dict(found)


def client_id(producer: KafkaProducer) -> str:
    """Return the client-id tag of a producer's metrics."""
    (name,) = {metric.tags["client-id"] for metric in producer.metrics()}
    return name


def test_producers_are_numbered_or_named_by_their_transactional_id_or_as_they_are_told() -> None:
    with producing([1]) as first, producing([1]) as second:
        numbers = [re.fullmatch(r"producer-(\d+)", client_id(p)) for p in (first, second)]
    assert all(numbers)
    assert int(numbers[0][1]) + 1 == int(numbers[1][1])  # type: ignore[index] # asserted above
    with producing([1], transactional_id="tid") as transactional:
        assert client_id(transactional) == "producer-tid"
    with producing([1], transactional_id="tid", client_id="me") as named:
        assert client_id(named) == "me"


# Two keys, of which Java's hash sends the first to partition 1 of 3 and the second to partition 0.
KEYS = ["a", "b"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 2),
        ({"partitioner_ignore_keys": "true"}, 1),
        ({"partitioner_class": "uniformsticky"}, 1),
        ({"partitioner_class": "RoundRobinPartitioner"}, 3),
    ],
)
@pytest.mark.parametrize("by_row", [True, False])
def test_keys_spread_rows_unless_the_configuration_says_otherwise(
    config: dict[str, object], expected: int, *, by_row: bool
) -> None:
    with producing([1, 1, 1], **config) as producer:
        keys = KEYS * 30
        if by_row:
            for key in keys:
                producer.send(TOPIC, b"v", key=key)
            producer._feeder.drain()
        else:
            producer.append(TOPIC, pa.record_batch({"key": keys, "value": ["v"] * len(keys)}))
        found = rows_by_partition(producer)
    assert len(found) == expected
    assert set(found.values()) == {60 // expected}


def test_round_robin_begins_elsewhere_in_another_producer() -> None:
    """Six producers begin at the same one of 100 partitions once in ten billion times."""
    filled = set[int]()
    for _ in range(6):
        with producing([1] * 100, partitioner_class="RoundRobinPartitioner") as producer:
            producer.append(TOPIC, pa.record_batch({"value": ["v"]}))
            filled |= rows_by_partition(producer).keys()
    assert len(filled) > 1


@pytest.mark.parametrize("by_row", [True, False])
def test_a_partitioner_given_as_an_object_chooses(*, by_row: bool) -> None:
    def last_but(topic: str, batch: pa.RecordBatch, partitions: int) -> list[int | None]:
        assert (topic, partitions) == (TOPIC, 3)
        return [
            None if key == b"a" else 2 for key in batch.column("key").cast("binary").to_pylist()
        ]

    with producing([1, 1, 1], partitioner_class=last_but) as producer:
        if by_row:
            for key in KEYS:
                producer.send(TOPIC, b"v", key=key)
            producer._feeder.drain()
        else:
            producer.append(TOPIC, pa.record_batch({"key": KEYS, "value": ["v", "v"]}))
        assert rows_by_partition(producer) == {1: 1, 2: 1}


def test_a_partitioner_is_not_asked_where_every_row_names_its_partition() -> None:
    def never(*_: object) -> None:
        raise AssertionError

    with producing([1, 1, 1], partitioner_class=never) as producer:
        batch = pa.record_batch({"value": ["v", "v"], "partition": pa.array([0, 2], pa.int32())})
        producer.append(TOPIC, batch)
        assert rows_by_partition(producer) == {0: 1, 2: 1}


def test_a_node_that_took_no_data_for_the_configured_time_gets_no_rows_without_key() -> None:
    batch = pa.record_batch({"value": ["x" * 100] * 100})
    backlog = pa.record_batch({"value": ["x"], "partition": pa.array([0], pa.int32())})
    for timeout, expected in (("1000", {1}), ("0", {0, 1})):
        config = {"partitioner_availability_timeout_ms": timeout, "batch_size": 300}
        with producing([1, 2], **config) as producer:
            producer.append(TOPIC, backlog)
            with producer._state.lock:
                now = time.monotonic()
                producer._state.latencies.update(1, now - 2.0, can_send=True)
                producer._state.latencies.update(1, now, can_send=False)
            producer.append(TOPIC, batch)
            found = rows_by_partition(producer)
            assert {number for number, rows in found.items() if rows > 1} == expected


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_long_queue_draws_fewer_rows_unless_that_is_turned_off(*, adaptive: bool) -> None:
    config = {"partitioner_adaptive_partitioning_enable": adaptive, "batch_size": 300}
    with producing([1, 1], **config) as producer:
        behind = pa.record_batch(
            {"value": ["x" * 200] * 400, "partition": pa.array([0] * 400, pa.int32())}
        )
        producer.append(TOPIC, behind)
        producer.append(TOPIC, pa.record_batch({"value": ["x" * 200] * 400}))
        found = rows_by_partition(producer)
    # By the weights 1 to 401, one row in 400 goes to the long queue; else every second one.
    assert (found[0] - 400 < 40) is adaptive


def test_rows_without_key_go_to_leaders_in_the_rack_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZONE", "eu-1b")
    config = {"partitioner_rack_aware": True, "client_rack": "${env:ZONE}", "batch_size": 300}
    with producing([1, 2, 2, 1], **config) as producer:
        known = answer([1, 2, 2, 1])
        racks = {1: "eu-1a", 2: "eu-1b"}
        known.brokers = [
            MetadataResponseBroker(node_id=each, host="h", port=each, rack=rack)
            for each, rack in racks.items()
        ]
        with producer._state.lock:
            producer._state.metadata.update(known, time.monotonic())
        producer.append(TOPIC, pa.record_batch({"value": ["x" * 200] * 100}))
        assert rows_by_partition(producer).keys() == {1, 2}
        producer.append(TOPIC, pa.record_batch({"key": KEYS, "value": KEYS}))
        assert rows_by_partition(producer).keys() > {1, 2}


def test_a_rack_that_the_environment_does_not_name_is_an_error_of_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZONE", "")
    options = {"bootstrap.servers": NOBODY, "partitioner.rack.aware": True}
    with pytest.raises(KafkaException, match=r"client\.rack .*ZONE_OF_NOBODY"):
        KafkaProducer({**options, "client.rack": "${env:ZONE_OF_NOBODY}"})
    with pytest.raises(KafkaException, match=r"client\.rack is \$\{env:ZONE\}, which is empty"):
        KafkaProducer({**options, "client.rack": "${env:ZONE}"})
    with pytest.raises(
        ConfigException, match=r"^partitioner\.rack\.aware is true, but client\.rack"
    ):
        KafkaProducer(options)


@pytest.mark.parametrize("by_row", [True, False])
def test_what_waited_for_memory_is_as_old_as_the_end_of_the_wait(*, by_row: bool) -> None:
    with producing([1], max_block_ms=A_LONG_TIME_MS) as producer:
        state, accumulator = producer._state, producer._state.accumulator
        with state.lock:
            everything, accumulator.pool.available_bytes = accumulator.pool.available_bytes, 0

        def append() -> None:
            if by_row:
                producer.send(TOPIC, b"v")
            else:
                producer.append(TOPIC, pa.record_batch({"value": ["v"]}))

        caller = threading.Thread(target=append)
        caller.start()
        wait_until(producer, lambda: accumulator.pool.waiters or not caller.is_alive())
        with state.lock:
            freed_at = time.monotonic()
            accumulator.pool.available_bytes = everything
            state.notify()
        caller.join(60)
        producer._feeder.drain()
        (batch,) = accumulator.incomplete
    assert batch.created_at >= freed_at


def test_what_was_sent_row_by_row_is_as_old_as_its_rows() -> None:
    with producing([1]) as producer:
        producer.send(TOPIC, b"v")
        sent_at = time.monotonic()
        producer._feeder.drain()
        (batch,) = producer._state.accumulator.incomplete
    assert batch.created_at <= sent_at


@pytest.mark.parametrize("waited_s", [1, A_LONG_TIME_MS])
def test_the_rows_of_all_slices_have_lingered_since_their_arrow_batch_came(waited_s: int) -> None:
    rows = pa.record_batch({"value": [bytes(1000)] * 80})
    with producing([1], buffer_memory=100_000, batch_size=1000) as producer:
        begun_at = time.monotonic()
        producer.append(TOPIC, rows, lingers_since=begun_at - waited_s)
        created = {batch.created_at for batch in producer._state.accumulator.incomplete}
        counted_s = min(waited_s, A_LONG_TIME_MS / 1000)  # not more than linger.ms
        took_s = time.monotonic() - begun_at if counted_s < waited_s else 0
    assert all(0 <= at - (begun_at - counted_s) <= took_s for at in created)


@pytest.mark.parametrize(
    ("limit", "config"),
    [
        ("max.request.size=1000", {"max_request_size": 1000}),
        ("buffer.memory=1000", {"buffer_memory": 1000}),
    ],
)
def test_a_record_over_either_limit_is_refused_by_the_limit_s_name(
    limit: str, config: dict[str, object]
) -> None:
    with producing([1], **config) as producer:
        by_row = producer.send(TOPIC, bytes(2000)).exception(0)
        with pytest.raises(RecordTooLargeException, match=limit):
            producer.append(TOPIC, pa.record_batch({"value": ["fits", "x" * 2000]}))
        assert isinstance(by_row, RecordTooLargeException)
        assert limit in str(by_row)
        assert rows_by_partition(producer) == {}


def test_who_comes_later_for_memory_is_served_later_though_there_is_room_for_little() -> None:
    with producing([1]) as producer:
        state, accumulator = producer._state, producer._state.accumulator
        with state.lock:
            everything, accumulator.pool.available_bytes = accumulator.pool.available_bytes, 50
        callers = []
        for size_bytes in (100, 10):
            call = producer._caller.row_call()._replace(deadline=time.monotonic() + 60)
            arguments = (PendingAppend(), size_bytes, call)
            callers.append(threading.Thread(target=producer._caller.reserve, args=arguments))
            callers[-1].start()
            wait_until(producer, lambda: accumulator.pool.waiters == len(callers))
        with state.lock:
            accumulator.pool.available_bytes = 110
            state.notify()
        for caller in callers:
            caller.join(60)
        with state.lock:
            assert accumulator.pool.available_bytes == 0
            accumulator.pool.available_bytes = everything


def test_who_waits_for_memory_has_what_rows_that_linger_do_not_take() -> None:
    with producing([1], buffer_memory=100_000, max_block_ms=20_000) as producer:
        producer.send(TOPIC, b"v")
        pool = producer._state.accumulator.pool
        free = pool.available_bytes
        producer._caller.reserve(PendingAppend(), free + 1, producer._caller.row_call())
        # Of what was reserved for it, the row keeps its own bytes alone.
        assert 0 < 100_000 - (free + 1) - pool.available_bytes < 100


def test_a_topic_is_forgotten_when_it_was_idle_for_as_long_as_configured() -> None:
    for idle_ms, is_known in ((5000, False), (300_000, True)):
        with producing([1], metadata_max_idle_ms=idle_ms) as producer, producer._state.lock:
            metadata, now = producer._state.metadata, time.monotonic()
            metadata.track(TOPIC, now - 10)
            metadata.update(answer([1]), now)
            assert (metadata.topic(TOPIC) is not None) is is_known


def no_bytes(_: object) -> bytes:
    """Serialize nothing."""
    message = "not serializable"
    raise ValueError(message)


class Watching:
    """An interceptor."""

    def on_acknowledgement(self, *_: object) -> None:
        """Do nothing."""


def test_rows_that_send_refuses_are_counted() -> None:
    with producing([1], max_request_size=1000) as producer:
        refused = producer.send(TOPIC, b"x" * 2000)
        assert isinstance(refused.exception(), RecordTooLargeException)
        assert measured(producer)["record-error-total"] == 1


@pytest.mark.parametrize(
    "config", [{}, {"value_serializer": no_bytes}, {"interceptor_classes": [Watching()]}]
)
def test_rows_that_send_raises_about_are_counted_but_no_call_after_close(
    config: dict[str, object],
) -> None:
    with producing([1], **config) as producer:
        # The first row of a topic goes another way than those after it.
        for count in (1, 2):
            with pytest.raises(SerializationException):
                producer.send(TOPIC, object())
            assert measured(producer)["record-error-total"] == count
        producer.close(0)
        with pytest.raises(IllegalStateException):
            producer.send(TOPIC, b"late")
        assert measured(producer)["record-error-total"] == 2


# Invalid topic names, and their messages.
NO_NAMES = {
    "half a surrogate pair": ("\ud800", "cannot be encoded as UTF-8"),
    "too long": ("x" * 250, "found a name of 250 characters, expected at most 249"),
    "bytes": (b"t", "expected a str"),
    "nothing": (None, "expected a str"),
}
WAYS_TO_NAME_A_TOPIC: dict[str, Callable[[KafkaProducer, Any], object]] = {
    "send": lambda producer, name: producer.send(name, b"v"),
    "partitions_for": lambda producer, name: producer.partitions_for(name),
    "append": lambda producer, name: producer.append(name, pa.record_batch({"value": ["v"]})),
}


@pytest.mark.parametrize("way", WAYS_TO_NAME_A_TOPIC)
@pytest.mark.parametrize("kind", NO_NAMES)
def test_what_is_no_topic_s_name_is_refused_before_anybody_is_asked_about_it(
    kind: str, way: str
) -> None:
    name, said = NO_NAMES[kind]
    if name is None and way == "append":
        said = "topic option required"
    with producing([1]) as producer:
        sent = producer.send(TOPIC, b"good")
        with pytest.raises(DataException, match=said):
            WAYS_TO_NAME_A_TOPIC[way](producer, name)
        assert set(producer._state.metadata._topics) == {TOPIC}
        assert producer._state.fatal_error is None
        assert not sent.done()


@pytest.mark.parametrize(
    ("name", "said"), [(b"x" * 250, "found a name of 250"), (b"\xff", "is not UTF-8")]
)
def test_a_topic_column_is_looked_at_before_anybody_is_asked_about_it(
    name: bytes, said: str
) -> None:
    column = pa.array([b"t", name], pa.binary()).view(pa.string())
    with producing([1]) as producer:
        with pytest.raises(DataException, match=said):
            producer.append(None, pa.record_batch({"topic": column, "value": ["v", "w"]}))
        assert set(producer._state.metadata._topics) == {TOPIC}


def test_a_callback_that_sends_to_a_new_topic_is_told_at_once_that_nobody_can_be_asked() -> None:
    """The thread that runs callbacks is the one that asks brokers: it must not wait for itself."""
    soon = {"linger_ms": 0, "request_timeout_ms": 10, "delivery_timeout_ms": 10}
    sent: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    with producing([1], max_block_ms=3_600_000, **soon) as producer:

        def send_again(*_: object) -> None:
            sent.put(producer.send("another-topic", b"v").exception())

        producer.send(TOPIC, b"v", on_delivery=send_again)
        assert isinstance(sent.get(timeout=A_WHILE_S), TimeoutException)


def test_a_limit_of_a_topic_that_was_raised_is_told_in_place_of_the_old_one() -> None:
    with producing([1], batch_size=5000) as producer:
        full = []
        for limit_bytes in (1000, 3000, 2000):
            producer._columns.limit_messages({TOPIC: limit_bytes}, None)
            with producer._state.lock:
                full.append(producer._state.accumulator.full_bytes(TOPIC))
    assert full == [1000 - 61, 3000 - 61, 2000 - 61]


def table_of(*topics_of: list[str]) -> pa.Table:
    """Make a table of one batch for each list of topics."""
    batches = [
        pa.record_batch(
            {
                "value": pa.array(["v"] * len(topics), pa.string()),
                "topic": pa.array(topics, pa.string()),
            }
        )
        for topics in topics_of
    ]
    return pa.Table.from_batches(batches)


def test_a_table_is_appended_batch_by_batch() -> None:
    with producing([1, 1, 1]) as producer:
        producer.append(None, table_of([TOPIC] * 3, [], [TOPIC] * 4))
        assert sum(rows_by_partition(producer).values()) == 7
        producer.append(TOPIC, pa.table({"value": pa.chunked_array([["a"], ["b", "c"]])}))
        producer.append(TOPIC, pa.table({"value": pa.chunked_array([], pa.string())}))
        assert sum(rows_by_partition(producer).values()) == 10
        # Columns that are not sent may have any type.
        union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
        table = pa.table({"value": ["v"], "other": union})
        for rows in (table, table.slice(1), pa.Table.from_batches([], table.schema)):
            producer.append(TOPIC, rows)
        assert sum(rows_by_partition(producer).values()) == 11


def test_a_table_whose_third_batch_is_bad_says_what_was_appended() -> None:
    failures: list[AppendFailure] = []
    with producing([1]) as producer:
        table = table_of([TOPIC] * 3, [TOPIC] * 4, [TOPIC, TOPIC, "x" * 250, TOPIC], [TOPIC] * 2)
        with pytest.raises(
            DataException,
            match=r"^row 9 of the Arrow table: .*a name of 250 characters, expected at most 249; "
            r"the first 7 of the table's 13 rows were appended$",
        ) as refused:
            producer.append(None, table, failures.append)
        assert refused.value.row == 9
        assert sum(rows_by_partition(producer).values()) == 7
        (failed,) = [
            value
            for name, value in producer.metrics().items()
            if name.name == "record-error-total" and name.group == "producer-metrics"
        ]
        assert failed == 6
        with pytest.raises(
            DataException, match=r"^row 2 of the Arrow table: .*, expected at most 249$"
        ):
            producer.append(None, table.slice(7))
    # Rows that cannot be delivered have the numbers that they have in the table.
    assert sorted(np.concatenate([failure.rows for failure in failures]).tolist()) == [*range(7)]


def test_a_time_limit_of_nothing_does_not_blame_the_brokers() -> None:
    """The limit is legal: a call uses known metadata, and requests the rest."""
    words = (
        f"Topic {TOPIC} not present in metadata after max.block.ms=0: its metadata has been "
        "requested, but the call does not wait for the response; call again later, or increase "
        "the limit"
    )
    with KafkaProducer({"bootstrap.servers": NOBODY, "max.block.ms": 0}) as producer:
        with pytest.raises(TimeoutException) as late:
            producer.partitions_for(TOPIC)
        assert str(late.value).startswith(words)
        with producer._state.lock:
            producer._state.metadata.update(answer([1, 1]), time.monotonic())
        assert producer.partitions_for(TOPIC) == 2
    with (
        KafkaAdmin(producer_config({"bootstrap.servers": NOBODY, "max.block.ms": 0})) as admin,
        pytest.raises(TimeoutException) as late,
    ):
        admin.topics([TOPIC])
    assert str(late.value).startswith(words)

"""KafkaProducer.send on real brokers, read back by clients that share no code with ours."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future

import pyarrow as pa
import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import READERS, Record, read_with_confluent

from spark_kafka_sink import KafkaProducer, ProducerInterceptor, ProducerRecord, RecordMetadata
from spark_kafka_sink.client.future import OnDelivery
from spark_kafka_sink.errors import (
    BufferExhaustedException,
    DataException,
    IllegalStateException,
    InvalidRecordException,
    InvalidTopicException,
    KafkaException,
    RecordTooLargeException,
    SerializationException,
    TimeoutException,
)

pytestmark = pytest.mark.kafka

Delivered = list[tuple[RecordMetadata, BaseException | None]]
A_LONG_TIME_MS = 600_000


def note_in(deliveries: Delivered) -> Callable[[RecordMetadata, BaseException | None], None]:
    """Return a callback that records its arguments."""
    return lambda metadata, error: deliveries.append((metadata, error))


def by_place(records: list[Record]) -> dict[tuple[int, int], Record]:
    """Return records by partition and offset."""
    return {(record.partition, record.offset): record for record in records}


def values_in_order(records: list[Record]) -> list[bytes | None]:
    """Return the values of a topic with one partition."""
    return [record.value for record in records]


def row(number: int) -> ProducerRecord:
    """Make rows that differ in everything a row may have or not have."""
    return ProducerRecord(
        topic="",
        value=[b"value %d" % number, f"text {number} é", None, b""][number % 4],
        key=[None, b"key %d" % (number % 50), "key é"][number % 3],
        partition=[None, None, number % 4][number % 3],
        timestamp_ms=1_600_000_000_000 + number if number % 5 == 0 else None,
        headers=[("n", b"%d" % number), ("n", None)] if number % 7 == 0 else None,
    )


def encoded(data: object) -> bytes | None:
    """Return a key or value as it is stored."""
    assert data is None or isinstance(data, str | bytes)
    return data.encode() if isinstance(data, str) else data


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_every_future_names_the_place_that_holds_exactly_its_row(
    kafka: KafkaCluster, new_topic: NewTopic, compression: str, reader: str
) -> None:
    topic = new_topic(4)
    config = {"bootstrap.servers": kafka.bootstrap, "compression.type": compression}
    rows, deliveries = [row(number) for number in range(5000)], Delivered()
    before = time.time_ns() // 1_000_000
    with KafkaProducer(config) as producer:
        futures = [
            producer.send(
                topic, r.value, r.key, r.partition, r.timestamp_ms, r.headers, note_in(deliveries)
            )
            for r in rows
        ]
        producer.flush()
        assert all(future.done() for future in futures)
    after = time.time_ns() // 1_000_000
    found = by_place(READERS[reader](kafka.bootstrap, topic))
    assert len(found) == len(rows)
    for r, future in zip(rows, futures, strict=True):
        metadata = future.result(0)
        record = found.pop((metadata.partition, metadata.offset))
        assert (record.value, record.key) == (encoded(r.value), encoded(r.key))
        assert record.headers == tuple(r.headers or ())
        assert record.timestamp_ms == metadata.timestamp
        if r.timestamp_ms is None:
            assert before <= metadata.timestamp <= after
        else:
            assert metadata.timestamp == r.timestamp_ms
        assert r.partition in (None, metadata.partition)
        sizes = [-1 if data is None else len(data) for data in (record.key, record.value)]
        assert sizes == [metadata.serialized_key_size, metadata.serialized_value_size]
        assert metadata.topic == topic
    assert {m for m, _ in deliveries} == {future.result(0) for future in futures}
    assert all(error is None for _, error in deliveries)
    check_rising(deliveries)


def check_rising(deliveries: Delivered) -> None:
    """Check that callbacks came in the order of offsets, in every partition."""
    offsets = defaultdict(list)
    for metadata, _ in deliveries:
        offsets[metadata.partition].append(metadata.offset)
    for of_partition in offsets.values():
        assert of_partition == sorted(of_partition)


def test_rows_and_columns_of_one_thread_stay_in_their_order(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    numbers = itertools.count()
    config = {"bootstrap.servers": kafka.bootstrap, "linger.ms": 2, "batch.size": 2000}
    with KafkaProducer(config) as producer:
        for repetition in range(60):
            for _ in range(repetition):
                producer.send(topic, b"%d" % next(numbers))
            columns = [b"%d" % next(numbers) for _ in range(7)]
            producer.append(topic, pa.record_batch({"value": pa.array(columns)}))
    found = values_in_order(read_with_confluent(kafka.bootstrap, topic))
    assert found == [b"%d" % number for number in range(next(numbers))]


def test_threads_may_send_at_once_and_each_keeps_its_order(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, rows = new_topic(3), 4000
    # Little memory, so that they also wait for it.
    config = {"bootstrap.servers": kafka.bootstrap, "buffer.memory": 300_000, "batch.size": 4000}
    futures: dict[int, list[Future[RecordMetadata]]] = {}
    started = threading.Barrier(8)
    with KafkaProducer(config) as producer:

        def send(thread: int) -> None:
            started.wait()
            futures[thread] = [
                producer.send(topic, b"%d %d" % (thread, number)) for number in range(rows)
            ]

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = by_place(read_with_confluent(kafka.bootstrap, topic))
    assert len(found) == 8 * rows
    for number, of_thread in futures.items():
        last: dict[int, int] = {}
        for index, future in enumerate(of_thread):
            metadata = future.result(0)
            place = (metadata.partition, metadata.offset)
            assert found[place].value == b"%d %d" % (number, index)
            assert metadata.offset > last.get(metadata.partition, -1)
            last[metadata.partition] = metadata.offset


def test_a_lingering_row_goes_without_a_flush_and_wakes_who_waits(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 20}) as producer:
        for number in range(3):
            assert producer.send(topic, b"a").result(60).offset == number


def test_linger_0_sends_at_once(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0}) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(500)]
        assert [future.result(60).offset for future in futures] == list(range(500))


def test_many_topics_share_little_memory_though_their_rows_would_linger(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topics = [new_topic(1) for _ in range(12)]
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "buffer.memory": 100_000,
        "linger.ms": A_LONG_TIME_MS,
        "delivery.timeout.ms": 2 * A_LONG_TIME_MS,
    }
    with KafkaProducer(config) as producer:
        futures = [producer.send(topic, bytes(9000)) for _ in range(10) for topic in topics]
    assert all(future.result(0).offset >= 0 for future in futures)


def test_full_batches_do_not_wait_for_linger(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "batch.size": 1000,
        "linger.ms": A_LONG_TIME_MS,
        "delivery.timeout.ms": 2 * A_LONG_TIME_MS,
    }
    with KafkaProducer(config) as producer:
        futures = [producer.send(topic, bytes(500)) for _ in range(200)]
        assert futures[0].result(60).offset == 0
        assert not futures[-1].done()


def test_a_chunk_that_is_due_before_its_first_row_came_is_nothing(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer:
        producer.send(topic, b"a").result(60)
        rows = producer._rows
        rows._make_room(rows._queues[topic], None, 100, producer._caller.row_call())
        assert producer._feeder._pending
        producer.flush()
        assert not producer._feeder._pending
        assert producer._state.accumulator.pool.available_bytes == 33_554_432
        assert producer.send(topic, b"b").result(60).offset == 1


def test_without_acks_offsets_are_unknown(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer:
        producer.send(topic, b"the leader is there")
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap, "acks": 0}) as producer:
        future = producer.send(topic, b"a")
    metadata = future.result(0)
    assert (metadata.partition, metadata.offset) == (0, -1)
    # The broker does not say when it has it.
    while len(found := values_in_order(read_with_confluent(kafka.bootstrap, topic))) < 2:
        pass
    assert found == [b"the leader is there", b"a"]


def test_the_brokers_time_is_told_where_the_topic_has_it(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1, {"message.timestamp.type": "LogAppendTime"})
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer:
        future = producer.send(topic, b"a", timestamp_ms=1000)
    (record,) = read_with_confluent(kafka.bootstrap, topic)
    assert future.result(0).timestamp == record.timestamp_ms > 1000


def test_serializers_and_interceptors_see_every_row(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    class Count(ProducerInterceptor):
        """Marks values, and records its calls."""

        def __init__(self) -> None:
            self.deliveries = Delivered()
            self.closed = False

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return ProducerRecord(record.topic, f"{record.value} seen", record.key)

        def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
            self.deliveries.append((metadata, error))

        def close(self) -> None:
            self.closed = True

    class Fail(Count):
        """Raises in every method."""

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            raise ZeroDivisionError

        def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
            raise ZeroDivisionError

    topic, count = new_topic(1), Count()
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "interceptor.classes": [Fail, count],
        "key.serializer": "no.such.Serializer",  # ignored: an instance is given
    }
    producer = KafkaProducer(
        config,
        key_serializer=lambda key: key.to_bytes(2, "big"),
        value_serializer=lambda value: value.encode("utf-16-be"),
    )
    with producer:
        future = producer.send(topic, "a", key=7)
        with pytest.raises(SerializationException, match=r"key of class str .*key\.serializer"):
            producer.send(topic, "b", key="no number")
        assert future.result(60).offset == 0
    (record,) = read_with_confluent(kafka.bootstrap, topic)
    assert (record.key, record.value) == (b"\x00\x07", "a seen".encode("utf-16-be"))
    refused, delivered = count.deliveries
    assert isinstance(refused[1], SerializationException)
    assert refused[0] == RecordMetadata(topic, -1, -1, -1, -1, -1)
    assert delivered == (future.result(0), None)
    assert count.closed


def test_what_brokers_and_limits_refuse_becomes_a_failed_future_and_is_told_once(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, deliveries = new_topic(1, {"max.message.bytes": "2000"}), Delivered()
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "max.request.size": 10_000,
        "max.block.ms": 3000,
    }
    with KafkaProducer(config) as producer:
        by_broker = producer.send(topic, bytes(5000), on_delivery=note_in(deliveries))
        assert isinstance(by_broker.exception(60), RecordTooLargeException)
        by_limit = producer.send(topic, bytes(20_000), partition=0, on_delivery=note_in(deliveries))
        assert isinstance(by_limit.exception(0), RecordTooLargeException)
        assert "max.request.size=10000" in str(by_limit.exception(0))
        by_name = producer.send("no/topic", b"a", on_delivery=note_in(deliveries))
        assert isinstance(by_name.exception(0), InvalidTopicException)
        by_time = producer.send(topic, b"a", partition=7, on_delivery=note_in(deliveries))
        error = by_time.exception(0)
        assert isinstance(error, TimeoutException)
        assert "Partition 7 of topic" in str(error)
        assert "partition count 1 is not present in metadata after" in str(error)
        fits = producer.send(topic, b"fits")
        producer.flush()
    assert fits.result(0).offset == 0
    assert [type(error) for _, error in deliveries] == [
        RecordTooLargeException,
        RecordTooLargeException,
        InvalidTopicException,
        TimeoutException,
    ]
    assert [(m.topic, m.partition, m.offset) for m, _ in deliveries] == [
        (topic, 0, -1),
        (topic, 0, -1),
        ("no/topic", -1, -1),
        (topic, 7, -1),
    ]


@pytest.mark.parametrize("keyless", [[2], [0, 3]])
def test_the_records_that_a_broker_refuses_have_errors_of_their_own(
    kafka: KafkaCluster, new_topic: NewTopic, keyless: list[int]
) -> None:
    topic, deliveries = new_topic(1, {"cleanup.policy": "compact"}), Delivered()
    config = {"bootstrap.servers": kafka.bootstrap, "linger.ms": A_LONG_TIME_MS}
    with KafkaProducer(config) as producer:
        futures = [
            producer.send(
                topic, b"%d" % n, None if n in keyless else b"k", on_delivery=note_in(deliveries)
            )
            for n in range(4)
        ]
        producer.flush()
    for number, future in enumerate(futures):
        error = future.exception(0)
        assert deliveries[number][1] is error
        if number in keyless:
            assert isinstance(error, InvalidRecordException)
            assert "Compacted topic cannot accept message without key" in str(error)
        else:
            assert type(error) is KafkaException
            assert f"the broker refused {len(keyless)} record(s)" in str(error)
    assert read_with_confluent(kafka.bootstrap, topic) == []


def test_the_size_limit_is_javas_to_the_byte(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    config = {"bootstrap.servers": kafka.bootstrap, "max.request.size": 1000}
    # 61 of the batch, 21 of a record, lengths of 1 (no key), 2 (value) and 1 (headers) bytes.
    fits = 1000 - 61 - 21 - 1 - 2 - 1
    with KafkaProducer(config) as producer:
        assert producer.send(topic, bytes(fits)).result(60).offset == 0
        error = producer.send(topic, bytes(fits + 1)).exception(0)
    assert "the record is up to 1001 bytes when serialized" in str(error)


def test_a_partition_added_since_is_found(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions

    topic = new_topic(1)
    config = {"bootstrap.servers": kafka.bootstrap, "linger.ms": A_LONG_TIME_MS}
    with KafkaProducer(config) as producer:
        # Also for a row that waits among others for which the topic had one partition.
        waiting = producer.send(topic, b"a")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
        future = producer.send(topic, b"b", partition=2)
        producer.flush()
    assert waiting.result(0).offset == 0
    assert future.result(0).partition == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"topic": None}, DataException, "Topic cannot be None"),
        ({"partition": -1}, DataException, "Invalid partition: -1"),
        ({"timestamp_ms": -5}, DataException, "Invalid timestamp: -5"),
        ({"headers": [("a", 1)]}, DataException, "is not a header"),
        ({"value": 12}, SerializationException, "value of class int"),
        ({"key": 1.5}, SerializationException, "key of class float"),
    ],
)
def test_what_is_wrong_with_the_call_is_raised(
    kafka: KafkaCluster,
    new_topic: NewTopic,
    arguments: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    topic = new_topic(1)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer:
        producer.send(topic, b"first")
        with pytest.raises(error, match=message):
            producer.send(**({"topic": topic} | arguments))  # type: ignore[arg-type]
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 1


def test_metadata_that_does_not_come_fails_the_future_after_max_block_ms() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with KafkaProducer({"bootstrap.servers": address, "max.block.ms": 300}) as producer:
            error = producer.send("t", b"a").exception(0)
    assert isinstance(error, TimeoutException)
    assert "no broker has answered within max.block.ms=300; " in str(error)


def test_memory_that_stays_full_fails_the_future_after_max_block_ms(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    config = {"bootstrap.servers": kafka.bootstrap, "max.block.ms": 3000}
    with KafkaProducer(config) as producer:
        producer.partitions_for(topic)
        with producer._state.lock:
            producer._state.accumulator.pool.available_bytes -= 33_554_432
        error = producer.send(topic, b"a").exception(0)
        with producer._state.lock:
            producer._state.accumulator.pool.available_bytes += 33_554_432
        assert isinstance(error, BufferExhaustedException)
        assert producer.send(topic, b"b").result(60).offset == 0


def test_closing_with_0_gives_up_what_is_incomplete_and_tells_everybody(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, deliveries = new_topic(1), list[int]()
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "linger.ms": A_LONG_TIME_MS,
        "delivery.timeout.ms": 2 * A_LONG_TIME_MS,
        "batch.size": 1_000_000,
    }
    producer = KafkaProducer(config)

    def note(number: int) -> OnDelivery:
        return lambda *_: deliveries.append(number)

    # Some are in an open batch, some still rows.
    futures = [producer.send(topic, bytes(1000), on_delivery=note(n)) for n in range(40)]
    assert producer._state.accumulator.has_incomplete
    assert producer._feeder._pending
    producer.close(0)
    for future in futures:
        assert str(future.exception(0)) == "Producer is closed forcefully."
    assert deliveries == [*range(40)]
    assert producer._state.accumulator.pool.available_bytes == 33_554_432
    with pytest.raises(IllegalStateException, match="after producer has been closed"):
        producer.send(topic, b"late")
    assert read_with_confluent(kafka.bootstrap, topic) == []


def test_close_delivers_what_was_sent_and_takes_no_more(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, deliveries = new_topic(1), Delivered()
    producer = KafkaProducer({"bootstrap.servers": kafka.bootstrap, "linger.ms": A_LONG_TIME_MS})
    future = producer.send(topic, b"a", on_delivery=note_in(deliveries))
    producer.close()
    assert deliveries == [(future.result(0), None)]
    with pytest.raises(IllegalStateException, match="after producer has been closed"):
        producer.send(topic, b"late")
    assert values_in_order(read_with_confluent(kafka.bootstrap, topic)) == [b"a"]


def test_who_has_all_the_time_there_is_may_say_so(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic, ever = new_topic(1), float("inf")
    configs = {"bootstrap.servers": kafka.bootstrap, "max.block.ms": 2**63 - 1, "linger.ms": 200}
    producer = KafkaProducer(configs)
    assert producer.send(topic, b"1").result(ever).offset == 0
    assert producer.send(topic, b"2").exception(ever) is None
    producer.send(topic, b"3")
    producer.flush(ever)
    producer.send(topic, b"4")
    producer.close(ever)
    values = [record.value for record in read_with_confluent(kafka.bootstrap, topic)]
    assert values == [b"1", b"2", b"3", b"4"]


def test_inside_a_callback_sending_works_and_waiting_is_refused(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    found: dict[str, object] = {}
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer:

        def refused(call: Callable[[], object]) -> str:
            with pytest.raises(KafkaException) as error:
                call()
            return str(error.value)

        def callback(metadata: RecordMetadata, error: BaseException | None) -> None:
            found["flush"] = refused(producer.flush)
            found["future"] = future = producer.send(topic, b"from the callback")
            found["result"] = refused(future.result)

        producer.send(topic, b"a", on_delivery=callback)
        producer.flush()
    assert "flush() invocation inside a callback is not permitted" in str(found["flush"])
    assert "inside a callback is not permitted" in str(found["result"])
    assert found["future"].result(0).offset == 1  # type: ignore[attr-defined]
    found_values = values_in_order(read_with_confluent(kafka.bootstrap, topic))
    assert found_values == [b"a", b"from the callback"]


def test_flush_returns_after_the_callbacks(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic, order = new_topic(1), list[str]()
    flushed = threading.Event()

    def callback(metadata: RecordMetadata, error: BaseException | None) -> None:
        # Time enough for a flush that does not wait.
        flushed.wait(1)
        order.append("called back")

    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer:
        producer.send(topic, b"a", on_delivery=callback)
        producer.flush()
        order.append("flushed")
        flushed.set()
    assert order == ["called back", "flushed"]


def test_a_callback_may_close_its_producer(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    producer = KafkaProducer({"bootstrap.servers": kafka.bootstrap})
    first = producer.send(topic, b"a", on_delivery=lambda *_: producer.close())
    first.result(60)
    producer._thread._thread.join(60)
    assert not producer._thread._thread.is_alive()
    with pytest.raises(IllegalStateException, match="after producer has been closed"):
        producer.send(topic, b"late")


def test_a_callback_that_raises_does_not_harm_the_next(
    kafka: KafkaCluster, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic, deliveries = new_topic(1), Delivered()

    def fail(metadata: RecordMetadata, error: BaseException | None) -> None:
        raise ZeroDivisionError

    with (
        KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer,
        caplog.at_level(logging.ERROR),
    ):
        producer.send(topic, b"a", on_delivery=fail)
        producer.send(topic, b"b", on_delivery=note_in(deliveries))
    assert [metadata.offset for metadata, _ in deliveries] == [1]
    assert "on_delivery callback" in caplog.text


def test_a_producer_that_nobody_closes_delivers_what_it_was_given(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    config = {"bootstrap.servers": kafka.bootstrap, "linger.ms": A_LONG_TIME_MS}
    producers = [KafkaProducer(config)]
    future = producers[0].send(topic, b"a")
    with pytest.warns(ResourceWarning, match="unclosed KafkaProducer"):
        producers.clear()
    assert future.result(60).offset == 0


def _send_after_fork(
    producer: KafkaProducer,
    topic: str,
    future: Future[RecordMetadata],
    answers: multiprocessing.SimpleQueue[str],
) -> None:
    for call in (lambda: producer.send(topic, b"child"), future.result):
        try:
            call()
        except IllegalStateException as error:
            answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_can_neither_send_nor_wait_for_ever(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    config = {"bootstrap.servers": kafka.bootstrap, "linger.ms": A_LONG_TIME_MS}
    with KafkaProducer(config) as producer:
        future = producer.send(topic, b"parent")
        child = context.Process(target=_send_after_fork, args=(producer, topic, future, answers))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        assert "created before a fork" in answers.get()
        assert "sent before a fork" in answers.get()
    assert values_in_order(read_with_confluent(kafka.bootstrap, topic)) == [b"parent"]

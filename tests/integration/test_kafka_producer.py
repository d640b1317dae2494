"""KafkaProducer by itself: what callers see of waiting, failing, closing and forking."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import uuid
from collections import Counter

import pyarrow as pa
import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import create_topic, read_topics, read_with_confluent
from support.pure.state_waits import wait_until

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import (
    BufferExhaustedException,
    ConfigException,
    DataException,
    IllegalStateException,
    KafkaException,
    RecordTooLargeException,
    TimeoutException,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.produce_requests import ProduceRequests
from spark_kafka_sink.producer.producer_batch import ProducerBatch

pytestmark = pytest.mark.kafka


def values(*texts: str) -> pa.RecordBatch:
    """Make a batch of values."""
    return pa.record_batch({"value": pa.array(texts)})


def test_what_was_appended_is_there_after_flush_with_its_offsets(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap, "linger.ms": "60000"}) as producer:
        assert producer.partitions_for(topic) == 1
        producer.append(topic, values("a", "b"))
        producer.flush()
        producer.append(topic, values("c"))
        producer.flush(30.0)
        delivery = producer._state.take_deliveries()[TopicPartition(topic, 0)]
    assert (delivery.records, delivery.batches) == (3, 2)
    assert (delivery.first_offset, delivery.last_offset) == (0, 2)
    assert [r.value for r in read_with_confluent(kafka.bootstrap, topic)] == [b"a", b"b", b"c"]


def test_lingering_records_go_without_a_flush(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 10}) as producer:
        producer.append(topic, values("a"))
        wait_until(producer, producer._state.take_deliveries)
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 1


def test_topics_made_a_moment_ago_take_every_row_once_and_in_order(kafka: KafkaCluster) -> None:
    """Brokers learn of a new topic one after another: some reject a partition's first batch."""
    config = {"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "batch.size": 1000}
    topics = [f"a-moment-ago-{uuid.uuid4().hex[:8]}" for _ in range(4)]
    numbers = list(range(5000))
    for topic in topics:
        create_topic(kafka.bootstrap, topic, 50)
        with KafkaProducer(config) as producer:
            for first in range(0, 5000, 250):
                texts = [str(n) for n in numbers[first : first + 250]]
                partitions = pa.array([int(t) % 50 for t in texts], pa.int32())
                producer.append(topic, pa.record_batch({"value": texts, "partition": partitions}))
    for topic, records in read_topics(kafka.bootstrap, topics).items():
        found: dict[int, list[int]] = {}
        for record in records:
            found.setdefault(record.partition, []).append(int(record.value or b""))
        assert found == {p: list(range(p, 5000, 50)) for p in range(50)}, topic


def test_leaving_the_with_block_delivers_also_where_an_error_ends_it(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    delivered, with_error = new_topic(1), new_topic(1)
    config = {"bootstrap.servers": kafka.bootstrap, "linger.ms": 60_000}
    with KafkaProducer(config) as producer:
        producer.append(delivered, values("a"))

    def fail() -> None:
        with KafkaProducer(config) as producer:
            producer.append(with_error, values("a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(read_with_confluent(kafka.bootstrap, delivered)) == 1
    assert len(read_with_confluent(kafka.bootstrap, with_error)) == 1


def test_threads_may_append_to_one_producer(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    config = {"bootstrap.servers": kafka.bootstrap, "buffer.memory": 200_000, "batch.size": 5000}
    with KafkaProducer(config) as producer:

        def append(thread: int) -> None:
            for start in range(0, 2000, 100):
                texts = [f"{thread}-{number}" for number in range(start, start + 100)]
                producer.append(topic, values(*texts))

        threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
    found = Counter(r.value for r in read_with_confluent(kafka.bootstrap, topic))
    assert found == Counter(f"{t}-{n}".encode() for t in range(4) for n in range(2000))


def test_a_batch_with_one_row_too_large_is_refused_as_a_whole(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    config = {"bootstrap.servers": kafka.bootstrap, "max.request.size": 1000}
    with KafkaProducer(config) as producer:
        with pytest.raises(
            RecordTooLargeException, match=r"^row 1 of the Arrow batch: the record is up to 20"
        ):
            producer.append(topic, values("ok", "x" * 2000))
        producer.append(topic, values("after"))
    assert [r.value for r in read_with_confluent(kafka.bootstrap, topic)] == [b"after"]
    config = {"bootstrap.servers": kafka.bootstrap, "buffer.memory": 1000}
    with (
        KafkaProducer(config) as producer,
        pytest.raises(RecordTooLargeException, match=r"more than buffer\.memory=1000"),
    ):
        producer.append(topic, values("x" * 2000))


def test_a_delivery_that_fails_is_raised_once_by_flush_or_else_by_close(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1, {"max.message.bytes": "1000"})
    producer = KafkaProducer({"bootstrap.servers": kafka.bootstrap})
    producer.append(topic, values("x" * 3000))
    with pytest.raises(RecordTooLargeException, match="MESSAGE_TOO_LARGE") as failed:
        producer.flush()
    assert (failed.value.topic, failed.value.partition, failed.value.code) == (topic, 0, 10)
    producer.append(topic, values("fits"))
    producer.flush()
    producer.append(topic, values("x" * 3000))
    with pytest.raises(RecordTooLargeException):
        producer.close()
    assert [r.value for r in read_with_confluent(kafka.bootstrap, topic)] == [b"fits"]


def test_memory_that_stays_full_is_an_error_after_max_block_ms() -> None:
    # A broker that takes connections and never answers: metadata has to be there beforehand.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = {"bootstrap.servers": address, "max.block.ms": 300}
        with KafkaProducer(config) as producer:
            with pytest.raises(TimeoutException, match=r"no broker has answered .*=300"):
                producer.append("t", values("a"))
            producer._state.accumulator.pool.available_bytes = 10
            with pytest.raises(
                BufferExhaustedException, match=r" max\.block\.ms=300: buffer\.memory="
            ):
                producer._caller.reserve(PendingAppend(), 100, producer._caller.row_call())


def test_a_closed_producer_takes_nothing_and_closing_again_is_harmless(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    producer = KafkaProducer({"bootstrap.servers": kafka.bootstrap})
    producer.append(topic, values("a"))
    producer.close()
    producer.close()
    for call in (
        lambda: producer.append(topic, values("b")),
        producer.flush,
        lambda: producer.partitions_for(topic),
    ):
        with pytest.raises(IllegalStateException, match="after producer has been closed"):
            call()
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 1


def test_close_wakes_a_caller_that_waits(kafka: KafkaCluster) -> None:
    producer = KafkaProducer({"bootstrap.servers": kafka.bootstrap})
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            producer.partitions_for("never-there")
        except KafkaException as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(producer, lambda: producer._state.metadata.last_request_about("never-there"))
    producer.close(0)
    waiting.join(20)
    assert not waiting.is_alive()
    assert len(failures) == 1


def test_a_bug_in_the_io_thread_ends_every_wait_with_its_cause(
    kafka: KafkaCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("a bug")

    topic = new_topic(1)
    producer = KafkaProducer({"bootstrap.servers": kafka.bootstrap})
    producer.partitions_for(topic)
    monkeypatch.setattr(ProduceRequests, "build", explode)
    producer.append(topic, values("a"))
    with pytest.raises(KafkaException, match="I/O thread failed: RuntimeError: a bug"):
        producer.flush()
    with pytest.raises(KafkaException, match="I/O thread failed"):
        producer.append(topic, values("b"))
    producer.close(0)


def test_a_producer_that_nobody_closes_warns_and_ends_its_thread(kafka: KafkaCluster) -> None:
    config = {"bootstrap.servers": kafka.bootstrap, "client.id": "forgotten"}
    producers = [KafkaProducer(config)]
    thread = producers[0]._thread._thread
    with pytest.warns(ResourceWarning, match="unclosed KafkaProducer forgotten"):
        producers.clear()
    thread.join(60)
    assert not thread.is_alive()


def _use_after_fork(producer: KafkaProducer, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        producer.append("t", values("a"))
    except IllegalStateException as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_producer_does_not_survive_a_fork_and_says_so(kafka: KafkaCluster) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer:
        child = context.Process(target=_use_after_fork, args=(producer, answers))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        assert "created before a fork" in answers.get()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (pa.record_batch({"v": pa.array(["x"])}), "Required attribute 'value' not found"),
        (pa.record_batch({"value": pa.array([1])}), "value attribute unsupported type int64"),
        (
            pa.record_batch({"value": pa.array(["x"]), "partition": pa.array([1])}),
            "partition attribute unsupported type int64",
        ),
    ],
)
def test_wrong_columns_are_refused(
    kafka: KafkaCluster, batch: pa.RecordBatch, message: str
) -> None:
    with (
        KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer,
        pytest.raises(DataException, match=message),
    ):
        producer.append("t", batch)


def test_wrong_configuration_is_refused_before_anything_is_started() -> None:
    before = threading.active_count()
    with pytest.raises(ConfigException, match=r"bootstrap\.servers is not set"):
        KafkaProducer({})
    with pytest.raises(ConfigException, match=r"did you mean linger\.ms"):
        KafkaProducer({"bootstrap.servers": "h:1", "linger": "1"})
    assert threading.active_count() == before


def test_a_compression_that_is_interrupted_leaves_nothing_behind_that_hangs(
    kafka: KafkaCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C or a lack of memory may come while full batches are compressed."""
    topic = new_topic(1)
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "compression.type": "lz4",
        "batch.size": 1000,
        "linger.ms": 60_000,
    }
    pack = ProducerBatch.pack

    def interrupted(batch: ProducerBatch) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        pack(batch)

    with KafkaProducer(config) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(ProducerBatch, "pack", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.append(topic, values(*(str(n) * 50 for n in range(100))))
        producer.flush(30.0)
    found = [record.value for record in read_with_confluent(kafka.bootstrap, topic)]
    assert found == [(str(n) * 50).encode() for n in range(100)]

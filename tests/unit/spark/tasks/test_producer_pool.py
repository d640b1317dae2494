"""What a producer still knows when a task gets it from the pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from support.brokers.mock_cluster import PRODUCE, MockCluster
from support.oracles.readers import read_with_confluent
from support.pure.unreachable import NOBODY, TOPIC, answer

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.spark.tasks import producer_pool
from spark_kafka_sink.spark.tasks.producer_pool import ProducerPool


class FailsToClose:
    """A partitioner whose resources cannot be closed."""

    error: BaseException = OSError("the lookup table was never opened")

    def __call__(self, topic: str, batch: pa.RecordBatch, partitions: int) -> list[int]:
        """Return partition 0 for each row."""
        return [0] * batch.num_rows

    def close(self) -> None:
        """Raise the error."""
        raise self.error


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    """A cluster with a topic t."""
    started = MockCluster()
    started.create_topic("t", 1)
    yield started
    started.stop()


def closed_with_error(cluster: MockCluster) -> ProducerConfig:
    """Return the configuration of a producer whose partitioner cannot be closed."""
    partitioner = f"{__name__}.FailsToClose"
    return producer_config(
        {"bootstrap.servers": cluster.bootstrap, "partitioner.class": partitioner}
    )


def test_an_error_of_the_partitioners_close_does_not_replace_the_error_of_the_task(
    cluster: MockCluster,
) -> None:
    pool = ProducerPool(threading.Timer)
    with pytest.raises(ValueError, match="of the task"), pool.producer(closed_with_error(cluster)):
        raise ValueError("of the task")


@pytest.mark.parametrize("error", [FailsToClose.error, SystemExit(3)], ids=type)
def test_a_delivered_task_does_not_fail_because_its_producer_is_not_closed(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(FailsToClose, "error", error)
    monkeypatch.setattr(producer_pool, "MANY_TOPICS", 0)
    pool = ProducerPool(threading.Timer)
    with pool.producer(closed_with_error(cluster)) as producer:
        producer.append("t", pa.record_batch({"value": [b"v"]}))
    assert not pool._kept
    assert [each.value for each in read_with_confluent(cluster.bootstrap, "t")] == [b"v"]


def test_a_delivered_task_does_not_fail_because_no_thread_can_be_started(
    cluster: MockCluster,
) -> None:
    def no_thread(*_: object) -> threading.Timer:
        raise RuntimeError("can't start new thread")

    pool = ProducerPool(no_thread)
    with pool.producer(producer_config({"bootstrap.servers": cluster.bootstrap})) as producer:
        producer.append("t", pa.record_batch({"value": [b"v"]}))
    assert not pool._kept
    assert not producer._thread.is_alive


def test_the_next_task_requests_the_metadata_of_its_topics_again() -> None:
    pool, config = ProducerPool(threading.Timer), producer_config({"bootstrap.servers": NOBODY})
    with pool.producer(config) as producer:
        metadata = producer._state.metadata
        with producer._state.lock:
            metadata.track(TOPIC, time.monotonic())
            metadata.update(answer([1]), time.monotonic())
        assert metadata.topic(TOPIC) is not None
    with pool.producer(config) as again:
        assert again is producer
        assert metadata.topic(TOPIC) is None
    (kept,) = pool._kept.values()
    kept.timer.cancel()
    producer.close()


def test_the_first_retry_in_each_task_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    cluster = MockCluster()
    try:
        for topic in ("t", "u"):
            cluster.create_topic(topic, 1)
        pool = ProducerPool(threading.Timer)
        config = producer_config({"bootstrap.servers": cluster.bootstrap, "linger.ms": "0"})
        for topic in ("t", "u"):
            with pool.producer(config) as producer:
                cluster.answer_next(PRODUCE, [codes.NOT_ENOUGH_REPLICAS] * 2)
                producer.append(topic, pa.record_batch({"value": [b"v"]}))
                producer.flush(20)
        (kept,) = pool._kept.values()
        kept.timer.cancel()
        producer.close()
    finally:
        cluster.stop()
    for topic in ("t", "u"):
        assert caplog.text.count(f"{topic}-0: 1 record(s) are sent again after NOT_ENOUGH") == 1

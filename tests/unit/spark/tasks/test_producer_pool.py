"""What a producer still knows when a task gets it from the pool."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest
from support.brokers.mock_cluster import PRODUCE, MockCluster
from support.pure.unreachable import NOBODY, TOPIC, answer

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.spark.tasks.producer_pool import ProducerPool


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

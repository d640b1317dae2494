"""What a producer still knows when a task gets it from the pool; there is no broker."""

from __future__ import annotations

import threading
import time

from support.pure.unreachable import NOBODY, TOPIC, answer

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

"""Real producers that know their topic and have no broker, so that appended rows stay in them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client.base_producer import BaseProducer
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.task_producer import TaskProducer
from support.pure.pure_producer import TOPIC, PureProducer

_NOBODY = "127.0.0.1:1"
_A_LONG_TIME_MS = 3_600_000


@contextmanager
def idle_producer(partitions: int, **options: object) -> Iterator[KafkaProducer]:
    """Yield a KafkaProducer; options are Java's, with _ instead of dots."""
    producer = KafkaProducer(_configs(options))
    with _knowing_its_topic(producer, partitions):
        yield producer


@contextmanager
def idle_task_producer(partitions: int, **options: object) -> Iterator[TaskProducer]:
    """Yield a TaskProducer; options are Java's, with _ instead of dots."""
    producer = TaskProducer(producer_config(_configs(options)))
    with _knowing_its_topic(producer, partitions):
        yield producer


def _configs(options: dict[str, object]) -> dict[str, object]:
    configs = {name.replace("_", "."): value for name, value in options.items()}
    known = {"bootstrap.servers": _NOBODY, "reconnect.backoff.ms": _A_LONG_TIME_MS}
    known["reconnect.backoff.max.ms"] = _A_LONG_TIME_MS
    return {**known, "linger.ms": _A_LONG_TIME_MS // 100, **configs}


@contextmanager
def _knowing_its_topic(producer: BaseProducer, partitions: int) -> Iterator[None]:
    try:
        with producer._state.lock:
            now = time.monotonic()
            producer._state.metadata.track(TOPIC, now)
            producer._state.metadata.update(PureProducer([1] * partitions).metadata_response(), now)
        yield
    finally:
        producer.close(0)

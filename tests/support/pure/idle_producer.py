"""Real producers that know their topic and have no broker, so that appended rows stay in them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.task_producer import TaskProducer
from support.pure.pure_producer import TOPIC, PureProducer

_NOBODY = "127.0.0.1:1"
_A_LONG_TIME_MS = 3_600_000
_Producer = TypeVar("_Producer", KafkaProducer, TaskProducer)


@contextmanager
def idle_producer(partitions: int, **options: object) -> Iterator[KafkaProducer]:
    """Yield such a producer; options are Java's, with _ instead of dots."""
    with _knowing_its_topic(KafkaProducer(_configs(options)), partitions) as producer:
        yield producer


@contextmanager
def idle_task_producer(partitions: int, **options: object) -> Iterator[TaskProducer]:
    """Yield such a producer of a Spark task; options are Java's, with _ instead of dots."""
    made = TaskProducer(producer_config(_configs(options)))
    with _knowing_its_topic(made, partitions) as producer:
        yield producer


def _configs(options: dict[str, object]) -> dict[str, object]:
    known: dict[str, object] = {
        "bootstrap.servers": _NOBODY,
        "reconnect.backoff.ms": _A_LONG_TIME_MS,
        "reconnect.backoff.max.ms": _A_LONG_TIME_MS,
        "linger.ms": _A_LONG_TIME_MS // 100,
    }
    return known | {name.replace("_", "."): value for name, value in options.items()}


@contextmanager
def _knowing_its_topic(producer: _Producer, partitions: int) -> Iterator[_Producer]:
    try:
        with producer._state.lock:
            now = time.monotonic()
            producer._state.metadata.track(TOPIC, now)
            producer._state.metadata.update(PureProducer([1] * partitions).metadata_response(), now)
        yield producer
    finally:
        producer.close(0)

"""A real KafkaProducer that knows its topic and has no broker, so that appended rows stay in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from spark_kafka_sink import KafkaProducer
from support.pure.pure_producer import TOPIC, PureProducer

_NOBODY = "127.0.0.1:1"
_A_LONG_TIME_MS = 3_600_000


@contextmanager
def idle_producer(partitions: int, **options: object) -> Iterator[KafkaProducer]:
    """Yield such a producer; options are Java's, with _ instead of dots."""
    configs = {name.replace("_", "."): value for name, value in options.items()}
    known = {"bootstrap.servers": _NOBODY, "reconnect.backoff.ms": _A_LONG_TIME_MS}
    known["reconnect.backoff.max.ms"] = _A_LONG_TIME_MS
    producer = KafkaProducer({**known, "linger.ms": _A_LONG_TIME_MS // 100, **configs})
    try:
        with producer._state.lock:
            now = time.monotonic()
            producer._state.metadata.track(TOPIC, now)
            producer._state.metadata.update(PureProducer([1] * partitions).metadata_response(), now)
        yield producer
    finally:
        producer.close(0)

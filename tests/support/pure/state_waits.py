"""Waiting for what a producer's state comes to, as its callers do."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client.deadlines import wait_for_signal

# Some of what tests look at changes without a notification.
_LOOK_S = 0.05


def wait_until(producer: KafkaProducer, what: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait until something is so; it is looked at with the producer's lock."""
    state, deadline = producer._state, time.monotonic() + limit_s
    while True:
        with state.lock:
            if what():
                return
            signal = state._waiters.add()
        assert time.monotonic() < deadline, "it does not come"
        wait_for_signal(signal, time.monotonic() + _LOOK_S)
        with state.lock:
            state._waiters.discard(signal)

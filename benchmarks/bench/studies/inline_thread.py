"""The I/O thread's loop without its thread: the caller runs it between its calls.

An experiment of `variants`: batches wait here while the caller has no rows, and with two calling
threads the loop would run twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.producer.sender import SenderPoll

_LONGEST_TURN_S: Final = 0.1


class _NoThread(threading.Thread):
    def start(self) -> None:
        """Leave the loop to the caller."""


class InlineThread(ProducerThread):
    """The loop, one `turn` at a time; whoever waits takes turns of it (`wait_for_signal`)."""

    # One producer at a time.
    current: InlineThread

    def __init__(self, state: ProducerState, client: NetworkClient, client_id: str) -> None:
        super().__init__(state, client, client_id)
        self._events: list[Any] = []
        self._work = SenderPoll()
        InlineThread.current = self

    def _make_thread(self, run: Callable[[], None]) -> threading.Thread:
        return _NoThread(target=run)

    def turn(self, longest_s: float) -> None:
        """Do what one turn of the loop does, and wait no longer than so."""
        had_news = bool(self._events)
        polled = self._state.poll(self._work, self._events, has_rows=True)
        assert polled is not None
        self._events = []
        self._work, now = polled
        self._act(self._work, now)
        self._state.make_calls()
        # Who called may wait for just that.
        wait = 0.0 if had_news else min(longest_s, self._work.next_poll_at - self._state.now())
        self._events = self._client.poll(max(0.0, wait))
        self._state.awake()
        self._observe(self._events)

    def stop(self, timeout_s: float | None = None, error: KafkaException | None = None) -> bool:
        """Close the connections; `close` has flushed before."""
        self._client.close()
        return True


def wait_for_signal(signal: threading.Lock, deadline: float | None) -> bool:
    """Take one turn of the loop, in place of a wait; see `client.deadlines`."""
    left_s = _LONGEST_TURN_S if deadline is None else deadline - time.monotonic()
    InlineThread.current.turn(min(max(left_s, 0.0), _LONGEST_TURN_S))
    return not signal.locked() or left_s > 0

"""The I/O thread's loop without its thread: run by who calls the producer, in between.

An experiment of `variants`: batches wait for their turn here while the caller has no rows, and
whoever calls from two threads would be in the loop twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import Node
from spark_kafka_sink.producer.sender import SenderPoll

_LONGEST_TURN_S: Final = 0.1


class _NoThread(threading.Thread):
    def start(self) -> None:
        """Leave the loop to the caller."""


class _TurningCondition:
    """Whoever waits takes turns of the loop."""

    def __init__(self, thread: InlineThread) -> None:
        self._thread = thread

    def wait(self, timeout: float | None = None) -> bool:
        self._thread.lock.release()
        try:
            self._thread.turn(_LONGEST_TURN_S if timeout is None else min(timeout, _LONGEST_TURN_S))
        finally:
            self._thread.lock.acquire()
        return True

    def notify_all(self) -> None:
        """Nobody else waits."""


class InlineThread(ProducerThread):
    """The loop, one `turn` at a time."""

    def __init__(
        self,
        config: ProducerConfig,
        client_id: str,
        brokers: Sequence[Node] = (),
        *,
        allow_auto_create_topics: bool = True,
    ) -> None:
        super().__init__(
            config, client_id, brokers, allow_auto_create_topics=allow_auto_create_topics
        )
        self.changed: Any = _TurningCondition(self)
        self._events: list[Any] = []
        self._work = SenderPoll()

    def _make_thread(self, run: Callable[[], None]) -> threading.Thread:
        return _NoThread(target=run)

    def turn(self, longest_s: float) -> None:
        """Do what one turn of the loop does, and wait no longer than so."""
        with self.lock:
            now = self._clock()
            has_news = self._take_in(self._work, self._events, now)
            self._events, self._work = [], self._sender.poll(now)
            has_news = self._collect() or has_news or self._work.has_news
        self._act(self._work, now)
        self._make_calls()
        # Who called may wait for just that.
        wait = 0.0 if has_news else min(longest_s, self._work.next_poll_at - self._clock())
        self._events = self._client.poll(max(0.0, wait))
        self._observe(self._events)

    def stop(self, timeout_s: float | None = None, error: KafkaException | None = None) -> bool:
        """Close the connections; `close` has flushed before."""
        self._client.close()
        return True

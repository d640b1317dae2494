"""ProducerPool: keeps producers of finished tasks for the next tasks of the worker process.

Spark's worker processes run one task after the other. If all rows of a task are acknowledged, its
producer stays in the pool, with its connections, metadata and producer id. The next task with an
equal configuration uses it. The configuration includes the credentials, and the pool's key includes
the principal of the Kerberos ticket cache. So a task never writes with the credentials of a
different task.

A producer is kept only if it has no unacknowledged rows and no error. Each task refreshes the topic
metadata over the open connection. The producer keeps metrics and sequence numbers for each topic
that it has written to, and a stream may write to new topics for weeks. So a producer that has
written to very many topics is closed. A producer is also closed if no task uses it for as long as
Spark keeps an idle worker. A forked child starts with an empty pool, because the producers belong
to its parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import Node
from spark_kafka_sink.task_producer import TaskProducer, login_identity

# Spark's timeout for an idle worker (PythonWorkerFactory.IDLE_WORKER_TIMEOUT_NS).
IDLE_S: Final = 60.0
# The key under which tasks share a producer: the configuration, and the principal of the client.
_Key: TypeAlias = tuple[ProducerConfig, str]
# A producer keeps about 5 KB per topic. Tasks that write to more topics than this take far longer
# than connecting, so they do not need a kept producer.
MANY_TOPICS: Final = 1000


class Timer(Protocol):
    """Calls a function once, after a delay, in its own thread."""

    def cancel(self) -> None:
        """Cancel the call, if it has not begun yet."""


@dataclass(eq=False, slots=True)
class _Kept:
    producer: TaskProducer
    timer: Timer


class ProducerPool:
    """The producers of finished tasks, by configuration.

    after: calls a function after a number of seconds.
    """

    def __init__(self, after: Callable[[float, Callable[[], None]], Timer]) -> None:
        self._after = after
        self._lock = threading.Lock()
        self._kept: dict[_Key, _Kept] = {}

    @contextmanager
    def producer(
        self, config: ProducerConfig, brokers: Iterable[Node] = ()
    ) -> Iterator[TaskProducer]:
        """Provide a producer for a task, and flush it at the end of the task.

        brokers: the brokers that the driver found, which are used if a new producer is created. If
        the task raises an exception, its unacknowledged rows are discarded.
        """
        key = config, login_identity(config)
        producer = self._take(key) or TaskProducer(
            config, brokers=brokers, allow_auto_create_topics=False, identity=key[1]
        )
        try:
            yield producer
            producer.flush()
        except BaseException:
            _discard(producer)
            raise
        self._keep(key, producer)

    def forget(self) -> None:
        """Empty the pool in a forked child, because producers and lock belong to the parent."""
        self._lock = threading.Lock()
        self._kept = {}

    def _take(self, key: _Key) -> TaskProducer | None:
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is None:
            return None
        kept.timer.cancel()
        try:
            kept.producer.forget_topics()
        except KafkaException:
            _discard(kept.producer)
            return None
        return kept.producer

    def _keep(self, key: _Key, producer: TaskProducer) -> None:
        """Keep the producer of a task whose rows are all acknowledged, or close it.

        No error may fail the task, because Spark would run it again and write its rows twice.
        """
        producer.take_deliveries()
        may_stay = producer.topics_written <= MANY_TOPICS
        # RuntimeError: no thread can be started for the timer.
        with self._lock, suppress(RuntimeError):
            if may_stay and key not in self._kept:
                timer = self._after(IDLE_S, lambda: self._close_idle(key))
                self._kept[key] = _Kept(producer, timer)
                return
        _discard(producer)

    def _close_idle(self, key: _Key) -> None:
        """Close the idle producer of a key.

        This may close a newer producer, if the timer of an earlier one was cancelled too late.
        """
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is not None:
            _discard(kept.producer)


def _discard(producer: TaskProducer) -> None:
    """Close a producer that no task needs. If the user's partitioner cannot be closed, go on.

    The result of the task does not depend on it. `close` logs an Exception.
    """
    with suppress(Exception, SystemExit):
        producer.close(0)


def _after(seconds: float, call: Callable[[], None]) -> Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


POOL: Final = ProducerPool(_after)
os.register_at_fork(after_in_child=POOL.forget)

"""ProducerPool: producers of finished tasks, for the next tasks of the worker process.

Spark's worker processes run one task after the other. A task whose rows are all acknowledged leaves
its producer here, with its connections, its metadata of brokers and its producer id. The next task
with an equal configuration takes it. Credentials are part of the configuration, and so is the owner
of a Kerberos ticket cache, so a task never writes with the credentials of another.

A producer is kept only if it holds no rows and has no error. Each task refreshes the metadata of
topics, over the open connection. The producer keeps metrics and sequences of each topic that it has
written to, so one that has written to very many topics is closed: a stream may name new topics for
weeks. A producer is also closed after an error, or if no task takes it for as long as Spark keeps
an idle worker. A forked child starts with an empty pool: the producers are its parent's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import Node
from spark_kafka_sink.task_producer import TaskProducer, login_identity

# Spark's limit for an idle worker (PythonWorkerFactory.IDLE_WORKER_TIMEOUT_NS).
IDLE_S: Final = 60.0
# What is equal for two tasks that may share a producer: the configuration, and who logs in by it.
_Key: TypeAlias = tuple[ProducerConfig, str]
# Some 5 KB each. A task that writes to more takes far longer than connecting.
MANY_TOPICS: Final = 1000


class Timer(Protocol):
    """Calls a function once, after some time, in its own thread."""

    def cancel(self) -> None:
        """Do not call the function, unless it was called already."""


@dataclass(eq=False, slots=True)
class _Kept:
    producer: TaskProducer
    timer: Timer


class ProducerPool:
    """The producers of finished tasks, by their configurations.

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
        """Lend a producer to a task and flush it at the end of the task.

        brokers: of the cluster, as the driver knows them, for a new producer. After an error of the
        task, its unacknowledged rows are discarded.
        """
        key = config, login_identity(config)
        producer = self._take(key) or TaskProducer(
            config, brokers=brokers, allow_auto_create_topics=False, identity=key[1]
        )
        try:
            yield producer
            producer.flush()
        except BaseException:
            producer.close(0)
            raise
        self._keep(key, producer)

    def forget(self) -> None:
        """Empty the pool: after a fork, its producers and its lock are the parent's."""
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
            kept.producer.close(0)
            return None
        return kept.producer

    def _keep(self, key: _Key, producer: TaskProducer) -> None:
        producer.take_deliveries()
        may_stay = producer.topics_written <= MANY_TOPICS
        with self._lock:
            if may_stay and key not in self._kept:
                timer = self._after(IDLE_S, lambda: self._close_idle(key))
                self._kept[key] = _Kept(producer, timer)
                return
        producer.close()

    def _close_idle(self, key: _Key) -> None:
        """Close an idle producer; a timer cancelled too late may close a newer one early."""
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is not None:
            kept.producer.close(0)


def _after(seconds: float, call: Callable[[], None]) -> Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


POOL: Final = ProducerPool(_after)
os.register_at_fork(after_in_child=POOL.forget)

"""What a public call may do, and what it waits for: metadata, memory, the end of deliveries.

Owns max.block.ms, of which all waits of one call have one deadline between them; the turn of those
who wait for memory (first come, first served); and the sentences of waits that were too long. Who
waits holds no lock but the producer's, which the wait itself lets go of.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from spark_kafka_sink.client.deadlines import wait_until
from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    NO_BROKER,
    NO_TOPIC,
    BufferExhaustedException,
    IllegalStateException,
    KafkaException,
    TimeoutException,
)
from spark_kafka_sink.producer.buffer_pool import Reservation
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.producer_batch import ProducerBatch, unfinished

_T = TypeVar("_T")
# Takes the nanoseconds that one wait took, and the time.
_Meter = Callable[[float, float], None]


class CallerWaits:
    """The waits of one producer. A `check` is called under the lock and raises what ends a wait."""

    def __init__(self, thread: ProducerThread, config: ProducerConfig) -> None:
        self._thread = thread
        self._config = config

    def deadline(self) -> float:
        """Give until when a call may wait; a callback may not, since nobody would wake it."""
        if self._thread.is_current:
            return time.monotonic()
        return time.monotonic() + self._config.max_block_ms / 1000

    def _wait(
        self,
        find: Callable[[], _T | None],
        deadline: float | None,
        late: Callable[[], KafkaException],
        meter: _Meter | None = None,
    ) -> _T:
        """Wait until there is something to find; the caller holds the lock."""
        came = True
        while True:
            # Also when the time is over: between that and having the lock again it may have come.
            found = find()
            if found is not None:
                return found
            if not came:
                raise late()
            started = time.monotonic()
            try:
                came = wait_until(deadline, self._thread.changed, self._thread.lock)
            finally:
                now = time.monotonic()
                if meter is not None:
                    meter((now - started) * 1e9, now)

    # -- memory -----------------------------------------------------------------------------------

    def reserve(
        self,
        reservation: Reservation,
        size_bytes: int,
        deadline: float,
        check: Callable[[], None],
    ) -> None:
        """Take bytes of buffer.memory. Raises BufferExhaustedException.

        Who calls gives them back, also where this raises: it may have been interrupted.
        """
        pool = self._thread.accumulator.pool

        def take() -> bool | None:
            room_bytes = pool.room_bytes
            if pool.reserve(reservation, size_bytes):
                return True
            if pool.room_bytes > room_bytes:
                self._thread.wake()
            return None

        def check_and_take() -> bool | None:
            check()
            return take()

        with self._thread.lock:
            if check_and_take():
                return
            try:
                pool.wait(reservation)
                self._thread.wake()
                meter = self._thread.metrics.waited_for_memory
                self._wait(check_and_take, deadline, lambda: self._no_room(size_bytes), meter)
                self._stop_waiting(reservation)
            except BaseException:
                self._stop_waiting(reservation)
                raise

    def _stop_waiting(self, reservation: Reservation) -> None:
        """Wait for memory no longer; the caller holds the lock."""
        self._thread.accumulator.pool.stop_waiting(reservation)
        self._thread.changed.notify_all()

    def _no_room(self, size_bytes: int) -> BufferExhaustedException:
        memory = self._config.setting("buffer.memory", self._config.buffer_memory)
        return BufferExhaustedException(
            f"no room for {size_bytes} bytes within {self._max_block()}: {memory} is full of "
            f"records that no broker has acknowledged yet{self._network_trouble()}"
        )

    # -- metadata ---------------------------------------------------------------------------------

    def topic(
        self,
        name: str,
        deadline: float,
        check: Callable[[], None],
        *,
        partitions: int = 0,
        asked_after: int = 0,
    ) -> TopicMetadata:
        """Give a topic's metadata: with so many partitions, or told for a later request.

        asked_after: the number of the last request that is not late enough.
        Raises TimeoutException, or what a broker says against the topic.
        """
        metadata = self._thread.metadata

        def known() -> TopicMetadata | None:
            # An error that another caller was told of is asked about anew for this one.
            metadata.track(name, time.monotonic())
            self._thread.wake()
            check()
            topic = metadata.topic(name)
            if topic is not None and (
                len(topic.leaders) >= partitions or metadata.told_for(name) > asked_after
            ):
                return topic
            error = metadata.take_error(name)
            if error is not None:
                raise error
            return None

        with self._thread.lock:
            return self._wait(
                known,
                deadline,
                lambda: self._topic_timeout(name, metadata.topic_error(name)),
                lambda time_ns, _: self._thread.metrics.record_time("metadata-wait", time_ns),
            )

    def topics(
        self, names: Sequence[str], deadline: float, check: Callable[[], None]
    ) -> list[TopicMetadata]:
        """Give the metadata of several topics; those that are new are asked for in one request."""
        with self._thread.lock:
            now = time.monotonic()
            for name in names:
                self._thread.metadata.track(name, now)
        return [self.topic(name, deadline, check) for name in names]

    def grown_topic(
        self, name: str, partitions: int, deadline: float, check: Callable[[], None]
    ) -> TopicMetadata:
        """Give a topic's metadata once it has so many partitions, or brokers say it has fewer.

        What they say to a question from before does not count, and neither does what they say of
        other topics.
        """
        return self.grown_topics({name: partitions}, deadline, check)[0]

    def grown_topics(
        self, partitions: Mapping[str, int], deadline: float, check: Callable[[], None]
    ) -> list[TopicMetadata]:
        """Give the metadata of several topics as `grown_topic` does, asked for in one request."""
        with self._thread.lock:
            last = self._thread.metadata.request_update()
        return [
            self.topic(name, deadline, check, partitions=count, asked_after=last)
            for name, count in partitions.items()
        ]

    def topic_with(
        self, partitions: int, name: str, deadline: float, check: Callable[[], None]
    ) -> TopicMetadata:
        """Give the metadata of a topic once it is known to have so many partitions."""
        topic = self.topic(name, deadline, check)
        while len(topic.leaders) < partitions:
            try:
                topic = self.grown_topic(name, partitions, deadline, check)
            except TimeoutException as error:
                message = (
                    f"Partition {partitions - 1} of topic {name} with partition count "
                    f"{len(topic.leaders)} is not present in metadata after {self._max_block()}"
                )
                raise TimeoutException(
                    message, topic=name, partition=partitions - 1, api="Metadata"
                ) from error
        return topic

    def _topic_timeout(self, name: str, error: KafkaException | None) -> KafkaException:
        limit, trouble = self._max_block(), self._network_trouble()
        if error is None and self._config.max_block_ms:
            servers = self._config.setting("bootstrap.servers", self._config.bootstrap_servers)
            return NO_BROKER.error(
                topic=name, api="Metadata", limit=limit, servers=servers, trouble=trouble
            )
        found = (
            str(error)
            if error is not None
            else (
                "it has been asked for, and nothing waits for the answer; call again later, or "
                "allow a wait"
            )
        )
        timeout = NO_TOPIC.error(topic=name, api="Metadata", limit=limit, found=found + trouble)
        timeout.__cause__ = error
        return timeout

    def _max_block(self) -> str:
        return self._config.setting("max.block.ms", self._config.max_block_ms)

    def _network_trouble(self) -> str:
        trouble = self._thread.network_trouble
        return f" ({trouble})" if trouble else ""

    # -- deliveries -------------------------------------------------------------------------------

    def flush(self, timeout: float | None, since: float) -> None:
        """Wait until what is in batches now has ended, and its callbacks were run.

        timeout: seconds, None for as long as it takes; since: when they began. Raises
        TimeoutException.
        """
        accumulator, thread = self._thread.accumulator, self._thread
        started = time.monotonic()
        deadline = None if timeout is None else since + timeout
        waiting_for: list[ProducerBatch] = []

        def all_ended() -> bool | None:
            waiting_for[:] = unfinished(waiting_for)
            return None if waiting_for else True

        def too_late(what: str) -> TimeoutException:
            return TimeoutException(f"{what} in {round(timeout or 0, 3)} s")

        with thread.lock:
            accumulator.begin_flush()
            try:
                waiting_for += accumulator.incomplete
                thread.wake()
                self._wait(
                    all_ended,
                    deadline,
                    lambda: too_late(f"{len(waiting_for)} batch(es) not acknowledged"),
                )
                calls = thread.calls_due
                self._wait(
                    lambda: True if thread.calls_made >= calls else None,
                    deadline,
                    lambda: too_late("callbacks have not ended"),
                )
            finally:
                accumulator.end_flush()
                thread.metrics.record_time("flush", (time.monotonic() - started) * 1e9)


class CallerChecks:
    """The checks of one producer: `before_…` take the lock, `raise_if_…` want it held."""

    def __init__(self, thread: ProducerThread) -> None:
        self._thread = thread
        self._pid = os.getpid()
        self.is_closed = False

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked process, which has no I/O thread."""
        return os.getpid() != self._pid

    def before_call(self) -> None:
        """Raise what stands against a call; the error of a delivery that failed is told so."""
        self.check_open()
        with self._thread.lock:
            self.raise_if_unusable()

    def before_append(self) -> None:
        """Raise what stands against appending columns."""
        self.check_open()
        with self._thread.lock:
            self.raise_if_not_appendable()

    def before_send(self) -> None:
        """Raise what stands against sending rows, whose failures their futures tell of."""
        self.check_open()
        self.check_transaction()

    def check_open(self) -> None:
        """Raise where the producer is another process's, closed, or over."""
        self.check_process()
        self.raise_if_closed()

    def check_process(self) -> None:
        """Raise in a forked child: nobody there sends anything, or gives back a lock."""
        if self.is_forked:
            message = (
                "this KafkaProducer was created before a fork: create one in the process that "
                "uses it"
            )
            raise IllegalStateException(message)

    def check_not_in_callback(self, call: str) -> None:
        """Raise in the I/O thread, which cannot wait for itself; call: a method's name."""
        if self._thread.is_current:
            message = (
                f"KafkaProducer.{call}() invocation inside a callback is not permitted because it "
                "would never end: callbacks run in the thread that delivers records"
            )
            raise KafkaException(message)

    def raise_if_not_appendable(self) -> None:
        """Raise what stands against putting columns into batches."""
        self.raise_if_unusable()
        self.check_transaction()

    def raise_if_unusable(self) -> None:
        """Raise what stands against going on."""
        error = None if self.is_closed else self._thread.deliveries.take_error()
        if error is not None:
            raise error
        self.raise_if_closed()

    def raise_if_closed(self) -> None:
        """Raise where the producer takes nothing any more."""
        if self.is_closed:
            message = "Cannot perform operation after producer has been closed"
            raise IllegalStateException(message)
        if self._thread.fatal_error is not None:
            raise self._thread.fatal_error

    def check_transaction(self) -> None:
        """Raise where records cannot be part of a transaction now; with the lock or without."""
        if self._thread.transactions is not None:
            self._thread.transactions.check_in_transaction("append")

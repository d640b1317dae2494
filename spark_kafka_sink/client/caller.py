"""Caller: which public calls are allowed, how long they may wait, and the errors after a timeout.

This module applies max.block.ms as one deadline for all waits of a call, and makes the error
messages of timeouts. It rejects a call if the producer is closed, has failed or belongs to a
different process. It also rejects a call in the I/O thread that would wait for this thread, and an
append without an open transaction if the producer is transactional. The waits themselves are in
`ProducerState`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from spark_kafka_sink.client.deadlines import Call
from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    NO_TOPIC,
    NO_TOPIC_YET,
    NOT_AWAITED,
    NOT_AWAITED_IN_CALLBACK,
    BufferExhaustedException,
    IllegalStateException,
    KafkaException,
    Option,
    TimeoutException,
)
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.metadata import ClusterMetadata, TopicMetadata
from spark_kafka_sink.producer.partitioner import TopicLoad
from spark_kafka_sink.producer.producer_batch import ProducerBatch, unfinished

_NO_WAIT: Final = "; a call inside a callback does not wait"


class Caller:
    """The checks and waits of the public methods of a producer.

    Public methods first call a `before_…` method. The `raise_if_…` methods may be called with or
    without the producer's lock, so that waits can call them.
    """

    def __init__(
        self, state: ProducerState, thread: ProducerThread, config: ProducerConfig
    ) -> None:
        self._state = state
        self._thread = thread
        self._config = config
        self._pid = os.getpid()
        self.is_closed = False
        # The error of rows that are not delivered because the producer is closed.
        self.closing_error: KafkaException | None = None
        self._error_of_close: KafkaException | None = None

    # -- what a call may do -----------------------------------------------------------------------

    def column_call(self) -> Call:
        """Return a `Call` (a deadline and a check) for columns.

        Its check raises the error of an earlier failed delivery.
        """
        return self._call(self.raise_if_unusable)

    def row_call(self) -> Call:
        """Return a `Call` (a deadline and a check) for rows of `send`.

        Its check raises no delivery errors, because the futures of the rows raise them.
        """
        return self._call(self.raise_if_over)

    def _call(self, check: Callable[[], None]) -> Call:
        """Return a `Call`. In a callback, it must not wait: that would block the I/O thread."""
        max_block_s = 0 if self._thread.is_current else self._config.max_block_ms / 1000
        return Call(time.monotonic() + max_block_s, check, max_block_s)

    @property
    def is_forked(self) -> bool:
        """Whether this object is a copy in a forked process, which has no I/O thread."""
        return os.getpid() != self._pid

    def before_call(self) -> None:
        """Raise if the producer cannot be used, or if an earlier delivery failed."""
        self.check_open()
        self.raise_if_unusable()

    def before_append(self) -> None:
        """Raise if columns cannot be appended."""
        self.check_open()
        self.raise_if_not_appendable()

    def before_send(self) -> None:
        """Raise if rows cannot be sent.

        Delivery errors of earlier rows are not raised here, because their futures raise them.
        """
        self.check_open()
        self.check_transaction()

    def after_flush(self) -> None:
        """Raise a delivery error, or the error of a producer that has failed.

        It is no error if another thread has closed the producer: every row has a result then, too.
        """
        with self._state.lock:  # `close` may take the error that this call has waited for
            error = self._state.take_delivery_error() or self._error_of_close
        if error is not None:
            raise error
        if self._state.fatal_error is not self.closing_error:
            self._state.raise_if_fatal()

    def take_error_of_close(self) -> KafkaException | None:
        """Return the delivery error that `close` raises.

        If another thread's `flush` ends later, it raises the same error.
        """
        with self._state.lock:
            self._error_of_close = self._state.take_delivery_error()
        return self._error_of_close

    def before_flush(self) -> None:
        """Raise if the producer belongs to another process or is closed.

        If the producer has failed, `flush` raises its error, but only after the wait.
        """
        self.check_process()
        self.raise_if_closed()

    def check_open(self) -> None:
        """Raise if the producer belongs to another process, is closed, or has failed."""
        self.check_process()
        self.raise_if_over()

    def check_process(self) -> None:
        """Raise in a forked child: no I/O thread runs there, and locks may stay held forever."""
        if self.is_forked:
            message = (
                "this KafkaProducer was created before a fork: create one in the process that "
                "uses it"
            )
            raise IllegalStateException(message)

    def check_not_in_callback(self, method: str) -> None:
        """Raise if the calling thread is the I/O thread, which cannot wait for itself."""
        if self._thread.is_current:
            message = (
                f"KafkaProducer.{method}() invocation inside a callback is not permitted because "
                "it would never end: callbacks run in the thread that delivers records"
            )
            raise KafkaException(message)

    def raise_if_not_appendable(self) -> None:
        """Raise if columns cannot be added to batches now."""
        self.raise_if_unusable()
        self.check_transaction()

    def raise_if_unusable(self) -> None:
        """Raise if the producer accepts no more records, or if an earlier delivery failed."""
        error = None if self.is_closed else self._state.take_delivery_error()
        if error is not None:
            raise error
        self.raise_if_over()

    def raise_if_over(self) -> None:
        """Raise if the producer accepts no more records, because it is closed or has failed."""
        self.raise_if_closed()
        self._state.raise_if_fatal()

    def raise_if_closed(self) -> None:
        """Raise if the producer is closed."""
        if self.is_closed:
            message = "Cannot perform operation after producer has been closed"
            raise IllegalStateException(message)

    def check_transaction(self) -> None:
        """Raise if the producer is transactional and no transaction is open.

        May be called with or without the lock.
        """
        if self._state.transactions is not None:
            self._state.transactions.check_in_transaction("append")

    # -- memory -----------------------------------------------------------------------------------

    def reserve(
        self,
        pending: PendingAppend,
        size_bytes: int,
        call: Call,
        topics: Sequence[str] = (),
        to_spread: Mapping[str, TopicMetadata] | None = None,
    ) -> dict[str, TopicLoad]:
        """Reserve bytes of buffer.memory; see `ProducerState.reserve`.

        Raise BufferExhaustedException if the memory is not free in time.
        """
        return self._state.reserve(
            pending, size_bytes, call, lambda: self._no_room(size_bytes), topics, to_spread or {}
        )

    def _no_room(self, size_bytes: int) -> BufferExhaustedException:
        memory = str(Option("buffer.memory", self._config.buffer_memory))
        in_callback = self._thread.is_current
        within = "" if in_callback else f" within {self._max_block()}"
        return BufferExhaustedException.after(
            self._state.last_error(),
            f"no room for {size_bytes} bytes{within}: {memory} is full of records that no broker "
            f"has acknowledged yet{_NO_WAIT if in_callback else ''}",
            trouble=self._network_trouble(),
        )

    # -- metadata ---------------------------------------------------------------------------------

    def topics(self, names: Sequence[str], call: Call) -> list[TopicMetadata]:
        """Return the metadata of topics; do not wait if all of it is known."""
        known = [topic for topic in map(self._state.metadata.topic, names) if topic is not None]
        if len(known) == len(names):
            return known
        return self.wait_for(dict.fromkeys(names, 0), call)

    def wait_for(
        self, partitions: Mapping[str, int], call: Call, *, must_grow: bool = False
    ) -> list[TopicMetadata]:
        """Wait until the topics are known; return their metadata in the order of `partitions`.

        partitions: the expected number of partitions of each topic. If fewer partitions of a topic
        are known, the metadata is requested once more, and the new number is accepted even if it is
        still too small. A call that must not wait accepts the known number at once. must_grow:
        request the metadata again and again until the topic has the expected number. Raise
        TimeoutException after the deadline, or a broker's error about a topic.
        """
        may_wait = self._config.max_block_ms > 0 and not self._thread.is_current
        must_ask = must_grow or may_wait
        wait = _TopicWait(self._state.metadata, partitions, must_ask=must_ask, must_grow=must_grow)

        def late() -> KafkaException:
            topic = self._state.metadata.topic(wait.missing)
            if topic is None:
                return self._no_topic(wait.missing)
            return self._no_partition(wait.missing, topic, partitions[wait.missing] - 1)

        return self._state.wait_for(partitions, wait.find, call, late)

    def _no_topic(self, name: str) -> KafkaException:
        limit, trouble = self._max_block(), self._network_trouble()
        error = self._state.metadata.topic_error(name)
        if self._thread.is_current:
            found = NOT_AWAITED_IN_CALLBACK if error is None else f"{error}{_NO_WAIT}"
            at_once = NO_TOPIC_YET.error(topic=name, api="Metadata", found=found + trouble)
            at_once.__cause__ = error
            return at_once
        if error is None and self._config.max_block_ms:
            servers = str(Option("bootstrap.servers", self._config.bootstrap_servers))
            return self._thread.no_broker.error(
                topic=name, api="Metadata", limit=limit, servers=servers, trouble=trouble
            )
        found = str(error) if error is not None else NOT_AWAITED
        timeout = NO_TOPIC.error(topic=name, api="Metadata", limit=limit, found=found + trouble)
        timeout.__cause__ = error
        return timeout

    def _no_partition(self, name: str, topic: TopicMetadata, partition: int) -> KafkaException:
        in_callback = self._thread.is_current
        message = (
            f"Partition {partition} of topic {name} with partition count {len(topic.leaders)} is "
            f"not present in metadata{_NO_WAIT if in_callback else f' after {self._max_block()}'}"
            f"{self._network_trouble()}"
        )
        return TimeoutException(message, topic=name, partition=partition, api="Metadata")

    def _max_block(self) -> str:
        return str(Option("max.block.ms", self._config.max_block_ms))

    def _network_trouble(self) -> str:
        trouble = self._thread.network_trouble
        return f" ({trouble})" if trouble else ""

    # -- deliveries -------------------------------------------------------------------------------

    def flush(
        self,
        timeout: float | None,
        since: float,
        drain: Callable[[float | None], None] | None = None,
    ) -> None:
        """Wait until every batch is acknowledged or has failed, and callbacks have run.

        timeout: seconds; None for no limit. since: when the timeout began. drain: takes a deadline,
        and puts the rows of `send` into batches; None if they are in batches already. It may wait
        for a user's partitioner; meanwhile, the rows of other topics are sent. Raise
        TimeoutException if the timeout passes first.
        """
        state, waiting_for = self._state, list[ProducerBatch]()

        def all_ended() -> int | None:
            waiting_for[:] = unfinished(waiting_for)
            return None if waiting_for else state.user_calls.due

        def late(what: str) -> TimeoutException:
            message = f"{what} in {round(timeout or 0, 3)} s"
            return TimeoutException.after(state.last_error(), message)

        deadline = None if timeout is None else since + timeout
        started, flush = time.monotonic(), object()
        try:
            if drain is not None:
                state.begin_flush(flush)
                drain(deadline)
            waiting_for += state.begin_flush(flush)
            calls = state.wait(
                all_ended, deadline, lambda: late(f"{len(waiting_for)} batch(es) not acknowledged")
            )
            state.wait(
                lambda: True if state.user_calls.made >= calls else None,
                deadline,
                lambda: late("callbacks have not ended"),
            )
            state.end_flush(flush)
        except BaseException:
            state.left_behind[flush] = state.end_flush
            state.end_flush(flush)
            raise
        finally:
            state.record_time("flush", time.monotonic() - started)


class _TopicWait:
    """A wait for the metadata of topics, and the metadata requests for it.

    A response counts only if its request was sent after the wait began, because partitions may have
    been added to the topic since an earlier request. The thread that calls a method holds the
    producer's lock. must_ask: whether to wait for new metadata if a known topic has too few
    partitions. If False, new metadata is requested, but the call does not wait for it. missing: the
    topic because of which `find` last returned None.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        partitions: Mapping[str, int],
        *,
        must_ask: bool,
        must_grow: bool,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._must_ask = must_ask
        self._must_grow = must_grow
        self._asked_at: int | None = None
        self.missing = ""

    def find(self) -> list[TopicMetadata] | None:
        """Return the topics' metadata, or None if a topic is unknown or has too few partitions.

        If a topic has too few partitions, its metadata is requested again. Raise a broker's error
        about a topic.
        """
        found = []
        for name, least in self._partitions.items():
            topic = self._metadata.topic(name)
            if topic is None or (len(topic.leaders) < least and not self._has_no_more(name)):
                self.missing = name
                error = self._metadata.take_error(name)
                if error is not None:
                    raise error
                return None
            found.append(topic)
        return found

    def _has_no_more(self, name: str) -> bool:
        """Return whether to accept that a topic has fewer partitions than expected.

        The number is accepted if a new response has confirmed it, or if the call must not wait.
        With `must_grow`, it is never accepted. The first call requests new metadata. With
        `must_grow`, the metadata is requested again after each response.
        """
        asked_at = self._asked_at
        is_answered = asked_at is not None and self._metadata.last_request_about(name) > asked_at
        if asked_at is None or (is_answered and self._must_grow):
            self._asked_at = self._metadata.request_update()
        return not self._must_ask or (is_answered and not self._must_grow)

"""Caller: which public calls are possible, how long they may wait, and the errors of late ones.

It owns max.block.ms, which is one deadline for all waits of a call, and the messages of timeouts. A
call is rejected if the producer is closed, has failed or belongs to another process; in the I/O
thread if it would wait for itself; and if records cannot be part of a transaction. The waits
themselves are in `ProducerState`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from spark_kafka_sink.client.deadlines import Call
from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    NO_BROKER,
    NO_TOPIC,
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


class Caller:
    """The part of a producer that its public methods use.

    Public methods call `before_…` first. `raise_if_…` may be called with and without the lock, so
    that waits can call them.
    """

    def __init__(
        self, state: ProducerState, thread: ProducerThread, config: ProducerConfig
    ) -> None:
        self._state = state
        self._thread = thread
        self._config = config
        self._pid = os.getpid()
        self.is_closed = False

    # -- what a call may do -----------------------------------------------------------------------

    def column_call(self) -> Call:
        """Return a call that an earlier delivery of columns ends, if it failed."""
        return Call(self._deadline(), self.raise_if_unusable)

    def row_call(self) -> Call:
        """Return a call for rows, whose failures are those of their futures."""
        return Call(self._deadline(), self.raise_if_closed)

    def _deadline(self) -> float:
        """Return until when a call may wait; a callback may not, since it blocks the I/O thread."""
        if self._thread.is_current:
            return time.monotonic()
        return time.monotonic() + self._config.max_block_ms / 1000

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked process, which has no I/O thread."""
        return os.getpid() != self._pid

    def before_call(self) -> None:
        """Raise if no call is possible, or the error of an earlier delivery."""
        self.check_open()
        self.raise_if_unusable()

    def before_append(self) -> None:
        """Raise if columns cannot be appended."""
        self.check_open()
        self.raise_if_not_appendable()

    def before_send(self) -> None:
        """Raise if rows cannot be sent; delivery errors are in their futures."""
        self.check_open()
        self.check_transaction()

    def check_open(self) -> None:
        """Raise if the producer belongs to another process, is closed, or has failed."""
        self.check_process()
        self.raise_if_closed()

    def check_process(self) -> None:
        """Raise in a forked child: it has no I/O thread, and locks may be held forever."""
        if self.is_forked:
            message = (
                "this KafkaProducer was created before a fork: create one in the process that "
                "uses it"
            )
            raise IllegalStateException(message)

    def check_not_in_callback(self, method: str) -> None:
        """Raise in the I/O thread, which cannot wait for itself."""
        if self._thread.is_current:
            message = (
                f"KafkaProducer.{method}() invocation inside a callback is not permitted because "
                "it would never end: callbacks run in the thread that delivers records"
            )
            raise KafkaException(message)

    def raise_if_not_appendable(self) -> None:
        """Raise if columns cannot be added to batches."""
        self.raise_if_unusable()
        self.check_transaction()

    def raise_if_unusable(self) -> None:
        """Raise if the producer accepts nothing any more, or the error of an earlier delivery."""
        error = None if self.is_closed else self._state.take_delivery_error()
        if error is not None:
            raise error
        self.raise_if_closed()

    def raise_if_closed(self) -> None:
        """Raise if the producer accepts nothing any more."""
        if self.is_closed:
            message = "Cannot perform operation after producer has been closed"
            raise IllegalStateException(message)
        self._state.raise_if_fatal()

    def check_transaction(self) -> None:
        """Raise if records cannot be part of a transaction now; with the lock or without."""
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
        """Take bytes of buffer.memory; see `ProducerState.reserve`.

        Raise BufferExhaustedException.
        """
        return self._state.reserve(
            pending, size_bytes, call, lambda: self._no_room(size_bytes), topics, to_spread or {}
        )

    def _no_room(self, size_bytes: int) -> BufferExhaustedException:
        memory = str(Option("buffer.memory", self._config.buffer_memory))
        return BufferExhaustedException(
            f"no room for {size_bytes} bytes within {self._max_block()}: {memory} is full of "
            f"records that no broker has acknowledged yet{self._network_trouble()}"
        )

    # -- metadata ---------------------------------------------------------------------------------

    def topics(self, names: Sequence[str], call: Call) -> list[TopicMetadata]:
        """Return the metadata of topics, without a wait if all are known."""
        known = [topic for topic in map(self._state.metadata.topic, names) if topic is not None]
        if len(known) == len(names):
            return known
        return self.wait_for(dict.fromkeys(names, 0), call)

    def wait_for(
        self, partitions: Mapping[str, int], call: Call, *, must_grow: bool = False
    ) -> list[TopicMetadata]:
        """Return the metadata of topics once they are known, in the order of `partitions`.

        partitions: the expected number of partitions of each topic. If fewer are known, brokers are
        asked once more, and their response counts even if it has fewer; with must_grow, they are
        asked until there are so many. Raise TimeoutException, or a broker's error about a topic.
        """
        wait = _TopicWait(self._state.metadata, partitions, must_grow=must_grow)

        def late() -> KafkaException:
            topic = self._state.metadata.topic(wait.missing)
            if topic is None or not must_grow:
                return self._no_topic(wait.missing)
            return self._no_partition(wait.missing, topic, partitions[wait.missing] - 1)

        return self._state.wait_for(partitions, wait.find, call, late)

    def _no_topic(self, name: str) -> KafkaException:
        limit, trouble = self._max_block(), self._network_trouble()
        error = self._state.metadata.topic_error(name)
        if error is None and self._config.max_block_ms:
            servers = str(Option("bootstrap.servers", self._config.bootstrap_servers))
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

    def _no_partition(self, name: str, topic: TopicMetadata, partition: int) -> KafkaException:
        message = (
            f"Partition {partition} of topic {name} with partition count {len(topic.leaders)} is "
            f"not present in metadata after {self._max_block()}"
        )
        error = TimeoutException(message, topic=name, partition=partition, api="Metadata")
        error.__cause__ = self._no_topic(name)
        return error

    def _max_block(self) -> str:
        return str(Option("max.block.ms", self._config.max_block_ms))

    def _network_trouble(self) -> str:
        trouble = self._thread.network_trouble
        return f" ({trouble})" if trouble else ""

    # -- deliveries -------------------------------------------------------------------------------

    def flush(self, timeout: float | None, since: float) -> None:
        """Wait until everything in batches has ended, and its callbacks were called.

        timeout: seconds, None for no limit; since: when they began. Raise TimeoutException.
        """
        state, waiting_for = self._state, list[ProducerBatch]()

        def all_ended() -> int | None:
            waiting_for[:] = unfinished(waiting_for)
            return None if waiting_for else state.user_calls.due

        def late(what: str) -> TimeoutException:
            return TimeoutException(f"{what} in {round(timeout or 0, 3)} s")

        deadline = None if timeout is None else since + timeout
        started, flush = time.monotonic(), object()
        try:
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
            state.end_flush(flush)
            raise
        finally:
            state.record_time("flush", time.monotonic() - started)


class _TopicWait:
    """A wait for topics, and the metadata requests that it needs.

    An answer to a request from before the call does not count: the topic may have grown since.
    Callers of its methods hold the producer's lock. missing: the first topic that `find` did
    not find.
    """

    def __init__(
        self, metadata: ClusterMetadata, partitions: Mapping[str, int], *, must_grow: bool
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._must_grow = must_grow
        self._asked_at: int | None = None
        self.missing = ""

    def find(self) -> list[TopicMetadata] | None:
        """Return the topics, or None if one is unknown or has too few partitions.

        The metadata of a topic with too few partitions is requested again. Raise a broker's error
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
        """Return whether a topic certainly has no more partitions; request it otherwise."""
        asked_at = self._asked_at
        is_answered = asked_at is not None and self._metadata.last_request_about(name) > asked_at
        if asked_at is None or (is_answered and self._must_grow):
            self._asked_at = self._metadata.request_update()
        return is_answered and not self._must_grow

"""KafkaProducer: the public producer. Columns go in, acknowledgements come back.

Owns the caller's side: checks, the wait for metadata and for memory (max.block.ms), encoding and
compression in the caller's thread, flush and close. What happens to the batches afterwards is the
I/O thread's (`producer_thread`).
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Mapping
from random import Random
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import (
    BufferExhaustedException,
    DataException,
    IllegalStateException,
    KafkaException,
    RetriableException,
    TimeoutException,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.producer.deliveries import PartitionDelivery
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import Partitioner, check_partitions
from spark_kafka_sink.producer.slices import (
    Rows,
    check_record_sizes,
    choose_partitions,
    encode_rows,
    record_sizes,
    slice_ends,
)
from spark_kafka_sink.producer_thread import ProducerThread
from spark_kafka_sink.producer_transactions import ProducerTransactions
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.serde.columns import read_rows

_numbers = itertools.count(1)


class KafkaProducer:
    """A Kafka producer for columns.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:  # doctest: +SKIP
    ...     producer.append("flights", record_batch)
    ...     producer.flush()

    configs: options of the Java producer by their Java names, as strings or values. Raises
    ConfigException. Appends of several threads are taken one after another. A producer belongs to
    the process that made it: it does not survive a fork.
    """

    def __init__(self, configs: Mapping[str, Any] | ProducerConfig) -> None:
        config = configs if isinstance(configs, ProducerConfig) else producer_config(configs)
        self._config = config
        client_id = config.client_id or f"producer-{config.transactional_id or next(_numbers)}"
        self._thread = ProducerThread(config, client_id)
        self._transactions: ProducerTransactions | None = None
        if self._thread.transactions is not None:
            self._transactions = ProducerTransactions(
                self._thread, self._thread.transactions, config.max_block_ms
            )
        self._partitioner = Partitioner(config.batch_size, Random())  # noqa: S311 - no secrets
        self._appending = threading.Lock()
        self._waiting: deque[object] = deque()
        self._closed = False
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _warn_unclosed, client_id, self._thread, self._pid)
        self._finalizer.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(None if kind is None else 0)

    # -- appending --------------------------------------------------------------------------------

    def append(self, topic: str | None, record_batch: pa.RecordBatch) -> None:
        """Append the rows of an Arrow batch with the columns that `serde.columns` describes.

        topic: for all rows; None to take a topic column. Returns when the rows are in the
        producer's memory; `flush` tells what became of them. Raises DataException and
        RecordTooLargeException for rows that cannot be sent (none of the batch is then sent),
        TimeoutException and BufferExhaustedException after max.block.ms, and the error of an
        earlier delivery that failed.
        """
        self._check_usable()
        if self._transactions is not None:
            self._transactions.check_may_append()
        if not record_batch.num_rows:
            return
        rows = read_rows(record_batch, topic, time.time_ns() // 1_000_000)
        sizes = record_sizes(rows.columns)
        check_record_sizes(sizes, self._config.max_request_size, self._config.buffer_memory)
        with self._appending:
            deadline = self._block_deadline()
            topics = [self._wait_for_topic(name, deadline) for name in rows.topics]
            topics = self._check_partitions(rows, topics, deadline)
            start = 0
            for end in slice_ends(sizes, self._config.buffer_memory):
                self._append_slice(rows.slice(start, end), sizes[start:end], topics)
                start = end

    def _append_slice(self, rows: Rows, sizes: Int64s, topics: list[TopicMetadata]) -> None:
        accumulator = self._thread.accumulator
        grouped = choose_partitions(rows, sizes, topics, self._partitioner)
        reserved = int(sizes.sum())
        self._reserve(reserved)
        full = []
        try:
            with self._thread.lock:
                opens = accumulator.hold(grouped.targets)
            cuts, encoded = encode_rows(grouped, opens)
            with self._thread.lock:
                self._raise_if_unusable()
                if self._transactions is not None:
                    self._transactions.check_may_append()
                now = time.monotonic()
                full = accumulator.append(grouped.targets, cuts, encoded, now)
        finally:
            with self._thread.lock:
                accumulator.let_go(grouped.targets)
                accumulator.give_back(reserved)
                self._thread.wake()
        for batch in full:
            batch.pack()
            with self._thread.lock:
                accumulator.packed(batch)
                self._thread.wake()

    def _reserve(self, size_bytes: int) -> None:
        """Wait for memory, first come first served, at most max.block.ms."""
        accumulator, changed = self._thread.accumulator, self._thread.changed
        deadline = self._block_deadline()
        ticket = object()
        with changed:
            self._raise_if_unusable()
            if not self._waiting and accumulator.reserve(size_bytes):
                return
            self._waiting.append(ticket)
            accumulator.waiters = len(self._waiting)
            self._thread.wake()
            try:
                while self._waiting[0] is not ticket or not accumulator.reserve(size_bytes):
                    if not changed.wait(deadline - time.monotonic()):
                        message = (
                            f"no room for {size_bytes} bytes within kafka.max.block.ms="
                            f"{self._config.max_block_ms}: kafka.buffer.memory="
                            f"{self._config.buffer_memory} is full of records that no broker has "
                            f"acknowledged yet{self._network_trouble()}"
                        )
                        raise BufferExhaustedException(message)
                    self._raise_if_unusable()
            finally:
                self._waiting.remove(ticket)
                accumulator.waiters = len(self._waiting)
                changed.notify_all()

    # -- metadata ---------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> int:
        """Give how many partitions a topic has.

        Raises TimeoutException after max.block.ms, or at once the error that says why the topic
        cannot be written to (InvalidTopicException, TopicAuthorizationException).
        """
        self._check_usable()
        deadline = self._block_deadline()
        return len(self._wait_for_topic(topic, deadline).leaders)

    def _wait_for_topic(self, name: str, deadline: float, newer_than: int = -1) -> TopicMetadata:
        """Wait until a topic is known, from an answer newer than the version given."""
        metadata = self._thread.metadata
        with self._thread.changed:
            metadata.track(name)
            self._thread.wake()
            while True:
                self._raise_if_unusable()
                topic = metadata.topic(name)
                if topic is not None and metadata.version > newer_than:
                    return topic
                error = metadata.topic_error(name)
                if error is not None and not isinstance(error, RetriableException):
                    raise error
                if not self._thread.changed.wait(deadline - time.monotonic()):
                    raise self._topic_timeout(name, error)

    def _topic_timeout(self, name: str, error: KafkaException | None) -> TimeoutException:
        if error is not None:
            found = str(error)
        else:
            servers = self._config.bootstrap_servers
            found = f"no broker has answered; check kafka.bootstrap.servers={servers}"
        message = (
            f"Topic {name} not present in metadata after kafka.max.block.ms="
            f"{self._config.max_block_ms}: {found}{self._network_trouble()}"
        )
        return TimeoutException(message, topic=name, api="Metadata")

    def _check_partitions(
        self, rows: Rows, topics: list[TopicMetadata], deadline: float
    ) -> list[TopicMetadata]:
        """Check explicit partitions, against fresh metadata where they seem to be too high."""
        if rows.partitions is None:
            return topics
        checked = []
        for number, (name, topic) in enumerate(zip(rows.topics, topics, strict=True)):
            explicit = rows.partitions
            if rows.topic_numbers is not None:
                explicit = explicit[rows.topic_numbers == number]
            known = topic
            try:
                check_partitions(name, explicit, len(known.leaders))
            except DataException:
                # The topic may have been given more partitions since.
                with self._thread.lock:
                    version = self._thread.metadata.version
                    self._thread.metadata.request_update()
                known = self._wait_for_topic(name, deadline, newer_than=version)
                check_partitions(name, explicit, len(known.leaders))
            checked.append(known)
        return checked

    def _network_trouble(self) -> str:
        trouble = self._thread.network_trouble
        return f" ({trouble})" if trouble else ""

    # -- transactions -----------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Make the producer the only one with its transactional.id; once, before the others.

        Older producers with the id are fenced, and what they had open is aborted. All five calls
        wait at most max.block.ms and then raise TimeoutException: init, commit and abort must then
        be called again, and go on where they were. Raises IllegalStateException where a call is
        not possible now (nothing has changed then), and ProducerFencedException once a newer
        producer has taken over the id; then, and after other fatal errors, only `close` is left.
        """
        self._transactional().init()

    def begin_transaction(self) -> None:
        """Begin a transaction; everything appended from here on is part of it."""
        self._transactional().begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Commit offsets of a consumer group if, and when, the transaction commits (KIP-447).

        offsets: of the next record to read of each partition. Raises CommitFailedException where
        the group has given the partitions to another member; the transaction can then only be
        aborted.
        """
        self._transactional().send_offsets(offsets, group_metadata)

    def commit_transaction(self) -> None:
        """Deliver what was appended, then commit.

        Raises the error of a delivery that failed: the transaction can then only be aborted.
        """
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Abort the transaction; what was not sent yet is dropped. After an error, the way on."""
        self._transactional().abort()

    def _transactional(self) -> ProducerTransactions:
        self._check_open()
        if self._transactions is None:
            message = "transactions need a transactional.id: set it in the producer's configuration"
            raise IllegalStateException(message)
        return self._transactions

    # -- flush and close --------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record appended so far is acknowledged or given up.

        timeout: seconds, None for as long as delivery.timeout.ms allows. Raises the first delivery
        error since the last call that raised one, and TimeoutException.
        """
        self._check_usable()
        self._flush(timeout)
        self._check_usable()

    def _flush(self, timeout: float | None) -> None:
        accumulator, changed = self._thread.accumulator, self._thread.changed
        deadline = None if timeout is None else time.monotonic() + timeout
        with changed:
            accumulator.flushes += 1
            try:
                waiting_for = accumulator.incomplete
                self._thread.wake()
                while any(not batch.is_done for batch in waiting_for):
                    wait = None if deadline is None else deadline - time.monotonic()
                    if not changed.wait(wait):
                        message = f"{len(waiting_for)} batch(es) not acknowledged in {timeout} s"
                        raise TimeoutException(message)
                    waiting_for = [batch for batch in waiting_for if not batch.is_done]
            finally:
                accumulator.flushes -= 1

    def deliveries(self) -> dict[TopicPartition, PartitionDelivery]:
        """Give what has been acknowledged so far, per partition."""
        with self._thread.lock:
            return dict(self._thread.deliveries.partitions)

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was appended, then close; closing again does nothing.

        timeout: seconds to wait for deliveries; what is not acknowledged then is given up (0: at
        once). An open transaction is aborted, with timeout 0 by its coordinator once
        transaction.timeout.ms has passed. Raises the first delivery error that nobody was told of,
        unless timeout is 0.
        """
        if self._closed:
            return
        self._closed = True
        self._finalizer.detach()
        if os.getpid() != self._pid:
            return
        try:
            if timeout is None or timeout > 0:
                if self._transactions is not None:
                    self._transactions.end_open(timeout)
                self._flush(timeout)
        finally:
            with self._thread.lock:
                self._thread.give_up(KafkaException("Producer is closed forcefully."))
            self._thread.stop()
        if timeout != 0:
            error = self._thread.deliveries.take_error()
            if error is not None:
                raise error

    def _block_deadline(self) -> float:
        return time.monotonic() + self._config.max_block_ms / 1000

    # -- state ------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        self._check_open()
        with self._thread.lock:
            self._raise_if_unusable()

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            message = (
                "this KafkaProducer was made before a fork; make one in the process that uses it"
            )
            raise IllegalStateException(message)
        self._raise_if_closed()

    def _raise_if_closed(self) -> None:
        if self._closed:
            message = "Cannot perform operation after producer has been closed"
            raise IllegalStateException(message)

    def _raise_if_unusable(self) -> None:
        """Raise what stands against going on; the caller holds the lock."""
        self._raise_if_closed()
        error = self._thread.deliveries.take_error() or self._thread.fatal_error
        if error is not None:
            raise error


def _warn_unclosed(client_id: str, thread: ProducerThread, pid: int) -> None:
    if os.getpid() == pid:
        warnings.warn(f"unclosed KafkaProducer {client_id}", ResourceWarning, stacklevel=2)
        thread.stop()

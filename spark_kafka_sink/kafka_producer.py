"""KafkaProducer: the public producer. Columns or rows go in, acknowledgements come back.

Owns the caller's side: checks, the wait for metadata and for memory (max.block.ms), flush and
close. Slices are encoded and compressed in the caller's thread (`slice_appender`), rows wait there
until they are a slice (`row_producer`); what happens to the batches afterwards is the I/O thread's
(`producer_thread`).
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from spark_kafka_sink.batch_partitioner import OPTION as PARTITIONER
from spark_kafka_sink.batch_partitioner import load_partitioner, with_partitions
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import (
    BufferExhaustedException,
    DataException,
    IllegalStateException,
    KafkaException,
    TimeoutException,
)
from spark_kafka_sink.interceptors import INTERCEPTORS, load_interceptors
from spark_kafka_sink.metrics import MetricName
from spark_kafka_sink.model import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)
from spark_kafka_sink.producer.deliveries import PartitionDelivery
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import check_partitions
from spark_kafka_sink.producer.producer_batch import unfinished
from spark_kafka_sink.producer.slices import Rows, check_record_sizes, record_sizes, slice_ends
from spark_kafka_sink.producer_record import Headers
from spark_kafka_sink.producer_thread import ProducerThread
from spark_kafka_sink.producer_transactions import ProducerTransactions
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.row_future import OnDelivery
from spark_kafka_sink.row_producer import RowProducer, RowWaits, weakly
from spark_kafka_sink.serde.columns import read_rows
from spark_kafka_sink.serializers import load_serializer
from spark_kafka_sink.slice_appender import SliceAppender

_ROW_OPTIONS = ("key.serializer", "value.serializer", INTERCEPTORS)
_numbers = itertools.count(1)


class KafkaProducer:
    """A Kafka producer for columns and rows.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:  # doctest: +SKIP
    ...     producer.append("flights", record_batch)
    ...     future = producer.send("flights", b"value", key=b"key")
    ...     producer.flush()
    ...     print(future.result().offset)

    configs: options of the Java producer by their Java names, as strings or values;
    ``key.serializer``, ``value.serializer`` and ``interceptor.classes`` (for `send`) are Python
    objects, classes or their names as ``module.Name``, and so may be ``partitioner.class`` (see
    `batch_partitioner`). key_serializer, value_serializer: in place
    of the options, which are then ignored. Raises ConfigException. Slices of several threads are
    appended one after another. A producer belongs to the process that made it: it does not survive
    a fork.
    """

    def __init__(
        self,
        configs: Mapping[str, Any] | ProducerConfig,
        *,
        key_serializer: object = None,
        value_serializer: object = None,
    ) -> None:
        given: dict[str, Any] = {}
        if isinstance(configs, ProducerConfig):
            config = configs
            partitioner = load_partitioner(config.partitioner_class, config.option_prefix)
        else:
            given = dict(configs)
            partitioner = load_partitioner(given.get(PARTITIONER))
            if partitioner is not None:
                del given[PARTITIONER]
            config = producer_config({k: v for k, v in given.items() if k not in _ROW_OPTIONS})
        options = {"key.serializer": key_serializer, "value.serializer": value_serializer}
        serializers = [
            load_serializer(name, given.get(name) if instance is None else instance, given)
            for name, instance in options.items()
        ]
        interceptors = load_interceptors(given.get(INTERCEPTORS, ()), given)
        self._config = config
        prefix = config.option_prefix
        self._record_limits = {
            f"{prefix}max.request.size": config.max_request_size,
            f"{prefix}buffer.memory": config.buffer_memory,
        }
        client_id = config.client_id or f"producer-{config.transactional_id or next(_numbers)}"
        self._thread = ProducerThread(config, client_id)
        self._transactions: ProducerTransactions | None = None
        if self._thread.transactions is not None:
            self._transactions = ProducerTransactions(
                self._thread, self._thread.transactions, config.max_block_ms
            )
        self._appender = SliceAppender(self._thread, config)
        self._partitioner = partitioner
        self._interceptors = interceptors
        self._rows = RowProducer(
            self._thread,
            self._appender,
            RowWaits(
                weakly(self._check_may_send),
                weakly(self._block_deadline),
                weakly(self._wait_for_partitions),
                weakly(self._reserve_for_rows),
            ),
            linger_s=config.linger_ms / 1000,
            max_request_size_bytes=config.max_request_size,
            buffer_memory_bytes=config.buffer_memory,
            option_prefix=prefix,
            serializers=serializers,
            interceptors=interceptors,
            partitioner=partitioner,
            is_transactional=self._transactions is not None,
        )
        self._thread.feeder = self._rows
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
        start = 0
        try:
            rows = read_rows(record_batch, topic, time.time_ns() // 1_000_000)
            sizes = record_sizes(rows.columns)
            check_record_sizes(sizes, self._record_limits)
            deadline = self._block_deadline()
            topics = self._wait_for_topics(rows.topics, deadline)
            topics = self._check_partitions(rows, topics, deadline)
            if self._partitioner is not None:
                rows = with_partitions(rows, record_batch, topics, self._partitioner)
            # What this thread has sent row by row goes before.
            self._rows.drain()
            for end in slice_ends(sizes, self._config.buffer_memory):
                self._append_slice(rows.slice(start, end), sizes[start:end], topics, deadline)
                start = end
                # Every slice is a send of its own, which may wait for memory as long as any.
                deadline = self._block_deadline()
        except KafkaException as error:
            self._thread.refused(record_batch.num_rows - start, error)
            if start:
                self._thread.spoil_transaction(error)
            raise

    def _append_slice(
        self, rows: Rows, sizes: Int64s, topics: list[TopicMetadata], deadline: float
    ) -> None:
        reserved = int(sizes.sum())
        self._reserve(reserved, deadline, self._raise_if_unusable)
        try:
            with self._appender.turn:
                full = self._appender.append(rows, sizes, topics, self._check_may_append)
        finally:
            with self._thread.lock:
                self._thread.accumulator.give_back(reserved)
                self._thread.wake()
        self._appender.pack(full)

    # -- sending row by row -----------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Future[RecordMetadata]:
        """Send one record; the future's result is its RecordMetadata.

        value, key: bytes, str or None, or what the serializers take. partition: None to let key or
        partitioner choose. timestamp_ms: milliseconds since 1970, None for now. headers: pairs of
        str and bytes (or None). on_delivery: called with the RecordMetadata and the error (or None)
        by the I/O thread, in order per partition; one that raises is logged and skipped.

        Blocks at most max.block.ms, for the topic's metadata and for memory. The future fails with
        an ApiException: the time-outs of that wait, a topic that cannot be written to, a record
        that is too large, and what brokers answer; `flush` and `close` do not raise it again. What
        is wrong with the call is raised: DataException for a topic, partition, timestamp or header
        that no record can have, SerializationException, IllegalStateException after close.
        """
        return self._rows.send(topic, value, key, partition, timestamp_ms, headers, on_delivery)

    def _reserve_for_rows(self, size_bytes: int, deadline: float) -> None:
        self._reserve(size_bytes, deadline, self._raise_if_closed)

    # -- memory -----------------------------------------------------------------------------------

    def _reserve(self, size_bytes: int, deadline: float, check_usable: Callable[[], None]) -> None:
        """Wait for memory, first come first served."""
        accumulator, changed = self._thread.accumulator, self._thread.changed
        ticket = object()
        with changed:
            check_usable()
            if not self._waiting and accumulator.reserve(size_bytes):
                return
            self._waiting.append(ticket)
            accumulator.waiters = len(self._waiting)
            self._thread.wake()
            try:
                while self._waiting[0] is not ticket or not accumulator.reserve(size_bytes):
                    if not self._wait_for_memory(deadline):
                        raise self._no_room(size_bytes)
                    check_usable()
            finally:
                self._waiting.remove(ticket)
                accumulator.waiters = len(self._waiting)
                changed.notify_all()

    def _no_room(self, size_bytes: int) -> BufferExhaustedException:
        memory = self._config.setting("buffer.memory", self._config.buffer_memory)
        return BufferExhaustedException(
            f"no room for {size_bytes} bytes within {self._max_block()}: {memory} is full of "
            f"records that no broker has acknowledged yet{self._network_trouble()}"
        )

    def _max_block(self) -> str:
        return self._config.setting("max.block.ms", self._config.max_block_ms)

    def _wait_for_memory(self, deadline: float) -> bool:
        """Wait for a change, and tell whether one came before the deadline."""
        started = time.monotonic()
        try:
            return self._thread.changed.wait(deadline - started)
        finally:
            now = time.monotonic()
            self._thread.metrics.waited_for_memory((now - started) * 1e9, now)

    # -- metadata ---------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> int:
        """Give how many partitions a topic has.

        Raises TimeoutException after max.block.ms, or at once the error that says why the topic
        cannot be written to (InvalidTopicException, TopicAuthorizationException).
        """
        self._check_usable()
        deadline = self._block_deadline()
        return len(self._wait_for_topic(topic, deadline).leaders)

    def _wait_for_partitions(self, name: str, partitions: int, deadline: float) -> TopicMetadata:
        """Wait until a topic is known to have so many partitions."""
        check = self._raise_if_closed
        topic = self._wait_for_topic(name, deadline, check_usable=check)
        while len(topic.leaders) < partitions:
            with self._thread.lock:
                version = self._thread.metadata.request_update()
            try:
                topic = self._wait_for_topic(name, deadline, version, check)
            except TimeoutException as error:
                message = (
                    f"Partition {partitions - 1} of topic {name} with partition count "
                    f"{len(topic.leaders)} is not present in metadata after {self._max_block()}"
                )
                raise TimeoutException(
                    message, topic=name, partition=partitions - 1, api="Metadata"
                ) from error
        return topic

    def _wait_for_topics(self, names: list[str], deadline: float) -> list[TopicMetadata]:
        """Wait until all topics are known; those that are new are asked for in one request."""
        with self._thread.lock:
            now = time.monotonic()
            for name in names:
                self._thread.metadata.track(name, now)
            self._thread.wake()
        return [self._wait_for_topic(name, deadline) for name in names]

    def _wait_for_topic(
        self,
        name: str,
        deadline: float,
        newer_than: int = -1,
        check_usable: Callable[[], None] | None = None,
    ) -> TopicMetadata:
        """Wait until a topic is known, from an answer newer than the version given."""
        check_usable = check_usable or self._raise_if_unusable
        metadata = self._thread.metadata
        with self._thread.changed:
            metadata.track(name, time.monotonic())
            self._thread.wake()
            while True:
                check_usable()
                topic = metadata.topic(name)
                if topic is not None and metadata.version > newer_than:
                    return topic
                error = metadata.take_error(name)
                if error is not None:
                    raise error
                if not self._wait_for_metadata(deadline):
                    raise self._topic_timeout(name, metadata.topic_error(name))
                # An error that another caller was told of is asked about anew for this one.
                metadata.track(name, time.monotonic())
                self._thread.wake()

    def _wait_for_metadata(self, deadline: float) -> bool:
        """Wait for a change, and tell whether one came before the deadline."""
        started = time.monotonic()
        try:
            return self._thread.changed.wait(deadline - started)
        finally:
            waited_s = time.monotonic() - started
            self._thread.metrics.record_time("metadata-wait", waited_s * 1e9)

    def _topic_timeout(self, name: str, error: KafkaException | None) -> TimeoutException:
        if error is not None:
            found = str(error)
        else:
            servers = self._config.setting("bootstrap.servers", self._config.bootstrap_servers)
            found = f"no broker has answered; check {servers}"
        message = (
            f"Topic {name} not present in metadata after {self._max_block()}: "
            f"{found}{self._network_trouble()}"
        )
        return TimeoutException(message, topic=name, api="Metadata")

    def _check_partitions(
        self, rows: Rows, topics: list[TopicMetadata], deadline: float
    ) -> list[TopicMetadata]:
        """Check explicit partitions, against fresh metadata where they seem to be too high."""
        if rows.partitions is None:
            return topics
        checked = list(topics)
        for number, of_topic in rows.by_topic():
            name, explicit = rows.topics[number], rows.partitions[of_topic]
            try:
                check_partitions(name, explicit, len(topics[number].leaders))
            except DataException:
                # The topic may have been given more partitions since.
                with self._thread.lock:
                    version = self._thread.metadata.request_update()
                known = self._wait_for_topic(name, deadline, newer_than=version)
                check_partitions(name, explicit, len(known.leaders))
                checked[number] = known
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
        transactions = self._transactional()
        self._rows.drain()
        transactions.commit()

    def abort_transaction(self) -> None:
        """Abort the transaction; what was not sent yet is dropped. After an error, the way on."""
        transactions = self._transactional()
        self._rows.drain()
        transactions.abort()

    def _transactional(self) -> ProducerTransactions:
        self._check_open()
        if self._transactions is None:
            message = "transactions need a transactional.id: set it in the producer's configuration"
            raise IllegalStateException(message)
        return self._transactions

    # -- flush and close --------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record so far is acknowledged or given up, and its callbacks were run.

        timeout: seconds, None for as long as delivery.timeout.ms allows. Raises the first delivery
        error of `append` since the last call that raised one, and TimeoutException.
        """
        if self._thread.is_current:
            message = (
                "KafkaProducer.flush() invocation inside a callback is not permitted because it "
                "would never end: callbacks run in the thread that delivers records"
            )
            raise KafkaException(message)
        self._check_usable()
        self._flush(timeout)
        self._check_usable()

    def _flush(self, timeout: float | None) -> None:
        accumulator, changed = self._thread.accumulator, self._thread.changed
        metrics = self._thread.metrics
        started = time.monotonic()
        deadline = None if timeout is None else started + timeout
        self._rows.drain()
        with changed:
            accumulator.flushes += 1
            try:
                waiting_for = accumulator.incomplete
                self._thread.wake()
                while waiting_for := unfinished(waiting_for):
                    wait = None if deadline is None else deadline - time.monotonic()
                    if not changed.wait(wait):
                        message = f"{len(waiting_for)} batch(es) not acknowledged in {timeout} s"
                        raise TimeoutException(message)
                calls = self._thread.calls_due
                while self._thread.calls_made < calls:
                    wait = None if deadline is None else deadline - time.monotonic()
                    if not changed.wait(wait):
                        message = f"callbacks have not ended in {timeout} s"
                        raise TimeoutException(message)
            finally:
                accumulator.flushes -= 1
                metrics.record_time("flush", (time.monotonic() - started) * 1e9)

    def deliveries(self) -> dict[TopicPartition, PartitionDelivery]:
        """Give what has been acknowledged so far, per partition."""
        with self._thread.lock:
            return dict(self._thread.deliveries.partitions)

    def metrics(self) -> dict[MetricName, float]:
        """Measure the producer: the Java producer's metrics by their names, as values of now.

        Gives a mapping from `MetricName` (name, group, description, tags) to a float, with the keys
        of the Java client's and kafka-python's maps; what those keep behind a key to be asked
        later is measured here at once. The groups are producer-metrics, producer-topic-metrics
        (tag topic) and producer-node-metrics (tag node-id); docs/metrics.md lists all metrics with
        their units. What has no value yet, as an average of nothing, is NaN. Any thread may ask,
        also after close.
        """
        return self._thread.metrics.measure(time.monotonic())

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was appended and sent, then close; closing again does nothing.

        timeout: seconds to wait for deliveries; what is not acknowledged then is given up (0: at
        once; a callback that closes its producer cannot wait either). An open transaction is
        aborted, with timeout 0 by its coordinator once transaction.timeout.ms has passed. Raises
        the first delivery error that nobody was told of, unless timeout is 0.
        """
        if self._closed:
            return
        self._closed = True
        self._finalizer.detach()
        if os.getpid() != self._pid:
            return
        if self._thread.is_current:
            timeout = 0
        self._rows.close()
        try:
            if timeout is None or timeout > 0:
                if self._transactions is not None:
                    self._transactions.end_open(timeout)
                self._flush(timeout)
        finally:
            error = KafkaException("Producer is closed forcefully.")
            self._rows.give_up(error)
            with self._thread.lock:
                self._thread.give_up(error)
            self._thread.stop()
            self._interceptors.close()
        if timeout != 0:
            failure = self._thread.deliveries.take_error()
            if failure is not None:
                raise failure

    def _block_deadline(self) -> float:
        """Give until when a call may wait; a callback may not, since nobody would wake it."""
        if self._thread.is_current:
            return time.monotonic()
        return time.monotonic() + self._config.max_block_ms / 1000

    # -- state ------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        self._check_open()
        with self._thread.lock:
            self._raise_if_unusable()

    def _check_may_append(self) -> None:
        """Raise what stands against appending; the caller holds the lock."""
        self._raise_if_unusable()
        if self._transactions is not None:
            self._transactions.check_may_append()

    def _check_may_send(self) -> None:
        self._check_open()
        if self._transactions is not None:
            self._transactions.check_may_append()

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            message = (
                "this KafkaProducer was made before a fork; make one in the process that uses it"
            )
            raise IllegalStateException(message)
        self._raise_if_closed()

    def _raise_if_unusable(self) -> None:
        """Raise what stands against going on; the caller holds the lock."""
        error = None if self._closed else self._thread.deliveries.take_error()
        if error is not None:
            raise error
        self._raise_if_closed()

    def _raise_if_closed(self) -> None:
        """Raise what stands against sending rows, whose failures their futures tell of."""
        if self._closed:
            message = "Cannot perform operation after producer has been closed"
            raise IllegalStateException(message)
        if self._thread.fatal_error is not None:
            raise self._thread.fatal_error


def _warn_unclosed(client_id: str, thread: ProducerThread, pid: int) -> None:
    if os.getpid() == pid:
        warnings.warn(f"unclosed KafkaProducer {client_id}", ResourceWarning, stacklevel=2)
        thread.stop()

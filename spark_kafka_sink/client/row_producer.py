"""RowProducer: `KafkaProducer.send`, which takes rows one by one and collects them in columns.

A row is appended to its topic's chunk, for which memory is reserved, and gets a future. No other
work is done per row. `ChunkFeeder` puts the rows of chunks into batches. This module contains the
queues, prepares each row for its queue, and handles rejected rows.
"""

from __future__ import annotations

import os
import time
import weakref
from concurrent.futures import Future
from threading import get_ident
from typing import Any, Final

from spark_kafka_sink.client.caller import Caller
from spark_kafka_sink.client.chunk import Row, RowChunk, RowQueue
from spark_kafka_sink.client.chunk_feeder import ChunkFeeder
from spark_kafka_sink.client.deadlines import Call
from spark_kafka_sink.client.future import ON_DELIVERY, OnDelivery, RowFuture, SentRows
from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.errors import (
    ApiException,
    IllegalStateException,
    KafkaException,
    SerializationException,
)
from spark_kafka_sink.model import (
    Headers,
    ProducerRecord,
    RecordMetadata,
    check_callable,
    checked_headers,
)
from spark_kafka_sink.plugins.interceptors import unsent_metadata
from spark_kafka_sink.plugins.serializers import as_bytes
from spark_kafka_sink.plugins.user_calls import call_in_caller
from spark_kafka_sink.plugins.user_code import KEY_SERIALIZER, VALUE_SERIALIZER, UserCode
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.record_limits import RecordLimits
from spark_kafka_sink.records.varint import varint_size

# The largest encoded size of a record without key, value and headers: record length (5 bytes),
# attributes (1), timestamp delta (10), offset delta (5), and the key length, the value length and
# the number of headers (5 each).
ROW_OVERHEAD_BYTES: Final = 36


def header_bytes(headers: Headers) -> int:
    """Return an upper bound of the encoded size of headers.

    For each header, it counts 10 bytes for the lengths of the name and the value.
    """
    return sum(len(name.encode()) + len(value or b"") + 10 for name, value in headers)


class RowProducer:
    """The row queues of all topics.

    limits: the limits for the size of a record.
    """

    def __init__(
        self,
        state: ProducerState,
        thread: ProducerThread,
        feeder: ChunkFeeder,
        caller: Caller,
        user_code: UserCode,
        limits: RecordLimits,
    ) -> None:
        self._state = state
        self._thread = thread
        self._feeder = feeder
        self._caller = caller
        self._limits = limits
        # The largest size that certainly fits into a request and into memory. No chunk has more
        # room, so a row that fits into its chunk needs no further check.
        fits = limits.any_record_bytes
        self._always_fits_bytes = fits
        memory = state.accumulator.pool.total_bytes
        self._largest_chunk_bytes = min(fits, memory // 8)
        self._key_serializer = user_code.key_serializer
        self._value_serializer = user_code.value_serializer
        self._serializes = not (self._key_serializer is None and self._value_serializer is None)
        self._interceptors = user_code.interceptors
        self._partitioning = feeder.partitioning
        self._queues: dict[str, RowQueue] = {}
        # The queues that `send` may append to directly. They are only used if there are no
        # interceptors and no transactions, which need further steps.
        is_plain = not self._interceptors and state.transactions is None
        self._open_queues: dict[str, RowQueue] = self._queues if is_plain else {}
        _OF_THIS_PROCESS.add(self)

    # -- sending: the caller's thread -------------------------------------------------------------

    def send(  # noqa: C901 - written out, see docstring
        self,
        topic: str,
        value: Any,  # noqa: ANN401 - of any type
        key: Any,  # noqa: ANN401
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        on_delivery: OnDelivery | None,
    ) -> Future[RecordMetadata]:
        """Append a row; see `KafkaProducer.send`.

        This method alone handles nearly every row, in 0.7 us for a row that has only a value. One
        more call or object would add a tenth to that, so the steps are written out here.
        """
        if self._partitioning and get_ident() in self._partitioning:
            self._feeder.check_not_in_partitioner()
        try:
            queue = self._open_queues.get(topic)
        except TypeError:  # not hashable: `ProducerRecord` raises the error
            queue = None
        if (
            queue is None
            or (on_delivery is not None and not callable(on_delivery))
            or (
                partition is not None
                and (partition.__class__ is not int or not 0 <= partition < queue.partitions)
            )
            or (
                timestamp_ms is not None
                and (timestamp_ms.__class__ is not int or not 0 <= timestamp_ms < 1 << 63)
            )
        ):
            record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
            return self._send_record(record, on_delivery)
        try:
            if self._serializes:
                key, value = self._serialize(topic, key, value)
            if key is not None and key.__class__ is not bytes:
                key = as_bytes(KEY_SERIALIZER, key)
            if value is not None and value.__class__ is not bytes:
                value = as_bytes(VALUE_SERIALIZER, value)
        except SerializationException as error:
            self._state.refuse(1, error)
            raise
        size = ROW_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        entries = () if headers is None else checked_headers(headers)
        if entries:
            size += header_bytes(entries)
        future = queue.put(value, key, partition, timestamp_ms, entries, on_delivery, size)
        if future is not None:
            return future
        row = Row(value, key, partition, timestamp_ms, entries, on_delivery)
        try:
            return self._append_row(queue, row, size)
        except ApiException as error:
            return self._refuse(error, topic, partition, on_delivery)

    def _send_record(
        self, record: ProducerRecord, on_delivery: OnDelivery | None
    ) -> Future[RecordMetadata]:
        """Append a row, in the cases that `send` does not handle itself.

        For example, there are interceptors, or the topic's metadata may be unknown.
        """
        self._caller.check_process()
        expected = "a callable that takes a RecordMetadata and an error"
        check_callable("on_delivery", on_delivery, expected)
        record = self._interceptors.on_send(record)
        try:
            return self._append_record(record, on_delivery)
        except ApiException as error:
            return self._refuse(error, record.topic, record.partition, on_delivery)
        except BaseException as error:
            # As in the Java client, a call in a wrong state raises an exception, not a failed
            # future.
            if isinstance(error, KafkaException) and not isinstance(error, IllegalStateException):
                self._state.refuse(1, error)
            raised = self._interceptors.on_send_error(record.topic, record.partition, error)
            if raised is not None:
                raise raised from error
            raise

    def _append_record(self, record: ProducerRecord, on_delivery: OnDelivery | None) -> RowFuture:
        self._caller.before_send()
        call = self._caller.row_call()
        topic, partition = record.topic, record.partition
        queue = self._queues.get(topic) or self._queues.setdefault(topic, RowQueue(topic))
        if not queue.partitions or not queue.has(partition):
            queue.learn(self._topic_with(partition, topic, call))
        key, value = self._serialize(topic, record.key, record.value)
        headers = tuple(record.headers or ())
        row = Row(value, key, partition, record.timestamp_ms, headers, on_delivery)
        size = ROW_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + header_bytes(headers)
        return self._append_row(queue, row, size, call)

    def _refuse(
        self,
        error: ApiException,
        topic: str,
        partition: int | None,
        on_delivery: OnDelivery | None,
    ) -> Future[RecordMetadata]:
        """Return a failed future, because `send` itself raises neither broker nor size errors."""
        self._state.refuse(1, error)
        self._state.spoil_transaction(error)
        failed: Future[RecordMetadata] = Future()
        failed.set_exception(error)
        raised = self._interceptors.on_send_error(topic, partition, error)
        if on_delivery is not None:
            metadata = unsent_metadata(topic, partition)
            failure = call_in_caller(ON_DELIVERY, [on_delivery], metadata, error)
            raised = failure if raised is None else raised
        if raised is not None:
            raise raised
        return failed

    def _serialize(
        self, topic: str, key: object, value: object
    ) -> tuple[bytes | None, bytes | None]:
        """Return key and value as bytes; the key is serialized first, as in the Java client."""
        by_key, by_value = self._key_serializer, self._value_serializer
        return (
            as_bytes(KEY_SERIALIZER, key) if by_key is None else by_key(topic, key),
            as_bytes(VALUE_SERIALIZER, value) if by_value is None else by_value(topic, value),
        )

    def _append_row(
        self, queue: RowQueue, row: Row, size_bytes: int, call: Call | None = None
    ) -> RowFuture:
        """Append a row. If there is no room for it yet, wait for room first."""
        if size_bytes > self._always_fits_bytes:
            self._check_size(queue.topic, row)
        check = self._caller.check_transaction
        future = queue.put(*row, size_bytes, check)
        if future is None:
            self._caller.before_send()
            call = self._caller.row_call() if call is None else call
            while future is None:
                self._make_room(queue, row.partition, size_bytes, call)
                future = queue.put(*row, size_bytes, check)
        return future

    def _check_size(self, topic: str, row: Row) -> None:
        """Raise RecordTooLargeException for a row above max.request.size or buffer.memory.

        The size is calculated as in AbstractRecords.estimateSizeInBytesUpperBound of the Java
        client. It counts 21 bytes for length, attributes and deltas.
        """
        fields = [row.key, row.value]
        for name, value in row.headers:
            fields += [name.encode(), value]
        lengths = [-1 if field is None else len(field) for field in fields]
        size = RECORD_BATCH_OVERHEAD + 21 + varint_size(len(row.headers))
        size += sum(max(length, 0) + varint_size(length) for length in lengths)
        self._limits.check_record(size, topic=topic, partition=row.partition)

    def _make_room(
        self, queue: RowQueue, partition: int | None, size_bytes: int, call: Call
    ) -> None:
        """Make room for a row: fetch metadata, put a full chunk into batches, or begin a chunk."""
        full = queue.chunk
        if full is not None and queue.has(partition):
            self._feeder.convert(full, queue, call.deadline)
            return
        metadata = self._topic_with(partition, queue.topic, call)
        if full is not None:
            queue.learn(metadata)
            return
        chunk_bytes = max(size_bytes, min(queue.chunk_bytes, self._largest_chunk_bytes))
        pending, chunk = PendingAppend(), None
        try:
            self._caller.reserve(pending, chunk_bytes, call)
            sent = SentRows(
                queue.topic, self._interceptors, self._check_may_wait, self._check_process
            )
            chunk = RowChunk(queue.topic, metadata, pending, time.monotonic(), sent)
            self._feeder.begin(chunk, queue)
        except BaseException:
            if chunk is None or not chunk.is_begun:
                self._state.left_behind[pending] = self._state.release
                self._state.release(pending)
            self._state.wake()
            raise

    def _topic_with(self, partition: int | None, topic: str, call: Call) -> TopicMetadata:
        """Wait until a topic is known, and has the partition that a row names."""
        least = 0 if partition is None else partition + 1
        return self._caller.wait_for({topic: least}, call, must_grow=True)[0]

    def _check_may_wait(self) -> None:
        if self._thread.is_current:
            message = (
                "waiting for a record's future inside a callback is not permitted because it would "
                "never end: callbacks run in the thread that delivers records"
            )
            raise KafkaException(message)
        self._feeder.check_not_in_partitioner()
        self._check_process()

    def _check_process(self) -> None:
        if self._caller.is_forked:
            message = "this record was sent before a fork; wait for it in the process that sent it"
            raise IllegalStateException(message)

    # -- close and fork ---------------------------------------------------------------------------

    def close(self) -> None:
        """Accept no more rows."""
        self._feeder.close()
        for queue in list(self._queues.values()):
            with queue.lock:
                queue.room = -1
        self._open_queues = {}

    def forget(self) -> None:
        """Accept no more rows in a forked child, because it has no I/O thread."""
        self._open_queues = {}


# The producers that were created in this process; copies in a forked child do not count.
_OF_THIS_PROCESS: weakref.WeakSet[RowProducer] = weakref.WeakSet()


def _forget_all() -> None:
    for producer in list(_OF_THIS_PROCESS):
        producer.forget()
    _OF_THIS_PROCESS.clear()


os.register_at_fork(after_in_child=_forget_all)

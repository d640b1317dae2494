"""RowProducer: `KafkaProducer.send`, row by row, on top of the columnar path.

A row is appended to its topic's chunk, which has its memory reserved, and gets a future; that is
all that happens per row. A chunk becomes a slice of columns when it is full (in the thread whose
row found it full), when its rows have lingered or memory is short (in the I/O thread), on flush
and on close. From there on rows and columns go the same way.

Owns the queues, and the order: a chunk is taken out of its queue only by who has the appender's
turn, so that what was sent first is appended first.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from spark_kafka_sink.batch_partitioner import sent_batch, with_partitions
from spark_kafka_sink.errors import (
    ApiException,
    IllegalStateException,
    KafkaException,
    RecordTooLargeException,
)
from spark_kafka_sink.interceptors import unsent_metadata
from spark_kafka_sink.model import RecordMetadata
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.slices import record_sizes
from spark_kafka_sink.producer_record import Headers, ProducerRecord, checked_headers
from spark_kafka_sink.producer_thread import ProducerThread
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.varint import varint_size
from spark_kafka_sink.row_chunk import CELLS, RowChunk
from spark_kafka_sink.row_future import OnDelivery, RowFuture, SentRows, call_back
from spark_kafka_sink.serializers import as_bytes
from spark_kafka_sink.slice_appender import SliceAppender
from spark_kafka_sink.user_code import KEY_SERIALIZER, VALUE_SERIALIZER, UserCode

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")

# What a record takes besides key, value and headers, at most: its length (5 bytes), attributes (1)
# and deltas (10 and 5), and the lengths of key and value and the count of headers (5 each).
ROW_OVERHEAD_BYTES: Final = 36
# A chunk reserves what comes in 10 ms, going by the last one of its topic, within these limits: so
# many rows that its fixed cost (0.3 ms) is little per row, but none that wait for long while they
# would fill a batch, whatever linger.ms is.
FILL_TIME_S: Final = 0.01
SMALLEST_CHUNK_BYTES: Final = 16 * 1024
LARGEST_CHUNK_BYTES: Final = 1024 * 1024
_CLOSED_MESSAGE: Final = "Cannot perform operation after producer has been closed"


class RowWaits(NamedTuple):
    """What `send` may have to wait for; all of it within one deadline (max.block.ms).

    check_usable raises where the producer takes no more; deadline gives until when a call that
    begins now may wait; topic gives a topic's metadata that has at least so many partitions;
    reserve takes bytes of buffer.memory.
    """

    check_usable: Callable[[], None]
    deadline: Callable[[], float]
    topic: Callable[[str, int, float], TopicMetadata]
    reserve: Callable[[int, float], None]


def weakly(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Give a bound method that does not keep its object alive.

    The I/O thread holds the rows, and a producer that nobody holds any more has to be noticed.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        alive = reference()
        if alive is None:
            message = "the producer is gone"
            raise IllegalStateException(message)
        return alive(*args, **kwargs)

    return call


class _Row(NamedTuple):
    """A row that is serialized and checked."""

    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]
    on_delivery: OnDelivery | None


def next_chunk_bytes(used_bytes: int, age_s: float) -> int:
    """Give what a topic's next chunk is to reserve, when the last one had so much after so long."""
    change = min(2.0, max(0.5, FILL_TIME_S / max(age_s, 1e-6)))
    return min(max(int(used_bytes * change), SMALLEST_CHUNK_BYTES), LARGEST_CHUNK_BYTES)


def header_bytes(headers: Headers) -> int:
    """Give what headers take at most; up to 10 bytes are the lengths of each."""
    return sum(len(name.encode()) + len(value or b"") + 10 for name, value in headers)


class _RowQueue:
    """One topic's chunk. `room`: bytes that its chunk still takes, -1 without one."""

    __slots__ = ("chunk", "chunk_bytes", "lock", "partitions", "room", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.lock = threading.Lock()
        self.chunk: RowChunk | None = None
        self.room = -1
        self.chunk_bytes = SMALLEST_CHUNK_BYTES
        self.partitions = 0

    def put(self, row: _Row, size_bytes: int) -> RowFuture | None:
        """Append a row; None where there is no room for it."""
        with self.lock:
            chunk = self.chunk
            if chunk is None or size_bytes > self.room:
                return None
            self.room -= size_bytes
            number = len(chunk)
            if row.partition is not None:
                chunk.partitions[number] = row.partition
            if row.timestamp_ms is not None:
                chunk.timestamps[number] = row.timestamp_ms
            if row.headers:
                chunk.headers[number] = row.headers
            if row.on_delivery is not None:
                chunk.sent.callbacks[number] = row.on_delivery
            chunk.cells.extend((row.value, row.key, time.time()))
            return RowFuture(chunk.sent, number)

    def learn(self, metadata: TopicMetadata) -> None:
        """Take newer metadata, which may have more partitions; also for the rows that wait."""
        with self.lock:
            self.partitions = len(metadata.leaders)
            if self.chunk is not None:
                self.chunk.metadata = metadata

    def install(self, chunk: RowChunk) -> bool:
        """Take a new chunk; False if there is one by now. The caller has the lock."""
        if self.chunk is not None:
            return False
        self.chunk, self.room = chunk, chunk.reserved
        self.partitions = len(chunk.metadata.leaders)
        return True

    def take(self, chunk: RowChunk) -> bool:
        """Give the chunk away; False if it is another by now."""
        with self.lock:
            if self.chunk is not chunk:
                return False
            used = chunk.reserved - self.room
            self.chunk_bytes = next_chunk_bytes(used, time.monotonic() - chunk.created_at)
            self.chunk, self.room = None, -1
            return True


class RowProducer:
    """The queues of all topics. Times are seconds of the producer's clock."""

    def __init__(  # noqa: PLR0913 - made in one place, by keywords
        self,
        thread: ProducerThread,
        appender: SliceAppender,
        waits: RowWaits,
        *,
        linger_s: float,
        max_request_size_bytes: int,
        buffer_memory_bytes: int,
        option_prefix: str,
        user_code: UserCode,
        is_transactional: bool,
    ) -> None:
        self._thread = thread
        self._partitioner = user_code.partitioner
        self._appender = appender
        self._waits = waits
        self._linger_s = linger_s
        self._limits = (
            (f"{option_prefix}max.request.size", max_request_size_bytes),
            (f"{option_prefix}buffer.memory", buffer_memory_bytes),
        )
        # What fits a request and memory for certain. No chunk has more room, so that a row for
        # which there is room needs no further check.
        fits = min(max_request_size_bytes, buffer_memory_bytes) - RECORD_BATCH_OVERHEAD
        self._always_fits_bytes = fits
        self._largest_chunk_bytes = min(fits, buffer_memory_bytes // 8)
        by_key, by_value = user_code.key_serializer, user_code.value_serializer
        self._key_serializer = None if by_key is None else by_key.serialize
        self._value_serializer = None if by_value is None else by_value.serialize
        self._serializes = by_key is not None or by_value is not None
        self._interceptors = user_code.interceptors
        self._lock = threading.Lock()
        self._closed = False
        self._queues: dict[str, _RowQueue] = {}
        # The queues that rows may go to straight away: none where interceptors see them first, or
        # a transaction has to be asked.
        is_plain = not self._interceptors and not is_transactional
        self._open_queues: dict[str, _RowQueue] = self._queues if is_plain else {}
        # The chunks that have rows coming, oldest first.
        self._pending: dict[RowChunk, _RowQueue] = {}
        _OF_THIS_PROCESS.add(self)

    # -- sending: the caller's thread -------------------------------------------------------------

    def send(  # noqa: C901, PLR0912 - written out, see below
        self,
        topic: str,
        value: Any,  # noqa: ANN401 - what it is, is looked at
        key: Any,  # noqa: ANN401
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        on_delivery: OnDelivery | None,
    ) -> Future[RecordMetadata]:
        """Append a row; see `KafkaProducer.send`.

        The path of nearly every row, at 0.7 us where nothing but a value is given: a call or an
        object more would each be a tenth of that, so there is none that is not needed.
        """
        queue = self._open_queues.get(topic)
        if (
            queue is None
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
        if self._serializes:
            key, value = self._serialize(topic, key, value)
        size = ROW_OVERHEAD_BYTES
        if value is not None:
            if value.__class__ is not bytes:
                value = as_bytes(VALUE_SERIALIZER, value)
            size += len(value)
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes(KEY_SERIALIZER, key)
            size += len(key)
        entries = checked_headers(headers) if headers else ()
        if entries:
            size += header_bytes(entries)
        with queue.lock:
            chunk, room = queue.chunk, queue.room - size
            if room >= 0 and chunk is not None:
                queue.room = room
                cells = chunk.cells
                number = len(cells) // CELLS
                if partition is not None:
                    chunk.partitions[number] = partition
                if timestamp_ms is not None:
                    chunk.timestamps[number] = timestamp_ms
                if entries:
                    chunk.headers[number] = entries
                if on_delivery is not None:
                    chunk.sent.callbacks[number] = on_delivery
                cells.extend((value, key, _wall_clock()))
                return RowFuture(chunk.sent, number)
        row = _Row(value, key, partition, timestamp_ms, entries, on_delivery)
        try:
            return self._append_row(queue, row, size)
        except ApiException as error:
            return self._refuse(error, topic, partition, on_delivery)

    def _send_record(
        self, record: ProducerRecord, on_delivery: OnDelivery | None
    ) -> Future[RecordMetadata]:
        """Append a row that interceptors see, or for which the topic is to be asked for."""
        record = self._interceptors.on_send(record)
        try:
            return self._append_record(record, on_delivery)
        except ApiException as error:
            self._interceptors.on_send_error(record, error)
            return self._refuse(error, record.topic, record.partition, on_delivery)
        except BaseException as error:
            self._interceptors.on_send_error(record, error)
            raise

    def _append_record(self, record: ProducerRecord, on_delivery: OnDelivery | None) -> RowFuture:
        self._waits.check_usable()
        deadline = self._waits.deadline()
        topic, partition = record.topic, record.partition
        queue = self._queues.get(topic) or self._queues.setdefault(topic, _RowQueue(topic))
        if not queue.partitions or (partition is not None and partition >= queue.partitions):
            least = 0 if partition is None else partition + 1
            queue.learn(self._waits.topic(topic, least, deadline))
        key, value = self._serialize(topic, record.key, record.value)
        headers = tuple(record.headers or ())
        row = _Row(value, key, partition, record.timestamp_ms, headers, on_delivery)
        size = ROW_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + header_bytes(headers)
        return self._append_row(queue, row, size, deadline)

    def _refuse(
        self,
        error: ApiException,
        topic: str,
        partition: int | None,
        on_delivery: OnDelivery | None,
    ) -> Future[RecordMetadata]:
        """Give a failed future: what brokers and limits have against a record is not raised."""
        self._thread.refused(1, error)
        self._thread.spoil_transaction(error)
        if on_delivery is not None:
            call_back(on_delivery, unsent_metadata(topic, partition), error)
        failed: Future[RecordMetadata] = Future()
        failed.set_exception(error)
        return failed

    def _serialize(
        self, topic: str, key: object, value: object
    ) -> tuple[bytes | None, bytes | None]:
        """Give key and value as bytes; the key goes first, as in the Java client."""
        by_key, by_value = self._key_serializer, self._value_serializer
        return (
            as_bytes(KEY_SERIALIZER, key) if by_key is None else by_key(topic, key),
            as_bytes(VALUE_SERIALIZER, value) if by_value is None else by_value(topic, value),
        )

    def _append_row(
        self, queue: _RowQueue, row: _Row, size_bytes: int, deadline: float | None = None
    ) -> RowFuture:
        """Append a row when there is room for it, which may be after a wait until `deadline`."""
        if size_bytes > self._always_fits_bytes:
            self._check_size(queue.topic, row)
        future = queue.put(row, size_bytes)
        if future is None:
            self._waits.check_usable()
            deadline = self._waits.deadline() if deadline is None else deadline
            while future is None:
                self._make_room(queue, size_bytes, deadline)
                future = queue.put(row, size_bytes)
        return future

    def _check_size(self, topic: str, row: _Row) -> None:
        """Raise RecordTooLargeException for what a request or memory cannot hold.

        To the byte as AbstractRecords.estimateSizeInBytesUpperBound of the Java client: 21 bytes
        for length, attributes and deltas.
        """
        fields = [row.key, row.value]
        for name, value in row.headers:
            fields += [name.encode(), value]
        lengths = [-1 if field is None else len(field) for field in fields]
        size = RECORD_BATCH_OVERHEAD + 21 + varint_size(len(row.headers))
        size += sum(max(length, 0) + varint_size(length) for length in lengths)
        for name, limit in self._limits:
            if size > limit:
                message = (
                    f"The message is {size} bytes when serialized, more than {name}={limit}; "
                    "raise it (and the topic's max.message.bytes where needed), or make the record "
                    "smaller"
                )
                raise RecordTooLargeException(message, topic=topic, partition=row.partition)

    def _make_room(self, queue: _RowQueue, size_bytes: int, deadline: float) -> None:
        """Turn the full chunk into batches, or begin a chunk."""
        full = queue.chunk
        if full is not None:
            self._convert(full, queue)
            return
        metadata = self._waits.topic(queue.topic, 0, deadline)
        wanted = max(size_bytes, min(queue.chunk_bytes, self._largest_chunk_bytes))
        self._waits.reserve(wanted, deadline)
        sent = SentRows(queue.topic, self._interceptors, self._check_may_wait)
        chunk = RowChunk(queue.topic, metadata, wanted, time.monotonic(), sent)
        with queue.lock, self._lock:
            closed = self._closed
            installed = not closed and queue.install(chunk)
            if installed:
                self._pending[chunk] = queue
        if not installed:
            self._give_back(wanted)
        if closed:
            raise IllegalStateException(_CLOSED_MESSAGE)
        with self._thread.lock:
            self._thread.wake()

    def _check_may_wait(self) -> None:
        if self._thread.is_current:
            message = (
                "waiting for a record's future inside a callback is not permitted because it would "
                "never end: callbacks run in the thread that delivers records"
            )
            raise KafkaException(message)
        if self not in _OF_THIS_PROCESS:
            message = "this record was sent before a fork; wait for it in the process that sent it"
            raise IllegalStateException(message)

    # -- chunks to batches: any thread ------------------------------------------------------------

    def _convert(self, chunk: RowChunk, queue: _RowQueue) -> None:
        """Turn a chunk into batches, unless another thread has."""
        full: list[ProducerBatch] = []
        with self._appender.turn:
            taken = queue.take(chunk)
            with self._lock:
                self._pending.pop(chunk, None)
            if taken:
                full = self._append(chunk)
        self._appender.pack(full)

    def _append(self, chunk: RowChunk) -> list[ProducerBatch]:
        """Append a chunk's rows; where that fails, their futures say why."""
        if not len(chunk):  # taken before its first row came
            self._give_back(chunk.reserved)
            return []
        try:
            rows = chunk.rows()
            if self._partitioner is not None:
                rows = with_partitions(rows, sent_batch(rows), [chunk.metadata], self._partitioner)
            return self._appender.append(
                rows,
                record_sizes(rows.columns),
                [chunk.metadata],
                self._check_alive,
                created_at=chunk.created_at,
                owner=chunk.sent,
            )
        except KafkaException as error:
            self._fail(chunk, error)
            return []
        except BaseException as error:
            logger.exception("rows for topic %s could not be encoded", chunk.topic)
            message = f"the rows could not be encoded: {type(error).__name__}: {error}"
            failure = KafkaException(message, topic=chunk.topic)
            failure.__cause__ = error
            self._fail(chunk, failure)
            if not isinstance(error, Exception):
                raise
            return []
        finally:
            self._give_back(chunk.reserved)

    def _check_alive(self) -> None:
        """Raise why nothing can be delivered any more; the caller holds the thread's lock."""
        if self._thread.fatal_error is not None:
            raise self._thread.fatal_error

    def _fail(self, chunk: RowChunk, error: KafkaException) -> None:
        self._thread.refused(len(chunk), error)
        self._thread.spoil_transaction(error)
        with self._thread.lock:
            self._thread.call_later(partial(chunk.sent.fail, len(chunk), error))

    def _give_back(self, size_bytes: int) -> None:
        with self._thread.lock:
            self._thread.accumulator.give_back(size_bytes)
            self._thread.changed.notify_all()

    def drain(self) -> None:
        """Turn everything that was sent before into batches."""
        if not self._queues:
            return
        with self._lock:
            pending = list(self._pending.items())
        for chunk, queue in pending:
            self._convert(chunk, queue)
        # A chunk that another thread is converting is in batches when that thread's turn is over.
        with self._appender.turn:
            pass

    # -- the I/O thread: Feeder -------------------------------------------------------------------

    def next_feed_at(self, *, hurry: bool) -> float:
        """Give when the oldest chunk has lingered; 0 in a hurry."""
        with self._lock:
            for chunk in self._pending:
                return 0.0 if hurry else chunk.created_at + self._linger_s
        return float("inf")

    def feed(self, now: float, *, hurry: bool) -> None:
        """Turn the chunks that have lingered, or in a hurry all, into batches."""
        with self._lock:
            due = [
                (chunk, queue)
                for chunk, queue in self._pending.items()
                if hurry or chunk.created_at + self._linger_s <= now
            ]
        for chunk, queue in due:
            self._convert(chunk, queue)

    def close(self) -> None:
        """Take no more rows."""
        with self._lock:
            self._closed = True
        for queue in list(self._queues.values()):
            with queue.lock:
                queue.room = -1
        self._open_queues = {}

    def give_up(self, error: KafkaException) -> None:
        """Fail the rows that are not in batches yet."""
        self.close()
        with self._lock:
            pending = list(self._pending.items())
        for chunk, queue in pending:
            with self._appender.turn:
                taken = queue.take(chunk)
                with self._lock:
                    self._pending.pop(chunk, None)
            if taken:
                self._fail(chunk, error)
                self._give_back(chunk.reserved)

    def forget(self) -> None:
        """Take no more rows in a forked child, where nobody would send them."""
        self._open_queues = {}


_wall_clock = time.time
# Producers that were made in this process, as opposed to a process it was forked from.
_OF_THIS_PROCESS: weakref.WeakSet[RowProducer] = weakref.WeakSet()


def _forget_all() -> None:
    for producer in list(_OF_THIS_PROCESS):
        producer.forget()
    _OF_THIS_PROCESS.clear()


os.register_at_fork(after_in_child=_forget_all)

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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple

from spark_kafka_sink.batch_partitioner import BatchPartitioner, sent_batch, with_partitions
from spark_kafka_sink.errors import (
    ApiException,
    IllegalStateException,
    KafkaException,
    RecordTooLargeException,
)
from spark_kafka_sink.interceptors import ProducerInterceptors, unsent_metadata
from spark_kafka_sink.model import RecordMetadata
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.slices import record_sizes
from spark_kafka_sink.producer_record import ProducerRecord
from spark_kafka_sink.producer_thread import ProducerThread
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.varint import varint_size
from spark_kafka_sink.row_chunk import CELLS, RowChunk
from spark_kafka_sink.row_future import OnDelivery, RowFuture, SentRows, call_back
from spark_kafka_sink.serializers import Serializer, as_bytes
from spark_kafka_sink.slice_appender import SliceAppender

logger = logging.getLogger(__name__)

# What a record takes besides key, value and headers, at most: its length (5 bytes), attributes (1)
# and deltas (10 and 5), and the lengths of key and value and the count of headers (5 each).
ROW_OVERHEAD_BYTES: Final = 36
# A chunk reserves twice what the last one of its topic needed, between these: few bytes for a
# topic with few rows, and for one with many enough rows that a chunk's fixed cost (0.3 ms) is
# little per row.
SMALLEST_CHUNK_BYTES: Final = 16 * 1024
LARGEST_CHUNK_BYTES: Final = 1024 * 1024
_CLOSED_MESSAGE: Final = "Cannot perform operation after producer has been closed"


class RowWaits(NamedTuple):
    """What `send` may have to wait for; all of it within one deadline (max.block.ms).

    check_usable raises where the producer takes no more; topic gives a topic's metadata that has
    at least so many partitions; reserve takes bytes of buffer.memory.
    """

    check_usable: Callable[[], None]
    deadline: Callable[[], float]
    topic: Callable[[str, int, float], TopicMetadata]
    reserve: Callable[[int, float], None]


class _Row(NamedTuple):
    """A row that is serialized and checked."""

    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]
    on_delivery: OnDelivery | None


class _RowQueue:
    """One topic's chunk. `room`: bytes that its chunk still takes, -1 without one."""

    __slots__ = ("chunk", "chunk_bytes", "lock", "metadata", "partitions", "room", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.lock = threading.Lock()
        self.chunk: RowChunk | None = None
        self.room = -1
        self.chunk_bytes = SMALLEST_CHUNK_BYTES
        self.metadata: TopicMetadata | None = None
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

    def install(self, chunk: RowChunk) -> bool:
        """Take a new chunk; False if there is one by now. The caller has the lock."""
        if self.chunk is not None:
            return False
        self.chunk, self.room = chunk, chunk.reserved
        self.metadata = chunk.metadata
        self.partitions = len(chunk.metadata.leaders)
        return True

    def take(self, chunk: RowChunk) -> bool:
        """Give the chunk away; False if it is another by now."""
        with self.lock:
            if self.chunk is not chunk:
                return False
            used = chunk.reserved - self.room
            self.chunk_bytes = min(max(2 * used, SMALLEST_CHUNK_BYTES), LARGEST_CHUNK_BYTES)
            self.chunk, self.room = None, -1
            return True


class RowProducer:
    """The queues of all topics. Times are seconds of the producer's clock."""

    def __init__(
        self,
        thread: ProducerThread,
        appender: SliceAppender,
        *,
        linger_s: float,
        max_request_size_bytes: int,
        buffer_memory_bytes: int,
        serializers: Sequence[Serializer | None],
        interceptors: ProducerInterceptors,
        partitioner: BatchPartitioner | None,
    ) -> None:
        self._thread = thread
        self._partitioner = partitioner
        self._appender = appender
        self._linger_s = linger_s
        self._limits = (
            ("max.request.size", max_request_size_bytes),
            ("buffer.memory", buffer_memory_bytes),
        )
        self._always_fits_bytes = min(max_request_size_bytes, buffer_memory_bytes)
        self._largest_chunk_bytes = max(1, buffer_memory_bytes // 8)
        self._key_serializer, self._value_serializer = serializers
        self._interceptors = interceptors
        self._lock = threading.Lock()
        self._closed = False
        self._queues: dict[str, _RowQueue] = {}
        # The queues that `try_send` may use: none where user code has to see every row.
        plain = not interceptors and not any(serializers)
        self._plain_queues: dict[str, _RowQueue] = self._queues if plain else {}
        # The chunks that have rows coming, oldest first.
        self._pending: dict[RowChunk, _RowQueue] = {}
        _OF_THIS_PROCESS.add(self)

    # -- sending: the caller's thread -------------------------------------------------------------

    def try_send(  # noqa: C901, PLR0911, PLR0912 - written out, see below
        self,
        topic: str,
        value: Any,  # noqa: ANN401 - what it is, is looked at
        key: Any,  # noqa: ANN401
        partition: int | None,
        timestamp_ms: int | None,
        headers: object,
        on_delivery: OnDelivery | None,
    ) -> RowFuture | None:
        """Append a row of plain bytes or text to a chunk with room; None: `send` must see to it.

        The path of nearly every row, at 0.7 us: a call or an object more would each be a tenth of
        that, so there is none that is not needed.
        """
        queue = self._plain_queues.get(topic)
        if queue is None or headers is not None:
            return None
        size = ROW_OVERHEAD_BYTES
        if value is not None:
            if value.__class__ is str:
                value = value.encode()
            elif value.__class__ is not bytes:
                return None
            size += len(value)
        if key is not None:
            if key.__class__ is str:
                key = key.encode()
            elif key.__class__ is not bytes:
                return None
            size += len(key)
        if partition is not None and (
            partition.__class__ is not int or not 0 <= partition < queue.partitions
        ):
            return None
        if timestamp_ms is not None and (
            timestamp_ms.__class__ is not int or not 0 <= timestamp_ms < 1 << 63
        ):
            return None
        with queue.lock:
            chunk, room = queue.chunk, queue.room - size
            if room < 0 or chunk is None:
                return None
            queue.room = room
            cells = chunk.cells
            number = len(cells) // CELLS
            if partition is not None:
                chunk.partitions[number] = partition
            if timestamp_ms is not None:
                chunk.timestamps[number] = timestamp_ms
            if on_delivery is not None:
                chunk.sent.callbacks[number] = on_delivery
            cells.extend((value, key, _wall_clock()))
            return RowFuture(chunk.sent, number)

    def send(
        self, record: ProducerRecord, on_delivery: OnDelivery | None, waits: RowWaits
    ) -> Future[RecordMetadata]:
        """Append a row, waiting for metadata and memory where needed.

        What brokers and limits have against the record (ApiException) becomes a failed future; the
        rest is raised. Interceptors are told of both.
        """
        record = self._interceptors.on_send(record)
        try:
            return self._send(record, on_delivery, waits)
        except ApiException as error:
            if on_delivery is not None:
                metadata = unsent_metadata(record.topic, record.partition)
                call_back(on_delivery, metadata, error)
            self._interceptors.on_send_error(record, error)
            failed: Future[RecordMetadata] = Future()
            failed.set_exception(error)
            return failed
        except BaseException as error:
            self._interceptors.on_send_error(record, error)
            raise

    def _send(
        self, record: ProducerRecord, on_delivery: OnDelivery | None, waits: RowWaits
    ) -> RowFuture:
        waits.check_usable()
        deadline = waits.deadline()
        topic, partition = record.topic, record.partition
        queue = self._queues.get(topic) or self._queues.setdefault(topic, _RowQueue(topic))
        if queue.metadata is None or (partition is not None and partition >= queue.partitions):
            least = 0 if partition is None else partition + 1
            queue.metadata = waits.topic(topic, least, deadline)
            queue.partitions = len(queue.metadata.leaders)
        row = _Row(
            key=self._serialize("key.serializer", self._key_serializer, topic, record.key),
            value=self._serialize("value.serializer", self._value_serializer, topic, record.value),
            partition=partition,
            timestamp_ms=record.timestamp_ms,
            headers=tuple(record.headers or ()),
            on_delivery=on_delivery,
        )
        size = self._check_size(topic, row)
        while True:
            future = queue.put(row, size)
            if future is not None:
                return future
            self._make_room(queue, size, deadline, waits)

    @staticmethod
    def _serialize(
        option: str, serializer: Serializer | None, topic: str, data: object
    ) -> bytes | None:
        return as_bytes(option, data) if serializer is None else serializer(topic, data)

    def _check_size(self, topic: str, row: _Row) -> int:
        """Give at least what a row takes; raises RecordTooLargeException."""
        fields = [row.key, row.value]
        for name, value in row.headers:
            fields += [name.encode(), value]
        size = sum(len(field) for field in fields if field is not None)
        bound = size + ROW_OVERHEAD_BYTES + 10 * len(row.headers)
        if bound + RECORD_BATCH_OVERHEAD <= self._always_fits_bytes:
            return bound
        # AbstractRecords.estimateSizeInBytesUpperBound, to the byte: 21 for length and deltas.
        lengths = sum(varint_size(-1 if field is None else len(field)) for field in fields)
        exact = RECORD_BATCH_OVERHEAD + 21 + size + lengths + varint_size(len(row.headers))
        for name, limit in self._limits:
            if exact > limit:
                message = (
                    f"The message is {exact} bytes when serialized, more than {name}={limit}; "
                    "raise it (and the topic's max.message.bytes where needed), or make the record "
                    "smaller"
                )
                raise RecordTooLargeException(message, topic=topic, partition=row.partition)
        return bound

    def _make_room(
        self, queue: _RowQueue, size_bytes: int, deadline: float, waits: RowWaits
    ) -> None:
        """Turn the full chunk into batches, or begin a chunk."""
        full = queue.chunk
        if full is not None:
            self._convert(full, queue)
            return
        metadata = waits.topic(queue.topic, 0, deadline)
        wanted = max(size_bytes, min(queue.chunk_bytes, self._largest_chunk_bytes))
        waits.reserve(wanted, deadline)
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
        self._plain_queues = {}

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
        self._plain_queues = {}


_wall_clock = time.time
# Producers that were made in this process, as opposed to a process it was forked from.
_OF_THIS_PROCESS: weakref.WeakSet[RowProducer] = weakref.WeakSet()


def _forget_all() -> None:
    for producer in list(_OF_THIS_PROCESS):
        producer.forget()
    _OF_THIS_PROCESS.clear()


os.register_at_fork(after_in_child=_forget_all)

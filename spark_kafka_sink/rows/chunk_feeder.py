"""ChunkFeeder: turns chunks of rows into batches.

That happens when a chunk is full (in the thread whose row found it full), when its rows have
lingered or memory is short (in the I/O thread), on flush and on close. From there on rows and
columns go the same way. Owns the chunks that have rows coming, and the order: a chunk is taken out
of its queue only by who has the appender's turn, so that what was sent first is appended first.
"""

from __future__ import annotations

import logging
import threading
from functools import partial

from spark_kafka_sink.batch_partitioner import BatchPartitioner, sent_batch, with_partitions
from spark_kafka_sink.errors import IllegalStateException, KafkaException
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.slices import record_sizes
from spark_kafka_sink.producer_thread import ProducerThread
from spark_kafka_sink.rows.chunk import RowChunk
from spark_kafka_sink.rows.row_queue import RowQueue
from spark_kafka_sink.slice_appender import SliceAppender

logger = logging.getLogger(__name__)


class ChunkFeeder:
    """The chunks of all topics. Times are seconds of the producer's clock."""

    def __init__(
        self,
        thread: ProducerThread,
        appender: SliceAppender,
        partitioner: BatchPartitioner | None,
        linger_s: float,
    ) -> None:
        self._thread = thread
        self._appender = appender
        self._partitioner = partitioner
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._closed = False
        self._has_begun = False
        # The chunks that have rows coming, oldest first.
        self._pending: dict[RowChunk, RowQueue] = {}

    def begin(self, chunk: RowChunk, queue: RowQueue) -> None:
        """Have a queue take a new chunk, unless it has one by now. Raises IllegalStateException."""
        with queue.lock, self._lock:
            closed = self._closed
            installed = not closed and queue.install(chunk)
            if installed:
                self._has_begun = True
                self._pending[chunk] = queue
        if not installed:
            self._thread.give_back(chunk.reserved)
        if closed:
            message = "Cannot perform operation after producer has been closed"
            raise IllegalStateException(message)
        with self._thread.lock:
            self._thread.wake()

    def convert(self, chunk: RowChunk, queue: RowQueue) -> None:
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
            self._thread.give_back(chunk.reserved)
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
            self._thread.give_back(chunk.reserved)

    def _check_alive(self) -> None:
        """Raise why nothing can be delivered any more; the caller holds the thread's lock."""
        if self._thread.fatal_error is not None:
            raise self._thread.fatal_error

    def _fail(self, chunk: RowChunk, error: KafkaException) -> None:
        self._thread.refused(len(chunk), error)
        self._thread.spoil_transaction(error)
        with self._thread.lock:
            self._thread.call_later(partial(chunk.sent.fail, len(chunk), error))

    def drain(self) -> None:
        """Turn everything that was sent before into batches."""
        if not self._has_begun:
            return
        with self._lock:
            pending = list(self._pending.items())
        for chunk, queue in pending:
            self.convert(chunk, queue)
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
            self.convert(chunk, queue)

    def close(self) -> None:
        """Begin no more chunks."""
        with self._lock:
            self._closed = True

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
                self._thread.give_back(chunk.reserved)

"""ChunkFeeder: turns chunks of rows into batches.

That happens when a chunk is full (in the thread whose row found it full), when its rows have
lingered or memory is short (in the I/O thread), on flush and on close. From there on rows and
columns go the same way. Owns the chunks that are not over, and the order: a chunk is taken out of
its queue only by who has the appender's turn, so that what was sent first is appended first.

Who is interrupted (KeyboardInterrupt) leaves a chunk that is over, or one that still has all its
rows, and which the I/O thread takes up again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from functools import partial

from spark_kafka_sink.batch_partitioner import sent_batch, with_partitions
from spark_kafka_sink.errors import IllegalStateException, KafkaException
from spark_kafka_sink.partitioner_class import BatchPartitioner
from spark_kafka_sink.producer.slices import Rows, record_sizes
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
        self._given_up: KafkaException | None = None
        self._has_begun = False
        # The chunks that are not over, oldest first.
        self._pending: dict[RowChunk, RowQueue] = {}
        # The thread that asks the user's partitioner for a chunk, with the turn.
        self._asking: int | None = None

    def has(self, chunk: RowChunk) -> bool:
        """Whether the chunk is one of those to turn into batches."""
        with self._lock:
            return chunk in self._pending

    def begin(self, chunk: RowChunk, queue: RowQueue) -> None:
        """Have a queue take a new chunk, unless it has one by now. Raises IllegalStateException."""
        with queue.lock, self._lock:
            closed = self._closed
            is_wanted = not closed and queue.chunk is None
            if is_wanted:
                self._has_begun = True
                self._pending[chunk] = queue
                queue.install(chunk)
        if not is_wanted:
            self._thread.give_back(chunk.reservation)
        if closed:
            message = "Cannot perform operation after producer has been closed"
            raise IllegalStateException(message)
        with self._thread.lock:
            self._thread.wake()

    def convert(self, chunk: RowChunk, queue: RowQueue) -> None:
        """Turn a chunk into batches, unless another thread has."""
        self._check_not_asking()
        left = queue.under_way
        if left is not None and left is not chunk:  # its caller was interrupted
            self.convert(left, queue)
        mine: RowChunk | None = None
        try:
            with self._appender.turn:
                queue.take(chunk)
                if not chunk.is_over:
                    mine = queue.under_way = chunk
                    self._append(chunk)
                if queue.under_way is chunk:
                    queue.under_way = None
            if mine is not None:
                self._appender.pack(mine.progress)
        except BaseException:
            if mine is not None:
                self._appender.leave(mine.progress)
                self._end_if_given_up(mine)
            raise

    def _append(self, chunk: RowChunk) -> None:
        """Append a chunk's rows, or fail them; with the turn."""
        try:
            chunk.is_in_hands = True
            if chunk.error is not None:
                self._fail(chunk, chunk.error)
            elif len(chunk):  # none if it is taken before its first row came
                self._append_rows(chunk)
            self._end(chunk)
        except BaseException:
            chunk.is_in_hands = False
            if chunk.progress.is_in_batches or chunk.is_over:
                self._end(chunk)
            raise

    def _end(self, chunk: RowChunk) -> None:
        """Be done with a chunk; may be called twice."""
        chunk.is_over = True
        self._thread.give_back(chunk.reservation)
        with self._lock:
            self._pending.pop(chunk, None)

    def _append_rows(self, chunk: RowChunk) -> None:
        """Append a chunk's rows; where that fails, their futures say why."""
        try:
            with self._thread.lock:
                self._check_alive()
            rows = chunk.rows()
            if self._partitioner is not None:
                rows = self._ask(self._partitioner, rows, chunk)
            self._appender.append(
                rows,
                record_sizes(rows.columns),
                [chunk.metadata],
                self._check_alive,
                chunk.progress,
                created_at=chunk.created_at,
                owner=chunk.sent,
            )
        except BaseException as error:
            # In a caller's thread, it may be what a signal's handler raised: that is the caller's,
            # and the I/O thread, where there are no signals, appends the rows or finds the same.
            is_known = isinstance(error, KafkaException) or self._thread.is_current
            if chunk.progress.is_in_batches or not is_known:
                raise
            self._fail(chunk, _encoding_failure(chunk, error))

    def _ask(self, partitioner: BatchPartitioner, rows: Rows, chunk: RowChunk) -> Rows:
        try:
            self._asking = threading.get_ident()
            return with_partitions(rows, sent_batch(rows), [chunk.metadata], partitioner)
        except KafkaException:
            raise
        except Exception as error:
            raise _encoding_failure(chunk, error) from error
        finally:
            self._asking = None

    def _check_not_asking(self) -> None:
        """Refuse what would wait for ever for the turn that the same thread has."""
        if self._asking == threading.get_ident():
            message = (
                "a partitioner has called the producer that asks it, which would never end: choose "
                "partitions without sending or flushing"
            )
            raise IllegalStateException(message)

    def _check_alive(self) -> None:
        """Raise why nothing can be delivered any more; the caller holds the thread's lock."""
        if self._thread.fatal_error is not None:
            raise self._thread.fatal_error

    def _fail(self, chunk: RowChunk, error: KafkaException) -> None:
        is_known, chunk.error = chunk.error is not None, error
        if not is_known:
            self._thread.refused(len(chunk), error)
        self._thread.spoil_transaction(error)
        with self._thread.lock:
            self._thread.call_later(partial(chunk.sent.fail, len(chunk), error))

    def drain(self) -> None:
        """Turn everything that was sent before into batches."""
        if not self._has_begun:
            return
        self._check_not_asking()
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

    def waiting_rows(self) -> Counter[str]:
        """Count by topic the rows that are in no batch yet."""
        with self._lock:
            pending = list(self._pending)
        rows = Counter[str]()
        for chunk in pending:
            if len(chunk) and not chunk.progress.is_in_batches:
                rows[chunk.topic] += len(chunk)
        return rows

    def close(self) -> None:
        """Begin no more chunks."""
        with self._lock:
            self._closed = True

    def give_up(self, error: KafkaException) -> None:
        """Fail the rows that are not in batches yet.

        What another thread has in its hands, that thread finds to be too late.
        """
        self.close()
        with self._lock:
            self._given_up = error
            pending = list(self._pending.items())
        for chunk, queue in pending:
            if not chunk.is_in_hands:
                with self._appender.turn:
                    queue.take(chunk)
                    self._give_up(chunk, error)

    def _end_if_given_up(self, chunk: RowChunk) -> None:
        """End a chunk that nobody will take up again."""
        if self._given_up is not None:
            with self._appender.turn:
                self._give_up(chunk, self._given_up)

    def _give_up(self, chunk: RowChunk, error: KafkaException) -> None:
        if not chunk.is_over:
            self._fail(chunk, error)
            self._end(chunk)


def _encoding_failure(chunk: RowChunk, error: BaseException) -> KafkaException:
    """Give what the rows' futures say; what is none of the producer's own errors is logged."""
    if isinstance(error, KafkaException):
        return error
    logger.error("rows for topic %s could not be encoded", chunk.topic, exc_info=error)
    message = f"the rows could not be encoded: {type(error).__name__}: {error}"
    failure = KafkaException(message, topic=chunk.topic)
    failure.__cause__ = error
    return failure

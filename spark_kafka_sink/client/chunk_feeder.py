"""ChunkFeeder: puts the rows of chunks into batches.

A chunk contains rows of one topic that were passed to `send` (see `chunk`). A caller's thread puts
the rows of a chunk into batches if the chunk is full, and on flush and close. The I/O thread does
so if the rows have waited for linger.ms, or if memory is short. After that, rows are handled like
columns. This module keeps the unfinished chunks in order. Rows are appended in the order in which
they were sent, because only a thread that holds the appender's lock takes a chunk out of its queue.

With a user's partitioner, the threads above only take a chunk and hand it over to a thread of
`PartitionerThreads`. That thread calls the partitioner without a lock, and then adds the rows to
batches. To keep the order, the topic's next chunk waits until then. The I/O thread logs errors
without a lock, after the rows have failed, because a log handler may call the producer.

If a caller is interrupted (KeyboardInterrupt), its chunk is either finished or still has all its
rows. In the second case, the I/O thread puts the rows into batches, or fails them if it is ending.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection
from functools import partial

import pyarrow as pa

from spark_kafka_sink.client.appender import SliceAppender
from spark_kafka_sink.client.chunk import RowChunk, RowQueue
from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.client.partitioner_threads import PartitionerThreads
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.errors import (
    IllegalStateException,
    KafkaException,
    TimeoutException,
    TransactionAbortedException,
    message_of,
)
from spark_kafka_sink.logs import safe_logging
from spark_kafka_sink.plugins.batch_partitioner import (
    PARTITIONER_CLASS,
    BatchPartitioner,
    sent_batch,
    with_partitions,
)
from spark_kafka_sink.records.columns import Rows
from spark_kafka_sink.records.encoder import record_sizes

logger = logging.getLogger(__name__)


class ChunkFeeder:
    """The chunks whose rows are in no batch yet. Times are seconds of the producer's clock."""

    def __init__(
        self,
        state: ProducerState,
        thread: ProducerThread,
        appender: SliceAppender,
        partitioner: BatchPartitioner | None,
        *,
        linger_s: float,
        delivery_timeout_s: float,
    ) -> None:
        self._state = state
        self._thread = thread
        self._appender = appender
        self._partitioner = partitioner
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._threads = PartitionerThreads()
        self._lock = threading.Lock()
        self._closed = False
        self._has_begun = False
        # The unfinished chunks, oldest first.
        self._pending: dict[RowChunk, RowQueue] = {}

    def start(self) -> None:
        """Prepare to call the partitioner. Raise RuntimeError if no thread can be started."""
        if self._partitioner is not None:
            self._threads.start()
            self._threads.run(_import_pandas)

    def begin(self, chunk: RowChunk, queue: RowQueue) -> None:
        """Install a new chunk in a queue, unless the queue has a chunk by now.

        Raise IllegalStateException if the producer is closed.
        """
        with queue.lock, self._lock:
            closed = self._closed
            is_needed = not closed and queue.chunk is None
            if is_needed:
                self._has_begun = True
                chunk.is_begun = True
                self._pending[chunk] = queue
                queue.install(chunk)
        if not is_needed:
            self._state.release(chunk.pending)
        if closed:
            message = "Cannot perform operation after producer has been closed"
            raise IllegalStateException(message)
        self._state.wake()

    def convert(self, chunk: RowChunk, queue: RowQueue, deadline: float | None = None) -> None:
        """Put a chunk's rows into batches, unless another thread does this or has done it.

        With a user's partitioner, a thread of `PartitionerThreads` does this, after the topic's
        previous chunk. deadline: until when to wait for the previous chunk. Raise TimeoutException
        if it takes longer.
        """
        if self._partitioner is None:
            self._convert(chunk, queue)
            return
        if self._hand_over(chunk, queue):
            return

        def is_free() -> bool | None:
            return None if queue.chunk is chunk and queue.under_way is not None else True

        self._state.wait(is_free, deadline, lambda: self._late(queue.under_way or chunk))

    def _convert(self, chunk: RowChunk, queue: RowQueue) -> None:
        left = queue.under_way
        if left is not None and left is not chunk:  # the caller that converted it was interrupted
            self._convert(left, queue)
        mine: RowChunk | None = None
        try:
            with self._appender.append_lock:
                if not chunk.is_over:
                    # This comes first: if an interrupt ends `take`, the rows of the topic's next
                    # chunk must wait for these.
                    queue.under_way = chunk
                queue.take(chunk)
                if chunk.is_over:
                    # Two interrupts prevented this call before. Without it, the chunk would stay
                    # due, and the I/O thread would find it again and again.
                    self._end(chunk)
                elif chunk.pending.is_in_batches:
                    self._end_in_batches(chunk)
                else:
                    mine = chunk
                    self._append(chunk)
                if queue.under_way is chunk:
                    queue.under_way = None
            if mine is not None:
                self._appender.pack(mine.pending)
        except BaseException:
            if mine is not None:
                if mine.pending.is_in_batches:
                    self._state.left_behind[mine] = self._give_to_io_thread
                self._state.packed(mine.pending)  # the I/O thread packs the rest
            raise

    def _give_to_io_thread(self, chunk: RowChunk) -> None:
        self._state.packed(chunk.pending)

    def _append(self, chunk: RowChunk, rows: Rows | None = None) -> None:
        """Append a chunk's rows, or fail them; the caller holds `append_lock`.

        rows: the rows with the partitions that the user's partitioner chose; None if the producer
        has no user's partitioner.
        """
        try:
            if chunk.error is not None:
                self._fail(chunk, chunk.error)
            elif len(chunk):  # empty if it is taken before its first row
                self._append_rows(chunk, rows)
            self._end(chunk)
        except BaseException:
            if chunk.pending.is_in_batches or chunk.is_over:
                self._end(chunk)
            raise

    def _end_in_batches(self, chunk: RowChunk) -> None:
        """Finish a chunk whose rows are in batches. Two interrupts have prevented this before."""
        self._state.release(chunk.pending)
        self._end(chunk)

    def _end(self, chunk: RowChunk) -> None:
        """Mark a chunk as finished, and release its memory; harmless if repeated."""
        chunk.is_over = True
        if chunk.pending.size_bytes:
            self._state.give_back(chunk.pending)
        with self._lock:
            self._pending.pop(chunk, None)

    def _append_rows(self, chunk: RowChunk, rows: Rows | None) -> None:
        """Append a chunk's rows; if that fails, their futures get the error."""
        try:
            self._state.raise_if_fatal()
            rows = chunk.rows() if rows is None else rows
            each = self._appender.slice(rows, record_sizes(rows.columns), [chunk.metadata])
            self._appender.append(
                each,
                self._state.loads(each.to_spread),
                chunk.pending,
                self._state.raise_if_fatal,
                created_at=chunk.created_at,
                owner=chunk.sent,
            )
        except BaseException as error:
            # In a caller's thread, the error may come from a signal handler, so it is raised to the
            # caller. The I/O thread, which gets no signals, then tries again to append the rows. If
            # it gets the same error, it fails them.
            has_signals = not (self._thread.is_current or self.is_in_partitioner)
            is_known = isinstance(error, KafkaException) or not has_signals
            if chunk.pending.is_in_batches or not is_known:
                raise
            self._fail(chunk, _encoding_failure(chunk, error))
            self._log("rows for topic %s could not be encoded", chunk.topic, error)

    # -- a user's own partitioner -----------------------------------------------------------------

    def _hand_over(self, chunk: RowChunk, queue: RowQueue) -> bool:
        """Hand a chunk to a partitioner thread; return False if the chunk is done or has to wait.

        A chunk has to wait while the topic's previous chunk is with the partitioner. If an
        interrupt has kept that chunk from being handed over, hand it over now.
        """
        if not queue.take_up(chunk):
            previous = queue.under_way
            if previous is not None:
                self._hand_to_thread(previous, queue)
            return False
        self._hand_to_thread(chunk, queue)
        return True

    def _hand_to_thread(self, chunk: RowChunk, queue: RowQueue) -> None:
        """Hand a chunk that is under way to a partitioner thread, unless this was done before."""
        if not chunk.is_handed_over:
            try:
                self._threads.run(partial(self._partition, chunk, queue))
                chunk.is_handed_over = True
            except RuntimeError as error:
                message = f"the thread that calls {PARTITIONER_CLASS} could not be started: {error}"
                failure = KafkaException(message, topic=chunk.topic)
                failure.__cause__ = error
                self._give_up_one(chunk, queue, failure)

    def _partition(self, chunk: RowChunk, queue: RowQueue) -> None:
        """Call the partitioner, and add the rows to batches; runs in a partitioner thread."""
        with self._lock:
            if chunk.is_partitioned:  # another thread has done this
                return
            chunk.is_partitioned = True
        try:
            self._choose_and_append(chunk)
        except BaseException as error:  # noqa: BLE001 - the rows' futures get it
            self._state.packed(chunk.pending)
            self._give_up_one(chunk, queue, _encoding_failure(chunk, error))
            self._log("rows for topic %s could not be put into batches", chunk.topic, error)
        finally:
            self._release(chunk, queue)

    def _choose_and_append(self, chunk: RowChunk) -> None:
        rows: Rows | None = None
        raised: BaseException | None = None
        failure: KafkaException | None = None
        try:
            # Rows that have failed already need no partition.
            if len(chunk) and not chunk.is_over:
                rows = self._chosen(chunk)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            # Reading the message of the user's exception may run user code, so no lock is held.
            raised, failure = error, _partitioner_failure(chunk, error)
        with self._appender.append_lock:
            if raised is not None and failure is not None:
                self._give_up(chunk, failure)
                self._log(f"{PARTITIONER_CLASS} failed for rows of topic %s", chunk.topic, raised)
            elif not chunk.is_over:
                self._append(chunk, rows)
        self._appender.pack(chunk.pending)

    def _chosen(self, chunk: RowChunk) -> Rows:
        rows = chunk.rows()
        if self._partitioner is None:
            return rows
        return with_partitions(rows, sent_batch(rows), [chunk.metadata], self._partitioner)

    def _release(self, chunk: RowChunk, queue: RowQueue) -> None:
        """Let the topic's next chunk go to the partitioner, and wake callers that wait for that."""
        queue.release(chunk)
        self._state.notify()

    @property
    def has_partitioner(self) -> bool:
        """Whether rows of `send` go through a user's partitioner, which may take long."""
        return self._partitioner is not None

    @property
    def partitioning(self) -> Collection[int]:
        """The ids of threads that run the user's partitioner for `send`; always the same object.

        `RowProducer` reads it for each row.
        """
        return self._threads.running

    @property
    def is_in_partitioner(self) -> bool:
        """Whether the calling thread runs the user's partitioner for rows of `send`."""
        return self._threads.is_current

    def check_not_in_partitioner(self) -> None:
        """Raise IllegalStateException if the calling thread runs the user's partitioner.

        Without this check, the thread could wait for the partitioner, and so for itself. `send` and
        `append` are always rejected, although they would wait only if memory or a chunk is full.
        """
        if self.is_in_partitioner:
            message = (
                "a partitioner has called its own producer, which would wait for the partitioner: "
                "choose partitions without sending or flushing"
            )
            raise IllegalStateException(message)

    def _late(self, chunk: RowChunk) -> TimeoutException:
        message = (
            f"{PARTITIONER_CLASS} {_name_of(self._partitioner)} has not chosen the partitions of "
            f"{len(chunk)} row(s) for topic {chunk.topic} in time, so these rows wait"
        )
        return TimeoutException(message, topic=chunk.topic)

    def _expired(self, chunk: RowChunk) -> TimeoutException:
        message = (
            f"{chunk.topic}: {len(chunk)} record(s) were not acknowledged within "
            f"delivery.timeout.ms={round(self._delivery_timeout_s * 1000)}: {PARTITIONER_CLASS} "
            f"{_name_of(self._partitioner)} has not chosen their partitions"
        )
        return TimeoutException(message, topic=chunk.topic)

    # -- with and without a user's own partitioner ------------------------------------------------

    def _fail(self, chunk: RowChunk, error: KafkaException) -> None:
        is_known, chunk.error = chunk.error is not None, error
        if not is_known:
            self._state.refuse(len(chunk), error, chunk.topic)
        self._state.spoil_transaction(error)
        self._state.call_later(partial(chunk.sent.fail, len(chunk), error))

    def _log(self, message: str, topic: str, error: BaseException) -> None:
        """Log an exception once the rows have failed. Do not log a KafkaException."""
        if not isinstance(error, KafkaException):
            self._state.call_later(partial(_log_error, message, topic, error))

    def drain(self, deadline: float | None = None, topics: Collection[str] | None = None) -> None:
        """Put into batches all rows that were passed to `send` before this call.

        deadline: until when to wait for the partitioner. If it is None, the wait ends when the
        partitioner is done, or when the rows fail because delivery.timeout.ms has passed. topics:
        None for all topics. Raise TimeoutException if the partitioner is not done in time.
        """
        if not self._has_begun:
            return
        self.check_not_in_partitioner()
        with self._lock:
            pending = [
                (chunk, queue)
                for chunk, queue in self._pending.items()
                if topics is None or chunk.topic in topics
            ]
        if self._partitioner is not None:
            self._drain_through_partitioner(pending, deadline)
        else:
            for chunk, queue in pending:
                self._convert(chunk, queue)
        # Another thread may still be working on a chunk until it releases the lock.
        with self._appender.append_lock:
            pass

    def _drain_through_partitioner(
        self, pending: list[tuple[RowChunk, RowQueue]], deadline: float | None
    ) -> None:
        while pending:
            for chunk, queue in pending:
                self._hand_over(chunk, queue)
            late = partial(self._late, pending[0][0])
            self._state.wait(partial(_any_may_go_on, pending), deadline, late)
            pending = [(chunk, queue) for chunk, queue in pending if not chunk.is_over]

    def drop(self, cause: KafkaException | None) -> None:
        """Fail all rows that are in no batch yet, because their transaction is aborted.

        This does not wait for the partitioner. cause: why the transaction failed; None if it did
        not fail.
        """
        with self._lock:
            pending = list(self._pending.items())
        for chunk, queue in pending:
            self._give_up_one(chunk, queue, _aborted(chunk, cause))

    # -- for the I/O thread (the protocol Feeder) -------------------------------------------------

    def next_feed_at(self, *, hurry: bool) -> float:
        """Return the time at which `feed` has to be called next.

        A chunk is due when it has waited for linger.ms; with `hurry`, it is due at once (0). A
        chunk that waits for the previous chunk's partitioner call is due when its
        delivery.timeout.ms expires.
        """
        with self._lock:
            if self._partitioner is None:
                for chunk in self._pending:
                    return self._due_at(chunk, hurry=hurry)
            return min(
                (
                    self._due_at(chunk, hurry=hurry)
                    if queue.may_take_up(chunk)
                    else chunk.created_at + self._delivery_timeout_s
                    for chunk, queue in self._pending.items()
                ),
                default=float("inf"),
            )

    def _due_at(self, chunk: RowChunk, *, hurry: bool) -> float:
        return 0.0 if hurry else chunk.created_at + self._linger_s

    def feed(self, now: float, *, hurry: bool) -> None:
        """Put the chunks that have waited for linger.ms into batches; with `hurry`, all chunks.

        Fail chunks whose delivery.timeout.ms has expired while they waited for the partitioner.
        """
        with self._lock:
            due = [
                (chunk, queue)
                for chunk, queue in self._pending.items()
                if self._due_at(chunk, hurry=hurry) <= now
            ]
        for chunk, queue in due:
            if self._partitioner is None:
                self._convert(chunk, queue)
            elif chunk.created_at + self._delivery_timeout_s <= now:
                self._give_up_one(chunk, queue, self._expired(chunk))
            elif queue.may_take_up(chunk):
                self._hand_over(chunk, queue)

    def waiting_rows(self) -> Counter[str]:
        """Return the number of rows that are in no batch yet, by topic."""
        with self._lock:
            pending = list(self._pending)
        rows = Counter[str]()
        for chunk in pending:
            if len(chunk) and not chunk.pending.is_in_batches:
                rows[chunk.topic] += len(chunk)
        return rows

    def close(self) -> None:
        """Accept no more chunks."""
        with self._lock:
            self._closed = True

    def give_up(self, error: KafkaException) -> None:
        """Fail the rows that are not in batches yet; called by the I/O thread at its end.

        If a caller is putting a chunk into batches, this call waits for the caller. If the rows are
        in no batch then, this call fails them, because an interrupt may have stopped the caller.
        """
        self.close()
        self._threads.stop()
        with self._lock:
            pending = list(self._pending.items())
        for chunk, queue in pending:
            self._give_up_one(chunk, queue, error)

    def _give_up_one(self, chunk: RowChunk, queue: RowQueue, error: KafkaException) -> None:
        try:
            with self._appender.append_lock:
                queue.take(chunk)
                self._give_up(chunk, error)
        finally:
            if chunk.is_over and not chunk.is_partitioned:  # else its partitioner's thread does it
                self._release(chunk, queue)

    def _give_up(self, chunk: RowChunk, error: KafkaException) -> None:
        try:
            if chunk.pending.is_in_batches and not chunk.is_over:
                self._end_in_batches(chunk)
            elif not chunk.is_over:
                self._fail(chunk, error)
            self._end(chunk)
        except BaseException:  # an interrupt of a caller that aborts a transaction
            if chunk.is_over:
                self._end(chunk)
            raise


def _any_may_go_on(pending: list[tuple[RowChunk, RowQueue]]) -> bool | None:
    return any(chunk.is_over or queue.under_way is None for chunk, queue in pending) or None


def _import_pandas() -> None:
    """Make a first array, so that pyarrow imports pandas now if it is installed.

    The import may take seconds, and there is no time for it at the end of a program.
    """
    pa.array([0])


def _log_error(message: str, topic: str, error: BaseException) -> None:
    with safe_logging():
        logger.error(message, topic, exc_info=error)


def _encoding_failure(chunk: RowChunk, error: BaseException) -> KafkaException:
    """Return the error for the futures of rows that could not be encoded."""
    if isinstance(error, KafkaException):
        return error
    message = f"the rows could not be encoded: {type(error).__name__}: {message_of(error)}"
    failure = KafkaException(message, topic=chunk.topic)
    failure.__cause__ = error
    return failure


def _aborted(chunk: RowChunk, cause: KafkaException | None) -> TransactionAbortedException:
    message = f"{chunk.topic}: {len(chunk)} record(s) were not sent: their transaction was aborted"
    error = TransactionAbortedException(message, topic=chunk.topic)
    error.__cause__ = cause
    return error


def _partitioner_failure(chunk: RowChunk, error: BaseException) -> KafkaException:
    """Return the error of rows for which the partitioner raised, or returned a wrong value."""
    if isinstance(error, KafkaException):
        return error
    message = (
        f"{PARTITIONER_CLASS} raised {type(error).__name__} for {len(chunk)} row(s) of topic "
        f"{chunk.topic}, so these rows are not sent: {message_of(error)}"
    )
    failure = KafkaException(message, topic=chunk.topic)
    failure.__cause__ = error
    return failure


def _name_of(partitioner: BatchPartitioner | None) -> str:
    return getattr(partitioner, "__qualname__", type(partitioner).__qualname__)

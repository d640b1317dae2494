"""Runs a task: appends every Arrow batch, and succeeds only if every row is acknowledged.

The worker process keeps the producer for its next task. This module imports the producer, Arrow and
numpy. So only tasks import it, and the modules for planning and committing do not.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import LARGEST_INT32
from spark_kafka_sink.spark.micro_batch import QUERY_ID
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options
from spark_kafka_sink.spark.report import (
    PartitionCounts,
    SinkCommitMessage,
    SkippedMessage,
    TaskReport,
    counted,
)
from spark_kafka_sink.spark.tasks.producer_pool import POOL
from spark_kafka_sink.spark.tasks.task_rows import TaskRows, TaskWaits
from spark_kafka_sink.spark.topics import suggest_create_topics
from spark_kafka_sink.spark.worker import acknowledge_now, freeze_imports, keep_heap

if TYPE_CHECKING:
    from spark_kafka_sink.commit.attempts import Plan
    from spark_kafka_sink.spark.micro_batch import MicroBatch
    from spark_kafka_sink.spark.tasks.single_task import SingleTask
    from spark_kafka_sink.spark.tasks.two_phase_task import TwoPhaseTask
    from spark_kafka_sink.spark.tracing import TaskSpan
    from spark_kafka_sink.task_producer import DeliveryProgress, TaskProducer


# Condition.wait() does not accept infinity.
_LONGEST_WAIT_S: Final = 3600.0
# The shortest pause before `settle` is called while Spark has no batch, even if linger.ms is 0.
_SHORTEST_PAUSE_S: Final = 0.05
# `spread_evenly` accepts the numbers from 0 to this number, exclusive.
_STARTS: Final = LARGEST_INT32 + 1


def append_coalesced(
    batches: Iterable[pa.RecordBatch],
    append: Callable[[pa.RecordBatch, float], None],
    slice_bytes: int,
    linger_s: float,
    settle: Callable[[], object] | None = None,
) -> None:
    """Combine small batches and append them; append each large batch alone.

    slice_bytes: the best size of one append. The producer cuts larger batches into such slices.
    append: receives a batch, and the time at which its oldest row began to wait (`time.monotonic`).
    `append` is called by one thread at a time, in the order of the rows. The thread may be one that
    this function starts. If that thread gets an exception, this function raises it when the next
    batch arrives from Spark, or at the end. linger_s: how long a row may wait. settle: a function
    that is called after each append. While no batch arrives from Spark, it is also called every
    linger_s, or every 50 ms if linger_s is less. `settle` may be called in the same threads as
    `append`.

    Small batches are combined up to seven eighths of a slice, because rows are larger as records
    than in Arrow. No reference to an appended batch is kept, so memory contains only the batches of
    one slice.
    """
    waiting = _WaitingBatches(append, linger_s, settle)
    enough_bytes = slice_bytes * 7 // 8
    try:
        for batch in batches:
            came_at = time.monotonic()  # now, because the wait below also counts as lingering
            size_bytes = sum(map(_size_bytes, batch.columns))
            is_large = size_bytes >= slice_bytes // 2  # too large to be worth copying
            with waiting.lock:
                waiting.wait_for_append()
                waiting.raise_error()
                if is_large:
                    waiting.append()
                waiting.add(batch, size_bytes, came_at)
                del batch  # do not keep it while the next batches are read
                if is_large or waiting.size_bytes >= enough_bytes or waiting.have_lingered:
                    waiting.append()
                waiting.watch()
    finally:
        waiting.is_over = True  # even if an interrupt comes during `end`
        waiting.end()
    with waiting.lock:
        waiting.raise_error()
        waiting.append()


def _size_bytes(column: pa.Array) -> int:
    """Return the size of a column in memory.

    If all lists of a column are empty, Spark 4.0 and 4.1 send no offsets for the lists inside them.
    For such a column, `nbytes` would read the missing offsets and crash the process. When the sink
    requires Spark 4.2, which sends them (SPARK-56000), use `nbytes` for all columns.
    """
    if _has_lists_in_lists(column.type):
        return int(column.get_total_buffer_size())
    return int(column.nbytes)


@lru_cache(maxsize=64)
def _has_lists_in_lists(kind: pa.DataType, *, is_in_list: bool = False) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)
    inside = (kind.field(number).type for number in range(kind.num_fields))
    return (is_in_list and is_list) or any(
        _has_lists_in_lists(each, is_in_list=is_in_list or is_list) for each in inside
    )


class _WaitingBatches:
    """Batches that wait to be combined.

    Callers hold `lock` when they call any method except `end`. The lock is released while batches
    are appended, because an append may call the user's partitioner.
    """

    def __init__(
        self,
        append: Callable[[pa.RecordBatch, float], None],
        linger_s: float,
        settle: Callable[[], object] | None,
    ) -> None:
        self._append = append
        self._linger_s = linger_s
        self._settle = settle
        pause_s = math.inf if settle is None else max(linger_s, _SHORTEST_PAUSE_S)
        self._pause_s = min(pause_s, _LONGEST_WAIT_S)
        # Callers hold the lock itself instead of the condition. After an interrupt inside
        # `Condition.__enter__`, the lock would stay locked, and `end` would wait for ever.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.size_bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._since = 0.0
        self._thread: threading.Thread | None = None
        self._is_asleep = False
        self._is_appending = False
        self.is_over = False
        self._error: BaseException | None = None

    @property
    def have_lingered(self) -> bool:
        """Whether the oldest batch has waited for linger_s or longer."""
        return self._left_s() <= 0

    def _left_s(self) -> float:
        if not self._batches:
            return self._pause_s
        return min(_LONGEST_WAIT_S, self._since + self._linger_s - time.monotonic())

    def add(self, batch: pa.RecordBatch, size_bytes: int, came_at: float) -> None:
        """Add a batch, which came from Spark at the time `came_at`, to the waiting batches."""
        if not batch.num_rows:
            return
        if not self._batches:
            self._since = came_at
        self._batches.append(batch)
        self.size_bytes += size_bytes
        if self._is_asleep:
            self._changed.notify()

    def append(self) -> None:
        """Append the waiting batches as one, then call `settle`. Keep no reference to them."""
        joined, self._batches, self.size_bytes = self._batches, [], 0
        self._is_appending = True
        try:
            self.lock.release()
            if len(joined) > 1:
                # The result is one batch, unless a column would exceed the 2 GiB of an Arrow array.
                joined = pa.Table.from_batches(joined).combine_chunks().to_batches()
            while joined:
                self._append(joined.pop(0), self._since)
            if self._settle is not None:
                self._settle()
        finally:
            self.lock.acquire()
            self._is_appending = False
            self._changed.notify_all()

    def wait_for_append(self) -> None:
        """Wait for an append in the other thread to end, to keep the order of batches."""
        while self._is_appending:
            self._changed.wait()

    def watch(self) -> None:
        """If needed, start the thread that appends batches in time and calls `settle`.

        The thread runs user code, so it gets the task's context variables. They contain the current
        span of OpenTelemetry, and the names of options for error messages.
        """
        if self._thread is None and (self._batches or self._settle is not None):
            self._thread = threading.Thread(
                target=copy_context().run,
                args=(self._append_in_time,),
                name="pykafka-linger",
                daemon=True,
            )
            self._thread.start()

    def _append_in_time(self) -> None:
        with self.lock:
            is_idle = False
            while not self.is_over:
                if self.have_lingered or is_idle:
                    is_idle = False
                    try:
                        self.append()
                    except BaseException as error:  # noqa: BLE001 - for the task to raise
                        self._error = error
                        return
                    continue  # the task may have ended during the append
                self._is_asleep = not self._batches
                is_woken = self._changed.wait(self._left_s())
                self._is_asleep = False
                is_idle = not (is_woken or self._batches or self._is_appending)

    def raise_error(self) -> None:
        """Raise the exception that `append` raised in the other thread, if any."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Stop the other thread after its current append. The caller must set `is_over` before."""
        with self.lock:
            self._changed.notify()
        # After an interrupt inside `Thread.start`, the thread may never have begun to run.
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()


def write_task(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], plan: Plan | None = None
) -> SinkCommitMessage:
    """Write all batches and wait until every row is acknowledged.

    plan: the plan of the run for exactly once, None for at least once. Raise an exception if a row
    is not acknowledged. With at least once, rows that were sent before the error may be in Kafka.
    """
    acknowledge_now()
    freeze_imports()
    keep_heap()
    with _span(options) as span:
        message = _write(options, batches, plan, span)
        if span is not None:
            span.add(message)
    return message


def skip_task(
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch] | None,
    plan: Plan | None = None,
    micro_batch: MicroBatch | None = None,
) -> SkippedMessage:
    """Only count the rows of all batches, which an earlier write has already written.

    Return the commit message. batches: None if the rows need not be counted. plan, micro_batch: as
    in `SkippedMessage`.
    """
    with _span(options) as span:
        rows = None if batches is None else _counted_rows(options, batches)
        if span is not None:
            span.add_skipped(rows)
    return SkippedMessage(rows=rows, trace=options.trace, plan=plan, micro_batch=micro_batch)


def _counted_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> int:
    """Return the number of rows in all batches. The task's progress shows the count so far."""
    rows = 0

    def progress() -> DeliveryProgress:
        from spark_kafka_sink.task_producer import DeliveryProgress  # noqa: PLC0415 - most tasks print none

        awaited = {"the rows that were written before": f"{counted(rows, 'row')} so far"}
        return DeliveryProgress(
            0,
            0,
            0,
            is_waiting_for_memory=False,
            throttled={},
            retried={},
            unreachable={},
            awaited=awaited,
        )

    with _progress(options, progress, [], TaskContext.get()):
        for batch in batches:
            rows += batch.num_rows
    return rows


def _span(options: SinkOptions) -> AbstractContextManager[TaskSpan | None]:
    """Return a context manager that yields this task's span, or None without openTelemetry."""
    if options.trace is None:
        return nullcontext()
    from spark_kafka_sink.spark.tracing import task_span  # noqa: PLC0415 - few jobs have a trace

    return task_span(options.trace, *_numbers(TaskContext.get()))


def _numbers(context: TaskContext | None) -> tuple[int, int]:
    """Return the numbers of the task and of the attempt."""
    return (0, 0) if context is None else (context.partitionId(), context.attemptNumber())


def _write(
    options: SinkOptions,
    batches: Iterator[pa.RecordBatch],
    plan: Plan | None,
    span: TaskSpan | None,
) -> SinkCommitMessage:
    started_at, started = time.time(), time.monotonic()
    context = TaskContext.get()
    task, attempt = _numbers(context)
    with (
        name_kafka_options(),
        suggest_create_topics(options),
        POOL.producer(options.producer, options.brokers) as producer,
        _transaction(plan, options, producer, task, attempt) as transaction,
        TaskRows(
            options,
            producer,
            task,
            attempt,
            None if transaction is None else transaction.prepare_good,
        ) as task_rows,
    ):
        producer.spread_evenly(_first_partition(context))
        throttle_ms = producer.throttle_time_ms

        def append(batch: pa.RecordBatch, since: float) -> None:
            if transaction is not None:
                transaction.prepare(batch)
            task_rows.append(batch, since)

        slice_bytes = producer.slice_bytes(options.partitions)
        waits = [each.waits for each in (task_rows, transaction) if each is not None]
        flushed: DeliveryProgress | None = None

        def progress() -> DeliveryProgress:
            found = producer.progress()
            if flushed is None:
                return found
            return found._replace(records=flushed.records, bytes=flushed.bytes)

        with (
            nullcontext() if span is None else span.of_failure(progress),
            _progress(options, progress, waits, context),
        ):
            linger_s = options.producer.linger_ms / 1000
            settle = task_rows.settle if task_rows.keeps_rows else None
            append_coalesced(batches, append, slice_bytes, linger_s, settle)
            rows = task_rows.flush()
            flushed = producer.progress()
            # Take the deliveries here, because `transaction.end` discards their counts.
            delivered = producer.take_deliveries()
            throttle_ms = producer.throttle_time_ms - throttle_ms
            attempt_transaction = None if transaction is None else transaction.end()
            bad_rows = task_rows.finish()
    dead_letter_topic = options.bad_rows.topic
    expected = rows + (bad_rows.rows if dead_letter_topic else 0)
    acknowledged = sum(each.records for each in delivered.values())
    if acknowledged != expected:
        message = (
            f"the task had {expected} rows, but {acknowledged} were acknowledged; this is a bug"
        )
        raise KafkaException(message)
    dead_letters = {tp: each for tp, each in delivered.items() if tp.topic == dead_letter_topic}
    written = {tp: each for tp, each in delivered.items() if tp.topic != dead_letter_topic}
    return SinkCommitMessage(
        report=TaskReport(
            task=task,
            attempt=attempt,
            host=os.uname().nodename,
            rows=rows,
            seconds=time.monotonic() - started,
        ),
        started_at=started_at,
        throttle_ms=throttle_ms,
        bad_rows=bad_rows,
        expired_rows=task_rows.expired_rows.report(),
        partitions=PartitionCounts.of(written),
        dead_letters=PartitionCounts.of(dead_letters),
        query_id=None if context is None else context.getLocalProperty(QUERY_ID),
        trace=options.trace,
        transaction=attempt_transaction,
    )


def _transaction(
    plan: Plan | None, options: SinkOptions, producer: TaskProducer, task: int, attempt: int
) -> AbstractContextManager[SingleTask | TwoPhaseTask | None]:
    if plan is None:
        return nullcontext()
    from spark_kafka_sink.spark.tasks.task_transaction import task_transaction  # noqa: PLC0415 - exactly once alone needs it

    return task_transaction(plan, options, producer, task, attempt)


def _progress(
    options: SinkOptions,
    progress: Callable[[], DeliveryProgress],
    waits: Sequence[TaskWaits],
    context: TaskContext | None,
) -> AbstractContextManager[None]:
    if not options.progress:
        return nullcontext()
    from spark_kafka_sink.spark.tasks.task_progress import name_of, printed_progress  # noqa: PLC0415 - most tasks print none

    def with_waits() -> DeliveryProgress:
        found = progress()
        of_task = {what: why for each in waits for what, why in each.awaited.items()}
        return found._replace(awaited={**of_task, **found.awaited})

    return printed_progress(name_of(context), with_waits)


def _first_partition(context: TaskContext | None) -> int:
    """Return the number of the partition that gets a task's first rows without a key.

    The tasks of a stage start at consecutive partitions, so that tasks with few rows together fill
    all partitions. The partition of the first task depends on the stage id. So the micro-batches of
    a stream, which are separate stages, start at different partitions. Outside of Spark's own
    workers, tasks have no numbers, so each starts at a random partition.
    """
    if context is None:
        return Random().randrange(_STARTS)  # noqa: S311 - no secrets
    of_stage = Random(context.stageId()).randrange(_STARTS)  # noqa: S311 - no secrets
    return (of_stage + context.partitionId()) % _STARTS

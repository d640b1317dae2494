"""Append columns: cut an Arrow batch into slices, and add the rows of each slice to record batches.

This module keeps the slices in order, and holds the state of the partitioner. Slices are
partitioned and encoded one at a time, so that the offset deltas of a partition's records are
consecutive. The thread that holds `append_lock` never waits for memory, metadata or the network, so
the I/O thread may take the lock as well.

A slice is appended in these steps:

1. reserve memory, and get the `TopicLoad` of each topic (how many bytes wait for its partitions);
2. choose a partition for each row;
3. hold the open batches of these partitions, so that no other thread changes or sends them;
4. encode the rows, with offset deltas that continue those of the open batches;
5. add the encoded rows to the batches;
6. compress the batches that became full.

Only steps 1, 3, 5 and the end of 6 take the producer's lock (`ProducerState`), and only step 1 may
wait. In a transaction, each append also takes the lock when it begins and when it ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from spark_kafka_sink.client.caller import Caller
from spark_kafka_sink.client.deadlines import Call
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    DataException,
    KafkaException,
    RecordTooLargeException,
    add_last_line,
    message_of,
)
from spark_kafka_sink.model import AppendFailure, checked
from spark_kafka_sink.plugins.batch_partitioner import BatchPartitioner, with_partitions
from spark_kafka_sink.plugins.user_calls import call_in_io_thread
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import (
    GroupedRows,
    Partitioner,
    TopicLoad,
    check_partitions,
    choose_partitions,
    hash_keys,
    topics_to_spread,
)
from spark_kafka_sink.producer.producer_batch import ProducerBatch, RecordSpan, SpanOwner
from spark_kafka_sink.records.columns import Rows
from spark_kafka_sink.records.encoder import EncodedRows, encode_rows, record_sizes
from spark_kafka_sink.records.record_limits import RecordLimits
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.serde.arrow_columns import check_types, read_rows
from spark_kafka_sink.serde.row_rules import SinkColumns

SLICE_BYTES: Final = 8 * 1024 * 1024
# With at least this number of partitions, slices are twice as large: see
# docs/contributing/performance.md.
MANY_PARTITIONS: Final = 250


def slice_bytes(partitions: int) -> int:
    """Return the target size of a slice in bytes.

    Each partition in a slice costs time. So if there are many partitions, slices are larger.
    partitions: the number of partitions, summed over the topics of the rows; 0 if it is unknown.
    """
    return SLICE_BYTES if partitions < MANY_PARTITIONS else 2 * SLICE_BYTES


def slice_ends(sizes: Int64s, partitions: int, buffer_memory_bytes: int) -> list[int]:
    """Cut rows into slices of about `slice_bytes`, but at most a quarter of buffer.memory each.

    Return the end row of each slice (exclusive). A slice has at least one row. All slices are about
    equally large, because a small last slice would cost nearly as much time as a full slice.
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    most = max(1, buffer_memory_bytes // 4)
    slices = max(1, round(total / slice_bytes(partitions)), -(-total // most))
    limit = min(-(-total // slices) + int(sizes.max(initial=0)), most)
    cuts, start = [], 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        start = max(start + 1, int(np.searchsorted(ends, before + limit, "right")))
        cuts.append(start)
    return cuts


class RowOwner(SpanOwner, Protocol):
    """An object that is notified when rows of one slice are acknowledged or have failed."""

    def lay_out(self, grouped: GroupedRows) -> None:
        """Store the order that the rows have after they were sorted by partition.

        `RecordSpan.first_row` is a position in this order. This is called before any of the rows is
        sent.
        """


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows that are appended together.

    sizes: for each row, an upper bound of its encoded size in bytes; topics: the metadata of each
    topic in ``rows.topics``; hashes: the hash of each row's key; None if the partitioner ignores
    keys.
    """

    rows: Rows
    sizes: Int64s
    topics: list[TopicMetadata]
    hashes: Int64s | None

    @property
    def to_spread(self) -> dict[str, TopicMetadata]:
        """The topics that have at least one row that may go to any partition."""
        return topics_to_spread(self.rows, self.topics, self.hashes)


class SliceAppender:
    """Encodes slices of rows, and adds the rows to batches."""

    def __init__(self, state: ProducerState, config: ProducerConfig) -> None:
        self._state = state
        self._partitioner = Partitioner(
            Random(),  # noqa: S311 - no secrets
            config.partitioner_class,
            ignore_keys=config.partitioner_ignore_keys,
        )
        self.append_lock = threading.Lock()

    def spread_evenly(self, start: int) -> None:
        """Spread rows without a key evenly from now on; see `KafkaProducer.spread_evenly`."""
        with self.append_lock:
            self._partitioner.spread_evenly(start)

    def slice(self, rows: Rows, sizes: Int64s, topics: list[TopicMetadata]) -> Slice:
        """Return rows as a `Slice` for `append`, with the hashes of their keys."""
        hashes = hash_keys(rows.columns.key) if self._partitioner.uses_keys else None
        return Slice(rows, sizes, topics, hashes)

    def append(
        self,
        each: Slice,
        loads: Mapping[str, TopicLoad],
        pending: PendingAppend,
        check: Callable[[], None],
        *,
        created_at: float | None = None,
        owner: RowOwner | None = None,
    ) -> None:
        """Add a slice to batches. The caller holds `append_lock`, and has reserved the memory.

        loads: the `TopicLoad` of each topic in ``each.to_spread``. check: called with the lock of
        the producer; raises if rows must not be appended now. created_at: when the rows began to
        wait; None means now. owner: notified about each row's result.
        """
        rows, sizes, state = each.rows, each.sizes, self._state
        grouped = choose_partitions(
            rows, sizes, each.topics, self._partitioner, lambda name, _: loads[name], each.hashes
        )
        if owner is not None:
            owner.lay_out(grouped)
        try:
            opens = state.hold(pending, grouped.targets)
            cuts, encoded = encode_rows(grouped.rows.columns, grouped.runs, opens)
            encoded_rows = EncodedRows(cuts, encoded, len(rows), int(sizes.sum()), int(sizes.max()))
            state.put_in(pending, encoded_rows, check, created_at, owner)
        except BaseException:
            state.left_behind[pending] = state.let_go
            state.let_go(pending)
            raise

    def pack(self, pending: PendingAppend) -> None:
        """Compress the batches that an append has filled. The lock is not held during this."""
        if pending.full:
            for batch in pending.full:
                batch.pack()
            self._state.packed(pending)


_NO_ROWS: Final = np.zeros(0, np.int64)


OnFailure: TypeAlias = Callable[[AppendFailure], object]


class SliceOwner:
    """Calls `on_failure` for the failed rows of one slice.

    start: the number of the slice's first row in the Arrow batch or table that was appended.
    """

    def __init__(self, start: int, on_failure: OnFailure) -> None:
        self._start = start
        self._on_failure = on_failure
        self._rows: Int64s = _NO_ROWS

    def lay_out(self, grouped: GroupedRows) -> None:
        """Store the order of the rows, sorted by partition; see `RowOwner`."""
        self._rows = grouped.runs.order + self._start

    def completed(self, span: RecordSpan, batch: ProducerBatch) -> None:
        """If the batch has failed, report the rows of `span`; called by the I/O thread."""
        if batch.error is None:
            return
        rows = self._rows[span.first_row : span.first_row + span.records]
        culprits = None
        if batch.record_errors:
            numbers = np.array(sorted(batch.record_errors), np.int64) - span.first_record
            culprits = rows[numbers[(numbers >= 0) & (numbers < span.records)]]
        elif batch.record_count == 1:
            culprits = rows
        failure = AppendFailure(rows, culprits, batch.error)
        call_in_io_thread("on_failure callback", self._on_failure, failure)
        # Other slices share the error. Its traceback must not grow each time a user's code raises
        # it.
        batch.error.with_traceback(None)


class ColumnProducer:
    """Appends Arrow batches.

    limits: how large a record may be. drain_rows: puts the rows of earlier `send` calls into
    batches, so that they are sent first; it takes a deadline and the topics.
    """

    def __init__(
        self,
        state: ProducerState,
        appender: SliceAppender,
        caller: Caller,
        *,
        config: ProducerConfig,
        limits: RecordLimits,
        partitioner: BatchPartitioner | None,
        drain_rows: Callable[[float, list[str]], None],
    ) -> None:
        self._state = state
        self._appender = appender
        self._caller = caller
        self._config = config
        self.limits = limits
        self._refresh: Callable[[], Mapping[str, int]] | None = None
        self._partitioner = partitioner
        self._drain_rows = drain_rows

    def limit_messages(
        self,
        max_message_bytes: Mapping[str, int],
        refresh: Callable[[], Mapping[str, int]] | None,
    ) -> None:
        """Set the max.message.bytes of topics; see `TaskProducer.limit_messages`."""
        limits = dict(max_message_bytes)  # a user's mapping may run code, so no lock is held
        # Brokers check the compressed size, which is unknown here.
        is_plain = self._config.compression_type == "none"
        self.limits = self.limits.with_topics(limits if is_plain else {})
        self._refresh = refresh
        self._state.limit_messages(limits)

    def append(
        self,
        topic: str | None,
        record_batch: pa.RecordBatch | pa.Table,
        on_failure: OnFailure | None,
        *,
        built_in_partitioner: bool,
        lingers_since: float | None = None,
    ) -> None:
        """Append the rows of an Arrow batch or table; see `KafkaProducer.append`."""
        if isinstance(record_batch, pa.RecordBatch):
            progress = _Progress(record_batch.num_rows, "batch")
            try:
                self._append_batch(
                    topic,
                    record_batch,
                    0,
                    on_failure,
                    built_in_partitioner,
                    lingers_since,
                    progress,
                )
            except BaseException as error:  # an interrupt may come at any time
                if not progress.appended:
                    raise
                if isinstance(error, KafkaException):
                    raise progress.in_message(error) from error
                add_last_line(error, str(progress))
                raise
            return
        what = "a pyarrow.RecordBatch or a pyarrow.Table"
        table = checked("record_batch", record_batch, pa.Table, what)
        self._caller.before_append()
        first, rows, progress = 0, 0, _Progress(table.num_rows, "table")
        try:
            for batch in table.to_batches() or [_without_rows(table.schema)]:
                first, rows = first + rows, batch.num_rows
                self._append_batch(
                    topic, batch, first, on_failure, built_in_partitioner, lingers_since, progress
                )
        except BaseException as error:  # an interrupt may also come between two batches
            if progress.appended and progress.failure is None:
                progress.failure = error
                self._state.left_behind[progress] = self._spoil_transaction
                self._spoil_transaction(progress, message_of(error))
            if not isinstance(error, KafkaException):
                if progress.appended:
                    add_last_line(error, str(progress))
                raise
            self._state.refuse(progress.rows - first - rows, error)
            raise _of_table(error, first, progress) from error

    def _append_batch(
        self,
        topic: str | None,
        record_batch: pa.RecordBatch,
        first_row: int,
        on_failure: OnFailure | None,
        built_in: bool,  # noqa: FBT001 - private, and always given by position
        lingers_since: float | None,
        progress: _Progress,
    ) -> None:
        """Append an Arrow batch; first_row: the number of its first row in the appended table."""
        self._caller.before_append()
        if not record_batch.num_rows:
            check_types(SinkColumns(record_batch, topic), topic)
            return
        try:
            rows = read_rows(record_batch, topic, time.time_ns() // 1_000_000)
            sizes = record_sizes(rows.columns)
            self._check_sizes(rows, sizes)
            call = self._caller.column_call()
            topics = self._caller.topics(rows.topics, call)
            topics = self._check_partitions(rows, topics, call)
            self._drain_rows(call.deadline, rows.topics)
            if self._partitioner is not None and not built_in:
                rows = with_partitions(rows, record_batch, topics, self._partitioner)
                # As in the Java client, max.block.ms does not include the partitioner's time.
                call = self._caller.column_call()
        except KafkaException as error:
            self._state.refuse(record_batch.num_rows, error)
            raise
        under_way = object()
        try:
            self._state.begin_append(under_way)
            self._append_slices(
                rows, sizes, topics, call, first_row, on_failure, lingers_since, progress
            )
            self._state.end_append(under_way)
        except BaseException:
            # An interrupt may have prevented the call above.
            self._state.left_behind[under_way] = self._state.end_append
            self._state.end_append(under_way)
            raise

    def _append_slices(
        self,
        rows: Rows,
        sizes: Int64s,
        topics: list[TopicMetadata],
        call: Call,
        first_row: int,
        on_failure: OnFailure | None,
        lingers_since: float | None,
        progress: _Progress,
    ) -> None:
        start = end = 0
        total = len(sizes)
        pending = PendingAppend()
        try:
            partitions = sum(len(metadata.leaders) for metadata in topics)
            for end in slice_ends(sizes, partitions, self._config.buffer_memory):
                owner = None if on_failure is None else SliceOwner(first_row + start, on_failure)
                each = self._appender.slice(rows.slice(start, end), sizes[start:end], topics)
                self._append_slice(each, call, owner, pending, lingers_since)
                start, pending = end, PendingAppend()
                progress.appended = first_row + end
                # Like a separate call, each slice may wait up to max.block.ms for memory.
                call = self._caller.column_call()
        except BaseException as error:
            # The error may have come after the rows of the last slice were put into batches.
            appended = end if pending.is_in_batches else start
            progress.appended = first_row + appended
            # The caller does not know which rows were appended, so the transaction must be aborted.
            if progress.appended and progress.failure is None:
                progress.failure = error
                self._state.left_behind[progress] = self._spoil_transaction
                self._spoil_transaction(progress, message_of(error))
            if isinstance(error, KafkaException):
                self._state.refuse(total - appended, error)
            raise

    def _spoil_transaction(self, progress: _Progress, said: str = "") -> None:
        """Move the transaction to ABORTABLE_ERROR, because `append` has failed half-way.

        Do this only once per call of `append`: a second time, the next transaction may be open.
        said: the error's message. The I/O thread passes none: it holds the producer's lock, and
        reading the message may run user code (a method of the error).
        """
        error = progress.failure
        if error is None or progress.has_spoiled:
            return
        if isinstance(error, KafkaException):
            said = said or error.message
        why = said or type(error).__name__
        appended, rows, what = progress.appended, progress.rows, progress.what
        message = f"append failed after {appended} of {rows} rows of an Arrow {what}: {why}"
        failure = KafkaException(message)
        failure.__cause__ = error
        self._state.spoil_transaction(failure)
        progress.has_spoiled = True

    def _check_sizes(self, rows: Rows, sizes: Int64s) -> None:
        """Raise RecordTooLargeException for rows too large for a request, the memory or a topic."""
        if self.limits.fit(int(sizes.max(initial=0))):
            return
        try:
            self.limits.check(rows, sizes)
        except RecordTooLargeException as error:
            # The topic's max.message.bytes may have been raised since it was read.
            if error.topic is None or self._refresh is None:
                raise
            self.limit_messages(self._refresh(), self._refresh)
            self.limits.check(rows, sizes)

    def _check_partitions(
        self, rows: Rows, topics: list[TopicMetadata], call: Call
    ) -> list[TopicMetadata]:
        """Check explicit partition numbers; if one is too high, check again with new metadata."""
        if rows.partitions is None:
            return topics
        checked = list(topics)
        for number, of_topic in rows.by_topic():
            name, explicit = rows.topics[number], rows.partitions
            try:
                check_partitions(name, explicit, len(topics[number].leaders), of_topic)
            except DataException:
                # Partitions may have been added to the topic since the metadata was fetched.
                (known,) = self._caller.wait_for({name: int(explicit[of_topic].max()) + 1}, call)
                check_partitions(name, explicit, len(known.leaders), of_topic)
                checked[number] = known
        return checked

    def _append_slice(
        self,
        each: Slice,
        call: Call,
        owner: SliceOwner | None,
        pending: PendingAppend,
        lingers_since: float | None,
    ) -> None:
        appender, caller = self._appender, self._caller
        size_bytes = int(each.sizes.sum())
        try:
            loads = caller.reserve(pending, size_bytes, call, each.rows.topics, each.to_spread)
            created_at = self._created_at(lingers_since)
            check = caller.raise_if_not_appendable
            with appender.append_lock:
                appender.append(each, loads, pending, check, created_at=created_at, owner=owner)
            appender.pack(pending)
        except BaseException:
            self._state.left_behind[pending] = self._state.release
            self._state.release(pending)
            raise

    def _created_at(self, lingers_since: float | None) -> float | None:
        """Return the creation time of batches whose rows have waited already; None means now.

        It is `lingers_since`, or linger.ms ago if that is later. delivery.timeout.ms begins at this
        time, so only this much of the wait counts towards delivery.timeout.ms.
        """
        if lingers_since is None:
            return None
        return max(lingers_since, time.monotonic() - self._config.linger_ms / 1000)


class _Progress:
    """How many rows of an `append` call are in record batches.

    rows: the number of rows of the call; what: ``batch`` or ``table``; failure: the error with
    which the call failed after some rows were appended; has_spoiled: whether the transaction was
    moved to ABORTABLE_ERROR.
    """

    __slots__ = ("appended", "failure", "has_spoiled", "rows", "what")

    def __init__(self, rows: int, what: str) -> None:
        self.rows = rows
        self.what = what
        self.appended = 0
        self.failure: BaseException | None = None
        self.has_spoiled = False

    def in_message(self, error: KafkaException) -> KafkaException:
        """Return a copy of the error; its message shows how many rows were appended, if any."""
        return error.with_message(f"{error.message}; {self}" if self.appended else error.message)

    def __str__(self) -> str:
        return f"the first {self.appended} of the {self.what}'s {self.rows} rows were appended"


def _without_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)


def _of_table(error: KafkaException, first_row: int, progress: _Progress) -> KafkaException:
    """Return the error of one Arrow batch as an error of the table that contains the batch.

    first_row: the number of the batch's first row in the table. The given error object is not
    changed, because another caller may raise it, too.
    """
    of_table = progress.in_message(error)
    if of_table.row is not None:
        of_table.row += first_row
        of_table.place = f"row {of_table.row} of the Arrow table"
    return of_table

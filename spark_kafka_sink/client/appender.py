"""Columns in: cuts a batch of rows into slices and puts each into the accumulator.

Owns the turn (one slice is laid out and encoded at a time, so that a partition's offset deltas
follow one another) and the partitioner's state. Who has the turn never waits for memory, metadata
or the network, so that the I/O thread may take it too.

A caller may be interrupted anywhere (KeyboardInterrupt, or whatever a signal's handler raises).
What it has in its hands then is given up by the same steps as at the end, which may be taken twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from spark_kafka_sink.client.caller import CallerChecks, CallerWaits
from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import DataException, KafkaException, RecordTooLargeException
from spark_kafka_sink.model import AppendFailure, checked
from spark_kafka_sink.plugins.batch_partitioner import BatchPartitioner, with_partitions
from spark_kafka_sink.plugins.guarded_call import call_in_io_thread
from spark_kafka_sink.producer.buffer_pool import Reservation
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import Partitioner, TopicLoad, check_partitions
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.record_spans import DoneBatch, RecordSpan, SpanOwner
from spark_kafka_sink.producer.slices import (
    GroupedRows,
    check_message_sizes,
    check_record_sizes,
    choose_partitions,
    encode_rows,
    slice_ends,
    topic_load,
)
from spark_kafka_sink.records.columns import Rows
from spark_kafka_sink.records.encoder import record_sizes
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.serde.arrow_columns import read_rows


class RowOwner(SpanOwner, Protocol):
    """Who waits for the rows of a slice one by one."""

    def lay_out(self, grouped: GroupedRows) -> None:
        """Take the rows in the order in which spans will number them; called before any is sent."""


class SliceProgress:
    """How far a slice has come, for who is interrupted.

    is_in_batches: whether its rows are in batches, all of them; full: the batches that are to be
    packed, which are not sent before that.
    """

    __slots__ = ("full", "is_in_batches")

    def __init__(self) -> None:
        self.full: list[ProducerBatch] = []
        self.is_in_batches = False


class SliceAppender:
    """Encodes slices into batches."""

    def __init__(self, thread: ProducerThread, config: ProducerConfig) -> None:
        self._thread = thread
        # Of the built-in partitioner alone, as in the Java client.
        is_built_in = config.partitioner_class is None
        self._adaptive = is_built_in and config.partitioner_adaptive_partitioning_enable
        self._partitioner = Partitioner(
            Random(),  # noqa: S311 - no secrets
            config.partitioner_class,
            ignore_keys=config.partitioner_ignore_keys,
        )
        self.turn = threading.Lock()

    def spread_evenly(self, start: int) -> None:
        """Spread rows without a key evenly from here on; see `KafkaProducer.spread_evenly`."""
        with self.turn:
            self._partitioner.spread_evenly(start)

    def append(
        self,
        rows: Rows,
        sizes: Int64s,
        topics: list[TopicMetadata],
        check_usable: Callable[[], None],
        progress: SliceProgress,
        *,
        created_at: float | None = None,
        owner: RowOwner | None = None,
    ) -> None:
        """Put rows into batches; the caller has the turn, and reserved and gives back memory.

        sizes: bounds of the rows' encoded sizes in bytes; topics: the metadata of each of
        ``rows.topics``; check_usable: called under the lock, raises where nothing may be appended;
        progress: told of the batches to `pack`, which needs no turn; created_at: since when the
        rows wait, None for now.
        """
        accumulator = self._thread.accumulator
        grouped = choose_partitions(rows, sizes, topics, self._partitioner, self._load)
        if owner is not None:
            owner.lay_out(grouped)
        try:
            with self._thread.lock:
                opens = accumulator.hold(grouped.targets)
            cuts, encoded = encode_rows(grouped, opens)
            with self._thread.lock:
                check_usable()
                now = time.monotonic()
                self._thread.metrics.appended(len(rows), int(sizes.sum()), int(sizes.max()), now)
                since = now if created_at is None else created_at
                with self._thread.whole:
                    progress.full += accumulator.append(
                        grouped.targets, cuts, encoded, since, owner
                    )
                    progress.is_in_batches = True
                self._let_go(grouped)
        except BaseException:
            with self._thread.lock:
                self._let_go(grouped)
            raise

    def _let_go(self, grouped: GroupedRows) -> None:
        self._thread.accumulator.let_go(grouped.targets)
        self._thread.wake()

    def _load(self, name: str, topic: TopicMetadata) -> TopicLoad:
        thread = self._thread
        with thread.lock:
            return topic_load(
                name, topic, thread.accumulator, thread.latencies, adaptive=self._adaptive
            )

    def pack(self, progress: SliceProgress) -> None:
        """Compress the batches that are full.

        Their memory is accounted for one by one, but the I/O thread is woken once for all, so that
        more of them go in one request: that saves a tenth of a broker's CPU (docs/performance.md).
        """
        for batch in progress.full:
            batch.pack()
            with self._thread.lock, self._thread.whole:
                self._thread.packed([batch])
        with self._thread.lock:
            self._thread.wake()

    def leave(self, progress: SliceProgress) -> None:
        """Leave the batches that are not packed yet to the I/O thread."""
        with self._thread.lock:
            with self._thread.whole:
                self._thread.packed(progress.full)
            self._thread.wake()


_NO_ROWS: Final = np.zeros(0, np.int64)


OnFailure: TypeAlias = Callable[[AppendFailure], object]


class SliceOwner:
    """Waits for the rows of one slice; start: the number of its first row in what was appended."""

    def __init__(self, start: int, on_failure: OnFailure) -> None:
        self._start = start
        self._on_failure = on_failure
        self._rows: Int64s = _NO_ROWS

    def lay_out(self, grouped: GroupedRows) -> None:
        """Take the rows in the order in which spans number them."""
        self._rows = grouped.runs.order + self._start

    def completed(self, span: RecordSpan, batch: DoneBatch) -> None:
        """Take a span of a batch that is done; in the I/O thread."""
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


class ColumnProducer:
    """Takes Arrow batches.

    limits: the most that a record may take, by the names of the options; drain_rows: puts rows that
    were sent one by one to topics into batches, which go before; takes until when it may wait.
    """

    def __init__(
        self,
        thread: ProducerThread,
        appender: SliceAppender,
        waits: CallerWaits,
        checks: CallerChecks,
        *,
        config: ProducerConfig,
        limits: Mapping[str, int],
        partitioner: BatchPartitioner | None,
        drain_rows: Callable[[float, list[str]], None],
    ) -> None:
        self._thread = thread
        self._appender = appender
        self._waits = waits
        self._checks = checks
        self._config = config
        self._limits = limits
        self._max_message_bytes: Mapping[str, int] = {}
        self._look_anew: Callable[[], Mapping[str, int]] | None = None
        self._partitioner = partitioner
        self._drain_rows = drain_rows

    def limit_messages(
        self,
        max_message_bytes: Mapping[str, int],
        look_anew: Callable[[], Mapping[str, int]] | None,
    ) -> None:
        """Know the max.message.bytes of topics; see `KafkaProducer.limit_messages`."""
        limits = dict(max_message_bytes)  # a mapping of the user's own is not called under the lock
        with self._thread.lock:
            self._max_message_bytes = limits
            self._look_anew = look_anew
            self._thread.accumulator.limit_topics(limits)

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
            self._append_batch(
                topic, record_batch, 0, on_failure, built_in_partitioner, lingers_since
            )
            return
        what = "a pyarrow.RecordBatch or a pyarrow.Table"
        table = checked("record_batch", record_batch, pa.Table, what)
        self._checks.before_append()
        first = 0
        for batch in table.to_batches():
            try:
                self._append_batch(
                    topic, batch, first, on_failure, built_in_partitioner, lingers_since
                )
            except BaseException as error:
                if first:
                    self._spoil_transaction(first, table.num_rows, error, "table")
                if not isinstance(error, KafkaException):
                    raise
                self._thread.refused(table.num_rows - first - batch.num_rows, error)
                raise _of_table(error, first, table.num_rows) from error
            first += batch.num_rows

    def _append_batch(
        self,
        topic: str | None,
        record_batch: pa.RecordBatch,
        first_row: int,
        on_failure: OnFailure | None,
        built_in: bool,  # noqa: FBT001 - private, and always given by position
        lingers_since: float | None,
    ) -> None:
        """Append an Arrow batch; first_row: the number of its first row in what was given."""
        self._checks.before_append()
        if not record_batch.num_rows:
            return
        try:
            rows = read_rows(record_batch, topic, time.time_ns() // 1_000_000)
            sizes = record_sizes(rows.columns)
            self._check_sizes(rows, sizes)
            deadline = self._waits.deadline()
            check = self._checks.raise_if_unusable
            topics = self._waits.topics(rows.topics, deadline, check)
            topics = self._check_partitions(rows, topics, deadline)
            self._drain_rows(deadline, rows.topics)
            if self._partitioner is not None and not built_in:
                prefix = self._config.option_prefix
                rows = with_partitions(rows, record_batch, topics, self._partitioner, prefix)
        except KafkaException as error:
            self._thread.refused(record_batch.num_rows, error)
            raise
        under_way = object()
        try:
            self._thread.append_begins(under_way)
            self._append_slices(rows, sizes, topics, deadline, first_row, on_failure, lingers_since)
            self._thread.append_ends(under_way)
        except BaseException:
            self._thread.append_ends(under_way)
            raise

    def _append_slices(
        self,
        rows: Rows,
        sizes: Int64s,
        topics: list[TopicMetadata],
        deadline: float,
        first_row: int,
        on_failure: OnFailure | None,
        lingers_since: float | None,
    ) -> None:
        start, progress = 0, SliceProgress()
        try:
            partitions = sum(len(metadata.leaders) for metadata in topics)
            for end in slice_ends(sizes, partitions, self._config.buffer_memory):
                owner = None if on_failure is None else SliceOwner(first_row + start, on_failure)
                part = rows.slice(start, end)
                progress = SliceProgress()
                self._append_slice(
                    part, sizes[start:end], topics, deadline, owner, progress, lingers_since
                )
                start = end
                lingers_since = None  # the rest had to wait for memory
                # Every slice is a send of its own, which may wait for memory as long as any.
                deadline = self._waits.deadline()
        except BaseException as error:
            # A transaction that has a part has to learn of it that the rest does not come.
            if start or progress.is_in_batches:
                self._spoil_transaction(start, len(sizes), error)
            if isinstance(error, KafkaException):
                self._thread.refused(len(sizes) - start, error)
            raise

    def _spoil_transaction(
        self, appended: int, rows: int, error: BaseException, what: str = "batch"
    ) -> None:
        """Have the transaction aborted that has a part of an Arrow batch or table."""
        why = str(error) or type(error).__name__
        message = f"only {appended} of {rows} rows of an Arrow {what} were appended: {why}"
        failure = KafkaException(message)
        failure.__cause__ = error
        self._thread.spoil_transaction(failure)

    def _check_sizes(self, rows: Rows, sizes: Int64s) -> None:
        """Refuse rows that are too large for a request, for memory, or for their topic."""
        check_record_sizes(sizes, self._limits)
        if self._config.compression_type == "none":
            request = self._config.setting("max.request.size", self._config.max_request_size)
            try:
                check_message_sizes(rows, sizes, self._max_message_bytes, request)
            except RecordTooLargeException:
                if self._look_anew is None:
                    raise
                self.limit_messages(self._look_anew(), self._look_anew)
                check_message_sizes(rows, sizes, self._max_message_bytes, request)

    def _check_partitions(
        self, rows: Rows, topics: list[TopicMetadata], deadline: float
    ) -> list[TopicMetadata]:
        """Check explicit partitions, against fresh metadata where they seem to be too high."""
        if rows.partitions is None:
            return topics
        checked = list(topics)
        for number, of_topic in rows.by_topic():
            name, explicit = rows.topics[number], rows.partitions
            try:
                check_partitions(name, explicit, len(topics[number].leaders), of_topic)
            except DataException:
                # The topic may have been given more partitions since.
                check, least = self._checks.raise_if_unusable, int(explicit[of_topic].max()) + 1
                known = self._waits.grown_topic(name, least, deadline, check)
                check_partitions(name, explicit, len(known.leaders), of_topic)
                checked[number] = known
        return checked

    def _append_slice(
        self,
        rows: Rows,
        sizes: Int64s,
        topics: list[TopicMetadata],
        deadline: float,
        owner: SliceOwner | None,
        progress: SliceProgress,
        lingers_since: float | None,
    ) -> None:
        reservation, check = Reservation(), self._checks.raise_if_not_appendable
        try:
            self._waits.reserve(
                reservation, int(sizes.sum()), deadline, self._checks.raise_if_unusable
            )
            created_at = self._created_at(lingers_since)
            with self._appender.turn:
                self._appender.append(
                    rows, sizes, topics, check, progress, created_at=created_at, owner=owner
                )
            self._thread.give_back(reservation)
            self._appender.pack(progress)
        except BaseException:
            self._thread.give_back(reservation)
            self._appender.leave(progress)
            raise

    def _created_at(self, lingers_since: float | None) -> float | None:
        """Return what their batches are created at: never so early that they expire sooner."""
        if lingers_since is None:
            return None
        return max(lingers_since, time.monotonic() - self._config.linger_ms / 1000)


def _of_table(error: KafkaException, first_row: int, rows: int) -> KafkaException:
    """Return the error of a batch of a table, as one of the table.

    first_row: the number of the batch's first row in the table; rows: how many the table has. The
    error itself may be another caller's as well, so it stays as it is.
    """
    message = error.message
    if first_row:
        message += f"; the batches before, {first_row} of the table's {rows} rows, were appended"
    of_table = error.with_message(message)
    if of_table.row is not None:
        of_table.row += first_row
        of_table.place = f"row {of_table.row} of the Arrow table"
    return of_table

"""ColumnProducer: `KafkaProducer.append`, Arrow batches into batches of records.

Owns the way of an Arrow batch: its rows are checked as a whole, then cut into slices that memory
has room for, each of which is encoded in the caller's thread (`slice_appender`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping

import pyarrow as pa

from spark_kafka_sink.argument_checks import checked
from spark_kafka_sink.batch_partitioner import with_partitions
from spark_kafka_sink.caller_checks import CallerChecks
from spark_kafka_sink.caller_waits import CallerWaits
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import DataException, KafkaException, RecordTooLargeException
from spark_kafka_sink.partitioner_class import BatchPartitioner
from spark_kafka_sink.producer.partitioner import check_partitions
from spark_kafka_sink.producer.slices import (
    Rows,
    check_message_sizes,
    check_record_sizes,
    record_sizes,
    slice_ends,
)
from spark_kafka_sink.producer.topic_metadata import TopicMetadata
from spark_kafka_sink.producer_thread import ProducerThread
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.reservation import Reservation
from spark_kafka_sink.serde.columns import read_rows
from spark_kafka_sink.slice_appender import SliceAppender, SliceProgress
from spark_kafka_sink.slice_owner import OnFailure, SliceOwner


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
    told = copy.copy(error)
    if told.row is not None:
        told.say_place(f"row {first_row + told.row} of the Arrow table")
        told.row += first_row
    if first_row:
        appended = f"the batches before, {first_row} of the table's {rows} rows, were appended"
        told.args = (f"{told}; {appended}",)
    return told

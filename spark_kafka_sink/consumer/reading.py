"""The state machine that reads a range of one topic: positions, Fetch requests and responses.

The state machine has no sockets and no clock. It returns Fetch requests by node, and processes the
responses. If a partition cannot be read now, for example because its leader has moved, it is
requested again after retry.backoff.ms. This back-off grows with every further failure. The other
partitions continue. If a response advances no partition, its partitions are also requested again
after a back-off, which begins at the time of the request. If that response took fetch.max.wait.ms
or longer, this back-off is reset to retry.backoff.ms. Errors that are not retriable are raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.consumer.list_offsets import partition_error
from spark_kafka_sink.errors import ApiException, api_exception, error_code, listed
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.records.decoder import HEADERS_TYPE, NO_TIMESTAMP, DecodedRecords
from spark_kafka_sink.records.log_reader import last_offset, read_log
from spark_kafka_sink.wire.fetch_messages import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID

_TIMESTAMP: Final = pa.timestamp("ms", "UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIMESTAMP),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)
# The largest number of rows in one Arrow batch. A limit is needed because each row repeats the
# topic name, which can be longer than the record.
_MAX_BATCH_ROWS: Final = 1 << 16


def next_offset(data: PartitionData, start: int, end: int) -> int:
    """Return the offset to fetch after `data`, but at most `end`. Nothing is decompressed.

    Raise CorruptRecordException if the last batch is invalid.
    """
    last = last_offset(data.records or b"")
    return start if last is None else min(max(start, last + 1), end)


def fetched_records(
    topic_partition: TopicPartition,
    data: PartitionData,
    start: int,
    end: int,
    *,
    read_committed: bool,
    budget_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `data` with offsets from `start` up to, but not including, `end`.

    Several record batches are joined into one Arrow batch as far as `budget_bytes` allows.
    read_committed: whether to skip records of aborted transactions. Raise CorruptRecordException if
    a batch is invalid.
    """
    # The part that was decoded last may take half of the budget if it is a single record. The parts
    # to join may take a quarter, and the joined rows another quarter. After the parts are released,
    # the topic names in the rows may take their quarter.
    part_bytes = max(budget_bytes // 4, 1)
    parts = _visible(data, start, end, part_bytes, read_committed=read_committed)
    for joined in _joined(parts, part_bytes):
        yield from _rows(topic_partition, joined, start, end, part_bytes)


def _joined(parts: Iterator[DecodedRecords], room_bytes: int) -> Iterator[list[DecodedRecords]]:
    """Group parts (decoded records) into lists; each list is to be joined into one Arrow batch.

    A list with more than one part takes at most `room_bytes`. The caller empties each list to free
    memory.
    """
    joined: list[DecodedRecords] = []
    joined_bytes = 0
    for part in parts:
        if joined and joined_bytes + part.nbytes > room_bytes:
            yield joined
            joined, joined_bytes = [], 0
        joined.append(part)
        joined_bytes += part.nbytes
        del part
        if joined_bytes >= room_bytes:
            yield joined
            joined, joined_bytes = [], 0
    if joined:
        yield joined


def _visible(
    data: PartitionData, start: int, end: int, part_bytes: int, *, read_committed: bool
) -> Iterator[DecodedRecords]:
    """Yield, in parts, the visible records of the batches that overlap the offset range.

    Each part takes at most `part_bytes`, or is a single record. Control batches are not visible.
    With read_committed, the records of aborted transactions are not visible either.
    """
    aborted = sorted(
        data.aborted_transactions or (), key=lambda each: each.first_offset, reverse=True
    )
    aborting: set[int] = set()
    for batch in read_log(data.records or b""):
        if batch.base_offset >= end:
            return
        while aborted and aborted[-1].first_offset <= batch.last_offset:
            aborting.add(aborted.pop().producer_id)
        if read_committed and batch.is_abort:
            aborting.discard(batch.producer_id)
        is_aborted = batch.is_transactional and batch.producer_id in aborting
        is_hidden = batch.is_control or (read_committed and is_aborted)
        if batch.last_offset >= start and not is_hidden:
            yield from batch.parts(part_bytes)
        del batch  # it may refer to decoded records


def _rows(
    topic_partition: TopicPartition,
    parts: list[DecodedRecords],
    start: int,
    end: int,
    names_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with offsets in the range, in order, and empty the list of parts.

    names_bytes: the memory that the topic names in the rows of one Arrow batch may take.
    """
    offsets = np.concatenate([part.offsets for part in parts])
    timestamps = np.concatenate([part.timestamps_ms for part in parts])
    rows = pa.record_batch(
        [
            pa.array(offsets),
            pa.array(timestamps, mask=timestamps == NO_TIMESTAMP).cast(_TIMESTAMP),
            _concat([part.keys for part in parts]),
            _concat([part.values for part in parts]),
            _concat([part.headers for part in parts]),
        ],
        names=SCHEMA.names[2:],
    )
    parts.clear()
    in_range = (offsets >= start) & (offsets < end)
    if not in_range.all():
        rows = rows.filter(pa.array(in_range))
    most_rows = max(min(names_bytes // len(topic_partition.topic), _MAX_BATCH_ROWS), 1)
    for first in range(0, len(rows), most_rows):
        of_slice = rows.slice(first, most_rows).columns
        count = len(of_slice[0])
        topics = pa.repeat(pa.scalar(topic_partition.topic), count)
        partitions = pa.repeat(pa.scalar(topic_partition.partition, pa.int32()), count)
        yield pa.record_batch([topics, partitions, *of_slice], schema=SCHEMA)


def _concat(arrays: list[pa.Array]) -> pa.Array:
    """Return the arrays concatenated; a single array is not copied."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The limits of one Fetch request, and the memory limit for decoded records."""

    max_bytes: int
    partition_max_bytes: int
    min_bytes: int
    max_wait_ms: int
    budget_bytes: int


@dataclass(slots=True)
class PartitionReading:
    """A partition to read.

    position: the next offset to read. end: the offset before which reading stops. needs_offset:
    whether the position is outside the log.
    """

    topic_partition: TopicPartition
    position: int
    end: int
    attempts: int = 0
    retry_at: float = 0.0
    is_in_flight: bool = False
    needs_offset: bool = False
    last_error: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the partition has been read up to its end offset."""
        return self.position >= self.end and not self.needs_offset

    def is_due(self, now: float) -> bool:
        """Whether a request may be sent now; a partition has at most one request in flight."""
        waits = self.is_in_flight or self.needs_offset or self.retry_at > now
        return not (waits or self.is_done)


@dataclass(slots=True)
class Fetch:
    """A Fetch request to one node.

    partitions, topic_id: the partitions and the topic id in the request. made_at: when the request
    was made.
    """

    node_id: int
    message: FetchRequest
    partitions: list[PartitionReading]
    topic_id: UUID
    made_at: float


@dataclass(slots=True)
class FetchOutcome:
    """The result of a Fetch response.

    records: the records of each partition, which are decompressed when the caller iterates over
    them. progress: whether the position of any partition advanced.
    """

    records: list[Iterator[pa.RecordBatch]] = field(default_factory=list)
    progress: bool = False


class Reading:
    """Reads an offset range of each partition of a topic.

    offsets: for each partition, the first offset to read and the offset before which reading stops.
    topic_id: the id of the topic to which the offsets belong; zero if it has none yet, and then the
    id of the first Fetch. Times are seconds of the reader's clock.
    """

    def __init__(
        self,
        topic: str,
        offsets: Mapping[int, tuple[int, int]],
        *,
        limits: FetchLimits,
        read_committed: bool,
        from_earliest: bool,
        metadata: ClusterMetadata,
        retry_backoff: ExponentialBackoff,
        random: Random,
    ) -> None:
        self._topic = topic
        self._limits = limits
        self._read_committed = read_committed
        self._from_earliest = from_earliest
        self._metadata = metadata
        self._retry_backoff = retry_backoff
        self._random = random
        self._busy: set[int] = set()
        self.topic_id = ZERO_UUID
        self.partitions = [
            PartitionReading(TopicPartition(topic, number), start, end)
            for number, (start, end) in sorted(offsets.items())
        ]

    @property
    def is_done(self) -> bool:
        """Whether every partition has been read to its end."""
        return all(partition.is_done for partition in self.partitions)

    def mark_out_of_range(self) -> None:
        """Treat positions above their end as out of range: each end is the latest offset."""
        for partition in self.partitions:
            partition.needs_offset = partition.position > partition.end

    def out_of_range(self) -> list[PartitionReading]:
        """Return the partitions whose position is below or above the offsets of the log."""
        return [p for p in self.partitions if p.needs_offset]

    def next_due_at(self, now: float) -> float:
        """Return the time at which the next back-off of a partition ends, or infinity."""
        waiting = [p.retry_at for p in self.partitions if not p.is_done and p.retry_at > now]
        return min(waiting, default=float("inf"))

    def fetches(self, now: float) -> list[Fetch]:
        """Return one Fetch request for each leader that has no request in flight."""
        by_node: dict[int, list[PartitionReading]] = {}
        for partition in self.partitions:
            if not partition.is_due(now):
                continue
            self._check_topic_id(partition)
            leader = self._metadata.leader(partition.topic_partition)
            if leader is None:
                self._wait(partition, "no leader is known", now)
            elif leader.id not in self._busy:
                by_node.setdefault(leader.id, []).append(partition)
        self._busy |= by_node.keys()
        return [self._fetch(node_id, partitions, now) for node_id, partitions in by_node.items()]

    def _check_topic_id(self, partition: PartitionReading) -> None:
        """Raise OffsetOutOfRangeException if the topic does not have the id `topic_id` any more."""
        topic_id = self._metadata.topic_id(self._topic)
        if topic_id == ZERO_UUID:
            return
        if self.topic_id not in (ZERO_UUID, topic_id):
            message = "the topic was created again while it was read"
            with _with_position(partition.topic_partition, partition.position):
                raise api_exception(codes.OFFSET_OUT_OF_RANGE, message)
        self.topic_id = topic_id

    def _fetch(self, node_id: int, partitions: list[PartitionReading], now: float) -> Fetch:
        known = self._metadata.topic(self._topic)
        epochs = [] if known is None else known.leader_epochs
        for partition in partitions:
            partition.is_in_flight = True
        asked = [
            FetchPartition(
                partition=p.topic_partition.partition,
                current_leader_epoch=epochs[p.topic_partition.partition],
                fetch_offset=p.position,
                partition_max_bytes=self._limits.partition_max_bytes,
            )
            for p in partitions
        ]
        message = FetchRequest(
            max_wait_ms=self._limits.max_wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.max_bytes,
            isolation_level=READ_COMMITTED if self._read_committed else READ_UNCOMMITTED,
            topics=[FetchTopic(topic=self._topic, topic_id=self.topic_id, partitions=asked)],
        )
        return Fetch(node_id, message, partitions, self.topic_id, now)

    def failed(self, fetch: Fetch, error: ApiException, now: float) -> None:
        """Process the failure of a Fetch request. Raise errors that are not retriable."""
        self._completed(fetch)
        if not error_code(error.code).retriable:
            raise error
        for partition in fetch.partitions:
            self._wait(partition, str(error), now)

    def answered(self, fetch: Fetch, response: FetchResponse, now: float) -> FetchOutcome:
        """Process a Fetch response. Raise errors that are not retriable."""
        self._completed(fetch)
        if response.error_code != codes.NONE:
            for partition in fetch.partitions:
                self._handle_error(partition, fetch.node_id, response.error_code, now)
            return FetchOutcome()
        outcome = FetchOutcome()
        without_error = []
        answers = {
            data.partition_index: data for topic in response.responses for data in topic.partitions
        }
        for partition in fetch.partitions:
            data = answers.get(partition.topic_partition.partition)
            if data is None:
                self._wait(partition, "the response does not contain this partition", now)
            elif data.error_code != codes.NONE:
                self._handle_error(partition, fetch.node_id, data.error_code, now)
            else:
                without_error.append(partition)
                self._read(partition, data, outcome)
        # A broker may omit the records of some partitions because others fill the response. This
        # does not count as a failed attempt.
        if outcome.progress or now - fetch.made_at >= self._limits.max_wait_ms / 1000:
            for partition in without_error:
                partition.attempts = 0
        if not outcome.progress:
            for partition in without_error:
                partition.last_error = f"node {fetch.node_id} returned no records"
                self._back_off(partition, fetch.made_at)
        return outcome

    def _completed(self, fetch: Fetch) -> None:
        self._busy.discard(fetch.node_id)
        for partition in fetch.partitions:
            partition.is_in_flight = False

    def _read(
        self, partition: PartitionReading, data: PartitionData, outcome: FetchOutcome
    ) -> None:
        start = partition.position
        with _with_position(partition.topic_partition, start):
            position = next_offset(data, start, partition.end)
        if position > start:
            partition.position = position
            partition.last_error = ""
            outcome.progress = True
            outcome.records.append(self._records(partition, data, start))

    def _records(
        self, partition: PartitionReading, data: PartitionData, start: int
    ) -> Iterator[pa.RecordBatch]:
        with _with_position(partition.topic_partition, start):
            yield from fetched_records(
                partition.topic_partition,
                data,
                start,
                partition.end,
                read_committed=self._read_committed,
                budget_bytes=self._limits.budget_bytes,
            )

    def _handle_error(
        self, partition: PartitionReading, node_id: int, code: int, now: float
    ) -> None:
        advice = self._metadata.advice
        error = partition_error(partition.topic_partition, code, node_id, "Fetch", advice)
        if code == codes.OFFSET_OUT_OF_RANGE:
            partition.needs_offset = True
            partition.last_error = str(error)
        elif error_code(code).retriable:
            self._wait(partition, str(error), now)
        else:
            raise error

    def _wait(self, partition: PartitionReading, reason: str, now: float) -> None:
        self._metadata.request_update()
        partition.last_error = reason
        self._back_off(partition, now)

    def _back_off(self, partition: PartitionReading, since: float) -> None:
        partition.retry_at = since + self._retry_backoff.delay_s(partition.attempts, self._random)
        partition.attempts += 1

    def reset(self, partition: PartitionReading, earliest: int, latest: int, now: float) -> None:
        """Decide how to continue with a partition whose position is out of range.

        earliest, latest: the offsets of its log now. If the position is in range after all, it is
        requested again. For example, a new leader may have been behind the old one. If the position
        is below the earliest offset, and the range began at "earliest", reading continues at the
        current earliest offset. Otherwise, raise OffsetOutOfRangeException.
        """
        name, number = partition.topic_partition
        position = partition.position
        if earliest <= position <= latest:
            partition.needs_offset = False
            self._wait(partition, partition.last_error, now)
            return
        if position > latest or not self._from_earliest:
            has = (
                f"the partition has the offsets {earliest} to {latest - 1}"
                if earliest < latest
                else f"the partition has no records, and the next record will get offset {latest}"
            )
            message = (
                f"{partition.topic_partition} cannot be read from offset {position}: {has}; "
                "the records at that offset were deleted (retention, or the topic was created "
                "again) or lost"
            )
            raise api_exception(
                codes.OFFSET_OUT_OF_RANGE, message, topic=name, partition=number, api="Fetch"
            )
        logger.warning(
            "%s: the records at offsets %d to %d were deleted (retention) before they were read; "
            "reading continues at offset %d",
            partition.topic_partition, position, min(earliest, partition.end) - 1, earliest,
        )  # fmt: skip
        partition.position = earliest
        partition.needs_offset = False

    def unfinished(self) -> str:
        """Return as text the first ten partitions that are not read to their end, and why."""
        return listed(
            f"{p.topic_partition} at offset {p.position} of {p.end}"
            + (f" ({p.last_error})" if p.last_error else "")
            for p in self.partitions
            if not p.is_done
        )


@contextmanager
def _with_position(topic_partition: TopicPartition, offset: int) -> Iterator[None]:
    """Add the partition and the requested offset to each ApiException of the ``with`` block."""
    try:
        yield
    except ApiException as error:
        topic, partition = topic_partition
        message = f"{topic_partition} from offset {offset}: {error}"
        raise api_exception(error.code, message, topic=topic, partition=partition) from error

"""The commit log: the record of each owner, and how the newest committed record is found.

An owner is a txnAppId and its target topic. It has one current record, which lists the versions
(of batch jobs) or micro-batches that it has written. The log is partition 0 of a compacted topic.
The key of a record is the owner's driver id, and its value is JSON.

Each record is written in a transaction of the driver's transactional id. In mode `single` this is
the transaction of the rows. In mode `two-phase` it is a separate transaction. Once that is
committed, the run is "decided": the tasks' transactions will all be committed.

The log is read up to the high watermark, including the records of open and aborted transactions.
The next control record (marker) of a record's producer shows whether the record is committed
(`LogReader`). The reader must not stop at the last stable offset: it would miss all records above
the first open transaction, which may belong to another application. Then the versions in these
records would be written twice.

A client with WRITE permission on the log could write a record that makes an owner skip a version.
Records outside a transaction, and records whose key does not match their value, are ignored with a
warning.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

from spark_kafka_sink.commit.names import TaskSlot, read_id
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker
from spark_kafka_sink.records.default_record import DefaultBatch, DefaultRecord

LOG_PARTITION: Final = 0
MAX_INTERVALS: Final = 10_000
MAX_STREAMS: Final = 10
_MAX_WARNINGS: Final = 10
_FORMAT: Final = 1


class Place(Enum):
    """Whether a version was written, according to the record of its owner."""

    WRITTEN = "it was written"
    NEW = "it was not written"
    BELOW_FLOOR = "it is so old that the record cannot say whether it was written"


@dataclass(frozen=True, slots=True)
class VersionSet:
    """The versions that were written, as closed intervals in ascending order.

    Only the 10,000 highest intervals are kept. floor: below this version, the set no longer knows
    which versions were written. If it is None, the set knows this for every version.
    """

    intervals: tuple[tuple[int, int], ...] = ()
    floor: int | None = None

    @property
    def lowest(self) -> int | None:
        """The lowest version that may be written, or None if every version may be written.

        A set with 10,000 intervals cannot store another interval below its lowest one. So a version
        below that interval must not be written: the set would not remember it.
        """
        if len(self.intervals) < MAX_INTERVALS:
            return self.floor
        lowest = self.intervals[0][0] - 1
        return lowest if self.floor is None else max(lowest, self.floor)

    def place(self, version: int) -> Place:
        """Return the place of `version`: written, not written, or below the floor."""
        lowest = self.lowest
        if lowest is not None and version < lowest:
            return Place.BELOW_FLOOR
        at = bisect_right(self.intervals, version, key=_first) - 1
        is_inside = at >= 0 and version <= self.intervals[at][1]
        return Place.WRITTEN if is_inside else Place.NEW

    def adding(self, version: int) -> VersionSet:
        """Return a copy of the set with `version` added."""
        if self.place(version) is not Place.NEW:
            return self
        at = bisect_right(self.intervals, version, key=_first)
        before, after = self.intervals[:at], self.intervals[at:]
        low = high = version
        if before and before[-1][1] == version - 1:
            low, before = before[-1][0], before[:-1]
        if after and after[0][0] == version + 1:
            high, after = after[0][1], after[1:]
        intervals = (*before, (low, high), *after)
        if len(intervals) <= MAX_INTERVALS:
            return VersionSet(intervals, self.floor)
        kept = intervals[-MAX_INTERVALS:]
        # The versions between the last dropped interval and the first kept one were not written.
        return VersionSet(kept, intervals[-MAX_INTERVALS - 1][1] + 1)

    def packed(self) -> list[int]:
        """Return the bounds of all intervals as one list of integers.

        Each bound except the first is stored as the difference from the previous bound.
        """
        bounds = [bound for interval in self.intervals for bound in interval]
        return [*bounds[:1], *(high - low for low, high in pairwise(bounds))]

    @classmethod
    def unpacked(cls, distances: list[int], floor: int | None) -> Self:
        """Return the set from its `packed` form. Raise ValueError if it is invalid."""
        bounds: list[int] = []
        for distance in distances:
            is_start = len(bounds) % 2 == 0
            if bounds and distance < (2 if is_start else 0):
                raise ValueError("its versions are not in order")
            bounds.append(distance + (bounds[-1] if bounds else 0))
        if len(bounds) % 2:
            raise ValueError("its last interval of versions has no end")
        return cls(tuple(zip(bounds[::2], bounds[1::2], strict=True)), floor)


def _first(interval: tuple[int, int]) -> int:
    return interval[0]


class StreamMark(NamedTuple):
    """The last micro-batch that a streaming query wrote.

    rows: the number of rows in the micro-batch. run_id: the run id of the query that wrote it.
    """

    query_id: str
    batch_id: int
    rows: int
    run_id: str


class BatchPlace(Enum):
    """How a micro-batch compares with the last one in the record of its owner."""

    NEW_QUERY = "the query has written nothing yet: write it"
    NEXT = "it comes after the last one that was written: write it"
    REPLAY = "it was written by an earlier run: count its rows and compare"
    SAME_RUN = "this run has written it: another save of the micro-batch has the same owner"
    OLDER = (
        "a later micro-batch was written: the checkpoint is an older copy, or two queries share it"
    )


class RecordState(Enum):
    """The state of a run's transactions, according to the commit log record of the run."""

    DECIDED = "they are to be committed"
    DONE = "they are committed"


class DecidedTransaction(NamedTuple):
    """A task's transaction that has to be committed, as a commit log record lists it.

    partition, first_offset: one of the transaction's partitions, and the offset of its first record
    there.
    """

    slot: TaskSlot
    producer: ProducerIdAndEpoch
    partition: TopicPartition
    first_offset: int


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The record of one owner in the commit log.

    run: the name of the run that wrote the record. rows: the number of rows of the version or
    micro-batch that was written last. written_at: the time in milliseconds since 1970, by the
    driver's clock. version: the version that was written last, or None if it was a micro-batch.

    The following fields help administrators to recognize the owner, because its application id may
    be a hash. An unknown field is an empty string. application: the name of the Spark application.
    query: the name of the streaming query. checkpoint: the checkpoint location of the stream.
    """

    state: RecordState
    run: str
    rows: int
    written_at: int
    version: int | None = None
    versions: VersionSet = VersionSet()
    streams: tuple[StreamMark, ...] = ()
    transactions: tuple[DecidedTransaction, ...] = ()
    application: str = ""
    query: str = ""
    checkpoint: str = ""

    def after_version(self, version: int) -> CommitRecord:
        """Return the record as it is after `version` was written."""
        return replace(self, version=version, versions=self.versions.adding(version))

    def after_batch(self, mark: StreamMark) -> CommitRecord:
        """Return the record as it is after a micro-batch was written.

        The record keeps the last micro-batch of each of the 10 queries that wrote last.
        """
        others = tuple(each for each in self.streams if each.query_id != mark.query_id)
        return replace(self, version=None, streams=(*others, mark)[-MAX_STREAMS:])

    def done(self) -> CommitRecord:
        """Return the record as it is once every transaction is committed."""
        return replace(self, state=RecordState.DONE, transactions=())

    @property
    def has_written(self) -> bool:
        """Whether a run has written a version or a micro-batch.

        If every run died before its decision to commit, only plans have written the record. Then
        the result is False.
        """
        return self.version is not None or bool(self.streams)

    @property
    def last_written(self) -> str:
        """A description of the version or the micro-batch that was written last."""
        if self.version is not None:
            return f"version {self.version}"
        if self.streams:
            return f"micro-batch {self.streams[-1].batch_id} of query {self.streams[-1].query_id}"
        return "nothing"

    def last_batch(self, query_id: str) -> StreamMark | None:
        """Return the last micro-batch that a query wrote, or None if it has written none."""
        return next((mark for mark in self.streams if mark.query_id == query_id), None)

    def place_of_batch(self, query_id: str, batch_id: int, run_id: str) -> BatchPlace:
        """Return how a micro-batch compares with the last one of its query in this record."""
        last = self.last_batch(query_id)
        if last is None:
            return BatchPlace.NEW_QUERY
        if batch_id != last.batch_id:
            return BatchPlace.NEXT if batch_id > last.batch_id else BatchPlace.OLDER
        return BatchPlace.SAME_RUN if run_id and run_id == last.run_id else BatchPlace.REPLAY


def encode(key: str, record: CommitRecord) -> bytes:
    """Return `record` as the bytes of a log record's value. key: the driver id of the owner."""
    topics = list(dict.fromkeys(each.partition.topic for each in record.transactions))
    number = {topic: at for at, topic in enumerate(topics)}
    content = {
        "v": _FORMAT,
        "id": key,
        "state": record.state.name,
        "run": record.run,
        "rows": record.rows,
        "at": record.written_at,
        "version": record.version,
        "versions": record.versions.packed(),
        "floor": record.versions.floor,
        "streams": [list(mark) for mark in record.streams],
        "topics": topics,
        "txns": [
            [
                str(each.slot),
                each.producer.producer_id,
                each.producer.epoch,
                number[each.partition.topic],
                each.partition.partition,
                each.first_offset,
            ]
            for each in record.transactions
        ],
        "application": record.application,
        "query": record.query,
        "checkpoint": record.checkpoint,
    }
    return json.dumps(content, separators=(",", ":")).encode()


class NewerFormatError(ValueError):
    """The commit log record was written by a newer version of this package."""


def decode(key: str | None, value: bytes | None) -> CommitRecord:
    """Return the record that a key and a value of the commit log encode.

    Raise ValueError if the value is invalid, or if the owner in it is not the owner in the key.
    Raise NewerFormatError if a newer version of this package wrote it.
    """
    if key is None or read_id(key) is None:
        raise ValueError("it has no key" if key is None else "its key is not the id of an owner")
    try:
        content = json.loads(value or b"")
    except (ValueError, RecursionError):
        raise ValueError("its value is not JSON") from None
    if not isinstance(content, dict) or not _is_int(content.get("v")):
        raise ValueError("its value has no format")
    if content["v"] > _FORMAT:
        raise NewerFormatError(
            f"it has format {content['v']}, and this version of the package reads only format "
            f"{_FORMAT}"
        )
    if content.get("id") != key:
        raise ValueError("its value belongs to another owner than its key")
    try:
        return _record(content)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"its value is incomplete ({error!r})") from None


def _record(content: Mapping[str, Any]) -> CommitRecord:
    floor, version = content["floor"], content["version"]
    texts = {name: content[name] for name in ("run", "application", "query", "checkpoint")}
    numbers = [content["rows"], content["at"], *content["versions"]]
    is_sound = (
        content["state"] in RecordState.__members__
        and all(isinstance(text, str) for text in texts.values())
        and all(map(_is_int, numbers))
        and all(number is None or _is_int(number) for number in (floor, version))
    )
    if not is_sound:
        raise TypeError("fields")
    return CommitRecord(
        state=RecordState[content["state"]],
        rows=content["rows"],
        written_at=content["at"],
        version=version,
        versions=VersionSet.unpacked(content["versions"], floor),
        streams=tuple(_mark(each) for each in content["streams"]),
        transactions=tuple(_transaction(each, content["topics"]) for each in content["txns"]),
        **texts,
    )


def _mark(fields: list[Any]) -> StreamMark:
    if len(fields) != 4:
        raise TypeError("streams")
    query_id, batch_id, rows, run_id = fields
    if not (isinstance(query_id, str) and isinstance(run_id, str)):
        raise TypeError("streams")
    if not (_is_int(batch_id) and _is_int(rows)):
        raise TypeError("streams")
    return StreamMark(query_id, batch_id, rows, run_id)


def _transaction(fields: list[Any], topics: list[Any]) -> DecidedTransaction:
    suffix, numbers = fields[0], fields[1:]
    slot = TaskSlot.of(suffix) if isinstance(suffix, str) else None
    if slot is None or len(numbers) != 5 or not all(map(_is_int, numbers)):
        raise TypeError("txns")
    producer_id, epoch, topic, partition, first_offset = numbers
    if not 0 <= topic < len(topics) or not isinstance(topics[topic], str):
        raise TypeError("topics")
    return DecidedTransaction(
        slot,
        ProducerIdAndEpoch(producer_id, epoch),
        TopicPartition(topics[topic], partition),
        first_offset,
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class LogEntry(NamedTuple):
    """One batch of the commit log: a data batch with its records, or a control batch.

    marker: COMMIT or ABORT for a control batch. It is None for a data batch, and for a control
    batch whose record was removed by compaction. base_offset: for a batch outside a transaction,
    the offset of its first record; otherwise -1. records: empty for a batch outside a transaction,
    because such a batch is never decoded. The records of other batches are decoded while
    `LogReader.read` iterates over them.
    """

    producer_id: int
    is_transactional: bool = False
    is_control: bool = False
    marker: Marker | None = None
    records: Iterable[DefaultRecord] = ()
    base_offset: int = -1

    @classmethod
    def of(cls, batch: DefaultBatch) -> LogEntry:
        """Return the entry of a batch. Raise CorruptRecordException if it cannot be decompressed.

        Such a batch cannot be ignored, because it may contain the newest record of an owner. The
        error is also raised for a batch above the size limit, but the sink's batches are far
        smaller.
        """
        header = batch.header
        if not header.is_control and not header.is_transactional:
            return cls(header.producer_id, base_offset=header.base_offset)
        if header.is_control:
            return cls(header.producer_id, is_control=True, marker=batch.marker())
        return cls(header.producer_id, header.is_transactional, records=batch.records())


@dataclass(frozen=True, slots=True)
class LogReading:
    """What the commit log contains about one owner.

    record, offset: the newest committed record and its offset; None and -1 if there is none.
    undecided: a record whose transaction has no marker yet. newer_format: why this version of the
    package cannot decode the newest committed record, or None if it can.
    """

    record: CommitRecord | None = None
    offset: int = -1
    undecided: CommitRecord | None = None
    newer_format: str | None = None


NOTHING: Final = LogReading()


class LogReader:
    """Reads the commit log batch by batch, and keeps the newest records of each owner.

    key: the driver id of the only owner whose records are kept, or None to keep the records of all
    owners.
    """

    def __init__(self, key: str | None = None) -> None:
        self._key = key
        self._committed: dict[str, LogReading] = {}
        # For each producer: the records, by key, whose transaction has no marker yet.
        self._pending: dict[int, dict[str, LogReading]] = {}
        self._warnings: list[str] = []
        # Batches outside a transaction since the last warning: the first offset, and their number.
        self._outside = (-1, 0)

    def read(self, entries: Iterable[LogEntry]) -> None:
        """Process the next entries of the log. Raise CorruptRecordException if one is invalid."""
        for entry in entries:
            if entry.is_control:
                self._end(self._pending.pop(entry.producer_id, {}), entry.marker)
                continue
            if not entry.is_transactional:
                first, count = self._outside
                self._outside = (first if count else entry.base_offset, count + 1)
            for record in entry.records:
                self._take(entry, record)

    def forget_pending(self) -> int | None:
        """Forget the records without a marker. Return the lowest of their offsets, or None."""
        offsets = [each.offset for found in self._pending.values() for each in found.values()]
        self._pending.clear()
        return min(offsets, default=None)

    def reading(self, key: str) -> LogReading:
        """Return the records of an owner in the part of the log that was read."""
        found = self._committed.get(key, NOTHING)
        undecided = [each[key].record for each in self._pending.values() if key in each]
        return replace(found, undecided=undecided[-1] if undecided else None)

    def owners(self) -> Iterator[str]:
        """Yield the driver ids of the owners that have a record, committed or not."""
        pending = (key for of_producer in self._pending.values() for key in of_producer)
        yield from dict.fromkeys([*self._committed, *pending])

    def take_warnings(self) -> list[str]:
        """Return the warnings since the last call: which records were ignored, and why.

        There are at most ten warnings about single records.
        """
        taken, self._warnings = self._warnings, []
        first, count = self._outside
        if count:
            are = "batch is" if count == 2 else "batches are"
            others = f"; {count - 1} later {are} ignored for the same reason" if count > 1 else ""
            taken.append(
                f"the batch at offset {first} is ignored: it is outside a transaction{others}"
            )
            self._outside = (-1, 0)
        return taken

    def _take(self, entry: LogEntry, record: DefaultRecord) -> None:
        key = None if record.key is None else record.key.decode(errors="replace")
        if self._key is not None and key != self._key:
            return
        try:
            content = decode(key, record.value)
        except NewerFormatError as error:
            reading = LogReading(offset=record.offset, newer_format=str(error))
        except ValueError as error:
            if len(self._warnings) < _MAX_WARNINGS:
                self._warnings.append(f"the record at offset {record.offset} is ignored: {error}")
            return
        else:
            reading = LogReading(content, record.offset)
        self._pending.setdefault(entry.producer_id, {})[key or ""] = reading

    def _end(self, ended: dict[str, LogReading], marker: Marker | None) -> None:
        # Compaction removes the records of an aborted transaction before its marker. So if the
        # marker was removed and the records were not, the transaction was committed.
        if marker is Marker.ABORT:
            return
        for key, reading in ended.items():
            if reading.offset > self._committed.get(key, NOTHING).offset:
                self._committed[key] = reading

"""The report of a job or a micro-batch, and the sums of the reports of its tasks.

docs/reference/report.md describes the fields of the report as JSON. The report contains sizes and
locations of rows. It contains contents of rows only if the error of a failed write quotes them.
"""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate, chain, repeat
from operator import add, attrgetter, sub
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pyspark.sql.datasource import WriterCommitMessage

if TYPE_CHECKING:
    from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.completion import PartitionDelivery
    from spark_kafka_sink.spark.micro_batch import MicroBatch

# How many of the first bad rows are described, in each task and in the report.
SAMPLES_PER_TASK: Final = 3
SAMPLES: Final = 10
# The option with the id that the user's process gives to a job, so that it can find the report.
WRITE_ID_OPTION: Final = "pykafka.write.id"
_TOPICS_NAMED: Final = 10
# The last seven columns of PartitionCounts, the number of all columns, and the size of a value.
_COUNTS: Final = attrgetter(
    *("records", "bytes", "batches", "compressed_bytes", "retries", "first_offset", "last_offset")
)
_COLUMNS: Final = 8
_VALUE_BYTES: Final = 8


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, for example ``1 row`` or ``2 rows``."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


@dataclass
class PartitionReport:
    """The rows that a write sent to one Kafka partition. With acks=0, the offsets are -1.

    Records of other producers may lie between first_offset and last_offset. The order of the fields
    is that of the columns in `PartitionCounts`. The class has no slots, so that `vars` returns its
    fields. `vars` is used because asdict takes 8 µs for each object, and a job may have thousands
    of them.
    """

    topic: str
    partition: int
    records: int
    bytes: int
    batches: int
    compressed_bytes: int
    retries: int
    first_offset: int
    last_offset: int

    def add(
        self,
        records: int,
        size: int,
        batches: int,
        compressed_bytes: int,
        retries: int,
        first_offset: int,
        last_offset: int,
    ) -> None:
        """Add the rows that another task wrote to the same partition. size: their bytes."""
        self.records += records
        self.bytes += size
        self.batches += batches
        self.compressed_bytes += compressed_bytes
        self.retries += retries
        if first_offset >= 0 and (self.first_offset < 0 or first_offset < self.first_offset):
            self.first_offset = first_offset
        self.last_offset = max(self.last_offset, last_offset)


class PartitionCounts(NamedTuple):
    """The rows that a task wrote, by partition. There is no object for each partition.

    A large job has millions of pairs of a task and a partition. Their counts are in the commit
    messages, which must fit into spark.driver.maxResultSize and into the process that commits.

    topics: the name of each topic and the number of its written partitions, sorted by name.
    packed: eight columns of int64, one after another, compressed by zlib. Each column has a value
    for each partition, sorted by topic and partition. The columns are the fields of
    `PartitionReport` from partition to last_offset. A partition is stored as the difference to the
    partition before it, and a last_offset as the difference to its first_offset. The first bytes of
    all values come first, then all second bytes, and so on: so zlib finds long runs of zeros.
    """

    topics: tuple[tuple[str, int], ...] = ()
    packed: bytes = b""

    @classmethod
    def of(cls, delivered: Mapping[TopicPartition, PartitionDelivery]) -> Self:
        """Return the counts of what a task has delivered."""
        if not delivered:
            return cls()
        rows = sorted((*key, *_COUNTS(each)) for key, each in delivered.items())
        topics, numbers, *counts, first, last = zip(*rows, strict=True)
        steps = map(sub, numbers, (0, *numbers))
        columns = ([*steps], *counts, first, [*map(sub, last, first)])
        values = b"".join([array("q", column).tobytes() for column in columns])
        by_byte = b"".join([values[byte::_VALUE_BYTES] for byte in range(_VALUE_BYTES)])
        return cls(tuple(Counter(topics).items()), zlib.compress(by_byte, level=1))

    def rows(self) -> Iterator[tuple[tuple[str, int], tuple[int, ...]]]:
        """Yield the topic and the number of each partition, and the arguments of `add`."""
        if not self.topics:
            return
        by_byte = zlib.decompress(self.packed)
        size = len(by_byte) // _VALUE_BYTES
        values = bytearray(len(by_byte))
        for byte in range(_VALUE_BYTES):
            values[byte::_VALUE_BYTES] = by_byte[byte * size : (byte + 1) * size]
        every = array("q", bytes(values))
        height = size // _COLUMNS
        numbers, *counts, first, to_last = (
            every[start : start + height] for start in range(0, size, height)
        )
        topics = chain.from_iterable(repeat(topic, count) for topic, count in self.topics)
        last = map(add, first, to_last)
        keys = zip(topics, accumulate(numbers), strict=True)
        yield from zip(keys, zip(*counts, first, last, strict=True), strict=True)


def merged(parts: Iterable[PartitionCounts]) -> list[PartitionReport]:
    """Return one report for each partition: the sum of its parts. Sort by topic and partition."""
    found: dict[tuple[str, int], PartitionReport] = {}
    for part in parts:
        for key, counts in part.rows():
            known = found.get(key)
            if known is None:
                found[key] = PartitionReport(*key, *counts)
            else:
                known.add(*counts)
    return [found[key] for key in sorted(found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRowSample:
    """The location and the error of one bad row.

    row: the number of the row in its task, from 0. detail: the error of the broker that refused the
    row, or why the row cannot be encoded. topic: the value of the option `topic` or of the topic
    column. partition: the value of the partition column, if any. key_bytes, value_bytes: None for a
    null key or value. They are also None for a column with an encoding, if the row cannot be
    encoded.
    """

    task: int
    row: int
    reason: str
    detail: str | None
    topic: str | None
    partition: int | None
    key_bytes: int | None
    value_bytes: int | None


@dataclass(slots=True, kw_only=True)
class BadRowsReport:
    """The bad rows of a task or a job.

    dead_letters: the topic or the folder to which the bad rows were written, None if they were
    skipped. files: the paths of the files in the dead letter folder. partitions: the partitions of
    the dead letter topic that contain bad rows of this write. It is empty in the report of a task:
    its commit message contains the counts of these partitions.
    """

    on_error: str
    rows: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    dead_letters: str | None = None
    files: list[str] = field(default_factory=list)
    partitions: list[PartitionReport] = field(default_factory=list)
    samples: list[BadRowSample] = field(default_factory=list)

    @classmethod
    def of(
        cls, parts: list[BadRowsReport], dead_letters: Iterable[PartitionCounts]
    ) -> BadRowsReport:
        """Return the sum of the reports of tasks. There must be at least one report.

        dead_letters: the rows that the tasks wrote to the dead letter topic.
        """
        reasons: Counter[str] = Counter()
        for part in parts:
            reasons.update(part.reasons)
        return cls(
            on_error=parts[0].on_error,
            rows=sum(part.rows for part in parts),
            reasons=dict(sorted(reasons.items())),
            dead_letters=parts[0].dead_letters,
            files=[name for part in parts for name in part.files],
            partitions=merged(dead_letters),
            samples=[sample for part in parts for sample in part.samples][:SAMPLES],
        )

    def summary(self) -> str:
        """Return a summary of the bad rows in one line."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.reasons.items())
        sample = self.samples[0]
        is_one = self.rows == 1
        skipped = f"{'was' if is_one else 'were'} skipped"
        fate = skipped if self.dead_letters is None else f"went to {self.dead_letters}"
        return (
            f"pykafka: {counted(self.rows, 'bad row')} {fate}: {reasons}; "
            f"{'it is' if is_one else 'among them'} row {sample.row} of task {sample.task}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredRowsReport:
    """The rows of a topic that were sent although they are older than its retention.ms."""

    topic: str
    rows: int
    oldest_timestamp_ms: int
    retention_ms: int

    @classmethod
    def of(cls, parts: Iterable[ExpiredRowsReport]) -> list[ExpiredRowsReport]:
        """Return one report for each topic: the sum of the reports of tasks."""
        by_topic: dict[str, list[ExpiredRowsReport]] = {}
        for part in parts:
            by_topic.setdefault(part.topic, []).append(part)
        return [
            cls(
                topic=topic,
                rows=sum(part.rows for part in found),
                oldest_timestamp_ms=min(part.oldest_timestamp_ms for part in found),
                retention_ms=found[0].retention_ms,
            )
            for topic, found in sorted(by_topic.items())
        ]

    @staticmethod
    def summary(found: Sequence[ExpiredRowsReport]) -> str:
        """Return one line for all topics. It names the topics with the most expired rows."""
        most = sorted(found, key=lambda part: -part.rows)[:_TOPICS_NAMED]
        topics = ", ".join(part.described() for part in most)
        more = len(found) - len(most)
        others = f" and {counted(more, 'more topic')}" if more else ""
        rows = sum(part.rows for part in found)
        older, them = ("is older", "it") if rows == 1 else ("are older", "them")
        return (
            f"pykafka: {counted(rows, 'row')} {older} than the retention.ms of "
            f"{'its' if rows == 1 else 'their'} topic: {topics}{others}; brokers may "
            f"delete {them} at their next check; raise retention.ms, or set message.timestamp.type "
            "to LogAppendTime"
        )

    def described(self) -> str:
        """Return a short description of this topic's rows."""
        oldest = datetime.fromtimestamp(self.oldest_timestamp_ms / 1000, UTC)
        return (
            f"{self.rows} of {self.topic} (retention.ms={self.retention_ms}, the oldest is from "
            f"{oldest.isoformat(timespec='milliseconds')})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """The report of a task.

    task: the id of the Spark partition that the task wrote. attempt: the attempt number. host:
    the host on which the task ran.
    """

    task: int
    attempt: int
    host: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnceReport:
    """How a job or a micro-batch was written exactly once.

    mode, app_id: the values of the options exactlyOnce and txnAppId. For a stream without txnAppId,
    app_id is the id that the sink has derived. version: the version of a batch job. It is None for
    a micro-batch of a known query, which has a batch_id instead. transactions: the number of
    transactions that contain rows. skipped: why the write was skipped, None if it was not.
    """

    mode: str
    app_id: str
    version: int | None
    transactions: int = 0
    skipped: str | None = None

    def summary(self) -> str:
        """Return a short description of the exactly-once write."""
        many = counted(self.transactions, "transaction")
        if self.version is None:
            return f"exactlyOnce={self.mode}, {many}"
        return (
            f"committed version {self.version} of txnAppId {self.app_id!r}, "
            f"exactlyOnce={self.mode}, {many}"
        )


@dataclass(slots=True, kw_only=True)
class CommitReport:
    """The rows that a job or a micro-batch wrote.

    query_id: the id of the streaming query whose micro-batch was written, None for other writes. It
    is also None if no task has reported. complete: whether the write is committed. If it is not,
    the report is only about the tasks that ended before the failure. unreported_tasks: the number
    of the other tasks, which may have written rows, too. error: why the write failed, None if it
    did not fail or if only Spark knows why. write_id: the value of `WRITE_ID_OPTION`, None if it
    is not set.

    bytes: the size of the records before compression. compressed_bytes: the size of the batches as
    they were sent. compression: the option kafka.compression.type. rows, bytes, compressed_bytes,
    retries and partitions do not include bad rows. throttle_ms: the sum of the throttle times of
    all tasks. seconds: from the start of the first task (by its host's clock) to the commit (by the
    clock of the committing host). exactly_once: None for at-least-once writes.
    """

    batch_id: int | None
    query_id: str | None
    complete: bool
    unreported_tasks: int
    error: str | None
    write_id: str | None
    committed_at: str
    seconds: float
    tasks: int
    rows: int
    bytes: int
    compressed_bytes: int
    compression: str
    retries: int
    throttle_ms: int
    slowest_task: TaskReport | None
    bad_rows: BadRowsReport | None
    expired_rows: list[ExpiredRowsReport]
    exactly_once: ExactlyOnceReport | None
    partitions: list[PartitionReport]

    def summary(self) -> str:
        """Return a summary of the report in one line."""
        if not self.complete:
            return self._failure()
        if self.exactly_once is not None and self.exactly_once.skipped is not None:
            return f"pykafka: skipped: {self.exactly_once.skipped}"
        batch = "" if self.batch_id is None else f" in micro-batch {self.batch_id}"
        line = (
            f"pykafka: wrote {self._written()}, by {counted(self.tasks, 'task')} "
            f"in {self.seconds:.2f} s{batch}"
        )
        slowest = self.slowest_task
        if slowest is not None:
            line += f"; slowest task {slowest.task} on {slowest.host}, {slowest.seconds:.2f} s"
        line += f"; {counted(self.retries, 'retry', 'retries')}" if self.retries else ""
        line += f"; throttled for {self.throttle_ms} ms" if self.throttle_ms else ""
        return line + (f"; {self.exactly_once.summary()}" if self.exactly_once else "")

    def _failure(self) -> str:
        what = "the write" if self.batch_id is None else f"micro-batch {self.batch_id}"
        line = f"pykafka: {what} failed"
        if self.exactly_once is not None and self.exactly_once.skipped is not None:
            return f"{line}; it wrote no row, because {self.exactly_once.skipped}"
        if self.tasks:
            line += f"; {counted(self.tasks, 'finished task')} wrote {self._written()}"
        if self.unreported_tasks:
            others = counted(self.unreported_tasks, "task")
            line += (
                f"; {others} did not report and may have written{' more' * (self.tasks > 0)} rows"
            )
        return line

    @property
    def is_empty(self) -> bool:
        """Whether this is a micro-batch without rows. Its report need not be printed."""
        return (
            self.batch_id is not None
            and self.complete
            and not self.rows
            and not (self.bad_rows is not None and self.bad_rows.rows)
            and not (self.exactly_once is not None and self.exactly_once.skipped)
        )

    def _written(self) -> str:
        topics = sorted({p.topic for p in self.partitions})
        where = ", ".join(topics) if len(topics) <= 3 else f"{len(topics)} topics"
        codec = "" if self.compression == "none" else f", compressed by {self.compression}"
        return (
            f"{counted(self.rows, 'row')} ({self.bytes} bytes of records, "
            f"{self.compressed_bytes} bytes sent{codec}) to {where or 'no topic'}, "
            f"{counted(len(self.partitions), 'partition')}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary that can be encoded as JSON."""
        values = asdict(replace(self, partitions=[]))
        values["partitions"] = [dict(vars(partition)) for partition in self.partitions]
        return values


@dataclass(kw_only=True)
class SkippedMessage(WriterCommitMessage):
    """The commit message of a task that wrote nothing, because an earlier write wrote its rows.

    rows: the number of rows that the task counted, None if it did not read its rows. trace, plan,
    micro_batch: as in `SinkCommitMessage`.
    """

    rows: int | None = None
    trace: JobTrace | None = None
    plan: Plan | None = None
    micro_batch: MicroBatch | None = None


@dataclass(frozen=True, slots=True)
class JobTrace:
    """The span of a job that has not ended.

    traceparent: the ids and flags of the span, as in the W3C Trace Context. parent: the traceparent
    of the parent span, an empty string if there is none. started_ns: in nanoseconds since 1970.
    topic: the option `topic`, None if the data has a topic column.
    """

    traceparent: str
    parent: str
    started_ns: int
    topic: str | None = None


@dataclass(kw_only=True)
class SinkCommitMessage(WriterCommitMessage):
    """The commit message of a task: the rows that it wrote.

    started_at: in seconds since 1970. query_id: as in `CommitReport`. partitions: the
    written rows, without bad rows. dead_letters: the rows in the dead letter topic. trace: the span
    of the job, None without openTelemetry. transaction: what the task wrote in its transaction,
    None for at-least-once writes. plan, micro_batch: set only for a micro-batch that is written
    exactly once. Its commit gets them only from these messages.
    """

    report: TaskReport
    started_at: float
    throttle_ms: int
    bad_rows: BadRowsReport
    expired_rows: list[ExpiredRowsReport]
    partitions: PartitionCounts
    dead_letters: PartitionCounts
    query_id: str | None = None
    trace: JobTrace | None = None
    transaction: AttemptTransaction | None = None
    plan: Plan | None = None
    micro_batch: MicroBatch | None = None

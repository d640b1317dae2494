"""Appends the rows of a task to its producer, and handles bad rows as `onError` requires.

Bad rows are found before they are sent (`serde.bad_rows`), or are refused by the brokers. They are
counted, and skipped or written as dead letters. The good rows of a refused batch are sent again,
after the rows that were sent in the meantime. With onError=fail, the producer raises an exception
for the first bad row.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, ParamSpec, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import DataException, KafkaException
from spark_kafka_sink.serde.bad_rows import FAULTS, BadRows, find_bad_rows
from spark_kafka_sink.serde.row_rules import Fault, named_columns
from spark_kafka_sink.spark.layout_mark import LayoutCheck
from spark_kafka_sink.spark.on_error import OnError
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.report import SAMPLES_PER_TASK, BadRowSample, BadRowsReport
from spark_kafka_sink.spark.tasks.dead_letters import (
    BadBatch,
    DeadLetterFile,
    DeadLetters,
    DeadLetterTopic,
    topic_names,
)
from spark_kafka_sink.spark.tasks.refusals import CarefulAppender, KeptRows
from spark_kafka_sink.spark.tasks.retention import ExpiredRows
from spark_kafka_sink.spark.topics import MissingTopics, TopicLimits, retention_of_topics
from spark_kafka_sink.task_producer import TaskProducer

# What tasks may wait for, in the words of their progress lines.
_CREATION: Final = "the creation of topics"
_SETTINGS: Final = "the settings of topics"
_A = ParamSpec("_A")
_R = TypeVar("_R")


class _Client(Protocol):
    @property
    def trouble(self) -> str:
        """The error that has prevented a response so far, or "" if there was no error."""


class TaskWaits:
    """What a task waits for. The producer's own waits are not included.

    The progress of the task shows both.
    """

    def __init__(self) -> None:
        self._wait: tuple[str, _Client | None] | None = None

    @contextmanager
    def waiting_for(self, what: str, client: _Client | None = None) -> Iterator[None]:
        """Context manager: record that the task waits for `what`. client: sends the requests."""
        self._wait = what, client
        try:
            yield
        finally:
            self._wait = None

    def noted(self, what: str, call: Callable[_A, _R]) -> Callable[_A, _R]:
        """Wrap the function `call`: while it runs, record that the task waits for `what`."""

        def noted(*args: _A.args, **kwargs: _A.kwargs) -> _R:
            with self.waiting_for(what):
                return call(*args, **kwargs)

        return noted

    @property
    def awaited(self) -> dict[str, str]:
        """What the task is waiting for, as in `DeliveryProgress`. Any thread may read this."""
        if (wait := self._wait) is None:
            return {}
        what, client = wait
        return {what: "" if client is None else client.trouble}


class TaskRows:
    """Appends a task's rows and handles the bad rows.

    It is a context manager, so that the dead letter file of a failed task is removed. prepare: a
    function that is called with the good rows of each batch before they are appended. waits: what
    the task waits for, which its progress shows. keeps_rows: whether rows are kept until they are
    acknowledged, because `settle` sends rows again. If not, the task fails if brokers refuse a row.
    """

    def __init__(
        self,
        options: SinkOptions,
        producer: TaskProducer,
        task: int,
        attempt: int,
        prepare: Callable[[pa.RecordBatch], None] | None = None,
    ) -> None:
        self._prepare = prepare
        self.waits = TaskWaits()
        self._policy = options.bad_rows
        selected = options.exactly_once
        self._log_topic = None if selected is None else selected.log_topic
        self._topic = options.topic
        # With compression, the size of a record is not known before it is sent.
        self._is_plain = options.producer.compression_type == "none"
        self._producer = producer
        self._limits = TopicLimits(options)
        self._refreshed_limit = self.waits.noted(_SETTINGS, self._limits.refreshed)
        self._limit_messages(self._limits.by_topic)
        self._missing_topics = MissingTopics(options, options.new_topic)
        self._missing_dead_letter_topic = MissingTopics(options, options.new_dead_letter_topic)
        self._layout = LayoutCheck(options.laid_out, producer.partition_counts)
        self._task = task
        self._rows = 0
        self._reasons: Counter[str] = Counter()
        self._samples: list[BadRowSample] = []
        # The count includes bad rows that brokers refuse, because rows are counted before that.
        self.expired_rows = ExpiredRows(
            options.topic,
            options.retention_ms,
            self.waits.noted(_SETTINGS, partial(retention_of_topics, options)),
        )
        kept: KeptRows | None = None
        # A transaction can only be aborted after brokers have refused a row.
        if self._policy.on_error is not OnError.FAIL and selected is None:
            kept = KeptRows(producer, options.producer.buffer_memory)
        self.keeps_rows = kept is not None
        self._appender: CarefulAppender[_Appended] = CarefulAppender(producer, options.topic, kept)
        self._encodings = options.encodings
        self._dead_letters: DeadLetters | None = None
        if self._policy.topic is not None:
            self._dead_letters = DeadLetterTopic(
                self._policy.topic,
                producer,
                options.topic,
                task,
                kept,
                lambda: self._limits.by_topic,
                self._refresh_limits,
            )
        elif self._policy.path is not None:
            self._dead_letters = DeadLetterFile(self._policy.path, options.topic, task, attempt)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._dead_letters is not None:
            self._dead_letters.discard()

    def append(self, batch: pa.RecordBatch, lingers_since: float | None = None) -> None:
        """Append a batch of the task. With `keeps_rows`, call `settle` from time to time.

        lingers_since: as in `TaskProducer.append`.
        """
        numbers = np.arange(self._rows, self._rows + batch.num_rows)
        self._rows += batch.num_rows
        self._refuse_dead_letters_own(batch, numbers)
        self._refuse_commit_logs_own(batch, numbers)
        if self._encodings:
            batch, numbers = self._encoded(batch, numbers)
        if self._policy.on_error is OnError.FAIL:
            self._prepare_good(batch)
            with self._naming(numbers):
                self._producer.append(self._topic, batch, lingers_since=lingers_since)
            self._count_expired(batch)
            return
        found = self._find(batch)
        if found is not None and found.has(Fault.TOO_LARGE) and self._is_plain:
            self._refresh_limits()
            found = self._find(batch)
        if found is not None:
            self._take(BadBatch(found.bad(batch), found.codes, numbers[found.rows]))
            numbers = np.delete(numbers, found.rows)
            batch = found.good(batch)
        self._prepare_good(batch)
        self._append_good(batch, numbers, lingers_since)
        self._count_expired(batch)

    def _encoded(
        self, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Return the encoded rows and their numbers. Handle all other rows as bad rows."""
        from spark_kafka_sink.spark.tasks.encoded_rows import (  # noqa: PLC0415 - few tasks have formats
            bad_batch,
            encode_rows,
            raise_first,
        )

        with self._naming(numbers):
            encoded, faults = encode_rows(batch, self._encodings)
            if self._policy.on_error is OnError.FAIL:
                raise_first(faults)
        if not faults:
            return encoded, numbers
        is_kept = self._dead_letters is not None
        for fault in faults:
            self._take(bad_batch(batch, fault, numbers, self._encodings, is_kept=is_kept))
        good = np.ones(batch.num_rows, np.bool_)
        good[np.concatenate([fault.rows for fault in faults])] = False
        return encoded.filter(pa.array(good)), numbers[good]

    def _count_expired(self, batch: pa.RecordBatch) -> None:
        if "timestamp" in batch.schema.names:
            self.expired_rows.count(batch)

    def _prepare_good(self, batch: pa.RecordBatch) -> None:
        if self._missing_topics.is_needed or self._layout.is_needed:
            topics = _topics_of(batch) if self._topic is None else [self._topic]
            self._create(self._missing_topics, topics)
            self._layout.check(topics)
        if self._prepare is not None:
            self._prepare(batch)

    def _append_good(
        self,
        batch: pa.RecordBatch,
        numbers: npt.NDArray[np.int64],
        lingers_since: float | None = None,
    ) -> None:
        with self._naming(numbers):
            self._appender.append(batch, _Appended(batch, numbers), batch, lingers_since)

    @contextmanager
    def _naming(self, numbers: npt.NDArray[np.int64]) -> Iterator[None]:
        """Context manager: exceptions show a row's number in the task, not in the batch."""
        try:
            yield
        except KafkaException as error:
            if error.row is not None:
                error.place = self._place(int(numbers[error.row]))
            raise

    def _place(self, number: int) -> str:
        return f"row {number} of task {self._task}"

    def _limit_messages(self, max_message_bytes: Mapping[str, int]) -> None:
        self._producer.limit_messages(max_message_bytes, self._refreshed_limit)

    def _refresh_limits(self) -> None:
        self._limit_messages(self._refreshed_limit())

    def _create(self, missing: MissingTopics, topics: Iterable[str]) -> None:
        with self.waits.waiting_for(_CREATION):
            missing.create(topics)

    def _find(self, batch: pa.RecordBatch) -> BadRows | None:
        return find_bad_rows(
            batch,
            self._topic,
            self._producer.record_limits,
            self._partition_counts,
            time.time_ns() // 1_000_000,
        )

    def _refuse_dead_letters_own(
        self, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64]
    ) -> None:
        """Raise DataException if the topic column contains the dead letter topic.

        Rows for that topic would be counted as dead letters, and consumers could not distinguish
        them from dead letters.
        """
        name = self._policy.topic
        row = self._first_row_for(name, batch)
        if row >= 0:
            message = (
                f"the topic column has {name}, which is deadLetterTopic: set deadLetterTopic to a "
                "topic that the topic column does not have"
            )
            place = self._place(int(numbers[row]))
            raise DataException(message, topic=name, row=row, place=place)

    def _refuse_commit_logs_own(
        self, batch: pa.RecordBatch, numbers: npt.NDArray[np.int64]
    ) -> None:
        """Raise DataException if the topic column contains the topic of the commit log."""
        name = self._log_topic
        row = self._first_row_for(name, batch)
        if row >= 0:
            message = (
                f"the topic column has {name}, which is the topic of the commit log "
                "(commitLogTopic): expected another topic"
            )
            place = self._place(int(numbers[row]))
            raise DataException(message, topic=name, row=row, place=place)

    def _first_row_for(self, name: str | None, batch: pa.RecordBatch) -> int:
        """Return the index of the first row whose topic column is `name`, or -1."""
        if name is None or self._topic is not None:
            return -1
        column = named_columns(batch)["topic"].cast(pa.large_binary())
        row: int = pc.index(column, name.encode()).as_py()
        return row

    def _partition_counts(self, expected: Mapping[str, int]) -> Mapping[str, int]:
        """Return the partition counts of topics. Missing topics are created first."""
        self._create(self._missing_topics, expected)
        return self._producer.partition_counts(expected)

    def flush(self) -> int:
        """Wait until every good row is acknowledged, and return the number of good rows."""
        self._producer.flush()
        while self.settle():
            self._producer.flush()
        return self._rows - self._reasons.total()

    def settle(self) -> bool:
        """Handle rows that brokers refused since the last call. Return whether there were any."""
        refused = False
        for (batch, numbers), culprits, others, fault, error in self._appender.refusals():
            if len(culprits):
                codes = np.full(len(culprits), FAULTS.index(fault), np.uint8)
                rows = batch.take(pa.array(culprits))
                self._take(BadBatch(rows, codes, numbers[culprits], str(error)))
            rest = batch.take(pa.array(others))
            self._append_good(rest, numbers[others])
            refused = True
        if self._dead_letters is not None:
            refused |= self._dead_letters.settle()
        return refused

    def _take(self, bad: BadBatch) -> None:
        counts = np.bincount(bad.codes, minlength=len(FAULTS)).tolist()
        self._reasons += Counter(dict(zip([f.value for f in FAULTS], counts, strict=True)))
        self._describe(bad, SAMPLES_PER_TASK - len(self._samples))
        if self._policy.topic is not None:
            self._create(self._missing_dead_letter_topic, [self._policy.topic])
        if self._dead_letters is not None:
            self._dead_letters.take(bad)

    def _describe(self, bad: BadBatch, most: int) -> None:
        """Add the first rows of `bad`, at most `most`, to the samples in the report."""
        rows = bad.rows.slice(0, most)
        columns = named_columns(rows)
        nothing = [None] * rows.num_rows
        partitions = columns["partition"].to_pylist() if "partition" in columns else nothing
        keys, values = (
            pc.binary_length(columns[name]).to_pylist()
            if name in columns and name not in bad.as_json
            else nothing
            for name in ("key", "value")
        )
        topics = topic_names(rows, self._topic).to_pylist()
        self._samples += [
            BadRowSample(
                task=self._task,
                row=int(bad.numbers[i]),
                reason=FAULTS[bad.codes[i]].value,
                detail=bad.detail,
                topic=None if topics[i] is None else topics[i].decode(errors="replace"),
                partition=partitions[i],
                key_bytes=keys[i],
                value_bytes=values[i],
            )
            for i in range(rows.num_rows)
        ]

    def finish(self) -> BadRowsReport:
        """Complete the dead letters and return the report about bad rows. Call this last."""
        policy = self._policy
        files = [] if self._dead_letters is None else self._dead_letters.finish()
        target = policy.topic or policy.path
        return BadRowsReport(
            on_error=policy.on_error.value,
            rows=self._reasons.total(),
            reasons=dict(self._reasons),
            dead_letters=None if target is None else str(target),
            files=files,
            samples=self._samples,
        )


def _topics_of(batch: pa.RecordBatch) -> list[str]:
    """Return the distinct names in the topic column."""
    # Spark's strings may contain bytes that are not UTF-8.
    names = batch.column("topic").unique().drop_null().cast("large_binary").to_pylist()
    return [name.decode(errors="replace") for name in names]


class _Appended(NamedTuple):
    """Rows that were appended. numbers: the number of each row in the task."""

    batch: pa.RecordBatch
    numbers: npt.NDArray[np.int64]

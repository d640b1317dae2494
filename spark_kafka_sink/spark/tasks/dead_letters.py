"""Dead letters: bad rows in a Kafka topic, or in a Parquet file in a folder.

In the topic, a dead letter has the key, value and headers of the row. Additional headers
(`ERROR_HEADERS`) describe the fault. The timestamp of a dead letter is the time when it is written.
If it had the timestamp of an old row, brokers would delete it at their next retention check. If
brokers refuse the dead letter, it is sent again without value. If they refuse it again, it is sent
without value, key and headers. The Parquet file contains all columns of the row.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.logs import masked
from spark_kafka_sink.records.columns import valid_utf8
from spark_kafka_sink.serde import COLUMNS
from spark_kafka_sink.serde.added_headers import AddedHeader, with_added_headers
from spark_kafka_sink.serde.bad_rows import FAULTS, BadRows, find_bad_rows
from spark_kafka_sink.serde.row_rules import milliseconds, named_columns
from spark_kafka_sink.spark.on_error import DEAD_LETTER_FOLDER
from spark_kafka_sink.spark.tasks.refusals import CarefulAppender, KeptRows
from spark_kafka_sink.task_producer import TaskProducer

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

ERROR_HEADERS: Final = (
    "pykafka.error.reason",
    "pykafka.error.detail",
    "pykafka.error.topic",
    "pykafka.error.partition",
    "pykafka.error.timestamp",
    "pykafka.error.task",
    "pykafka.error.row",
    "pykafka.error.value.bytes",
    "pykafka.error.left.out",
    "pykafka.error.as.json",
)
# Replaces a header key that is null.
UNNAMED_HEADER: Final = "pykafka.error.unnamed"
# The maximum length of a topic name in a dead letter. Longer names, which are invalid, are
# truncated.
_TOPIC_BYTES: Final = 300
# The columns that a dead letter omits, for each attempt to send it.
_LEFT_OUT: Final = ((), ("value",), ("key", "value", "headers"))


class BadBatch(NamedTuple):
    """Bad rows of a task.

    codes: for each row, the index of its fault in `FAULTS`, uint8. numbers: the number of each row
    in the task, int64. detail: the error of the brokers if they refused the rows, or why the rows
    cannot be encoded. as_json: the columns that contain JSON instead of encoded bytes, if the rows
    cannot be encoded.
    """

    rows: pa.RecordBatch
    codes: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.int64]
    detail: str | None = None
    as_json: tuple[str, ...] = ()

    def part(self, rows: npt.NDArray[np.int64]) -> BadBatch:
        """Return only the rows at the given indexes."""
        return self._replace(
            rows=self.rows.take(pa.array(rows)), codes=self.codes[rows], numbers=self.numbers[rows]
        )


class DeadLetters(Protocol):
    """Writes the bad rows of one task as dead letters."""

    def take(self, bad: BadBatch) -> None:
        """Write bad rows as dead letters."""

    def settle(self) -> bool:
        """Handle the dead letters that brokers have refused. Return whether there were any."""

    def finish(self) -> list[str]:
        """Complete the dead letters. Return the paths of their files."""

    def discard(self) -> None:
        """Remove the incomplete file, if there is one. Do nothing after `finish`."""


class Faults:
    """The faults of bad rows, as Arrow columns for dead letters."""

    def __init__(self, bad: BadBatch, topic: str | None, task: int) -> None:
        names = pa.array([fault.value for fault in FAULTS])
        self.reasons = names.take(pa.array(bad.codes))
        self.details = pa.array([bad.detail] * len(bad.numbers), pa.string())
        self.numbers = pa.array(bad.numbers)
        self.tasks = pa.array(np.full(len(bad.numbers), task))
        self.topics = topic_names(bad.rows, topic)
        self.as_json = pa.array([", ".join(bad.as_json) or None] * len(bad.numbers), pa.string())


def topic_names(rows: pa.RecordBatch, topic: str | None) -> pa.Array:
    """Return each row's topic name as bytes. Names in a topic column are cut to `_TOPIC_BYTES`.

    topic: the topic of all rows, None for a topic column.
    """
    if topic is not None:
        return pa.array([topic.encode()] * rows.num_rows, pa.binary())
    names = named_columns(rows)["topic"].cast(pa.binary())
    return pc.binary_slice(names, 0, _TOPIC_BYTES)


class DeadLetterTopic:
    """Sends dead letters with the task's producer.

    topic: the topic of good rows, None for a topic column. kept: as in `CarefulAppender`. limits: a
    function that returns max.message.bytes by topic. refresh: a function that reads it again.
    """

    def __init__(
        self,
        name: str,
        producer: TaskProducer,
        topic: str | None,
        task: int,
        kept: KeptRows | None,
        limits: Callable[[], Mapping[str, int]],
        refresh: Callable[[], None],
    ) -> None:
        self._name = name
        self._limits = limits
        # A refused dead letter can be sent again with fewer columns only if rows are kept. If not,
        # the limit applies to the size before compression.
        self._may_be_refused = kept is not None
        self._refresh = refresh
        self._producer = producer
        self._topic = topic
        self._task = task
        # The user's partitioner may need columns that dead letters do not have, so it is not used.
        self._appender: CarefulAppender[tuple[BadBatch, int]] = CarefulAppender(
            producer, name, kept, built_in_partitioner=True
        )

    def take(self, bad: BadBatch) -> None:
        """Send the bad rows as dead letters with all of their columns."""
        self._send(bad, 0)

    def settle(self) -> bool:
        """Send refused dead letters again with fewer columns.

        If a dead letter is refused even without any columns, raise its error.
        """
        refused = False
        for (bad, attempt), culprits, others, _, error in self._appender.refusals():
            if len(culprits) and attempt + 1 == len(_LEFT_OUT):
                raise error
            self._send(bad.part(others), attempt)
            self._send(bad.part(culprits), attempt + 1)
            refused = True
        return refused

    def _send(self, bad: BadBatch, attempt: int) -> None:
        if not len(bad.codes):
            return
        letters = _letters(bad, Faults(bad, self._topic, self._task), _LEFT_OUT[attempt])
        if attempt + 1 < len(_LEFT_OUT):
            too_large = self._find(letters)
            # Without a limit of the topic, a letter is too large for max.request.size.
            if too_large is not None and self._name in self._limits_that_apply():
                self._refresh()
                too_large = self._find(letters)
            if too_large is not None:
                self._send(bad.part(too_large.rows), attempt + 1)
                others = np.delete(np.arange(len(bad.codes)), too_large.rows)
                self._send(bad.part(others), attempt)
                return
        self._appender.append(letters, (bad, attempt), bad.rows)

    def _limits_that_apply(self) -> Mapping[str, int]:
        """Return max.message.bytes by topic, if it applies to the size before compression."""
        return self._producer.record_limits.by_topic if self._may_be_refused else self._limits()

    def _find(self, letters: pa.RecordBatch) -> BadRows | None:
        limits = self._producer.record_limits.with_topics(self._limits_that_apply())
        counts, now_ms = self._producer.partition_counts, time.time_ns() // 1_000_000
        return find_bad_rows(letters, self._name, limits, counts, now_ms)

    def finish(self) -> list[str]:
        """Return an empty list, because there are no files."""
        return []

    def discard(self) -> None:
        """Do nothing, because records in Kafka cannot be removed."""


def _letters(bad: BadBatch, faults: Faults, left_out: tuple[str, ...]) -> pa.RecordBatch:
    """Return bad rows as dead letters, without the columns `left_out`."""
    columns = named_columns(bad.rows)
    rows = bad.rows.num_rows
    nothing = pa.nulls(rows, pa.int64())
    times = milliseconds(columns["timestamp"]) if "timestamp" in columns else nothing
    added = (
        faults.reasons,
        faults.details,
        faults.topics,
        columns.get("partition", nothing),
        times,
        faults.tasks,
        faults.numbers,
        nothing if "value" in bad.as_json else pc.binary_length(columns["value"]),
        pa.array([", ".join(left_out) or None] * rows, pa.string()),
        faults.as_json,
    )
    headers = None if "headers" in left_out else columns.get("headers")
    letters = {
        "key": columns.get("key", pa.nulls(rows, pa.binary())),
        "value": columns["value"],
        "headers": with_headers(headers, added),
    }
    for name in left_out:
        if name != "headers":
            letters[name] = pa.nulls(rows, letters[name].type)
    return pa.record_batch(letters)


def with_headers(headers: pa.Array | None, values: tuple[pa.Array, ...]) -> pa.Array:
    """Return each row's headers, followed by `ERROR_HEADERS` with the given values as strings."""
    rows = len(values[0])
    texts = [each if pa.types.is_binary(each.type) else each.cast(pa.string()) for each in values]
    named = zip(ERROR_HEADERS, texts, strict=True)
    added = [AddedHeader(name, np.arange(rows), each) for name, each in named]
    return with_added_headers(headers, rows, added, UNNAMED_HEADER)


ERROR_COLUMNS: Final = (
    "pykafka_error_reason",
    "pykafka_error_detail",
    "pykafka_error_topic",
    "pykafka_error_task",
    "pykafka_error_row",
    "pykafka_error_as_json",
)


class DeadLetterFile:
    """Writes a task's dead letters to one file in a folder.

    topic: the topic of good rows, None for a topic column. The file has a hidden name until
    `finish`, which the task calls last. The name is unique to the task attempt. The driver creates
    the folder.
    """

    def __init__(self, folder: Path, topic: str | None, task: int, attempt: int) -> None:
        self._topic = topic
        self._task = task
        self._file = folder / f"part-{task:05d}-{attempt}-{uuid.uuid4()}.parquet"
        self._partial = folder / f".{self._file.name}.partial"
        self._writer: ParquetWriter | None = None

    def take(self, bad: BadBatch) -> None:
        """Write the bad rows to the file."""
        faults = Faults(bad, self._topic, self._task)
        topics = valid_utf8(faults.topics)
        added = (
            faults.reasons, faults.details, topics, faults.tasks, faults.numbers, faults.as_json
        )  # fmt: skip
        latest = dict(zip(ERROR_COLUMNS, added, strict=True))
        columns = [
            # If the rows were read from dead letters, the new error columns replace the old ones.
            (name, latest.pop(name, column))
            for name, column in zip(bad.rows.schema.names, bad.rows.columns, strict=True)
        ]
        columns += latest.items()
        names = distinct_names([name for name, _ in columns], (*COLUMNS, *ERROR_COLUMNS))
        try:
            stored = [_storable(*column) for column in columns]
            self._write(pa.record_batch(stored, names=names))
        except pa.ArrowNotImplementedError as error:
            folder = masked(str(self._file.parent))
            message = (
                f"the dead letters of this task cannot be written to {folder}: Parquet "
                f"does not support a column of the data ({error}); select the other columns, or "
                "set deadLetterTopic in place of deadLetterPath"
            )
            raise DataException(message) from error

    def _write(self, letters: pa.RecordBatch) -> None:
        from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 - few tasks need it

        with self._naming_the_folder():
            if self._writer is None:
                self._writer = ParquetWriter(self._partial, letters.schema)
            self._writer.write_batch(letters)

    @contextmanager
    def _naming_the_folder(self) -> Iterator[None]:
        """Context manager: replace an OSError with a ConfigException about `deadLetterPath`."""
        try:
            yield
        except OSError as error:
            folder = self._partial.parent
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            # If a parent of the folder is not searchable, `is_dir` raises PermissionError.
            is_folder = isinstance(error, PermissionError) or folder.is_dir()
            found = f"cannot be written into ({reason})" if is_folder else "is not a folder"
            message = (
                f"option deadLetterPath is {masked(str(folder))}, which {found} on "
                f"{os.uname().nodename}: expected {DEAD_LETTER_FOLDER}"
            )
            raise ConfigException(message) from error

    def settle(self) -> bool:
        """Return False, because dead letters in a file cannot be refused."""
        return False

    def finish(self) -> list[str]:
        """Rename the file to its final name. Return a list of its path, empty without a file."""
        if self._writer is None:
            return []
        with self._naming_the_folder():
            self._writer.close()
            self._writer = None
            self._partial.rename(self._file)
        return [str(self._file)]

    def discard(self) -> None:
        """Close and remove an incomplete file. Raise nothing: the task raises its own error."""
        with suppress(OSError):
            if self._writer is not None:
                self._writer.close()  # this writes the end of the file, so it may fail
        with suppress(OSError):
            self._partial.unlink(missing_ok=True)


def _storable(name: str, column: pa.Array) -> pa.Array:
    """Return a column in a type that every Parquet reader can read.

    Spark's strings may contain bytes that are not UTF-8. Key and value become binary columns, so
    all their bytes are preserved. All other strings, also inside headers and structs, stay strings,
    and their invalid bytes are replaced with U+FFFD. Times of day become strings, also inside
    structs, because Spark reads no nanoseconds of a time by default. Raise ArrowNotImplementedError
    for a type that pyarrow cannot convert.
    """
    kind = column.type
    if pa.types.is_nested(kind):
        return _with_valid_text(column.view(_with_distinct_fields(kind)))
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not is_text and not pa.types.is_binary(kind):
        return _with_valid_text(column)
    column = column.cast(pa.large_binary())
    return valid_utf8(column) if is_text and name not in ("key", "value") else column


def _with_valid_text(column: pa.Array) -> pa.Array:
    """Return a column with only valid UTF-8 in its strings, and times as strings, at any depth."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return valid_utf8(column)
    if pa.types.is_time(kind):
        texts = column.cast(pa.time64("ns")).cast(pa.string())
        return pc.replace_substring_regex(texts, r"\.?0+$", "")
    if not pa.types.is_nested(kind):
        return column
    copied = column.take(pa.array(range(len(column)), pa.int64()))  # the copy has offset 0
    if pa.types.is_struct(kind):
        own, inner = 1, [copied.field(number) for number in range(kind.num_fields)]
    else:
        own, inner = 2, [copied.values]
    inner = [_with_valid_text(each) for each in inner]
    types = [each.type for each in inner]
    return pa.Array.from_buffers(
        # The only child of a map is the struct of its keys and values.
        _nested(kind, [field.type for field in types[0]] if pa.types.is_map(kind) else types),
        len(copied),
        copied.buffers()[:own],
        # Without the null count, pyarrow 19 crashes on the entries of a map. (They are never null.)
        null_count=copied.null_count,
        children=inner,
    )


def _with_distinct_fields(kind: pa.DataType) -> pa.DataType:
    """Return a type whose structs have distinct field names, at any depth.

    Raise ArrowNotImplementedError for year-month intervals, because pyarrow has no arrays of them.
    """
    if str(kind) == "month_interval":  # pyarrow 19 has no other name for it
        raise pa.ArrowNotImplementedError(f"type {kind}")
    if pa.types.is_struct(kind):
        names = distinct_names([field.name for field in kind])
        kind = pa.struct([field.with_name(name) for name, field in zip(names, kind, strict=True)])
        return _nested(kind, [_with_distinct_fields(field.type) for field in kind])
    if pa.types.is_map(kind):
        return _nested(
            kind, [_with_distinct_fields(each) for each in (kind.key_type, kind.item_type)]
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _nested(kind, [_with_distinct_fields(kind.value_type)])
    return kind


def _nested(kind: pa.DataType, inner: Sequence[pa.DataType]) -> pa.DataType:
    """Return a nested type with different types inside.

    inner: the types of a struct's fields, of a map's keys and values, or of a list's elements.
    """
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(of) for field, of in zip(kind, inner, strict=True)])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(inner[0]), kind.item_field.with_type(inner[1]))
    of = pa.list_ if pa.types.is_list(kind) else pa.large_list
    return of(kind.value_field.with_type(inner[0]))


def distinct_names(names: Sequence[str], keep: Iterable[str] = ()) -> list[str]:
    """Return names that are distinct even if case is ignored, as Spark requires in a Parquet file.

    keep: names that must not change. If several names are equal, one of them does not change: the
    name in `keep`, or else the first one. A number is appended to each of the others.
    """
    kept = {name.lower(): name for name in names[::-1]}
    kept |= {name.lower(): name for name in keep if name in names}
    taken = set(kept)
    found: list[str] = []
    for name in names:
        if kept.get(name.lower()) == name:
            del kept[name.lower()]
            found.append(name)
            continue
        numbered = (f"{name}_{number}" for number in count(2))
        found.append(next(each for each in numbered if each.lower() not in taken))
        taken.add(found[-1].lower())
    return found

"""Bad rows that go to a Parquet file, one for every task that has any.

A row has all columns that it came with, key and value as bytes, and `ERROR_COLUMNS`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.logs import masked
from spark_kafka_sink.records.utf8 import valid_utf8
from spark_kafka_sink.serde import COLUMNS
from spark_kafka_sink.spark.dead_letters import BadBatch, Faults
from spark_kafka_sink.spark.on_error import DEAD_LETTER_FOLDER

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

ERROR_COLUMNS: Final = (
    "pykafka_error_reason",
    "pykafka_error_detail",
    "pykafka_error_topic",
    "pykafka_error_task",
    "pykafka_error_row",
)


class DeadLetterFile:
    """Writes a task's dead letters to one file of a folder; topic: where good rows go.

    The file has its name when the task has done all else, and is hidden until then. No other
    attempt of any job has the same name. The folder is the driver's to make.
    """

    def __init__(self, folder: Path, topic: str | None, task: int, attempt: int) -> None:
        self._topic = topic
        self._task = task
        self._file = folder / f"part-{task:05d}-{attempt}-{uuid.uuid4()}.parquet"
        self._partial = folder / f".{self._file.name}.partial"
        self._writer: ParquetWriter | None = None

    def take(self, bad: BadBatch) -> None:
        """Write the rows."""
        faults = Faults(bad, self._topic, self._task)
        topics = valid_utf8(faults.topics)
        added = (faults.reasons, faults.details, topics, faults.tasks, faults.numbers)
        latest = dict(zip(ERROR_COLUMNS, added, strict=True))
        columns = [
            # Dead letters that are dead once more have the latest of both.
            (name, latest.pop(name, column))
            for name, column in zip(bad.rows.schema.names, bad.rows.columns, strict=True)
        ]
        columns += latest.items()
        names = distinct_names([name for name, _ in columns], (*COLUMNS, *ERROR_COLUMNS))
        letters = pa.record_batch([_storable(*column) for column in columns], names=names)
        try:
            self._write(letters)
        except pa.ArrowNotImplementedError as error:
            folder = masked(str(self._file.parent))
            message = (
                f"the dead letters of this task cannot be written to {folder}: Parquet "
                f"has no place for a column of the data ({error}); select the other columns, or "
                "set deadLetterTopic in place of deadLetterPath"
            )
            raise DataException(message) from error

    def _write(self, letters: pa.RecordBatch) -> None:
        if self._writer is None:
            from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 - few tasks need it

            try:
                self._writer = ParquetWriter(self._partial, letters.schema)
            except OSError as error:
                folder = self._partial.parent
                found = f"cannot be written into ({os.strerror(error.errno or 0)})"
                message = (
                    f"option deadLetterPath is {masked(str(folder))}, which "
                    f"{found if folder.is_dir() else 'is no folder'} on "
                    f"{os.uname().nodename}: expected {DEAD_LETTER_FOLDER}"
                )
                raise ConfigException(message) from error
        self._writer.write_batch(letters)

    def settle(self) -> bool:
        """Do nothing: files take everything."""
        return False

    def finish(self) -> list[str]:
        """Give the file its name; there is none where there were no bad rows."""
        if self._writer is None:
            return []
        self._writer.close()
        self._writer = None
        self._partial.rename(self._file)
        return [str(self._file)]

    def discard(self) -> None:
        """Remove a file that is not finished."""
        if self._writer is not None:
            self._writer.close()
        self._partial.unlink(missing_ok=True)


def _storable(name: str, column: pa.Array) -> pa.Array:
    """Give a column as every reader of Parquet can read it.

    Spark's strings may hold bytes that are no text. Key and value are kept as bytes, to the last
    one; other columns of strings stay text, with U+FFFD in place of such bytes.
    """
    kind = column.type
    if pa.types.is_nested(kind):
        return column.view(_with_distinct_fields(kind))
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return column
    column = column.cast(pa.large_binary())
    return column if name in ("key", "value") else valid_utf8(column)


def _with_distinct_fields(kind: pa.DataType) -> pa.DataType:
    """Return a type whose structs have distinct names of fields, at any depth."""
    if pa.types.is_struct(kind):
        names = distinct_names([field.name for field in kind])
        return pa.struct(
            [
                field.with_name(name).with_type(_with_distinct_fields(field.type))
                for name, field in zip(names, kind, strict=True)
            ]
        )
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_with_distinct_fields(kind.key_type)),
            kind.item_field.with_type(_with_distinct_fields(kind.item_type)),
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return of(kind.value_field.with_type(_with_distinct_fields(kind.value_type)))
    return kind


def distinct_names(names: Sequence[str], keep: Iterable[str] = ()) -> list[str]:
    """Return names that differ by more than their case, as Spark wants them of a Parquet file.

    The first of several keeps its name, or the one that is in `keep`; others get a number.
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

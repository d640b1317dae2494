"""Bad rows that go to a Parquet file, one for every task that has any.

A row has all columns that it came with, key and value as bytes, and `ERROR_COLUMNS`.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.masking import masked
from spark_kafka_sink.serde.columns import named_columns
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
        columns = named_columns(bad.rows)
        topics = faults.topics.cast(pa.string(), safe=False)
        added = (faults.reasons, faults.details, topics, faults.tasks, faults.numbers)
        # Dead letters that are dead once more have the latest of both.
        columns |= dict(zip(ERROR_COLUMNS, added, strict=True))
        letters = pa.record_batch({name: _storable(name, each) for name, each in columns.items()})
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
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return column
    column = column.cast(pa.large_binary())
    if name in ("key", "value"):
        return column
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = [None if b is None else b.decode(errors="replace") for b in column.to_pylist()]
        return pa.array(texts, pa.large_string())

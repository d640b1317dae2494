"""Replaces what Spark 4.0 lacks. Delete this module when the sink requires Spark 4.1.

With newer versions, the functions here only call those of Spark. Every task loads this module, but
needs only the base class of the writers. So each function imports what it needs when it is called.

Five other modules also have code for older versions, where it belongs:

- `planning.spark_types`, for the missing class TimeType, until the sink requires Spark 4.1;
- `tasks.task`, for missing offsets of empty lists (`_size_bytes`), until it requires Spark 4.2;
- `driver.hooks.none_options`, for options with the value None, until it requires Spark 4.3;
- `driver.write_batch`, for the same options of a writer without hooks, until it requires Spark 4.3;
- `driver.listener_bus`, for two errors of Spark Connect, which 4.0 to 4.3 have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource

from spark_kafka_sink.errors import ConfigException

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
    from pyspark.sql.types import DataType
else:
    # Spark 4.1 has this class. A worker of 4.0 passes Arrow batches to each DataSourceArrowWriter,
    # and does not check the type of a stream's writer.
    DataSourceStreamArrowWriter = getattr(
        datasource, "DataSourceStreamArrowWriter", datasource.DataSourceArrowWriter
    )

__all__ = [
    "OLD_ARROW_DEFAULT",
    "DataSourceStreamArrowWriter",
    "numbers_of_partitions",
    "register_source",
    "repartition_by_id",
    "with_arrow_column",
]

# The default of spark.sql.execution.arrow.maxBytesPerBatch in Spark 4.0, as sessions show it:
# 256 MiB.
OLD_ARROW_DEFAULT: Final = "268435456b"


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source with a session.

    If Spark 4.0 has already found the source by itself, it raises an exception, which is ignored.
    Newer versions replace the source.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - tasks do not need it

    try:
        spark.dataSource.register(source)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def with_arrow_column(
    df: DataFrame,
    name: str,
    function: Callable[..., pa.Array],
    kind: DataType,
    *columns: Column,
) -> DataFrame:
    """Return `df` with a column that a function computes from the Arrow arrays of other columns.

    name: the name of the new column. No existing column may have a name that begins with it. kind:
    the type of the new column. With Spark 4.0, raise ConfigException if pandas is not installed on
    the driver.

    With Spark 4.1, this uses `arrow_udf`, and Spark passes only `columns` to Python. Spark 4.0 has
    no `arrow_udf`, and passes all columns.
    """
    from pyspark.sql.pandas import functions  # noqa: PLC0415 - tasks do not need it

    if hasattr(functions, "arrow_udf"):
        # The type stub requires the UDF type as a number, but Spark warns about such a type.
        udf: Callable[..., Column] = functions.arrow_udf(function, kind)  # type: ignore[call-overload]
        return df.withColumn(name, udf(*columns))
    return _mapped_in_arrow(df, name, function, kind, *columns)


def _mapped_in_arrow(
    df: DataFrame,
    name: str,
    function: Callable[..., pa.Array],
    kind: DataType,
    *columns: Column,
) -> DataFrame:
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - tasks do not need it

    kept = len(df.columns)
    arguments = (column.alias(f"{name}_{number}") for number, column in enumerate(columns))
    # Arrow columns are nullable. Spark refuses them for other fields, so make all fields nullable.
    fields = [StructField(f.name, f.dataType, metadata=f.metadata) for f in df.schema.fields]

    def computed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = function(*batch.columns[kept:])
            names = [*batch.schema.names[:kept], name]
            yield type(batch).from_arrays([*batch.columns[:kept], found], names=names)

    given = df.select("*", *arguments)
    try:
        return given.mapInArrow(computed, StructType([*fields, StructField(name, kind)]))
    except ImportError as error:
        message = (
            "atomic_layout needs pandas in the Python of the driver if Spark is older than 4.1: "
            f"run pip install pandas, or use Spark 4.1 or newer. Spark says: {error}"
        )
        raise ConfigException(message) from error


def repartition_by_id(df: DataFrame, partitions: int, ids: Column) -> DataFrame:
    """Return `df` in `partitions` Spark partitions. ids: the partition id of each row.

    Spark 4.1 has `DataFrame.repartitionById`. Spark 4.0 can only choose a partition by a hash. So
    each id is replaced with a number whose hash selects the partition with this id.
    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(partitions, ids)
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everywhere; tasks do not need it

    # One string, because each literal is a call to the JVM.
    listed = ",".join(map(str, numbers_of_partitions(partitions).tolist()))
    numbers = F.split(F.lit(listed), ",").cast("array<int>")
    return df.repartition(partitions, F.get(numbers, ids))


def numbers_of_partitions(partitions: int) -> NDArray[np.int32]:
    """Return, for each Spark partition, a number that ``repartition`` puts into this partition."""
    import numpy as np  # noqa: PLC0415 - tasks do not need it

    numbers = np.full(partitions, -1, np.int32)
    start = 0
    while (numbers < 0).any():
        tried = np.arange(start, start + 8 * partitions, dtype=np.int32)
        numbers[_spark_hash(tried).astype(np.int64) % partitions] = tried
        start += len(tried)
    return numbers


def _spark_hash(numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the hash that Spark's SQL function ``hash`` returns for each number.

    It is Murmur3 (x86, 32 bits) of four bytes, with the seed 42.
    """
    mixed = _rotated(numbers.view("uint32") * 0xCC9E2D51, 15) * 0x1B873593
    mixed = _rotated(mixed ^ 42, 13) * 5 + 0xE6546B64
    mixed = mixed ^ 4  # the length in bytes
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35
    hashed: NDArray[np.int32] = (mixed ^ (mixed >> 16)).view("int32")
    return hashed


def _rotated(words: NDArray[Any], bits: int) -> NDArray[Any]:
    return (words << bits) | (words >> (32 - bits))

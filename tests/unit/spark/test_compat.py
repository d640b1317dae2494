"""What stands in for the functions that Spark 4.0 lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.pandas import functions
from pyspark.sql.types import IntegerType, StringType, StructType

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark import compat
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.writer import ExactlyOnceStreamWriter, KafkaStreamArrowWriter

# What Spark's SQL function hash returns.
SPARKS = {
    0: 933211791,
    1: -559580957,
    -1: -1604776387,
    7: 1079293707,
    2147483647: 133916647,
    -2147483648: 723455942,
    12345: -2122148428,
}


def test_numbers_have_sparks_hash() -> None:
    numbers = np.array(list(SPARKS), np.int32)
    assert compat._spark_hash(numbers).tolist() == list(SPARKS.values())


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 200, 4099])
def test_each_partition_has_a_number_whose_hash_chooses_it(partitions: int) -> None:
    numbers = compat.numbers_of_partitions(partitions)
    hashes = compat._spark_hash(numbers).astype(np.int64)
    assert numbers.dtype == np.int32
    assert (hashes % partitions).tolist() == list(range(partitions))


@pytest.mark.parametrize("writer", [KafkaStreamArrowWriter, ExactlyOnceStreamWriter])
def test_spark_passes_arrow_batches_to_the_writers_of_streams(writer: type) -> None:
    kind = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceArrowWriter)
    assert issubclass(writer, kind)


class Registry:
    """The data sources of a session that refuses another one with an error condition."""

    def __init__(self, condition: str) -> None:
        self.condition = condition

    def register(self, source: type) -> None:
        """Refuse the source."""
        raise PySparkException(source.__name__, errorClass=self.condition)


def session(condition: str) -> SparkSession:
    return cast("SparkSession", SimpleNamespace(dataSource=Registry(condition)))


def test_a_source_that_spark_has_found_may_be_registered() -> None:
    compat.register_source(session("DATA_SOURCE_ALREADY_EXISTS"), KafkaDataSource)
    with pytest.raises(PySparkException, match="KafkaDataSource"):
        compat.register_source(session("DATA_SOURCE_NOT_FOUND"), KafkaDataSource)


class Frame:
    """A frame of Spark 4.0, which maps batches itself; a driver without pandas cannot do that."""

    columns = ("_0", "_1")
    schema = StructType().add("_0", StringType(), nullable=False).add("_1", IntegerType())

    def __init__(self, *, has_pandas: bool = True) -> None:
        self.has_pandas = has_pandas

    def select(self, *_: object) -> Frame:
        """Return the frame with other columns, as far as this test needs it."""
        return self

    def mapInArrow(self, function: Any, schema: StructType) -> tuple[StructType, pa.RecordBatch]:  # noqa: ANN401, N802 - Spark's name
        """Return the schema, and what the function makes of a batch."""
        if not self.has_pandas:
            message = "Pandas >= 2.0.0 must be installed; however, it was not found."
            raise ImportError(message)
        batch = pa.record_batch({"_0": ["a", "b"], "_1": [1, None], "sum_0": [3, 4]})
        (mapped,) = function(iter([batch]))
        return schema, mapped


def computed(monkeypatch: pytest.MonkeyPatch, frame: Frame) -> object:
    monkeypatch.delattr(functions, "arrow_udf", raising=False)
    column = cast("Any", SimpleNamespace(alias=lambda _: None))
    df, kind = cast("DataFrame", frame), IntegerType()
    return compat.with_arrow_column(
        df, "sum", lambda given: pa.array([number.as_py() * 2 for number in given]), kind, column
    )


def test_a_column_is_computed_without_arrow_udf(monkeypatch: pytest.MonkeyPatch) -> None:
    schema, mapped = cast("Any", computed(monkeypatch, Frame()))
    assert mapped.to_pydict() == {"_0": ["a", "b"], "_1": [1, None], "sum": [6, 8]}
    expected = StructType().add("_0", StringType()).add("_1", IntegerType())
    assert schema == expected.add("sum", IntegerType())


def test_a_driver_without_pandas_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigException, match=r"^atomic_layout needs pandas .*pip install pandas"):
        computed(monkeypatch, Frame(has_pandas=False))

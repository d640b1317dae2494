"""The rows of a cell: Spark expressions over a number, the same for every contender.

Values are text like JSON without its structure: names that repeat, and digits that do not. zstd
compresses them to a quarter, lz4 to a half. In cells of Avro, values are structs: `flat` ones of
ten fields, and `nested` ones, which are orders of seven items.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession, functions

from bench.cells import HEADERS, Cell
from spark_kafka_sink.spark.compat import repartition_by_id
from spark_kafka_sink.spark.layout_mark import as_metadata

# A piece of a value: 16 characters that repeat, 8 hexadecimal digits that do not.
_PIECE: Final = (
    "concat('\"customer_name\":', lower(lpad(hex(xxhash64({id}, i) & 4294967295), 8, '0')))"
)
_PIECE_BYTES: Final = 24
_TEXT: Final = "concat('{word}', lower(hex(xxhash64({{id}}, '{word}') & {bits})))"


def _text(word: str, bits: int) -> str:
    """Return an expression for a text of a word and of digits."""
    return _TEXT.format(word=word, bits=bits)


_ADDRESS: Final = f"""named_struct(
    'street', {_text("street ", 0xFFFF)}, 'city', {_text("city ", 0xFF)},
    'zip', CAST({{id}} % 10000 AS STRING))"""
# About 81 and 306 bytes as Avro. A schema registry's prefix adds 5.
_STRUCTS: Final = {
    "flat": f"""named_struct(
        'id', {{id}} + 1000000000, 'quantity', CAST({{id}} % 500 AS INT),
        'store', IF({{id}} % 10 = 0, NULL, CAST({{id}} % 9000 AS INT)),
        'name', {_text("customer ", 0xFFFF)}, 'city', {_text("city ", 0xFFFFF)},
        'note', IF({{id}} % 5 = 0, NULL, {_text("a note of ", 0xFFFFFFF)}),
        'sku', {_text("sku", 0xFFFFFFF)}, 'price', {{id}} / 7, 'ok', {{id}} % 2 = 0,
        'at', timestamp_micros(1600000000000000 + {{id}} * 1000003))""",
    "nested": f"""named_struct(
        'id', {{id}} + 1000000000, 'at', timestamp_micros(1600000000000000 + {{id}} * 1000003),
        'customer', named_struct(
            'name', {_text("customer ", 0xFFFF)}, 'email', {_text("mail@", 0xFFFFFFF)},
            'address', {_ADDRESS}),
        'items', transform(sequence(1, 7), i -> named_struct(
            'sku', concat('sku', CAST({{id}} + i AS STRING)), 'count', CAST(i AS INT),
            'price', {{id}} / i, 'tags', array('new', concat('tag', CAST(i AS STRING))))),
        'attributes', map('source', 'web', 'campaign', {_text("c", 0xFFF)}))""",
}


def row_numbers(spark: SparkSession, rows: int) -> DataFrame:
    """Return the numbers that rows are made of, in one partition per core."""
    return spark.range(0, rows, 1, min(rows, spark.sparkContext.defaultParallelism))


def row_stream(spark: SparkSession, cell: Cell) -> DataFrame:
    """Return a stream of a cell's rows, with the cell's number of rows in every micro-batch."""
    options = {
        "rowsPerBatch": str(cell.rows),
        "numPartitions": str(spark.sparkContext.defaultParallelism),
    }
    numbered = spark.readStream.format("rate-micro-batch").options(**options).load()
    return sink_columns(numbered, cell, "value")


def cache(frame: DataFrame) -> DataFrame:
    """Cache rows in Spark's memory, so that no contender pays for generating them."""
    frame.persist().count()
    return frame


def in_parquet(frame: DataFrame, folder: Path) -> DataFrame:
    """Write rows to Parquet files in a new folder, and return them as Spark reads them there."""
    frame.write.parquet(str(folder))
    return frame.sparkSession.read.parquet(str(folder))


def lay_out(frame: DataFrame, partitions: int) -> DataFrame:
    """Return rows with a column ``partition``, the rows of each partition in their own task."""
    number = functions.pmod(functions.xxhash64("value"), functions.lit(partitions))
    chosen = frame.withColumn("partition", number.cast("int"))
    return repartition_by_id(chosen, partitions, functions.col("partition"))


def marked(frame: DataFrame, topic: str, partitions: int) -> DataFrame:
    """Return rows that `lay_out` laid out, with the mark that `atomic_layout` would leave."""
    column = functions.col("partition").alias(
        "partition", metadata=as_metadata({topic: partitions})
    )
    return frame.withColumn("partition", column)


def sink_columns(numbers: DataFrame, cell: Cell, name: str) -> DataFrame:
    """Return the sink's columns, made from the bigint column `name`."""
    if cell.avro:
        made = [f"{_STRUCTS[cell.avro].format(id=name)} AS value"]
    else:
        pieces = math.ceil(cell.value_bytes / _PIECE_BYTES)
        text = f"array_join(transform(sequence(1, {pieces}), i -> {_PIECE.format(id=name)}), '')"
        made = [f"CAST(substr({text}, 1, {cell.value_bytes}) AS BINARY) AS value"]
    if cell.key_bytes:
        key = f"lpad(CAST({name} AS STRING), {cell.key_bytes}, '0')"
        made.append(f"CAST({key} AS BINARY) AS key")
    if cell.headers:
        headers = ", ".join(
            f"struct('{header}' AS key, "
            f"CAST(lpad(hex(xxhash64({name})), {size}, '0') AS BINARY) AS value)"
            for header, size in HEADERS
        )
        made.append(f"array({headers}) AS headers")
    return numbers.selectExpr(*made)

"""Encodes the keys and values of a batch, by the driver's plans, before the batch is appended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.added_headers import AddedHeader, with_added_headers, without_headers
from spark_kafka_sink.serde.avro_encoder import RowFault, encode_avro
from spark_kafka_sink.serde.bad_rows import FAULTS
from spark_kafka_sink.serde.json_encoder import encode_json
from spark_kafka_sink.serde.json_rows import json_texts
from spark_kafka_sink.serde.json_schema import JsonPlan
from spark_kafka_sink.serde.row_rules import to_numpy
from spark_kafka_sink.serde.wire_format import schema_id_header_key
from spark_kafka_sink.spark.formats import ColumnEncoding
from spark_kafka_sink.spark.tasks.dead_letters import BadBatch


class EncodedRows(NamedTuple):
    """A batch with encoded columns.

    faults: the rows that cannot be encoded. Each of these rows is in one fault only. In `batch`,
    the encoded bytes of these rows must not be used.
    """

    batch: pa.RecordBatch
    faults: list[RowFault]


def encode_rows(batch: pa.RecordBatch, encodings: Sequence[ColumnEncoding]) -> EncodedRows:
    """Encode columns of a batch as large_binary, and add the headers of their encodings.

    Raise DataException if a column contains rows of several types from `to_kafka` (see `_rows`).
    """
    good = np.ones(batch.num_rows, np.bool_)
    faults: list[RowFault] = []
    for encoding in encodings:
        number = batch.schema.get_field_index(encoding.column)
        plan, column = encoding.plan, _rows(batch.column(number), encoding)
        encoded = (
            encode_json(plan, column, encoding.prefix)
            if isinstance(plan, JsonPlan)
            else encode_avro(plan, column, encoding.prefix)
        )
        batch = batch.set_column(number, encoding.column, encoded.array)
        for fault in encoded.faults:
            rows = fault.rows[good[fault.rows]]
            good[rows] = False
            if len(rows):
                faults.append(fault._replace(rows=rows))
    return EncodedRows(_with_headers(batch, encodings, is_encoded=True), faults)


def _with_headers(
    batch: pa.RecordBatch, encodings: Sequence[ColumnEncoding], *, is_encoded: bool
) -> pa.RecordBatch:
    """Return the batch with the headers that its encodings add to rows.

    An encoding may add one header to each row in which its column is not null. With
    is_encoded=False, add no headers. The returned columns still have the same types as with True.
    Rows that were read from Kafka may have headers about the schemas of their old bytes. Remove
    these headers from every row: deserializers would read the new bytes with the old schema. If an
    encoding has no schema id, keep them: the user may have set them.
    """
    number = batch.schema.get_field_index("headers")
    found = None if number < 0 else batch.column(number)
    keys = [schema_id_header_key(each.column) for each in encodings if each.prefix or each.header]
    if found is not None and keys:
        found = without_headers(found, keys)
        batch = batch.set_column(number, "headers", found)
    added = []
    for encoding in encodings:
        if encoding.header is not None:
            key, value = encoding.header
            valid = to_numpy(batch.column(encoding.column).is_valid())
            rows = np.flatnonzero(valid & is_encoded)
            values = pa.repeat(pa.scalar(value, pa.large_binary()), len(rows))
            added.append(AddedHeader(key, rows, values))
    if not added:
        return batch
    headers = with_added_headers(found, batch.num_rows, added)
    if found is None:
        return batch.append_column("headers", headers)
    return batch.set_column(number, "headers", headers)


def _rows(column: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    """Return a column, or only its JSON if `to_kafka` has made it a struct of JSON and a number.

    Raise DataException if the number of a row is not the type_number of the encoding.
    """
    if encoding.type_number is None:
        return column
    texts, numbers = column.flatten()
    others = pc.not_equal(numbers, encoding.type_number)
    if pc.any(others).as_py():
        message = (
            f"the column {encoding.column} has rows from two calls of to_kafka with different "
            "columns: union keeps the types of the first DataFrame only; call union first, and "
            "to_kafka last, right before the write"
        )
        raise DataException(message, row=pc.index(others, True).as_py())
    return texts


def raise_first(faults: Sequence[RowFault]) -> None:
    """Raise DataException for the first row that cannot be encoded, if there is one."""
    if faults:
        first = min(faults, key=lambda fault: int(fault.rows[0]))
        raise DataException(first.message, row=int(first.rows[0]))


def bad_batch(
    batch: pa.RecordBatch,
    fault: RowFault,
    numbers: npt.NDArray[np.int64],
    encodings: Sequence[ColumnEncoding],
    *,
    is_kept: bool,
) -> BadBatch:
    """Return the rows of a fault as bad rows. Columns with an encoding contain JSON instead.

    batch: the batch before it was encoded. numbers: the number of each row of `batch` in the task.
    is_kept: whether dead letters keep the rows. If they do not, the rows are not converted to JSON.
    """
    rows = batch.take(pa.array(fault.rows))
    for encoding in encodings if is_kept else ():
        number = rows.schema.get_field_index(encoding.column)
        found = _rows(rows.column(number), encoding)
        # The rows of a JsonPlan are JSON already.
        texts = found if isinstance(encoding.plan, JsonPlan) else json_texts(found)
        rows = rows.set_column(number, encoding.column, texts)
    # The task's other bad rows are encoded and may be in the same file, so the types must match.
    rows = _with_headers(rows, encodings, is_encoded=False)
    codes = np.full(len(fault.rows), FAULTS.index(fault.fault), np.uint8)
    as_json = tuple(encoding.column for encoding in encodings)
    return BadBatch(rows, codes, numbers[fault.rows], fault.message, as_json)

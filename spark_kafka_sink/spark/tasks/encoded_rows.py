"""Encodes the keys and values of a batch by the plans of the driver, before its rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.avro_encoder import RowFault, encode_avro
from spark_kafka_sink.serde.bad_rows import FAULTS
from spark_kafka_sink.serde.json_encoder import encode_json
from spark_kafka_sink.serde.json_rows import json_texts
from spark_kafka_sink.serde.json_schema import JsonPlan
from spark_kafka_sink.spark.formats import ColumnEncoding
from spark_kafka_sink.spark.tasks.dead_letters import BadBatch


class EncodedRows(NamedTuple):
    """A batch with encoded columns.

    faults: the rows that cannot be encoded, each in one of them. In the batch, they have any bytes.
    """

    batch: pa.RecordBatch
    faults: list[RowFault]


def encode_rows(batch: pa.RecordBatch, encodings: Sequence[ColumnEncoding]) -> EncodedRows:
    """Encode columns of a batch; they become large_binary."""
    good = np.ones(batch.num_rows, np.bool_)
    faults: list[RowFault] = []
    for encoding in encodings:
        number = batch.schema.get_field_index(encoding.column)
        plan, column = encoding.plan, batch.column(number)
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
    return EncodedRows(batch, faults)


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
) -> BadBatch:
    """Return rows that cannot be encoded as bad rows, with JSON in place of what is encoded.

    batch: the batch before it was encoded. numbers: the number of each of its rows in the task.
    """
    rows = batch.take(pa.array(fault.rows))
    for encoding in encodings:
        if isinstance(encoding.plan, JsonPlan):
            continue  # the column is JSON
        number = rows.schema.get_field_index(encoding.column)
        rows = rows.set_column(number, encoding.column, json_texts(rows.column(number)))
    codes = np.full(len(fault.rows), FAULTS.index(fault.fault), np.uint8)
    as_json = tuple(encoding.column for encoding in encodings)
    return BadBatch(rows, codes, numbers[fault.rows], fault.message, as_json)

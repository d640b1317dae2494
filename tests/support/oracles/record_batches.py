"""Rows, Arrow columns of every shape with them, and batches by this package and kafka-python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.records.batch import NO_SEQUENCE, BatchInfo, batch_header
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.encoder import encode, encode_headers

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_NO_LIMIT: Final = 2**31 - 1
_LEADER_EPOCH: Final = slice(12, 16)


class Row(NamedTuple):
    """One record in the user's view."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class Shape(NamedTuple):
    """The layout of bytes in an Arrow array: type, rows sliced off, garbage under nulls."""

    kind: pa.DataType
    rows_before: int
    rows_after: int
    garbage: bytes

    def array(self, values: Sequence[bytes | None]) -> pa.Array:
        """Return an array of this shape with `values`."""
        around = b"not in the slice"
        rows = [*[around] * self.rows_before, *values, *[around] * self.rows_after]
        stored = [self.garbage if row is None else row for row in rows]
        large = self.kind in (pa.large_binary(), pa.large_string())
        ends = np.cumsum([len(self.garbage), *map(len, stored)])
        offsets = ends.astype(np.int64 if large else np.int32)
        validity = np.packbits(
            np.array([row is not None for row in rows], np.bool_), bitorder="little"
        )
        data = b"".join([self.garbage, *stored])
        buffers = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)]
        column = pa.Array.from_buffers(self.kind, len(rows), buffers)
        return column.slice(self.rows_before, len(values))


PLAIN: Final = Shape(pa.binary(), 0, 0, b"")

SHAPES: Final = st.builds(
    Shape,
    st.sampled_from([pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]),
    st.integers(0, 20),
    st.integers(0, 3),
    st.sampled_from([b"", b"\xff", b"garbage"]),
)

# Some lengths are at the sizes at which the varint of a length grows by a byte.
_LENGTHS: Final = st.sampled_from([62, 63, 64, 65, 8191, 8192])
BYTES: Final = st.binary(max_size=20) | st.builds(
    lambda byte, length: bytes([byte]) * length, st.integers(0, 255), _LENGTHS
)
TIMESTAMPS: Final = st.integers(1_700_000_000_000, 1_700_000_010_000) | st.integers(0, 2**63 - 1)
HEADERS: Final = st.lists(st.tuples(st.text(max_size=6), st.none() | BYTES), max_size=4).map(tuple)
ROWS: Final = st.builds(Row, st.none() | BYTES, st.none() | BYTES, HEADERS, TIMESTAMPS)
# Repeated rows give duplicates, and offset deltas of more than one byte.
BATCHES: Final = st.builds(
    lambda rows, times: rows * times,
    st.lists(ROWS, min_size=1, max_size=12),
    st.sampled_from([1, 1, 1, 2, 30]),
)


class Producer(NamedTuple):
    """The producer fields of a batch's header."""

    id_and_epoch: ProducerIdAndEpoch
    base_sequence: int
    transactional: bool


NO_PRODUCER: Final = Producer(NO_PRODUCER_ID, NO_SEQUENCE, transactional=False)

PRODUCERS: Final = st.just(NO_PRODUCER) | st.builds(
    Producer,
    st.builds(ProducerIdAndEpoch, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1)),
    st.integers(0, 2**31 - 1),
    st.booleans(),
)


def columns_of(
    rows: Sequence[Row], shape: Shape = PLAIN, *, drop_empty: bool = False
) -> RecordColumns:
    """Return the columns of `rows`.

    drop_empty: leave out the key column if no row has a key, and the headers likewise.
    """
    key = BinaryColumn.of(shape.array([row.key for row in rows]))
    headers = header_column([row.headers for row in rows], shape)
    no_key = drop_empty and all(row.key is None for row in rows)
    no_headers = drop_empty and not any(row.headers for row in rows)
    return RecordColumns.of(
        key=None if no_key else key,
        value=BinaryColumn.of(shape.array([row.value for row in rows])),
        headers=None if no_headers else headers,
        timestamps_ms=np.array([row.timestamp_ms for row in rows], np.int64),
    )


def header_column(headers: Sequence[Headers], shape: Shape = PLAIN) -> BinaryColumn:
    """Return the column of header sections."""
    entries = [entry for each in headers for entry in each]
    return encode_headers(
        np.array([len(each) for each in headers], np.int64),
        BinaryColumn.of(shape.array([name.encode() for name, _ in entries])),
        BinaryColumn.of(shape.array([value for _, value in entries])),
    )


def records_of(columns: RecordColumns) -> memoryview:
    """Encode all rows in order, as the records section of one batch."""
    rows = np.arange(len(columns))
    deltas = columns.timestamps_ms - columns.timestamps_ms[0]
    encoded = encode(columns, rows, rows, deltas)
    return encoded.buffer[encoded.offsets[0] : encoded.offsets[-1]]


def seal(rows: Sequence[Row], records: bytes | memoryview, producer: Producer) -> bytes:
    """Return the records of `rows` with the header that the package makes."""
    timestamps = [row.timestamp_ms for row in rows]
    header = batch_header(
        BatchInfo(len(rows), timestamps[0], max(timestamps), 0),
        [records],
        producer.id_and_epoch,
        producer.base_sequence,
        transactional=producer.transactional,
    )
    return header + bytes(records)


def kafka_python_batch(rows: Sequence[Row], producer: Producer = NO_PRODUCER) -> bytes:
    """Return the uncompressed batch as kafka-python writes it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=producer.transactional,
        producer_id=producer.id_and_epoch.producer_id,
        producer_epoch=producer.id_and_epoch.epoch,
        base_sequence=producer.base_sequence,
        batch_size=_NO_LIMIT,
    )
    for offset, row in enumerate(rows):
        builder.append(offset, row.timestamp_ms, row.key, row.value, list(row.headers))
    return bytes(builder.build())


def without_leader_epoch(batch: bytes) -> bytes:
    """Remove the field that only a broker sets: producers write -1 (Java) or 0 (kafka-python)."""
    return batch[: _LEADER_EPOCH.start] + batch[_LEADER_EPOCH.stop :]


def header_pairs(row: pa.Scalar) -> list[tuple[str, bytes | None]]:
    """Return the headers of a row: a map, or an array of structs with names in any case."""
    found = row.as_py() or []
    if pa.types.is_map(row.type):
        return list(found)
    folded = [{name.lower(): each for name, each in entry.items()} for entry in found]
    return [(each["key"], each["value"]) for each in folded]

"""Columns to message sets, the record formats v0 and v1 of brokers before 0.11.

::

    offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | [timestamp i64, v1]
               | key length i32 (-1: null) | key | value length i32 | value

The CRC-32 (zlib's, unlike v2's) covers everything from the magic on. Compressed messages are the
value of a wrapper message, whose attributes name the codec. A set begins at offset 0, where inner
offsets are the same in both formats: relative ones in v1, absolute ones in v0. The wrapper has the
offset of its last message, and v1's the latest timestamp (MemoryRecordsBuilder, LegacyRecord).
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.compression import LZ4, Buffer, Codec
from spark_kafka_sink.records.gather import Pieces
from spark_kafka_sink.records.old_lz4 import with_old_checksum
from spark_kafka_sink.records.varint import Int64s

LOG_OVERHEAD: Final = 12
MAGIC_AT: Final = 16

_CRC_AT: Final = 12
_LENGTH_BYTES: Final = 4
_COMMON: Final = [
    ("offset", ">i8"),
    ("size", ">i4"),
    ("crc", ">u4"),
    ("magic", "i1"),
    ("attributes", "i1"),
]
_KEY_LENGTH: Final = ("key_length", ">i4")
_HEADS: Final = {
    0: np.dtype([*_COMMON, _KEY_LENGTH]),
    1: np.dtype([*_COMMON, ("timestamp", ">i8"), _KEY_LENGTH]),
}


def message_set(magic: int, columns: RecordColumns, codec: Codec) -> tuple[Buffer, ...]:
    """Encode all rows, at least one, as a message set of format `magic` (0 or 1) from offset 0.

    Headers, and in format 0 timestamps, have no place in it and are left out.
    """
    rows = len(columns)
    plain = _messages(magic, 0, np.arange(rows), columns)
    if codec.compress is None:
        return (plain,)
    (packed,) = codec((plain,))
    if magic == 0 and codec.id == LZ4:
        packed = with_old_checksum(packed)
    wrapped = RecordColumns.of(
        key=None,
        value=BinaryColumn(np.frombuffer(packed, np.uint8), np.array([0, len(packed)]), None),
        headers=None,
        timestamps_ms=columns.timestamps_ms.max(keepdims=True),
    )
    return (_messages(magic, codec.id, np.array([rows - 1]), wrapped),)


def _messages(magic: int, attributes: int, offsets: Int64s, columns: RecordColumns) -> bytearray:
    rows = len(columns)
    heads = np.zeros(rows, _HEADS[magic])
    heads["offset"] = offsets
    heads["magic"], heads["attributes"] = magic, attributes
    if magic:
        heads["timestamp"] = columns.timestamps_ms
    heads["key_length"] = -1 if columns.key_lengths is None else columns.key_lengths
    value_lengths = columns.value_lengths.astype(">i4")
    heads["size"] = heads.dtype.itemsize - LOG_OVERHEAD + _LENGTH_BYTES
    heads["size"] += np.maximum(columns.value_lengths, 0).astype(np.int32)
    heads["size"] += np.maximum(heads["key_length"], 0)

    parts = [_fixed(heads), columns.key, _fixed(value_lengths), columns.value]
    present = [part for part in parts if part is not None]
    pieces, step = Pieces(rows * len(present)), len(present)
    for number, part in enumerate(present):
        pieces.put(slice(number, None, step), part)
    gathered, ends = pieces.gather()
    out = bytearray(gathered)
    _put_checksums(out, ends[::step])
    return out


def _fixed(rows: npt.NDArray[np.generic]) -> BinaryColumn:
    """Give rows of a fixed width as a column."""
    offsets = np.arange(len(rows) + 1) * rows.dtype.itemsize
    return BinaryColumn(rows.view(np.uint8).reshape(-1), offsets, None)


def _put_checksums(out: bytearray, edges: Int64s) -> None:
    view = memoryview(out)
    for start, stop in pairwise(edges.tolist()):
        crc = zlib.crc32(view[start + MAGIC_AT : stop])
        view[start + _CRC_AT : start + MAGIC_AT] = crc.to_bytes(4, "big")

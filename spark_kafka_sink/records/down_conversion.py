"""A batch of format v2 as the message set that a broker before 0.11 takes.

Batches are made in format v2 whoever leads the partition, so the few that go to an old broker are
read back and written again here (RecordsUtil.downConvert of the Java client before 4.0). What the
old formats cannot say is refused rather than left out, but for timestamps, which v0 never had.
"""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import api_exception
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.compression import Buffer, Codec
from spark_kafka_sink.records.log_reader import read_log
from spark_kafka_sink.records.message_set import LZ4, message_set

_OLD = "the partition's leader is a broker before 0.11 and takes message format v{magic}, which has"


def down_convert(
    batch: Buffer, magic: int, codec: Codec, option_prefix: str = ""
) -> tuple[Buffer, ...]:
    """Give a batch (one, whole, not empty) as a message set of format `magic`, 0 or 1.

    codec: the batch's own; option_prefix: what the user writes before the name of an option. Raises
    UnsupportedVersionException for a batch with a producer id, UnsupportedForMessageFormatException
    for headers, UnsupportedCompressionTypeException for zstd.
    """
    old = _OLD.format(magic=magic)
    (read,) = read_log(batch)
    if read.producer_id >= 0:
        message = f"{old} no producer ids; set {option_prefix}enable.idempotence to false"
        raise api_exception(codes.UNSUPPORTED_VERSION, message)
    if codec.id > LZ4:
        message = f"{old} no {codec.name}"
        raise api_exception(codes.UNSUPPORTED_COMPRESSION_TYPE, message)
    records = read.records(limit_bytes=2**31 - 1)
    if pc.any(pc.greater(pc.list_value_length(records.headers), 0)).as_py():
        message = f"{old} no record headers; leave the headers column out"
        raise api_exception(codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, message)
    columns = RecordColumns.of(
        key=BinaryColumn.of(records.keys),
        value=BinaryColumn.of(records.values),
        headers=None,
        timestamps_ms=np.asarray(records.timestamps_ms),
    )
    return message_set(magic, columns, codec)

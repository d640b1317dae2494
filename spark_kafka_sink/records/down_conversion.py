"""Convert a batch of format v2 to the message set that a broker before 0.11 accepts.

Batches are always built in format v2. The few that go to an old broker are decoded and encoded
again here (RecordsUtil.downConvert of the Java client before 4.0). Whatever the old formats cannot
hold is rejected and not dropped, except timestamps, which v0 never had.
"""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.compression import Buffer, Codec
from spark_kafka_sink.records.log_reader import read_log
from spark_kafka_sink.records.message_set import message_set
from spark_kafka_sink.records.old_formats import check_old_format


def down_convert(batch: Buffer, magic: int, codec: Codec) -> tuple[Buffer, ...]:
    """Return one complete batch with records as a message set of format `magic`, 0 or 1.

    codec: the batch's own. Raise as `check_old_format` does.
    """
    (read,) = read_log(batch)
    records = read.records(limit_bytes=2**31 - 1)
    check_old_format(
        magic,
        codec,
        has_producer_id=read.producer_id >= 0,
        has_headers=bool(pc.any(pc.greater(pc.list_value_length(records.headers), 0)).as_py()),
    )
    columns = RecordColumns.of(
        key=BinaryColumn.of(records.keys),
        value=BinaryColumn.of(records.values),
        headers=None,
        timestamps_ms=np.asarray(records.timestamps_ms),
    )
    return message_set(magic, columns, codec)

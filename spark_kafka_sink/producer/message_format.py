"""A batch in the record format that a broker takes."""

from __future__ import annotations

from spark_kafka_sink.producer.feature_level import FIRST_WITH_BATCHES, check_zstd, magic
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.records.down_conversion import down_convert
from spark_kafka_sink.records.old_formats import LEADER
from spark_kafka_sink.wire.primitives import Records


def records_for(version: int, batch: ProducerBatch, option_prefix: str = "") -> Records:
    """Give a batch as it goes over the wire to a broker whose latest Produce is `version`.

    option_prefix: what the user writes before the name of an option. Raises an ApiException, with
    its code, for a batch that the broker cannot take.
    """
    stamped = batch.stamp()
    if version >= FIRST_WITH_BATCHES:
        check_zstd(version, batch.codec, option_prefix, LEADER)
        return stamped
    whole = b"".join(stamped.buffers)
    converted = down_convert(whole, magic(version), batch.codec, option_prefix)
    batch.down_converted(sum(map(len, converted)))
    return Records(converted, batch.sent_bytes)

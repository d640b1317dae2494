"""The record format that a broker takes, and a batch in that format.

Produce from version 3 on carries batches of format v2, which is what batches are made in; version 2
carries message sets v1, versions 0 and 1 message sets v0 (ProduceRequest.requiredMagicForVersion).
"""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.errors import UnsupportedVersionException
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.records.down_conversion import down_convert
from spark_kafka_sink.wire.messages import PRODUCE
from spark_kafka_sink.wire.primitives import Records
from spark_kafka_sink.wire.versions import NodeApiVersions

CURRENT_MAGIC: Final = 2


def magic_for(versions: NodeApiVersions) -> int:
    """Give the record format of a broker that speaks `versions`."""
    try:
        version = versions.latest_usable_version(PRODUCE)
    except UnsupportedVersionException:
        return CURRENT_MAGIC  # the connection refuses the request, and says why
    if version >= 3:
        return CURRENT_MAGIC
    return 1 if version == 2 else 0


def records_for(magic: int, batch: ProducerBatch, option_prefix: str = "") -> Records:
    """Give a batch as it goes over the wire to a broker of format `magic`.

    option_prefix: what the user writes before the name of an option. Raises an ApiException, with
    its code, for a batch that the format cannot hold.
    """
    stamped = batch.stamp()
    if magic == CURRENT_MAGIC:
        return stamped
    converted = down_convert(b"".join(stamped.buffers), magic, batch.codec, option_prefix)
    batch.sent_bytes = sum(map(len, converted))
    return Records(converted, batch.sent_bytes)

"""Which records a version of Produce carries, and so a broker which speaks no later one.

Produce from version 3 on carries batches of format v2, which is what batches are made in; version 2
carries message sets v1, versions 0 and 1 message sets v0 (ProduceRequest.requiredMagicForVersion).
Batches with zstd go from version 7 on (KIP-110, ProduceRequest.validateRecords).
"""

from __future__ import annotations

from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import UnsupportedVersionException, api_exception
from spark_kafka_sink.records.compression import ZSTD, Codec
from spark_kafka_sink.records.old_formats import check_old_format
from spark_kafka_sink.wire.messages import PRODUCE
from spark_kafka_sink.wire.versions import NodeApiVersions

NEWEST_PRODUCE: Final = PRODUCE.max_version
FIRST_WITH_BATCHES: Final = 3
_FIRST_WITH_ZSTD: Final = 7


def produce_version(versions: NodeApiVersions) -> int:
    """Give the latest version of Produce that a broker which speaks `versions` takes."""
    try:
        return versions.latest_usable_version(PRODUCE)
    except UnsupportedVersionException:
        return NEWEST_PRODUCE  # the connection refuses the request, and says why


def check_records(
    version: int,
    codec: Codec,
    *,
    has_producer_id: bool,
    has_headers: bool,
    option_prefix: str,
    broker: str,
) -> None:
    """Raise the ApiException that `message_format.records_for` has for batches such as these.

    broker: whose latest Produce is `version`.
    """
    if version >= FIRST_WITH_BATCHES:
        check_zstd(version, codec, option_prefix, broker)
        return
    check_old_format(
        magic(version),
        codec,
        has_producer_id=has_producer_id,
        has_headers=has_headers,
        option_prefix=option_prefix,
        broker=broker,
    )


def magic(version: int) -> int:
    """Give the message format of a version of Produce before batches."""
    return 1 if version == 2 else 0


def check_zstd(version: int, codec: Codec, option_prefix: str, broker: str) -> None:
    """Raise UnsupportedCompressionTypeException where it is zstd, and too early for that."""
    if version < _FIRST_WITH_ZSTD and codec.id == ZSTD:
        message = (
            f"{option_prefix}compression.type=zstd needs Produce version {_FIRST_WITH_ZSTD}, "
            f"which brokers have from Kafka 2.1 on, and {broker} takes at most version {version}"
        )
        raise api_exception(codes.UNSUPPORTED_COMPRESSION_TYPE, message)

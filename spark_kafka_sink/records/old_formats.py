"""Reject whatever message formats v0 and v1 cannot hold, if a broker accepts no newer format."""

from __future__ import annotations

from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import Option, api_exception
from spark_kafka_sink.records.compression import LZ4, Codec

# The receiver of a batch, in error messages.
LEADER: Final = "the partition's leader"


def check_old_format(
    magic: int,
    codec: Codec,
    *,
    has_producer_id: bool,
    has_headers: bool,
    broker: str = LEADER,
) -> None:
    """Raise if message format `magic`, 0 or 1, cannot hold the records.

    Raise UnsupportedVersionException for a producer id, UnsupportedCompressionTypeException for
    zstd, UnsupportedForMessageFormatException for headers. broker: the receiver, for the message.
    """
    old = f"{broker} is older than 0.11 and accepts message format v{magic}, which has"
    if has_producer_id:
        message = f"{old} no producer ids; set {Option('enable.idempotence')} to false"
        raise api_exception(codes.UNSUPPORTED_VERSION, message)
    if codec.id > LZ4:
        message = f"{old} no {codec.name}"
        raise api_exception(codes.UNSUPPORTED_COMPRESSION_TYPE, message)
    if has_headers:
        message = f"{old} no record headers; remove the headers column"
        raise api_exception(codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, message)

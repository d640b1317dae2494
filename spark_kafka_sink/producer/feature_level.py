"""Check whether a broker is new enough for rows that are written with the given options.

A producer checks this for each batch, with the API versions of the connection. The driver makes the
same checks before there are rows (`check_feature_level`), with the same messages.
"""

from __future__ import annotations

from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    ApiException,
    Option,
    UnsupportedVersionException,
    advice,
    api_exception,
    error_code,
)
from spark_kafka_sink.records.compression import LZ4, ZSTD, Codec, codec
from spark_kafka_sink.wire.messages import INIT_PRODUCER_ID, PRODUCE
from spark_kafka_sink.wire.versions import NodeApiVersions

NEWEST_PRODUCE: Final = PRODUCE.max_version
FIRST_WITH_BATCHES: Final = 3
_FIRST_WITH_ZSTD: Final = 7
# The name, in error messages, of the broker that receives batches.
LEADER: Final = "the partition's leader"
_BROKER: Final = "the broker"


def produce_version(versions: NodeApiVersions) -> int:
    """Return the latest version of Produce that both this client and the broker support."""
    try:
        return versions.latest_usable_version(PRODUCE)
    except UnsupportedVersionException:
        return NEWEST_PRODUCE  # the connection will reject the request and explain why


def magic(version: int) -> int:
    """Return the message format (0 or 1) for a version of Produce without v2 record batches."""
    return 1 if version == 2 else 0


def check_zstd(version: int, codec: Codec, broker: str) -> None:
    """Raise UnsupportedCompressionTypeException if the codec is zstd and the broker is too old."""
    if version < _FIRST_WITH_ZSTD and codec.id == ZSTD:
        message = (
            f"{Option('compression.type')}=zstd needs Produce version {_FIRST_WITH_ZSTD}, "
            f"which brokers have from Kafka 2.1 on, and {broker} takes at most version {version}"
        )
        raise api_exception(codes.UNSUPPORTED_COMPRESSION_TYPE, message)


def check_old_format(
    magic: int,
    codec: Codec,
    *,
    has_producer_id: bool,
    has_headers: bool,
    broker: str = LEADER,
) -> None:
    """Raise if records cannot be written in message format v0 or v1, which `magic` selects.

    Raise UnsupportedVersionException if there is a producer id, UnsupportedCompressionTypeException
    if the codec is zstd, and UnsupportedForMessageFormatException if there are headers. broker: the
    broker's name in the message.
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


def no_producer_id(
    code: int, reason: str, node_id: int | None = None, hint: str | None = None
) -> ApiException:
    """Return the error that is raised if a cluster, or a node of it, assigned no producer id."""
    message = f"no producer id was assigned: {error_code(code).name} ({code})"
    if reason:
        message += f"; {reason}"
    message += f"; {Option('enable.idempotence')}=false needs no producer id"
    message += ", but retries may then write duplicates"
    if hint:
        message += f"; {hint}"
    return api_exception(code, message, api="InitProducerId", node_id=node_id)


def check_feature_level(
    name: str, versions: NodeApiVersions, config: ProducerConfig, *, has_headers: bool
) -> None:
    """Raise an ApiException if the broker `name` is too old for rows written with `config`.

    A producer would fail with the same class of exception when it sends the rows.

    versions: the API versions of the broker; has_headers: whether the rows have headers.
    """
    try:
        _check(versions, config, has_headers=has_headers)
    except ApiException as error:
        parts = (str(error), advice(error.code))
        message = f"{name} cannot take these rows: {'; '.join(part for part in parts if part)}"
        raise api_exception(error.code, message, api=error.api) from None


def _check(versions: NodeApiVersions, config: ProducerConfig, *, has_headers: bool) -> None:
    if config.enable_idempotence:
        try:
            versions.latest_usable_version(INIT_PRODUCER_ID)
        except UnsupportedVersionException as error:
            raise no_producer_id(codes.UNSUPPORTED_VERSION, str(error)) from None
    version, of = versions.latest_usable_version(PRODUCE), codec(config.compression_type)
    if version >= FIRST_WITH_BATCHES:
        check_zstd(version, of, _BROKER)
    else:
        check_old_format(
            magic(version),
            of,
            has_producer_id=config.enable_idempotence,
            has_headers=has_headers,
            broker=_BROKER,
        )

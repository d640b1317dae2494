"""The feature level: whether a broker can take rows as the options have them written.

A producer finds that out batch by batch, from what each connection begins with. Whoever has a
connection before there are rows can ask the same here, and is told in the same sentences.
"""

from __future__ import annotations

from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    ApiException,
    UnsupportedVersionException,
    advice,
    api_exception,
)
from spark_kafka_sink.producer.produce_version import check_records
from spark_kafka_sink.producer.producer_id import no_producer_id
from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.wire.messages import INIT_PRODUCER_ID, PRODUCE
from spark_kafka_sink.wire.versions import NodeApiVersions

_BROKER: Final = "the broker"


def check_feature_level(
    name: str, versions: NodeApiVersions, config: ProducerConfig, *, has_headers: bool
) -> None:
    """Raise the ApiException that a producer would meet at the broker `name`.

    versions: what the broker speaks; has_headers: whether the rows have any.
    """
    try:
        _check(versions, config, has_headers=has_headers)
    except ApiException as error:
        parts = (str(error), advice(error.code, config.option_prefix))
        message = f"{name} cannot take these rows: {'; '.join(part for part in parts if part)}"
        raise api_exception(error.code, message, api=error.api) from None


def _check(versions: NodeApiVersions, config: ProducerConfig, *, has_headers: bool) -> None:
    prefix = config.option_prefix
    if config.enable_idempotence:
        try:
            versions.latest_usable_version(INIT_PRODUCER_ID)
        except UnsupportedVersionException as error:
            raise no_producer_id(codes.UNSUPPORTED_VERSION, str(error), prefix) from None
    check_records(
        versions.latest_usable_version(PRODUCE),
        codec(config.compression_type),
        has_producer_id=config.enable_idempotence,
        has_headers=has_headers,
        option_prefix=prefix,
        broker=_BROKER,
    )

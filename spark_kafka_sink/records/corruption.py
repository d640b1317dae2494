"""The one error of everything that reads records: the bytes are not what a Kafka log holds."""

from __future__ import annotations

from spark_kafka_sink import error_codes
from spark_kafka_sink.errors import ApiException, api_exception


def corrupt(found: str) -> ApiException:
    """Give the CorruptRecordException that says what was found."""
    return api_exception(error_codes.CORRUPT_MESSAGE, f"records cannot be read: {found}")

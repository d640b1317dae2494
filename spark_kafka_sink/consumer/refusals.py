"""The sentences for what a broker refuses a reader, and what one who reads can do about it."""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.error_codes import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_code,
)
from spark_kafka_sink.errors import ApiException, advice, api_exception
from spark_kafka_sink.model import TopicPartition

# Where reading needs something else than writing.
_ADVICE: Final = {
    UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or check its name",
    TOPIC_AUTHORIZATION_FAILED: "grant READ and DESCRIBE on the topic to this client",
}


def reader_advice(code: int, _topic: str) -> str | None:
    """Give what `errors.advice` gives, for those who read."""
    return _ADVICE.get(code) or advice(code)


def refusal(topic_partition: TopicPartition, code: int, node_id: int, api: str) -> ApiException:
    """Give the exception for the error code of one partition in an answer."""
    row = error_code(code)
    text = f"{topic_partition} cannot be read: {api} gave {row.name} ({code}) from node {node_id}"
    if code in _ADVICE:
        text += f"; {_ADVICE[code]}"
    topic, partition = topic_partition
    return api_exception(code, text, topic=topic, partition=partition, node_id=node_id, api=api)

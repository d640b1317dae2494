"""ProducerRecord: one record as a caller or an interceptor gives it, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.topic_names import check_topic_name

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_LARGEST_TIMESTAMP: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to be sent (ProducerRecord of the Java client).

    key, value: what the serializers take; without serializers bytes, str or None. partition: None
    to let the partitioner choose. timestamp_ms: milliseconds since 1970, None for now. headers:
    pairs of str and bytes (or None), in order; the same name may come twice. Raises DataException
    for a topic, partition, timestamp or header that no record can have.
    """

    topic: str
    value: object = None
    key: object = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers | None = None

    def __post_init__(self) -> None:
        # Whole sentences are the Java client's, so that they can be looked up.
        check_topic_name(self.topic)
        _check_number("partition", self.partition, 2**31 - 1)
        _check_number("timestamp", self.timestamp_ms, _LARGEST_TIMESTAMP)
        if self.headers is not None:
            object.__setattr__(self, "headers", checked_headers(self.headers))


def _check_number(name: str, number: int | None, largest: int) -> None:
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int):
        message = f"Invalid {name}: {number!r}. Expected an int or None."
        raise DataException(message)
    if not 0 <= number <= largest:
        message = (
            f"Invalid {name}: {number}. {name.capitalize()} should always be non-negative or null."
        )
        raise DataException(message)


def checked_headers(headers: object) -> tuple[tuple[str, bytes | None], ...]:
    """Give headers as they are now, immutable; raises DataException for what is no header."""
    if not isinstance(headers, Iterable):
        message = f"headers is {headers!r}: expected pairs of str and bytes (or None)"
        raise DataException(message)
    return tuple([_checked_header(header) for header in headers])


def _is_unicode(name: str) -> bool:
    """Whether a str can be written as UTF-8: one with half a surrogate pair cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked_header(header: object) -> tuple[str, bytes | None]:
    if isinstance(header, tuple | list) and len(header) == 2:
        name, value = header
        if isinstance(name, str) and _is_unicode(name):
            if value is None or isinstance(value, bytes):
                return name, value
            if isinstance(value, bytearray | memoryview):
                return name, bytes(value)
    message = f"{header!r} is not a header: expected a pair of str and bytes (or None)"
    raise DataException(message)

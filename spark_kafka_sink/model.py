"""Value classes that every layer uses, and functions that check arguments.

A public method raises IllegalArgumentException for an argument that is never valid. Invalid topics
and rows are data, so they raise DataException. Invalid options raise ConfigException.

``TopicPartition`` is a NamedTuple, because it is the key of every per-partition dict of the
producer. Tuples are hashed in C, dataclasses in Python.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import (
    TYPE_CHECKING,
    Final,
    NamedTuple,
    Protocol,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
)

from spark_kafka_sink.errors import (
    DataException,
    IllegalArgumentException,
    KafkaException,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


__version__ = "0.1.0"

MAX_NAME_LENGTH: Final = 249
# The topic names that brokers accept (Topic.validate).
TOPIC_NAME: Final = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9._-]{{1,{MAX_NAME_LENGTH}}}\Z")


def check_topic_name(name: object) -> None:
    """Raise DataException if a topic name is not a str, is too long or is not valid Unicode."""
    if not isinstance(name, str):
        message = f"Topic cannot be {name!r}: expected a str"
        raise DataException(message)
    if len(name) > MAX_NAME_LENGTH:
        message = (
            f"Topic cannot be {name[:20]!r}...: found a name of {len(name)} characters, expected "
            f"at most {MAX_NAME_LENGTH}"
        )
        raise DataException(message)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        message = f"Topic cannot be {name!r}: it cannot be encoded as UTF-8 ({error.reason})"
        raise DataException(message) from None


class Secret:
    """A secret string. `value` is the string; `repr` and `str` do not show it."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    @classmethod
    def of(cls, given: object) -> Self:
        """Return an option's value as a Secret. The value may be a Secret already."""
        return cls(given.value if isinstance(given, Secret) else str(given))

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A delegation token (KIP-48). Until it expires, its id and HMAC authenticate clients (SCRAM).

    hmac: the HMAC in base64, which is the password for SCRAM. owner: the principal whose
    permissions the token has, such as ``User:alice``. issue_timestamp_ms: when the token was
    created. expiry_timestamp_ms: when it expires if it is not renewed. max_timestamp_ms: the latest
    time to which it can be renewed. All three are milliseconds since 1970.
    """

    token_id: str
    hmac: Secret
    owner: str
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int


class TopicPartition(NamedTuple):
    """A topic name and a partition number; `str` returns ``topic-3``, as in the Java client."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RecordMetadata(NamedTuple):
    """The position of a record in the log (RecordMetadata of the Java client).

    partition: -1 if the record failed before a partition was chosen. offset: -1 if the record
    failed, or if the broker does not return the offset (acks=0). timestamp: milliseconds since
    1970; the broker's timestamp if the topic has LogAppendTime. The sizes are the serialized sizes
    of key and value in bytes, -1 for null.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A broker's id and address. Bootstrap addresses have negative ids, as in the Java client."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        name = "bootstrap" if self.id < 0 else f"node {self.id}"
        return f"{name} ({self.host}:{self.port})"


class _ListedBroker(Protocol):
    """A broker in a response."""

    node_id: int
    host: str
    port: int
    rack: str | None


def nodes_of(brokers: Iterable[_ListedBroker]) -> dict[int, Node]:
    """Return the brokers that a response lists, by node id.

    Brokers with a negative id are ignored. Negative ids are reserved for bootstrap addresses, so
    such a broker would permanently replace a bootstrap address.
    """
    return {
        each.node_id: Node(id=each.node_id, host=each.host, port=each.port, rack=each.rack)
        for each in brokers
        if each.node_id >= 0
    }


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """A producer id and its epoch. A producer that is not idempotent uses ``NO_PRODUCER_ID``."""

    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        """Whether a broker can have assigned the id and the epoch: neither is negative."""
        return self.producer_id >= 0 and self.epoch >= 0

    @property
    def problem(self) -> str:
        """The reason why the id and the epoch are not valid, or an empty string if they are."""
        if self.is_valid:
            return ""
        found = f"producer id {self.producer_id} and epoch {self.epoch}"
        return f"the response has {found}: expected numbers from 0 on"


NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The committed offset of a partition, which is the offset of the next record to read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer group, and the group member that commits offsets (KIP-447).

    If the generation and the member id are set, the group coordinator rejects the offsets of a
    consumer that no longer owns the partitions. Otherwise, it accepts any offsets.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


LARGEST_INT16: Final = 2**15 - 1
LARGEST_INT32: Final = 2**31 - 1
LARGEST_INT64: Final = 2**63 - 1
# The longest string in Kafka's protocol, in bytes as UTF-8.
_MAX_TEXT_BYTES: Final = 32_767
_T = TypeVar("_T")


def checked(what: str, thing: object, kind: type[_T], expected: str) -> _T:
    """Return `thing`. Raise IllegalArgumentException unless it is of type `kind`."""
    if isinstance(thing, kind):
        return thing
    raise _invalid(what, thing, expected)


def checked_list(what: str, things: object, expected: str) -> list[object]:
    """Return an iterable as a list.

    Raise IllegalArgumentException for a str, bytes or an object that is not iterable.
    """
    if isinstance(things, Iterable) and not isinstance(things, str | bytes):
        return list(things)
    raise _invalid(what, things, expected)


def as_int(number: object) -> int | None:
    """Return a Python or numpy integer as an int. Return None for a bool and for anything else.

    A bool does not count as an integer, because True or False as an argument is a mistake.
    """
    if type(number) is int:
        return number
    if isinstance(number, bool) or not isinstance(number, SupportsIndex):
        return None
    try:
        return operator.index(number)
    except TypeError:  # a numpy array
        return None


def checked_number(what: str, number: object, smallest: int, largest: int) -> int:
    """Return a Python or numpy integer as an int.

    Raise IllegalArgumentException for a bool or another object, and for an integer below `smallest`
    or above `largest`.
    """
    value = as_int(number)
    if value is not None and smallest <= value <= largest:
        return value
    raise _invalid(what, number, f"an int from {smallest} to {largest}")


def check_counts(what: str, counts: object, smallest: int) -> None:
    """Raise IllegalArgumentException unless `counts` maps topics to integers >= `smallest`.

    The topic names are not checked here.
    """
    if not isinstance(counts, Mapping):
        raise _invalid(what, counts, "a mapping from topics to numbers")
    for topic, count in counts.items():
        checked_number(f"{what} of topic {topic}", count, smallest, LARGEST_INT32)


def check_callable(what: str, thing: object, expected: str) -> None:
    """Raise IllegalArgumentException unless `thing` is callable or None."""
    if thing is not None and not callable(thing):
        raise _invalid(what, thing, f"{expected}, or None")


def check_text(what: str, text: object) -> None:
    """Raise IllegalArgumentException unless `text` is a str that can be encoded in a request."""
    if not isinstance(text, str):
        raise _invalid(what, text, "a str")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        message = f"{what} cannot be encoded as UTF-8 ({error.reason})"
        raise IllegalArgumentException(message) from None
    if size_bytes > _MAX_TEXT_BYTES:
        message = f"{what} has {size_bytes} bytes: expected at most {_MAX_TEXT_BYTES}"
        raise IllegalArgumentException(message)


def check_timeout(timeout: object) -> None:
    """Raise IllegalArgumentException unless `timeout` is None or a number of seconds >= 0."""
    if timeout is None:
        return
    seconds = _seconds("timeout", timeout)
    if math.isnan(seconds):
        raise _invalid("timeout", timeout, "seconds as a number, or None")
    if seconds < 0:
        message = (
            f"The timeout cannot be negative: found {timeout}, expected seconds (0 does not wait), "
            "or None to wait as long as deliveries may take"
        )
        raise IllegalArgumentException(message)


def check_monotonic_time(what: str, time_s: object, now: float) -> None:
    """Raise IllegalArgumentException unless `time_s` is None or at most `now`.

    now: the result of `time.monotonic`. If `time_s` is greater, it comes from a different clock.
    """
    if time_s is not None and not -math.inf < _seconds(what, time_s) <= now:
        raise _invalid(what, time_s, "an earlier result of time.monotonic(), or None")


def checked_brokers(brokers: object) -> tuple[Node, ...]:
    """Return an iterable of nodes as a tuple. Raise IllegalArgumentException for other values."""
    nodes = checked_list("brokers", brokers, "nodes")
    return tuple(checked("one of brokers", node, Node, "a Node") for node in nodes)


def _seconds(what: str, seconds: object) -> float:
    if isinstance(seconds, Real) and not isinstance(seconds, bool):
        with suppress(OverflowError):
            return float(seconds)
    raise _invalid(what, seconds, "seconds as a number, or None")


def _invalid(what: str, thing: object, expected: str) -> IllegalArgumentException:
    """Return an exception whose message shows `thing`, or only its type if it is complex."""
    is_value = thing is None or isinstance(thing, str | bytes | int | float)
    found = f"{thing!r:.60}" if is_value else f"of type {type(thing).__name__}"
    return IllegalArgumentException(f"{what} is {found}: expected {expected}")


Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_LARGEST_TIMESTAMP: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to send (ProducerRecord of the Java client).

    key, value: bytes, str or None, or the types that the serializers accept. partition: None if the
    key or the partitioner determines it. timestamp_ms: milliseconds since 1970, None for the
    current time. headers: pairs of str and bytes (or None), in order; names may repeat. Raise
    DataException for an invalid topic, partition, timestamp or header.
    """

    topic: str
    value: object = None
    key: object = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers | None = None

    def __post_init__(self) -> None:
        # The messages are the same as in the Java client, so that users can search for them.
        check_topic_name(self.topic)
        partition = _checked_number("partition", self.partition, LARGEST_INT32)
        if partition is not self.partition:
            object.__setattr__(self, "partition", partition)
        timestamp_ms = _checked_number("timestamp", self.timestamp_ms, _LARGEST_TIMESTAMP)
        if timestamp_ms is not self.timestamp_ms:
            object.__setattr__(self, "timestamp_ms", timestamp_ms)
        if self.headers is not None:
            object.__setattr__(self, "headers", checked_headers(self.headers))


def _checked_number(name: str, number: object, largest: int) -> int | None:
    if number is None:
        return None
    value = as_int(number)
    if value is None:
        message = f"Invalid {name}: {number!r}. Expected an int or None."
        raise DataException(message)
    if value < 0:
        message = (
            f"Invalid {name}: {value}. {name.capitalize()} should always be non-negative or null."
        )
        raise DataException(message)
    if value > largest:
        raise DataException(f"Invalid {name}: {value}. Expected at most {largest}.")
    return value


def checked_headers(headers: object) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers as an immutable copy. Raise DataException for an invalid header."""
    if not isinstance(headers, Iterable):
        message = f"headers is {headers!r}: expected pairs of str and bytes (or None)"
        raise DataException(message)
    return tuple([_checked_header(header) for header in headers])


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8. JSON strings may contain lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _valid_unicode(text: str) -> str:
    """Return `text` with U+FFFD in place of each lone surrogate, which UTF-8 cannot encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _checked_header(header: object) -> tuple[str, bytes | None]:
    if isinstance(header, tuple | list) and len(header) == 2:
        name, value = header
        if isinstance(name, str):
            if value is None or isinstance(value, bytes):
                return _valid_unicode(name), value
            if isinstance(value, bytearray | memoryview):
                return _valid_unicode(name), bytes(value)
    message = f"{header!r} is not a header: expected a pair of str and bytes (or None)"
    raise DataException(message)


class AppendFailure(NamedTuple):
    """Rows of one append that failed because of the same error.

    rows: the indexes of the failed rows in the appended rows, int64, ascending. culprits: the
    indexes of the rows that the broker named as the reason why it rejected the batch. If the
    broker named none: the row itself for a batch of one row, and None for a larger batch.
    """

    rows: npt.NDArray[np.int64]
    culprits: npt.NDArray[np.int64] | None
    error: KafkaException

    def __str__(self) -> str:
        return f"{len(self.rows)} row(s) that were not delivered ({self.error})"

"""The values that every layer speaks of, and the checks of those that a caller gives.

A call raises IllegalArgumentException for an argument that it never takes. Topics and rows are
data, options are configuration: those are checked where they are read.
``TopicPartition`` is a NamedTuple because it is the key of every per-partition table of the
producer: a tuple hashes in C, a dataclass in Python.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Final, NamedTuple, SupportsIndex, TypeAlias, TypeVar

from spark_kafka_sink.errors import (
    DataException,
    IllegalArgumentException,
    KafkaException,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


LONGEST_NAME: Final = 249
# What brokers take (Topic.validate).
TOPIC_NAME: Final = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}\Z")


def check_topic_name(name: object) -> None:
    """Raise DataException for what no request can carry as a topic's name, or no topic has."""
    if not isinstance(name, str):
        message = f"Topic cannot be {name!r}: expected a str"
        raise DataException(message)
    if len(name) > LONGEST_NAME:
        message = (
            f"Topic cannot be {name[:20]!r}...: found a name of {len(name)} characters, expected "
            f"at most {LONGEST_NAME}"
        )
        raise DataException(message)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        message = f"Topic cannot be {name!r}: it cannot be written as UTF-8 ({error.reason})"
        raise DataException(message) from None


class Secret:
    """A text that no message, log or repr shows; `value` is the text."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


class TopicPartition(NamedTuple):
    """A topic name and a partition number; prints as ``topic-3`` like the Java client's."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RecordMetadata(NamedTuple):
    """Where a record is in the log (RecordMetadata of the Java client).

    partition: -1 where a record failed before one was chosen. offset: -1 where the broker does not
    say (acks=0) or the record failed. timestamp: milliseconds since 1970, the broker's where the
    topic has LogAppendTime. Sizes are bytes as serialized, -1 for null.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A broker's address. Bootstrap addresses carry negative ids, as in the Java client."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        name = "bootstrap" if self.id < 0 else f"node {self.id}"
        return f"{name} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """What InitProducerId gives; ``NO_PRODUCER_ID`` where a producer is not idempotent."""

    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        """Whether a broker assigned this id (brokers never assign a negative one)."""
        return self.producer_id >= 0


NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """Where a consumer group goes on reading: the offset of the next record of a partition."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer group, and who of it commits offsets (KIP-447); without a member, nobody does.

    With generation and member id of a consumer the group refuses the offsets of one that it has
    meanwhile taken the partitions from.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


LARGEST_INT32: Final = 2**31 - 1
LARGEST_INT64: Final = 2**63 - 1
# What Kafka's strings may have, in UTF-8.
_LONGEST_TEXT_BYTES: Final = 32_767
_T = TypeVar("_T")


def checked(what: str, thing: object, kind: type[_T], expected: str) -> _T:
    """Return `thing`, which has to be of a kind."""
    if isinstance(thing, kind):
        return thing
    raise _wrong(what, thing, expected)


def checked_list(what: str, things: object, expected: str) -> list[object]:
    """Return several things as a list; a str is one, though Python takes it for its letters."""
    if isinstance(things, Iterable) and not isinstance(things, str | bytes):
        return list(things)
    raise _wrong(what, things, expected)


def checked_number(what: str, number: object, smallest: int, largest: int) -> int:
    """Return a whole number of a range, numpy's included, as an int."""
    if isinstance(number, SupportsIndex) and not isinstance(number, bool):
        value = operator.index(number)
        if smallest <= value <= largest:
            return value
    raise _wrong(what, number, f"an int from {smallest} to {largest}")


def check_counts(what: str, counts: object, smallest: int) -> None:
    """Refuse what is no mapping from topics to whole numbers; names are checked elsewhere."""
    if not isinstance(counts, Mapping):
        raise _wrong(what, counts, "a mapping from topics to numbers")
    for topic, count in counts.items():
        checked_number(f"{what} of topic {topic}", count, smallest, LARGEST_INT32)


def check_callable(what: str, thing: object, expected: str) -> None:
    """Refuse what cannot be called; None is nothing to call."""
    if thing is not None and not callable(thing):
        raise _wrong(what, thing, f"{expected}, or None")


def check_text(what: str, text: object) -> None:
    """Refuse what no request can carry as a string."""
    if not isinstance(text, str):
        raise _wrong(what, text, "a str")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        message = f"{what} cannot be written as UTF-8 ({error.reason})"
        raise IllegalArgumentException(message) from None
    if size_bytes > _LONGEST_TEXT_BYTES:
        message = f"{what} has {size_bytes} bytes: expected at most {_LONGEST_TEXT_BYTES}"
        raise IllegalArgumentException(message)


def check_timeout(timeout: object) -> None:
    """Refuse what is no time to wait in seconds; None is as long as it takes."""
    if timeout is None:
        return
    if not _seconds("timeout", timeout) >= 0:
        message = (
            f"The timeout cannot be negative: found {timeout}, expected seconds, 0 to wait for "
            "nothing, or None to wait as long as deliveries may take"
        )
        raise IllegalArgumentException(message)


def check_moment(what: str, moment: object) -> None:
    """Refuse what is no time of `time.monotonic`; None is none."""
    if moment is not None and not math.isfinite(_seconds(what, moment)):
        raise _wrong(what, moment, "a time of time.monotonic(), or None")


def checked_brokers(brokers: object) -> tuple[Node, ...]:
    """Return brokers that somebody has heard of; any iterable of nodes will do."""
    nodes = checked_list("brokers", brokers, "nodes")
    return tuple(checked("one of brokers", node, Node, "a Node") for node in nodes)


def _seconds(what: str, seconds: object) -> float:
    if isinstance(seconds, Real) and not isinstance(seconds, bool):
        return float(seconds)
    raise _wrong(what, seconds, "seconds as a number, or None")


def _wrong(what: str, thing: object, expected: str) -> IllegalArgumentException:
    """Return the error; values are shown in short, of others the type."""
    is_value = thing is None or isinstance(thing, str | bytes | int | float)
    found = f"{thing!r:.60}" if is_value else f"of type {type(thing).__name__}"
    return IllegalArgumentException(f"{what} is {found}: expected {expected}")


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


class AppendFailure(NamedTuple):
    """Rows of one append that were given up together.

    rows: their numbers in what was appended, int64, ascending; culprits: those of them for which
    brokers refused the others as well, None where brokers did not say.
    """

    rows: npt.NDArray[np.int64]
    culprits: npt.NDArray[np.int64] | None
    error: KafkaException

    def __str__(self) -> str:
        return f"{len(self.rows)} row(s) that were not delivered ({self.error})"

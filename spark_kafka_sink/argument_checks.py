"""Arguments of public calls: an IllegalArgumentException for what a call never takes.

Topics and rows are data, options are configuration: those are checked where they are read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Final, SupportsIndex, TypeVar

from spark_kafka_sink.errors import IllegalArgumentException
from spark_kafka_sink.model import Node

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

"""Arguments of public calls: an IllegalArgumentException for what a call never takes.

Topics and rows are data, options are configuration: those are checked where they are read.
"""

from __future__ import annotations

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
    message = f"{what} is {_shown(thing)}: expected {expected}"
    raise IllegalArgumentException(message)


def checked_number(what: str, number: object, smallest: int, largest: int) -> int:
    """Return a whole number of a range, numpy's included, as an int."""
    if isinstance(number, SupportsIndex) and not isinstance(number, bool):
        value = operator.index(number)
        if smallest <= value <= largest:
            return value
    message = f"{what} is {_shown(number)}: expected an int from {smallest} to {largest}"
    raise IllegalArgumentException(message)


def check_counts(what: str, counts: object, smallest: int) -> None:
    """Refuse what is no mapping from topics to whole numbers; names are checked elsewhere."""
    of_topics = checked(what, counts, Mapping, "a mapping from topics to numbers")
    for topic, count in of_topics.items():
        checked_number(f"{what} of topic {topic}", count, smallest, LARGEST_INT32)


def check_callable(what: str, thing: object, expected: str) -> None:
    """Refuse what cannot be called; None is nothing to call."""
    if thing is not None and not callable(thing):
        message = f"{what} is {_shown(thing)}: expected {expected}, or None"
        raise IllegalArgumentException(message)


def check_text(what: str, text: object) -> None:
    """Refuse what no request can carry as a string."""
    if not isinstance(text, str):
        message = f"{what} is {_shown(text)}: expected a str"
        raise IllegalArgumentException(message)
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
    if not isinstance(timeout, Real) or isinstance(timeout, bool):
        message = f"timeout is {_shown(timeout)}: expected seconds as a number, or None"
        raise IllegalArgumentException(message)
    if not timeout >= 0:
        message = (
            f"The timeout cannot be negative: found {timeout}, expected seconds, 0 to wait for "
            "nothing, or None to wait as long as deliveries may take"
        )
        raise IllegalArgumentException(message)


def checked_brokers(brokers: object) -> tuple[Node, ...]:
    """Return brokers that somebody has heard of; any iterable of nodes will do."""
    nodes = tuple(checked("brokers", brokers, Iterable, "nodes"))
    for node in nodes:
        checked("one of brokers", node, Node, "a Node")
    return nodes


def _shown(thing: object) -> str:
    """Return how a message shows what was found: values in short, of others the type."""
    if thing is None or isinstance(thing, str | bytes | int | float):
        return f"{thing!r:.60}"
    return f"of type {type(thing).__name__}"

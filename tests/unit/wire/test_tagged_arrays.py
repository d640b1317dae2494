"""A kind of field that Kafka's schemas have and no message of this client yet: tagged numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.message_codecs import Int32, Tag
from spark_kafka_sink.wire.primitives import Writer


@dataclass(slots=True, kw_only=True)
class Message:
    """An array of numbers among the tagged fields."""

    numbers: Annotated[list[Int32], Tag(0)] = field(default_factory=list)


def _read(frame: bytes) -> tuple[Message, int]:
    read: tuple[Message, int] = message_codecs.reader(Message, 0, flexible=True)(frame, 0)
    return read


@pytest.mark.parametrize("numbers", [[], [1], [1, -2, 3], list(range(200))])
def test_tagged_numbers_are_written_and_read_again(numbers: list[int]) -> None:
    writer = Writer()
    message_codecs.writer(Message, 0, flexible=True)(Message(numbers=numbers), writer)
    assert _read(bytes(writer.out)) == (Message(numbers=numbers), len(writer.out))


def test_what_is_behind_tagged_numbers_is_skipped() -> None:
    # One tagged field, number 0, of six bytes: an array of one number takes five of them.
    frame = bytes.fromhex("01 00 06 02 00000009 aa")
    assert _read(frame) == (Message(numbers=[9]), len(frame))


def test_tagged_numbers_that_are_larger_than_their_size_are_refused() -> None:
    # As above, but with a size of four bytes.
    with pytest.raises(ProtocolError, match="numbers is beyond its given size"):
        _read(bytes.fromhex("01 00 04 02 00000009 aa"))

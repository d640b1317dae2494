"""Any bytes from a broker become a message or a ProtocolError, with little memory and time.

Every response of the registry is tried in every version. FUZZ_EXAMPLES is the number of damaged
copies of one frame for each API, divided among its versions; these are fast to make. Slower cases
are fewer: a tenth as many frames of random bytes for each version, and a hundredth as many random
messages of each API, which contain garbage, are truncated, and have bytes after them. Without it
there are 60 damaged copies for each version, and ten examples of the others. FUZZ_SEED repeats the
damage to the one frame.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import pkgutil
import struct
import time
from collections.abc import Iterator
from random import Random, SystemRandom

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.examples import EXAMPLES, one_in
from support.oracles.kafka_schemas import at_version, message_schema, one_of_everything, trees
from support.oracles.wire_messages import (
    EVERY_API,
    EVERY_VERSION,
    response_schema,
    their_response_frame,
    versions,
)
from support.pure.traced_memory import traced_memory

from spark_kafka_sink import wire
from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.wire.frames import decode_response, response_correlation_id
from spark_kafka_sink.wire.messages import APIS, Api

_SEED = int(os.environ.get("FUZZ_SEED", SystemRandom().randrange(10**9)))

_FEW_DAMAGED = 60

# Of this thread's CPU, which a busy machine does not change; a frame takes about a ten-thousandth.
_MOST_CPU_S = 1.0

# Small numbers get further: they are lengths that fit and tags that are known.
_SMALL = st.lists(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]), max_size=200).map(bytes)
GARBAGE = st.binary(max_size=200) | _SMALL

# Lengths as int16, int32 and varint, as large as they get; 0x80… is a varint without end.
HUGE_LENGTHS = [
    b"\x7f\xff",
    b"\x7f\xff\xff\xff",
    b"\x07\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80" * 12,
]


def _check_decodes_or_refuses(api: Api, version: int, frame: bytes) -> None:
    started = time.thread_time()
    try:
        message = decode_response(api, version, frame)
    except ProtocolError:
        pass
    else:
        assert type(message) is api.response
    assert time.thread_time() - started < _MOST_CPU_S, f"decoding {frame.hex()} took too long"


@one_in(10)
@given(frame=GARBAGE)
def test_garbage_is_a_message_or_a_protocol_error(frame: bytes) -> None:
    for api in APIS.values():
        for version in versions(api):
            _check_decodes_or_refuses(api, version, frame)


@EVERY_API
@one_in(100)
@given(data=st.data())
def test_responses_with_garbage_inside_are_messages_or_protocol_errors(
    api: Api, data: st.DataObject
) -> None:
    fields = response_schema(api).fields
    tree = data.draw(trees(fields))
    garbage = data.draw(st.binary(min_size=1, max_size=6) | st.sampled_from(HUGE_LENGTHS))
    where, replaced = data.draw(st.floats(0, 1)), data.draw(st.integers(0, 6))
    for version in versions(api):
        frame = their_response_frame(api, version, 1, at_version(fields, tree, version))
        position = round(where * len(frame))
        mutated = frame[:position] + garbage + frame[position + replaced :]
        _check_decodes_or_refuses(api, version, mutated)


@EVERY_API
@one_in(100)
@given(data=st.data())
def test_a_response_that_is_cut_short_anywhere_is_refused(api: Api, data: st.DataObject) -> None:
    fields = response_schema(api).fields
    version = data.draw(st.sampled_from(versions(api)))
    sent = at_version(fields, data.draw(trees(fields)), version)
    frame = their_response_frame(api, version, 1, sent)
    for length in {*range(min(len(frame), 80)), *range(max(0, len(frame) - 80), len(frame))}:
        with pytest.raises(ProtocolError, match=f"{api.name} v{version} response"):
            decode_response(api, version, frame[:length])


@EVERY_API
@one_in(100)
@given(data=st.data())
def test_bytes_behind_a_response_are_ignored(api: Api, data: st.DataObject) -> None:
    fields = response_schema(api).fields
    tree = data.draw(trees(fields))
    trailing = data.draw(st.binary(min_size=1, max_size=9))
    for version in versions(api):
        frame = their_response_frame(api, version, 1, at_version(fields, tree, version))
        expected = decode_response(api, version, frame)
        assert decode_response(api, version, frame + trailing) == expected


@given(frame=st.binary(max_size=3))
def test_a_frame_too_short_for_a_correlation_id_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"{len(frame)} bytes has no correlation id"):
        response_correlation_id(frame)


def _with_huge_lengths(frame: bytes) -> Iterator[bytes]:
    for position in range(4, len(frame) + 1):
        for length in HUGE_LENGTHS:
            yield frame[:position] + length + frame[position + len(length) :]


def _complete_frame(api: Api, version: int) -> bytes:
    """Return a response with one of everything, whose reader is compiled."""
    fields = response_schema(api).fields
    frame = their_response_frame(
        api, version, 1, at_version(fields, one_of_everything(fields), version)
    )
    decode_response(api, version, frame)
    return frame


@EVERY_VERSION
def test_a_huge_length_takes_no_memory(api: Api, version: int) -> None:
    frame = _complete_frame(api, version)
    mutated = list(_with_huge_lengths(frame))
    with traced_memory() as memory:
        for each in mutated:
            _check_decodes_or_refuses(api, version, each)
    assert memory.peak_bytes < 200_000


@EVERY_VERSION
def test_an_array_that_claims_a_byte_an_element_takes_no_memory(api: Api, version: int) -> None:
    frame = _complete_frame(api, version)
    # Every element of a message has several bytes, and zeros are elements with nothing in them.
    claims = [b"\x80\x40", struct.pack(">i", 2**13)]
    zeros = bytes(2**13)
    with traced_memory() as memory:
        for position in range(4, len(frame)):
            for claim in claims:
                _check_decodes_or_refuses(api, version, frame[:position] + claim + zeros)
    assert memory.peak_bytes < 16 * len(zeros)


def _damaged(frame: bytes, random: Random) -> bytes:
    """Return a frame with some damage."""
    data = bytearray(frame)
    for _ in range(random.randint(1, 5)):
        start = random.randint(0, len(data))
        end = min(len(data), start + random.randint(1, 12))
        match random.randrange(6):
            case 0:
                data[start:end] = random.randbytes(end - start)
            case 1:
                data[start:end] = random.choice(HUGE_LENGTHS)
            case 2:
                data[start:start] = data[start:end]
            case 3:
                del data[start:end]
            case 4:
                del data[start:]
            case _:
                data[start:end] = bytes(byte ^ 1 << random.randrange(8) for byte in data[start:end])
    return bytes(data)


@EVERY_VERSION
def test_a_damaged_answer_is_a_message_or_a_protocol_error_and_takes_little_memory(
    api: Api, version: int
) -> None:
    print(f"FUZZ_SEED={_SEED}")
    random = Random(f"{_SEED} {api.name} {version}")
    frame = _complete_frame(api, version)
    with traced_memory() as memory:
        for _ in range(-(-EXAMPLES // len(versions(api))) or _FEW_DAMAGED):
            damaged = _damaged(frame, random)
            try:
                _check_decodes_or_refuses(api, version, damaged)
            except BaseException as error:
                error.add_note(f"the answer was {damaged.hex()}")
                raise
    assert memory.peak_bytes < 200_000


def test_no_response_is_left_out_of_the_registry() -> None:
    declared = set()
    for module in pkgutil.iter_modules(wire.__path__, f"{wire.__name__}."):
        names = vars(importlib.import_module(module.name))
        declared |= {
            value
            for name, value in names.items()
            if dataclasses.is_dataclass(value) and name.endswith("Response") and _is_complete(name)
        }
    assert declared == {api.response for api in APIS.values()}


def _is_complete(name: str) -> bool:
    """Whether a class is a message and not a part of one, by Kafka's name for it."""
    try:
        message_schema(name)
    except FileNotFoundError:
        return False
    return True

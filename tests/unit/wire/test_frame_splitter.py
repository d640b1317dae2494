"""A stream of bytes becomes frames, for every division into pieces."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.wire.frames import FrameSplitter

FRAMES = st.lists(st.binary(max_size=40) | st.integers(200, 300).map(bytes), max_size=6)


def _stream(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


@given(frames=FRAMES)
def test_frames_that_come_at_once_are_given_in_order_without_their_sizes(
    frames: list[bytes],
) -> None:
    splitter = FrameSplitter()
    assert list(splitter.feed(_stream(frames))) == frames
    assert not splitter.is_inside_frame


@given(frames=FRAMES)
def test_frames_that_come_byte_by_byte_are_given_with_their_last_byte(frames: list[bytes]) -> None:
    splitter = FrameSplitter()
    stream = _stream(frames)
    ends = {len(_stream(frames[: number + 1])): frame for number, frame in enumerate(frames)}
    for position in range(len(stream)):
        given_now = list(splitter.feed(stream[position : position + 1]))
        expected = ends.get(position + 1)
        assert given_now == ([] if expected is None else [expected])
        assert splitter.is_inside_frame is (expected is None)


@given(frames=FRAMES, data=st.data())
def test_frames_that_come_in_any_pieces_are_the_same(
    frames: list[bytes], data: st.DataObject
) -> None:
    stream = _stream(frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    kind = data.draw(st.sampled_from([bytes, bytearray, memoryview]))
    splitter = FrameSplitter()
    found: list[bytes] = []
    for start, end in pairwise([0, *cuts, len(stream)]):
        found += splitter.feed(kind(stream[start:end]))
    assert found == frames
    assert not splitter.is_inside_frame


@given(frames=FRAMES, data=st.data())
def test_a_stream_that_ends_inside_a_frame_is_known_to(
    frames: list[bytes], data: st.DataObject
) -> None:
    splitter = FrameSplitter()
    stream = _stream([*frames, b"the last one"])
    missing = data.draw(st.integers(1, len(b"the last one") + 3))
    assert list(splitter.feed(stream[:-missing])) == frames
    assert splitter.is_inside_frame


@pytest.mark.parametrize(
    ("splitter", "said", "cause"),
    [
        (FrameSplitter(1000), b"\x7f\xff\xff\xff", ": it may expect TLS"),
        (FrameSplitter(1000, has_tls=True), b"\x7f\xff\xff\xff", ""),
        (FrameSplitter(1000), b"HTTP", ": it speaks HTTP"),
        (FrameSplitter(1000, has_tls=True), b"HTTP", ": it speaks HTTP"),
    ],
)
def test_only_a_peer_without_tls_may_expect_tls(
    splitter: FrameSplitter, said: bytes, cause: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        list(splitter.feed(said))
    assert str(caught.value).endswith(f"the peer does not speak Kafka's protocol{cause}")


def test_a_frame_does_not_change_when_the_received_bytes_do() -> None:
    received = bytearray(_stream([b"frame"]))
    (frame,) = FrameSplitter().feed(received)
    received[:] = bytes(len(received))
    assert frame == b"frame"


@given(size=st.integers(-(2**31), -1), frames=FRAMES)
def test_a_negative_size_is_refused_after_the_frames_before_it(
    size: int, frames: list[bytes]
) -> None:
    feed = FrameSplitter().feed(_stream(frames) + struct.pack(">i", size))
    assert [next(feed) for _ in frames] == frames
    with pytest.raises(ProtocolError, match=f"size = {size}"):
        next(feed)


@given(limit=st.integers(0, 300), over=st.integers(1, 2**31 - 301))
def test_a_size_over_the_limit_is_refused_before_its_bytes_come(limit: int, over: int) -> None:
    splitter = FrameSplitter(limit)
    assert list(splitter.feed(_stream([bytes(limit)]))) == [bytes(limit)]
    with pytest.raises(ProtocolError, match=f"size = {limit + over} larger than {limit}"):
        list(splitter.feed(struct.pack(">i", limit + over)))


@pytest.mark.parametrize("before", [b"", b"\0\0\0\1x"])
def test_an_alert_of_tls_is_recognised(before: bytes) -> None:
    splitter = FrameSplitter(100 * 1024 * 1024)
    assert not splitter.holds_tls
    with pytest.raises(ProtocolError, match="size = 352518912 larger than"):
        list(splitter.feed(before + b"\x15\x03\x03\x00\x02\x02\x50"))
    assert splitter.holds_tls


def test_an_announced_size_takes_no_memory_before_its_bytes_come() -> None:
    splitter = FrameSplitter()
    with traced_memory() as memory:
        assert list(splitter.feed(struct.pack(">i", 2**31 - 1) + b"x")) == []
    assert memory.peak_bytes < 100_000

"""The selector over real loopback sockets: order, partial writes, refusals, wakeups."""

from __future__ import annotations

import select
import selectors
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from spark_kafka_sink.network.selector import (
    UNSET_BUFFER,
    Closed,
    Connected,
    PartlySent,
    Received,
    Selector,
    SelectorEvent,
    Sent,
    resolve,
)

Peer = tuple[int, socket.socket]


@pytest.fixture
def selector() -> Iterator[Selector]:
    """A selector with the system's socket buffers."""
    made = Selector(send_buffer_bytes=UNSET_BUFFER, receive_buffer_bytes=UNSET_BUFFER)
    yield made
    made.close_all()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server socket on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


def poll_until(
    selector: Selector, done: Callable[[list[SelectorEvent]], bool]
) -> list[SelectorEvent]:
    """Poll until what happened is enough."""
    happened: list[SelectorEvent] = []
    for _ in range(10_000):
        happened += selector.poll(1.0)
        if done(happened):
            return happened
    raise AssertionError(f"not enough happened: {happened[-5:]}")


def connected(selector: Selector, listener: socket.socket, channel: int = 1) -> socket.socket:
    """Connect a channel and return the peer's end."""
    (address,) = resolve("127.0.0.1", listener.getsockname()[1])
    selector.connect(channel, address)
    poll_until(selector, lambda events: Connected(channel) in events)
    peer, _ = listener.accept()
    peer.settimeout(10)
    return peer


def receive(peer: socket.socket, size: int) -> bytes:
    """Read so many bytes."""
    data = bytearray()
    while len(data) < size:
        data += peer.recv(size - len(data))
    return bytes(data)


def arrived(end: socket.socket, size: int) -> None:
    """Wait until so many bytes can be read."""
    select.select([end], [], [], 60.0)
    while len(end.recv(size, socket.MSG_PEEK)) < size:
        pass


def reset(peer: socket.socket) -> None:
    """Close the peer's end so that the other end finds the connection reset."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()


def until_closed(selector: Selector) -> list[SelectorEvent]:
    """Poll until a channel is closed, and return the events before."""
    *before, last = poll_until(selector, lambda e: any(isinstance(x, Closed) for x in e))
    assert isinstance(last, Closed)
    return before


def test_bytes_go_and_come(selector: Selector, listener: socket.socket) -> None:
    with connected(selector, listener) as peer:
        selector.send(1, [b"ab", memoryview(b"cd"), bytearray(b"ef")])
        assert Sent(1) in selector.poll(0)
        assert receive(peer, 6) == b"abcdef"
        peer.sendall(b"answer")
        assert poll_until(selector, lambda e: Received(1, b"answer") in e)


def test_a_poll_waits_only_where_nothing_has_happened_yet(
    monkeypatch: pytest.MonkeyPatch, selector: Selector, listener: socket.socket
) -> None:
    waits: list[float | None] = []
    sockets = selector._selector
    select = sockets.select

    def note(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        waits.append(timeout)
        return select(0)

    with connected(selector, listener):
        monkeypatch.setattr(sockets, "select", note)
        selector.send(1, [b"ab"])
        assert selector.poll(60.0) == [Sent(1)]
        selector.poll(60.0)
    assert waits == [0.0, 60.0]


def test_large_sends_of_many_buffers_arrive_whole_and_in_order(
    selector: Selector, listener: socket.socket
) -> None:
    first = [bytes([n % 256]) * 5000 for n in range(3000)]
    second = [b"", b"second", b""]
    expected = b"".join(first + second)
    with connected(selector, listener) as peer:
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(receive(peer, len(expected))))
        reader.start()
        selector.send(1, first)
        selector.send(1, second)
        events = poll_until(selector, lambda e: e.count(Sent(1)) == 2)
        reader.join()
        assert got == [expected]
        assert events.count(Sent(1)) == 2


def test_a_send_counts_as_sent_only_when_its_last_byte_is_written(
    selector: Selector, listener: socket.socket
) -> None:
    size = 50_000_000
    with connected(selector, listener) as peer:
        selector.send(1, [bytes(size)])
        assert selector.poll(0) == [PartlySent(1)], "fifty megabytes fit no socket buffer"
        while selector.poll(0):
            pass
        reader = threading.Thread(target=receive, args=(peer, size))
        reader.start()
        *parts, last = poll_until(selector, lambda e: Sent(1) in e)
        reader.join()
        assert (set(parts), last) == ({PartlySent(1)}, Sent(1))


def test_sends_before_the_connection_is_up_wait_for_it(
    selector: Selector, listener: socket.socket
) -> None:
    (address,) = resolve("127.0.0.1", listener.getsockname()[1])
    selector.connect(1, address)
    selector.send(1, [b"early"])
    poll_until(selector, lambda e: Sent(1) in e)
    peer, _ = listener.accept()
    with peer:
        assert receive(peer, 5) == b"early"


def test_a_refused_connection_is_closed_with_the_reason(selector: Selector) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        (address,) = resolve("127.0.0.1", nobody.getsockname()[1])
        selector.connect(1, address)
        events = poll_until(selector, bool)
    assert events == [Closed(1, "Connection refused")]


@pytest.mark.parametrize(
    "address",
    [
        (socket.AF_APPLETALK, ("127.0.0.1", 9092)),  # a family that the system does not have
        (socket.AF_INET, ("127.0.0.1", 70_000)),
        (socket.AF_INET6, ("127.0.0.1", 9092)),
    ],
)
def test_an_address_that_cannot_be_used_closes_its_channel_and_no_other(
    selector: Selector, listener: socket.socket, address: tuple[int, tuple[str, int]]
) -> None:
    selector.connect(1, address)
    selector.connect(2, (socket.AF_INET, listener.getsockname()))
    events = poll_until(selector, lambda found: len(found) >= 2)
    assert [type(event) for event in events if event.channel == 1] == [Closed]
    assert [type(event) for event in events if event.channel == 2] == [Connected]


def test_a_peer_that_goes_away_closes_the_channel_and_only_that(
    selector: Selector, listener: socket.socket
) -> None:
    gone, stays = connected(selector, listener, 1), connected(selector, listener, 2)
    gone.close()
    events = poll_until(selector, bool)
    assert events == [Closed(1, "the broker closed the connection")]
    selector.send(1, [b"into the void"])
    selector.send(2, [b"still here"])
    assert receive(stays, 10) == b"still here"
    stays.close()


def test_a_reset_connection_is_closed(selector: Selector, listener: socket.socket) -> None:
    peer = connected(selector, listener)
    reset(peer)
    (event,) = poll_until(selector, bool)
    assert isinstance(event, Closed)


def test_what_came_before_a_reset_is_read_while_more_waits_to_be_written(
    selector: Selector, listener: socket.socket
) -> None:
    peer = connected(selector, listener)
    selector.send(1, [bytes(50_000_000)])
    peer.sendall(b"answer")
    reset(peer)
    assert until_closed(selector) == [PartlySent(1), Received(1, b"answer")]


def test_what_came_before_a_reset_is_read_before_the_next_send(
    selector: Selector, listener: socket.socket
) -> None:
    peer = connected(selector, listener)
    peer.sendall(b"answer")
    reset(peer)
    selector.send(1, [b"next request"])
    assert until_closed(selector) == [Received(1, b"answer")]


@pytest.mark.parametrize("is_sending", [True, False])
def test_all_that_came_before_a_reset_is_read_in_as_many_reads_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket, *, is_sending: bool
) -> None:
    monkeypatch.setattr("spark_kafka_sink.network.selector._RECEIVE_BYTES", 1000)
    selector = Selector(send_buffer_bytes=UNSET_BUFFER, receive_buffer_bytes=UNSET_BUFFER)
    peer = connected(selector, listener)
    if is_sending:
        selector.send(1, [bytes(50_000_000)])
    peer.sendall(bytes(3500))
    reset(peer)
    if not is_sending:
        selector.send(1, [b"next request"])
    received = [event for event in until_closed(selector) if isinstance(event, Received)]
    assert [len(event.data) for event in received] == [1000, 1000, 1000, 500]
    selector.close_all()


class SocketThatNotes:
    """A socket that notes the order of its reads and writes."""

    def __init__(self, real: socket.socket, calls: list[str]) -> None:
        self._real = real
        self._calls = calls

    def recv_into(self, buffer: bytearray) -> int:
        """Read, as the real one does."""
        self._calls.append("read")
        return self._real.recv_into(buffer)

    def sendmsg(self, buffers: list[memoryview]) -> int:
        """Write, as the real one does."""
        self._calls.append("write")
        return self._real.sendmsg(buffers)

    def fileno(self) -> int:
        """Return the real socket's number, by which the selector knows it."""
        return self._real.fileno()

    def close(self) -> None:
        """Close the real one."""
        self._real.close()


def test_a_channel_is_read_before_it_is_written(
    selector: Selector, listener: socket.socket
) -> None:
    with connected(selector, listener) as peer:
        (channel,) = selector._channels.values()
        calls: list[str] = []
        channel.socket = SocketThatNotes(channel.socket, calls)  # type: ignore[assignment]  # what is used of one
        selector.send(1, [bytes(50_000_000)])
        assert calls[:2] == ["read", "write"], "where a send is written at once"
        calls.clear()
        peer.sendall(b"answer")
        receive(peer, 1_000_000)  # there is room to write again
        # The kernel may take a while for each.
        select.select([channel.socket], [], [], 60.0)
        select.select([], [channel.socket], [], 60.0)
        selector.poll(60.0)
        assert calls[:2] == ["read", "write"], "where both are possible"


def test_the_rest_of_a_channel_is_read_to_its_end_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    monkeypatch.setattr("spark_kafka_sink.network.selector._RECEIVE_BYTES", 1000)
    selector = Selector(send_buffer_bytes=UNSET_BUFFER, receive_buffer_bytes=UNSET_BUFFER)
    with connected(selector, listener) as peer:
        (channel,) = selector._channels.values()
        selector.send(1, [bytes(50_000_000)])
        calls: list[str] = []
        real = channel.socket
        channel.socket = SocketThatNotes(real, calls)  # type: ignore[assignment]  # what is used of one
        peer.sendall(bytes(2500))
        receive(peer, 1_000_000)  # there is room to write again
        arrived(real, 2500)
        sizes = [len(event.data) for event in selector.rest(1) if isinstance(event, Received)]
        assert sizes == [1000, 1000, 500]
        assert set(calls) == {"read"}
        assert list(selector.rest(2)) == []
    selector.close_all()


def test_the_rest_of_a_channel_begins_with_what_no_poll_has_returned(
    selector: Selector, listener: socket.socket
) -> None:
    with connected(selector, listener) as peer, connected(selector, listener, 2):
        peer.sendall(b"first")
        arrived(selector._channels[1].socket, 5)
        selector.send(1, [b"request"])
        selector.send(2, [b"request"])
        peer.sendall(b"second")
        arrived(selector._channels[1].socket, 6)
        assert list(selector.rest(1)) == [Received(1, b"first"), Sent(1), Received(1, b"second")]


def test_a_closed_channel_gives_no_events(selector: Selector, listener: socket.socket) -> None:
    peer = connected(selector, listener)
    selector.close(1)
    selector.close(1)
    assert peer.recv(1) == b"", "the socket is still open"
    peer.close()
    assert selector.poll(0.0) == []


def test_a_wakeup_ends_a_poll_from_another_thread(selector: Selector) -> None:
    waiting = threading.Event()

    def wake() -> None:
        waiting.wait()
        selector.wakeup()

    other = threading.Thread(target=wake)
    other.start()
    waiting.set()
    assert selector.poll(60.0) == []
    other.join()


def test_many_wakeups_before_a_poll_are_one_and_none_is_left_over(selector: Selector) -> None:
    for _ in range(100_000):
        selector.wakeup()
    assert selector.poll(60.0) == []
    assert selector.poll(0.0) == []
    selector.close_all()
    selector.wakeup()


def test_socket_buffers_are_set_as_asked(listener: socket.socket) -> None:
    selector = Selector(send_buffer_bytes=30_000, receive_buffer_bytes=40_000)
    peer = connected(selector, listener)
    (channel,) = selector._channels.values()
    # Linux doubles what is asked for.
    assert channel.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (30_000, 60_000)
    assert channel.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (40_000, 80_000)
    assert channel.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    assert channel.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 2**20
    peer.close()
    selector.close_all()

"""Selector: non-blocking TCP connections to brokers.

It owns the sockets and the data to write to each socket. It knows only bytes and channel ids;
`NetworkClient` maps a channel to its node and its requests. One thread uses it. Only `wakeup` may
be called from other threads; it ends a `poll` early.

The sends of a channel are written in order, with as many buffers per ``sendmsg`` as the system
accepts (IOV_MAX). After a partial write, writing continues inside the buffer where it stopped. No
buffers are combined or copied.

A channel is read before it is written. After a failed write, and before the client itself closes a
channel (`rest`), all data that has arrived is read. Otherwise, a response that arrived before the
connection closed would be lost, and its request would be retried. The Java client also reads first
(Selector.pollSelectionKeys).
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from spark_kafka_sink.errors import AuthenticationException
from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.network.network_metrics import NetworkMetrics

if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import TlsLayer

Buffer: TypeAlias = bytes | bytearray | memoryview
# An address as getaddrinfo returns it: the family, and the address in that family's format.
_SocketAddress: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
Address: TypeAlias = tuple[int, _SocketAddress]

UNSET_BUFFER: Final = -1
_MAX_BUFFERS: Final = min(1024, os.sysconf("SC_IOV_MAX")) if hasattr(os, "sysconf") else 16
_RECEIVE_BYTES: Final = 256 * 1024
_BOTH: Final = selectors.EVENT_READ | selectors.EVENT_WRITE
# The operating system takes at most so many bytes in advance. Bytes that it took count as sent, so
# on a slow connection, they must not be many.
_UNSENT_BYTES: Final = 1024 * 1024
_IN_PROGRESS: Final = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN)


@dataclass(frozen=True, slots=True)
class Connected:
    """The TCP connection of the channel is established."""

    channel: int


@dataclass(frozen=True, slots=True)
class Secured:
    """The TLS handshake of the channel is complete."""

    channel: int


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes were received from the channel."""

    channel: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Sent:
    """The channel's oldest unfinished send is completely written."""

    channel: int


@dataclass(frozen=True, slots=True)
class PartlySent:
    """The socket has taken bytes, but the channel's oldest unfinished send is not complete."""

    channel: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The channel is closed: it broke, was rejected, or the peer closed it.

    error: set if the TLS handshake was rejected by one side; None for network failures. speaks_tls:
    whether the peer has sent TLS records.
    """

    channel: int
    reason: str
    error: AuthenticationException | None = None
    speaks_tls: bool = False


SelectorEvent: TypeAlias = Connected | Secured | Received | Sent | PartlySent | Closed


@dataclass(slots=True)
class Channel:
    """A socket and the data to write to it."""

    id: int
    socket: socket.socket
    connecting: bool = True
    # The unsent buffers, and how many of the buffers belong to each send.
    buffers: deque[memoryview] = field(default_factory=deque)
    sends: deque[int] = field(default_factory=deque)


def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a host, in the resolver's order.

    Raise OSError if the host name cannot be resolved.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses: dict[Address, None] = {}
    for family, _, _, _, address in found:
        # If Python was built without IPv6, it returns some addresses without a host; they cannot be
        # used.
        if isinstance(address[0], str):
            addresses[family, address] = None
    return list(addresses)


def canonical_names(host: str) -> list[str]:
    """Return the names of a host's addresses. An address without a name is returned as it is.

    Raise OSError if the host has no address.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    names = [socket.getnameinfo(address, socket.NI_NUMERICSERV)[0] for *_, address in found]
    return list(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class HostResolver:
    """The two functions that query the name service; both may block."""

    resolve: Callable[[str, int], list[Address]] = resolve
    canonical_names: Callable[[str], list[str]] = canonical_names


class Selector:
    """Reads and writes the sockets of a client. Each socket has a channel id."""

    def __init__(
        self,
        *,
        send_buffer_bytes: int,
        receive_buffer_bytes: int,
        metrics: NetworkMetrics | None = None,
    ) -> None:
        self._metrics = metrics or NetworkMetrics(Metrics())
        self._send_buffer_bytes = send_buffer_bytes
        self._receive_buffer_bytes = receive_buffer_bytes
        self._channels: dict[int, Channel] = {}
        self._received = bytearray(_RECEIVE_BYTES)
        self._pending: list[SelectorEvent] = []
        self._selector = selectors.DefaultSelector()
        try:
            self._wake_out, self._wake_in = socket.socketpair()
        except BaseException:
            self._selector.close()
            raise
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)  # noqa: FBT003 - the only form there is
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)

    def connect(self, channel_id: int, address: Address, layer: TlsLayer | None = None) -> None:
        """Start connecting. A later poll returns a Connected or Closed event.

        layer: used only by `TlsSelector`.
        """
        del layer
        family, target = address
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # such as IPv6 on a machine without IPv6
            self._pending.append(Closed(channel_id, error.strerror or str(error)))
            return
        try:
            self._configure(connection)
            code = connection.connect_ex(target)
        except (OSError, OverflowError) as error:  # OverflowError: an invalid port number
            reason = getattr(error, "strerror", None) or str(error)
        else:
            reason = "" if code in _IN_PROGRESS else os.strerror(code)
        if reason:
            connection.close()
            self._pending.append(Closed(channel_id, reason))
            return
        channel = Channel(channel_id, connection)
        self._channels[channel_id] = channel
        self._selector.register(connection, _BOTH, channel)

    def _configure(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the only form there is
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError, AttributeError):  # not every system has it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        if self._send_buffer_bytes != UNSET_BUFFER:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
        if self._receive_buffer_bytes != UNSET_BUFFER:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)

    def send(self, channel_id: int, buffers: Sequence[Buffer]) -> None:
        """Queue data. When it is written, a Sent event follows. Do nothing for a closed channel."""
        channel = self._channels.get(channel_id)
        if channel is None:
            return
        views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        idle = not channel.buffers and not channel.connecting
        channel.buffers.extend(views)
        channel.sends.append(len(views))
        if idle:
            self._pending += self._read(channel)
            if channel.id in self._channels:
                self._pending += self._write(channel)

    def rest(self, channel_id: int) -> Iterator[SelectorEvent]:
        """Yield the last events of a channel that the caller is about to close. Write nothing.

        First yield the events that no poll has returned yet, then those of the data in the socket.
        """
        yield from [event for event in self._pending if event.channel == channel_id]
        channel = self._channels.get(channel_id)
        if channel is not None and not channel.connecting:
            yield from self._read_to_end(channel)

    def close(self, channel_id: int) -> None:
        """Close a channel without an event."""
        channel = self._channels.pop(channel_id, None)
        if channel is not None:
            # KeyError: an interrupt came before the socket was registered.
            with suppress(KeyError):
                self._selector.unregister(channel.socket)
            channel.socket.close()

    def close_all(self) -> None:
        """Close every channel and the selector itself."""
        for channel_id in list(self._channels):
            self.close(channel_id)
        self._selector.close()
        self._wake_out.close()
        self._wake_in.close()

    def wakeup(self) -> None:
        """End the current or the next poll at once. Any thread may call this, even after close."""
        # An error means that a wakeup is already pending, or that the selector is closed.
        with suppress(OSError):
            self._wake_out.send(b"\0")

    def poll(self, timeout_s: float) -> list[SelectorEvent]:
        """Wait at most `timeout_s` seconds for sockets, and return the events."""
        events, self._pending = self._pending, []
        wait = 0.0 if events else max(0.0, timeout_s)
        started = time.monotonic()
        ready = self._selector.select(wait)
        selected = time.monotonic()
        for key, mask in ready:
            if key.data is None:
                self._drain_wakeups()
            else:
                events += self._ready(key.data, mask)
        self._metrics.polled(started, selected, time.monotonic())
        pending, self._pending = self._pending, []
        return events + pending

    def _drain_wakeups(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                pass

    def _ready(self, channel: Channel, mask: int) -> list[SelectorEvent]:
        events: list[SelectorEvent] = []
        if channel.connecting:
            code = channel.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                return [self._broken(channel, os.strerror(code))]
            channel.connecting = False
            events.append(Connected(channel.id))
            self._watch(channel)
            return events
        if mask & selectors.EVENT_READ:
            events += self._read(channel)
        if mask & selectors.EVENT_WRITE and channel.id in self._channels:
            events += self._write(channel)
        return events

    def _write(self, channel: Channel) -> list[SelectorEvent]:
        events: list[SelectorEvent] = []
        has_taken = False
        try:
            while channel.buffers:
                batch = list(islice(channel.buffers, _MAX_BUFFERS))
                finished = _advance(channel.buffers, channel.socket.sendmsg(batch))
                has_taken = True
                events += [Sent(channel.id)] * finish_sends(channel.sends, finished)
        except BlockingIOError:
            pass
        except OSError as error:
            return [*events, *self._after_write_error(channel, error)]
        self._watch(channel)
        if has_taken and not events:
            events.append(PartlySent(channel.id))
        return events

    def _after_write_error(self, channel: Channel, error: OSError) -> list[SelectorEvent]:
        """Read the data that arrived before the connection broke, then close the channel."""
        events = list(self._read_to_end(channel))
        if channel.id in self._channels:
            events.append(self._broken(channel, error.strerror or str(error)))
        return events

    def _read_to_end(self, channel: Channel) -> Iterator[SelectorEvent]:
        """Yield the events of all data that has arrived. Write nothing."""
        with suppress(OSError):
            while channel.id in self._channels and (
                size := channel.socket.recv_into(self._received)
            ):
                yield from self._take(channel, size)

    def _take(self, channel: Channel, size: int) -> list[SelectorEvent]:
        """Return the events for the first `size` bytes of the receive buffer."""
        return [Received(channel.id, bytes(memoryview(self._received)[:size]))]

    def _read(self, channel: Channel) -> list[SelectorEvent]:
        try:
            size = channel.socket.recv_into(self._received)
        except BlockingIOError:
            return []
        except OSError as error:
            return [self._broken(channel, error.strerror or str(error))]
        if not size:
            return [self._broken(channel, "the broker closed the connection")]
        return self._take(channel, size)

    def _watch(self, channel: Channel) -> None:
        interest = self._interest(channel)
        if self._selector.get_key(channel.socket).events != interest:
            self._selector.modify(channel.socket, interest, channel)

    def _interest(self, channel: Channel) -> int:
        return _BOTH if channel.connecting or channel.buffers else selectors.EVENT_READ

    def _broken(self, channel: Channel, reason: str) -> Closed:
        self.close(channel.id)
        return Closed(channel.id, reason)


def _advance(buffers: deque[memoryview], written: int) -> int:
    """Remove `written` bytes from the first buffers; return how many buffers are now written."""
    finished = 0
    while buffers and written >= len(buffers[0]):
        written -= len(buffers.popleft())
        finished += 1
    if written:
        buffers[0] = buffers[0][written:]
    return finished


def finish_sends(sends: deque[int], finished_buffers: int) -> int:
    """Remove written buffers from the first sends; return how many sends are now written.

    sends: for each send, the number of its buffers that are not yet written.
    """
    finished = 0
    while sends and sends[0] <= finished_buffers:
        finished_buffers -= sends.popleft()
        finished += 1
    if finished_buffers:
        sends[0] -= finished_buffers
    return finished

"""TlsSelector: a selector whose channels use TLS.

A channel reports Connected when TCP is connected, and Secured when the TLS handshake is complete.
Received data is decrypted. Data to send is combined into pieces of up to 256 KiB. A piece is
encrypted after the previous piece has been sent, so that a connection holds at most one encrypted
piece. Each read takes all decrypted data from the TLS layer, so no data stays there until the
socket's next event.

::

    CONNECTING ──TCP connected──> SECURING ──handshake complete──> OPEN
        └─────────────────────────────┴─── rejected, broken ─────────┴──> CLOSED
"""

from __future__ import annotations

import selectors
from contextlib import suppress
from dataclasses import dataclass, replace

from spark_kafka_sink.errors import AuthenticationException, IllegalStateException
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.selector import (
    Address,
    Channel,
    Closed,
    PartlySent,
    Received,
    Secured,
    Selector,
    SelectorEvent,
    Sent,
    finish_sends,
)
from spark_kafka_sink.network.tls import TlsLayer, take_piece


@dataclass(slots=True, eq=False)
class _Tls:
    """The TLS layer of a channel, and the encrypted data that is not sent yet.

    finished: the number of buffers that are completely written once this data is sent.
    """

    layer: TlsLayer
    encrypted: bytes | memoryview = b""
    finished: int = 0
    is_open: bool = False


class TlsSelector(Selector):
    """Reads and writes the sockets of a client over TLS. Each socket has a channel id."""

    def __init__(
        self,
        *,
        send_buffer_bytes: int,
        receive_buffer_bytes: int,
        metrics: NetworkMetrics | None = None,
    ) -> None:
        super().__init__(
            send_buffer_bytes=send_buffer_bytes,
            receive_buffer_bytes=receive_buffer_bytes,
            metrics=metrics,
        )
        self._tls: dict[int, _Tls] = {}

    def connect(self, channel_id: int, address: Address, layer: TlsLayer | None = None) -> None:
        """Start connecting. A later poll returns a Secured or Closed event."""
        if layer is None:
            raise IllegalStateException("a TLS connection needs a TLS layer")
        super().connect(channel_id, address)
        if channel_id in self._channels:
            self._tls[channel_id] = _Tls(layer)

    def close(self, channel_id: int) -> None:
        """Close a channel, and return no event for it. Send close_notify if that need not wait."""
        channel, tls = self._channels.get(channel_id), self._tls.pop(channel_id, None)
        # After an incomplete record, the broker would read close_notify as a part of that record.
        if channel is not None and tls is not None and not tls.encrypted:
            _send_last(channel, tls.layer.end())
        super().close(channel_id)

    def _ready(self, channel: Channel, mask: int) -> list[SelectorEvent]:
        was_connecting = channel.connecting
        events = super()._ready(channel, mask)
        if was_connecting and channel.id in self._channels:
            events += self._write(channel)
        return events

    def _read(self, channel: Channel) -> list[SelectorEvent]:
        events = super()._read(channel)
        if channel.id in self._channels:
            events += self._write(channel)
        return events

    def _take(self, channel: Channel, size: int) -> list[SelectorEvent]:
        """Return the events for the data decrypted from the receive buffer."""
        tls = self._tls[channel.id]
        events: list[SelectorEvent] = []
        try:
            data = tls.layer.received(memoryview(self._received)[:size])
            if tls.layer.is_secured and not tls.is_open:
                tls.is_open = True
                events.append(Secured(channel.id))
            if data:
                events.append(Received(channel.id, data))
            tls.layer.check()
        except (AuthenticationException, ConnectionError) as error:
            return [*events, self._failed(channel, error)]
        if tls.layer.is_ended:
            events.append(self._broken(channel, "the broker closed the connection"))
        return events

    def _failed(self, channel: Channel, error: Exception) -> Closed:
        """Send the TLS alert, then close a channel whose TLS failed. Return the Closed event."""
        tls = self._tls.pop(channel.id)
        _send_last(channel, bytes(tls.encrypted) + tls.layer.outgoing())
        closed = self._broken(channel, str(error))
        if not isinstance(error, AuthenticationException):
            return replace(closed, speaks_tls=True)
        return Closed(channel.id, closed.reason, error)

    def _broken(self, channel: Channel, reason: str) -> Closed:
        tls = self._tls.get(channel.id)
        closed = super()._broken(channel, reason)
        return replace(closed, speaks_tls=tls is not None and tls.layer.has_received)

    def _write(self, channel: Channel) -> list[SelectorEvent]:
        tls = self._tls[channel.id]
        events: list[SelectorEvent] = []
        has_taken = False
        try:
            while self._encrypt(channel, tls, events):
                sent = channel.socket.send(tls.encrypted)
                tls.encrypted = tls.encrypted[sent:]
                has_taken = True
        except BlockingIOError:
            pass
        except AuthenticationException as error:
            return [*events, self._failed(channel, error)]
        except OSError as error:
            return [*events, *self._after_write_error(channel, error)]
        self._watch(channel)
        if has_taken and tls.is_open and channel.sends and not events:
            events.append(PartlySent(channel.id))
        return events

    def _encrypt(self, channel: Channel, tls: _Tls, events: list[SelectorEvent]) -> bool:
        """Record the sends that are completely written, and prepare the next bytes to send.

        Return whether there are bytes to send.
        """
        if tls.encrypted:
            return True
        events += [Sent(channel.id)] * finish_sends(channel.sends, tls.finished)
        tls.finished = 0
        encrypted = tls.layer.outgoing()
        if not encrypted and tls.is_open and channel.buffers:
            piece, tls.finished = take_piece(channel.buffers)
            encrypted = tls.layer.encrypt(piece)
        tls.encrypted = memoryview(encrypted)
        return bool(encrypted)

    def _interest(self, channel: Channel) -> int:
        tls = self._tls[channel.id]
        if channel.connecting or tls.encrypted or (tls.is_open and channel.buffers):
            return selectors.EVENT_READ | selectors.EVENT_WRITE
        return selectors.EVENT_READ


def _send_last(channel: Channel, data: bytes) -> None:
    with suppress(OSError):
        if data and not channel.connecting:
            channel.socket.send(data)

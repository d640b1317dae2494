"""Connections between the producer and the simulated brokers, instead of sockets.

`SimulatedSelector` has the methods of `network.selector.Selector`, so the real `NetworkClient` runs
on it. It carries frames, encoded and decoded by the real `Connection`, or, for speed, the messages
themselves (`MessageConnection`).

Messages on a connection arrive in order, each after a delay. A connection may break (one or both
sides notice), become silent without notice, or stall, in both directions or only towards the
client.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, cast

from simulation.cluster import DROPPING_PORT, FIRST_PORT, REFUSING_PORT, Cluster
from simulation.controller import Session
from simulation.scheduler import Scheduler, SimulationError
from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.network.connection import Connection, InFlightRequest
from spark_kafka_sink.network.connection_state import ConnectionEvent
from spark_kafka_sink.network.selector import (
    Address,
    Closed,
    Connected,
    Received,
    SelectorEvent,
    Sent,
)
from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, NodeReady, NodeThrottled
from spark_kafka_sink.wire.messages import (
    API_OF,
    API_VERSIONS,
    APIS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Request,
)
from spark_kafka_sink.wire.primitives import Buffer, Writer
from spark_kafka_sink.wire.versions import NodeApiVersions

_HEADER = struct.Struct(">ihhi")
_MOST_POLLS_AT_ONE_TIME = 300
_MOST_IDLE_POLLS = 20


class Asked(NamedTuple):
    """The fields of a request that its response needs."""

    api_key: int
    version: int
    correlation_id: int


def resolve(host: str, port: int) -> list[Address]:
    """Return the address of a simulated broker."""
    return [(0, (host, port))]


class MessageConnection(Connection):
    """A connection that carries messages instead of bytes, for speed."""

    def connected(self, now: float) -> None:
        """Send the ApiVersions request."""
        self._handle(ConnectionEvent.CONNECT)
        self._post(None, ApiVersionsRequest(), now, expects_response=True)

    def send(self, request: ClientRequest, now: float) -> None:
        """Send a request as a message."""
        self._post(request, request.message, now, expects_response=request.expects_response)

    def received(self, data: Any, now: float) -> Iterator[Answered | NodeReady | NodeThrottled]:  # noqa: ANN401 - not bytes, here
        """Process a response that is a message."""
        asked, response = data
        sent = self.in_flight.oldest()
        if sent is None or sent.correlation_id != asked.correlation_id:
            message = f"correlation id {asked.correlation_id} was not asked now"
            raise ProtocolError(message)
        self.in_flight.complete_oldest(now)
        if sent.request is not None:
            answered = Answered(sent.request, self.node_id, response, sent.version)
            return iter([answered, *self._throttled(sent, response, now)])
        self._versions = NodeApiVersions.of(response)
        self._handle(ConnectionEvent.LEARN_VERSIONS)
        return iter([NodeReady(self.node_id, self._versions)])

    def _post(
        self,
        request: ClientRequest | None,
        message: Request,
        now: float,
        *,
        expects_response: bool,
    ) -> None:
        api = API_OF[type(message)]
        number = self._correlation_id()
        version = api.max_version
        if request is not None and request.max_version is not None:
            version = min(version, request.max_version)
        self.in_flight.add(InFlightRequest(request, api, version, number, now, expects_response, 0))
        parcel = (Asked(api.key, version, number), message)
        self._outgoing.append([cast(Buffer, parcel)])


@dataclass(slots=True, eq=False)
class Channel:
    """One connection, seen from outside."""

    id: int
    session: Session
    is_up: bool = False
    is_silent: bool = False
    repeats: bool = False
    stalled_until: float = 0.0
    mute_until: float = 0.0
    last_arrival: float = 0.0
    last_answer: float = 0.0
    transit: deque[Any] = field(default_factory=deque)


class SimulatedSelector:
    """Channels to simulated brokers. Simulated time passes in `poll`."""

    def __init__(
        self,
        cluster: Cluster,
        scheduler: Scheduler,
        random: Random,
        *,
        as_bytes: bool,
        delay_s: float,
    ) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._random = random
        self._as_bytes = as_bytes
        self.delay_s = delay_s
        self.channels: dict[int, Channel] = {}
        self.unreachable: set[int] = set()
        self.producer_paused_s = 0.0
        self._paused_until = 0.0
        self.polls = 0
        self._pending: list[SelectorEvent] = []
        self._is_woken = False
        self._was_used = False
        self._polls_now = 0
        self._idle_polls = 0
        self._last_poll = -1.0

    # -- the calls of Selector --------------------------------------------------------------------

    def connect(self, channel_id: int, address: Address, layer: object = None) -> None:
        """Start connecting."""
        port = address[1][1]
        if port == DROPPING_PORT:
            return
        if port == REFUSING_PORT:
            refused = Closed(channel_id, "connection refused")
            self._scheduler.after(self._delay(), self._occur, refused)
            return
        broker = self._cluster.brokers[port - FIRST_PORT]

        def reply(asked: Asked, response: Any) -> None:  # noqa: ANN401 - any response type
            self._answer(channel, asked, response)

        def hang_up() -> None:
            self.break_channel(channel, notifies_client=True)

        channel = Channel(channel_id, Session(broker, reply, hang_up))
        self.channels[channel_id] = channel
        if broker.id not in self.unreachable:
            self._scheduler.after(self._delay(), self._connected, channel)

    def send(self, channel_id: int, buffers: Sequence[Buffer]) -> None:
        """Send one request."""
        channel = self.channels.get(channel_id)
        if channel is None:
            return
        request: Any = buffers[0]
        if self._as_bytes:
            request = read_request(b"".join(bytes(buffer) for buffer in buffers))
        channel.transit.append(request)
        self._was_used = True
        now = self._scheduler.now
        channel.last_arrival = max(channel.last_arrival, channel.stalled_until, now + self._delay())
        self._scheduler.at(channel.last_arrival, self._arrived, channel)
        self._scheduler.at(channel.stalled_until, self._report, channel, Sent(channel_id))

    def rest(self, channel_id: int) -> Iterator[SelectorEvent]:
        """Yield the pending events of a channel."""
        yield from [event for event in self._pending if event.channel == channel_id]

    def close(self, channel_id: int) -> None:
        """Close from the producer's side; sent messages may still arrive."""
        channel = self.channels.pop(channel_id, None)
        if channel is not None and channel.session.is_open:
            self._end_session(channel)

    def close_all(self) -> None:
        """Close every channel."""
        for channel_id in list(self.channels):
            self.close(channel_id)
        self._pending.clear()

    def wakeup(self) -> None:
        """End the current poll."""
        self._is_woken = True

    def poll(self, timeout_s: float) -> list[SelectorEvent]:
        """Let time pass until there is an event for the producer, or `timeout_s` is over."""
        self._check_progress(timeout_s)
        scheduler = self._scheduler
        deadline = scheduler.now + max(0.0, timeout_s)
        while not self._pending and not self._is_woken:
            if scheduler.next_at() > deadline:
                scheduler.now = deadline
                break
            scheduler.run_next()
        if self._random.random() < 0.2:
            scheduler.run_until(scheduler.now + self._random.uniform(0, 0.004))
        scheduler.run_until(self._paused_until)
        self._is_woken = False
        pending, self._pending = self._pending, []
        return pending

    def _check_progress(self, timeout_s: float) -> None:
        self.polls += 1
        now = self._scheduler.now
        self._polls_now = self._polls_now + 1 if now == self._last_poll else 0
        self._last_poll = now
        is_idle = timeout_s <= 0 and not self._pending and not self._is_woken and not self._was_used
        self._was_used = False
        self._idle_polls = self._idle_polls + 1 if is_idle else 0
        if self._polls_now > _MOST_POLLS_AT_ONE_TIME or self._idle_polls > _MOST_IDLE_POLLS:
            message = f"the I/O thread is in a busy loop at {now:.4f} s"
            raise SimulationError(message)

    # -- faults -----------------------------------------------------------------------------------

    def break_channel(self, channel: Channel, *, notifies_client: bool) -> None:
        """Break a connection; the producer gets an event, or notices by a timeout."""
        if not self._is_known(channel) or channel.is_silent:
            return
        self._scheduler.trace(
            "network", "connection {} to broker {} breaks{}", channel.id,
            channel.session.broker.id, "" if notifies_client else " silently",
        )  # fmt: skip
        if channel.session.is_open:
            self._end_session(channel)
        if notifies_client:
            self._scheduler.after(self._delay(), self._report_closed, channel, "connection reset")
        else:
            channel.is_silent = True

    def pause_producer(self, lasts_s: float) -> None:
        """Pause the producer's process, including its I/O thread."""
        until = self._scheduler.now + lasts_s
        more = until - max(self._paused_until, self._scheduler.now)
        if more > 0:
            self.producer_paused_s += more
            self._paused_until = until

    def broker_died(self, broker_id: int, *, notifies_client: bool) -> None:
        """Break every connection of a broker that was killed."""
        for channel in list(self.channels.values()):
            if channel.session.broker.id == broker_id:
                channel.session.is_open = False
                channel.transit.clear()
                self.break_channel(channel, notifies_client=notifies_client)

    # -- inside -----------------------------------------------------------------------------------

    def _is_known(self, channel: Channel) -> bool:
        """Whether the producer has a channel open; a later client may use its number."""
        return self.channels.get(channel.id) is channel

    def _delay(self) -> float:
        return self._random.uniform(0.0001, self.delay_s)

    def _connected(self, channel: Channel) -> None:
        if not self._is_known(channel):
            return
        if not channel.session.broker.is_alive:
            self._report_closed(channel, "connection refused")
            return
        channel.is_up = True
        self._report(channel, Connected(channel.id))

    def _arrived(self, channel: Channel) -> None:
        if channel.transit and channel.session.is_open and not channel.is_silent:
            self._cluster.receive(channel.session, channel.transit.popleft())

    def _end_session(self, channel: Channel) -> None:
        self._cluster.closed(channel.session, list(channel.transit))
        channel.transit.clear()

    def _answer(self, channel: Channel, asked: Asked, response: Any) -> None:  # noqa: ANN401 - any response type
        now = self._scheduler.now
        held_until = max(channel.stalled_until, channel.mute_until)
        channel.last_answer = max(channel.last_answer, held_until, now + self._delay())
        data = frame_of(asked, response) if self._as_bytes else (asked, response)
        received = Received(channel.id, cast(bytes, data))
        self._scheduler.at(channel.last_answer, self._report, channel, received)
        if channel.repeats:
            channel.repeats = False
            self._scheduler.at(channel.last_answer, self._report, channel, received)

    def _report(self, channel: Channel, event: SelectorEvent) -> None:
        if self._is_known(channel) and not channel.is_silent:
            if isinstance(event, Received) and not channel.session.is_open:
                return
            self._occur(event)

    def _report_closed(self, channel: Channel, reason: str) -> None:
        if self._is_known(channel):
            self._occur(Closed(channel.id, reason))

    def _occur(self, event: SelectorEvent) -> None:
        """Keep an event for the next poll."""
        self._pending.append(event)


def read_request(frame: bytes) -> tuple[Asked, Any]:
    """Return a parsed request, and the fields that its response needs."""
    size, key, version, correlation_id = _HEADER.unpack_from(frame)
    assert size == len(frame) - 4
    api = APIS[key]
    flexible = api.is_flexible(version)
    (client_id_size,) = struct.unpack_from(">h", frame, _HEADER.size)
    position = _HEADER.size + 2 + client_id_size + (1 if flexible else 0)
    read = message_codecs.reader(api.request, version, flexible=flexible)
    message, position = read(frame, position)
    assert position == len(frame)
    return Asked(key, version, correlation_id), message


def frame_of(asked: Asked, response: Any) -> bytes:  # noqa: ANN401 - any response type
    """Return the frame of a response."""
    api = APIS[asked.api_key]
    flexible = api.is_flexible(asked.version)
    writer = Writer()
    writer.out += struct.pack(">ii", 0, asked.correlation_id)
    if flexible and api is not API_VERSIONS:
        writer.out.append(0)
    assert isinstance(response, api.response)
    if isinstance(response, ApiVersionsResponse):
        assert asked.version <= API_VERSIONS.max_version
    message_codecs.writer(api.response, asked.version, flexible=flexible)(response, writer)
    struct.pack_into(">i", writer.out, 0, len(writer.out) - 4)
    return bytes(writer.out)

"""Connection: one broker connection's protocol, bytes in and bytes out. Pure: no socket, no clock.

Owns the connection's state, its requests in flight and the frames being received. The first request
on every connection is ApiVersions, behind the TLS handshake where there is one; the connection is
READY when it is answered.

A broker that refuses the version of ApiVersions is asked in one that its refusal lists (KIP-511),
and in version 0 where neither list nor answer can be read: some brokers of other makes write them
otherwise than Kafka does.

::

    CONNECTING ──connected──> CHECKING_API_VERSIONS ──answered──> READY
        │ with TLS                ^ secured
        └─────────> TLS_HANDSHAKE ┘

Each state but CLOSED becomes CLOSED when the connection is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_kafka_sink import __version__, error_codes
from spark_kafka_sink.error_codes import error_code
from spark_kafka_sink.errors import IllegalStateException, ProtocolError
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, NodeReady, NodeThrottled
from spark_kafka_sink.wire.frames import (
    FrameSplitter,
    decode_response,
    encode_request,
    response_correlation_id,
)
from spark_kafka_sink.wire.messages import (
    API_OF,
    API_VERSIONS,
    Api,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Response,
)
from spark_kafka_sink.wire.primitives import Buffer
from spark_kafka_sink.wire.versions import NodeApiVersions


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request on the wire; `request` is None for the connection's own ApiVersions.

    throttled_s: how long the broker has said it will not read from the connection meanwhile.
    """

    request: ClientRequest | None
    api: Api
    version: int
    correlation_id: int
    sent_at: float
    expects_response: bool
    throttled_s: float = 0.0


class InFlightRequests:
    """One connection's requests, oldest first; times are seconds of the producer's clock."""

    def __init__(self, request_timeout_s: float) -> None:
        self._request_timeout_s = request_timeout_s
        self._requests: deque[InFlightRequest] = deque()
        # Those whose frames are not written yet.
        self._unwritten: deque[InFlightRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: InFlightRequest) -> None:
        """Note a request that is being sent."""
        self._requests.append(request)
        self._unwritten.append(request)

    def oldest(self) -> InFlightRequest | None:
        """Give the request that is answered next, None if no answer can come now."""
        if not self._requests or not self._requests[0].expects_response:
            return None
        return self._requests[0]

    def complete_oldest(self) -> InFlightRequest:
        """Remove the oldest request and give it."""
        return self._requests.popleft()

    def written(self) -> InFlightRequest | None:
        """Note that the next frame is written; give its request if that completes it."""
        request = self._unwritten.popleft()
        if request.expects_response:
            return None
        self._requests.remove(request)
        return request

    def throttle(self, pause_s: float) -> None:
        """Give what is in flight more time: a broker that throttles reads it later (KIP-219)."""
        for request in self._requests:
            request.throttled_s += pause_s

    def expires_at(self) -> float:
        """Give when the oldest request times out; infinity if nothing is in flight."""
        if not self._requests:
            return float("inf")
        oldest = self._requests[0]
        return oldest.sent_at + self._request_timeout_s + oldest.throttled_s

    def clear(self) -> list[InFlightRequest]:
        """Remove all and give them, oldest first."""
        requests = list(self._requests)
        self._requests.clear()
        self._unwritten.clear()
        return requests


# Correlation ids above are kept for SASL, as in the Java client (SaslClientAuthenticator).
MAX_CORRELATION_ID: Final = 2**31 - 1 - 8
# Metadata of 200,000 partitions is 10 MB; nothing that a producer asks for is larger.
MAX_RESPONSE_BYTES: Final = 100 * 1024 * 1024
# The version of each API, by its key, from which on a broker that throttles answers at once and
# leaves the pause to the client (KIP-219); before, it has paused already.
_CLIENT_PAUSES_SINCE: Final[Mapping[int, int]] = {
    0: 6, 1: 8, 2: 3, 3: 6, 9: 4, 10: 2, 18: 2, 19: 3, 20: 2, 22: 1, 24: 1, 25: 1, 26: 1, 28: 1,
    32: 2, 37: 1,
}  # fmt: skip
_NEVER: Final = 2**15
_SOFTWARE_NAME: Final = "spark-kafka-sink"


class ConnectionState(Enum):
    """Where a connection is."""

    CONNECTING = "waiting for TCP"
    TLS_HANDSHAKE = "in the TLS handshake"
    CHECKING_API_VERSIONS = "waiting for the broker's versions"
    READY = "takes requests"
    CLOSED = "gone"


TRANSITIONS: Final[Mapping[ConnectionState, frozenset[ConnectionState]]] = {
    ConnectionState.CONNECTING: frozenset(
        {
            ConnectionState.TLS_HANDSHAKE,
            ConnectionState.CHECKING_API_VERSIONS,
            ConnectionState.CLOSED,
        }
    ),
    ConnectionState.TLS_HANDSHAKE: frozenset(
        {ConnectionState.CHECKING_API_VERSIONS, ConnectionState.CLOSED}
    ),
    ConnectionState.CHECKING_API_VERSIONS: frozenset(
        {ConnectionState.READY, ConnectionState.CLOSED}
    ),
    ConnectionState.READY: frozenset({ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset(),
}


class Connection:
    """The protocol of one connection to the node `node_id`; times are the clock's seconds."""

    def __init__(
        self,
        node_id: int,
        client_id: str,
        request_timeout_s: float,
        api_versions_version: int = API_VERSIONS.max_version,
        *,
        has_tls: bool = False,
    ) -> None:
        self.node_id = node_id
        self._has_tls = has_tls
        self._api_versions_version = api_versions_version
        self.in_flight = InFlightRequests(request_timeout_s)
        self._client_id = client_id
        self._state = ConnectionState.CONNECTING
        self._splitter = FrameSplitter(MAX_RESPONSE_BYTES)
        self._versions: NodeApiVersions | None = None
        self._next_correlation_id = 0
        self.has_answered = False
        """Whether the broker has answered anything but ApiVersions."""
        self._outgoing: list[list[Buffer]] = []

    @property
    def state(self) -> ConnectionState:
        """Where the connection is."""
        return self._state

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent."""
        return self._state is ConnectionState.READY

    @property
    def is_inside_answer(self) -> bool:
        """Whether an answer has begun to come in and is not whole."""
        return self._splitter.is_inside_frame

    def take_outgoing(self) -> list[list[Buffer]]:
        """Give the frames that are to be written, each as the buffers of one send."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def connected(self, now: float) -> None:
        """Note that TCP is up; ApiVersions goes out, unless there is a TLS handshake before."""
        if self._has_tls:
            self._to(ConnectionState.TLS_HANDSHAKE)
        else:
            self._begin(now)

    def secured(self, now: float) -> None:
        """Note that the TLS handshake is done; ApiVersions goes out."""
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._to(ConnectionState.CHECKING_API_VERSIONS)
        self._ask_api_versions(self._api_versions_version, now)

    def send(self, request: ClientRequest, now: float) -> None:
        """Send a request in the highest version that both sides have.

        Raises UnsupportedVersionException where there is none, IllegalStateException where the
        connection is not ready.
        """
        if self._versions is None or not self.is_ready:
            message = f"node {self.node_id} is {self._state.value} and takes no requests"
            raise IllegalStateException(message)
        api = API_OF[type(request.message)]
        version = self._versions.latest_usable_version(
            api, request.max_version, request.min_version
        )
        correlation_id = self._correlation_id()
        frame = encode_request(api, version, correlation_id, self._client_id, request.message)
        self.in_flight.add(
            InFlightRequest(request, api, version, correlation_id, now, request.expects_response)
        )
        self._outgoing.append(frame)

    def received(self, data: Buffer, now: float) -> Iterator[Answered | NodeReady | NodeThrottled]:
        """Take bytes from the broker and give what they mean, frame by frame.

        Raises ProtocolError at a frame that means nothing: the connection is then of no use. The
        request it should have answered, and those after it, are still in flight (`closed`).
        """
        for frame in self._splitter.feed(data):
            sent = self.in_flight.oldest()
            answered_id = response_correlation_id(frame)
            if sent is None or sent.correlation_id != answered_id:
                asked = "nothing" if sent is None else str(sent.correlation_id)
                message = (
                    f"node {self.node_id} answered correlation id {answered_id} "
                    f"where {asked} was asked"
                )
                raise ProtocolError(message, node_id=self.node_id)
            if sent.request is None:
                self.in_flight.complete_oldest()
                yield from self._api_versions_answered(sent, frame, now)
            else:
                response = decode_response(sent.api, sent.version, frame)
                self.in_flight.complete_oldest()
                self.has_answered = True
                latency = now - sent.sent_at
                yield Answered(sent.request, self.node_id, response, sent.version, latency)
                yield from self._throttled(sent, response, now)

    def _throttled(
        self, sent: InFlightRequest, response: Response, now: float
    ) -> list[NodeThrottled]:
        """Give the pause that an answer asks for, if the client is to keep it."""
        pause_ms: int = getattr(response, "throttle_time_ms", 0)
        if pause_ms <= 0 or sent.version < _CLIENT_PAUSES_SINCE.get(sent.api.key, _NEVER):
            return []
        self.in_flight.throttle(pause_ms / 1000)
        return [NodeThrottled(self.node_id, now + pause_ms / 1000)]

    def sent(self) -> Answered | None:
        """Note that the next send was written: that completes a request without a response."""
        done = self.in_flight.written()
        if done is None or done.request is None:
            return None
        return Answered(done.request, self.node_id, None)

    def closed(self) -> list[ClientRequest]:
        """Note that the connection is gone and give the requests that it leaves unanswered."""
        if self._state is not ConnectionState.CLOSED:
            self._to(ConnectionState.CLOSED)
        self._outgoing.clear()
        return [sent.request for sent in self.in_flight.clear() if sent.request is not None]

    def _ask_api_versions(self, version: int, now: float) -> None:
        correlation_id = self._correlation_id()
        message = ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME, client_software_version=__version__
        )
        self._outgoing.append(
            encode_request(API_VERSIONS, version, correlation_id, self._client_id, message)
        )
        self.in_flight.add(
            InFlightRequest(None, API_VERSIONS, version, correlation_id, now, True)  # noqa: FBT003 - expects_response, as in the class
        )

    def _api_versions_answered(
        self, sent: InFlightRequest, frame: bytes, now: float
    ) -> list[NodeReady | NodeThrottled]:
        version = sent.version
        code = int.from_bytes(frame[4:6], "big", signed=True)
        refused = code == error_codes.UNSUPPORTED_VERSION
        try:
            # A refusal comes in version 0, and lists what the broker does speak (KIP-511).
            response = decode_response(API_VERSIONS, 0 if refused else version, frame)
        except ProtocolError:
            if version == 0:
                raise
            self._ask_api_versions(0, now)
            return []
        if not isinstance(response, ApiVersionsResponse):
            message = f"node {self.node_id} did not answer ApiVersions with ApiVersions"
            raise ProtocolError(message, node_id=self.node_id)
        if refused and version > 0:
            listed = [a.max_version for a in response.api_keys if a.api_key == API_VERSIONS.key]
            self._ask_api_versions(max(0, min([version - 1, *listed])) if listed else 0, now)
            return []
        if response.error_code != error_codes.NONE:
            row = error_code(response.error_code)
            message = f"node {self.node_id} refused ApiVersions: {row.name} ({row.code})"
            raise ProtocolError(message, node_id=self.node_id)
        self._versions = NodeApiVersions.of(response)
        self._to(ConnectionState.READY)
        ready = NodeReady(self.node_id, self._versions)
        return [ready, *self._throttled(sent, response, now)]

    def _correlation_id(self) -> int:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % (MAX_CORRELATION_ID + 1)
        return correlation_id

    def _to(self, state: ConnectionState) -> None:
        if state not in TRANSITIONS[self._state]:
            message = f"a connection that is {self._state.name} cannot become {state.name}"
            raise IllegalStateException(message)
        self._state = state

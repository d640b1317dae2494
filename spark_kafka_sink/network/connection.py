"""Connection: the Kafka protocol on one broker connection. It uses no socket and no clock.

It turns received bytes into responses, and requests into bytes to send. It owns the connection's
state, its requests in flight and the frames being received. The first request on every connection
is ApiVersions. It follows the TLS handshake and precedes the SASL login, if they are used. The
connection is READY after all of these steps.

While the connection re-authenticates (`SaslAuthenticator`), it holds requests back, because the
broker would read them as SASL tokens. Later, it sends them in order.

If a broker does not support the version of the ApiVersions request, the client retries with a
version from the error response (KIP-511). It retries with version 0 if the error response lists no
version of ApiVersions or cannot be parsed, because some implementations encode responses
differently from Kafka.

The table in `connection_state` defines the states and the transitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_kafka_sink import error_codes
from spark_kafka_sink.errors import (
    IllegalSaslStateException,
    IllegalStateException,
    KafkaException,
    NetworkException,
    Option,
    ProtocolError,
    SslAuthenticationException,
    UnsupportedVersionException,
    error_code,
)
from spark_kafka_sink.network.connection_state import (
    EVENTS,
    ConnectionAction,
    ConnectionEvent,
    ConnectionState,
)
from spark_kafka_sink.network.sasl_authenticator import Login, SaslAuthenticator
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
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Request,
    Response,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_kafka_sink.wire.primitives import Buffer
from spark_kafka_sink.wire.versions import NodeApiVersions


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request that was sent, and that has no response yet.

    request: None for the connection's own requests, such as ApiVersions. written_at: None while its
    frame is being written. size_bytes: the size of the frame. throttled_s: the sum of the broker's
    throttle times since the request was sent, in seconds. They extend the timeout of the request.
    """

    request: ClientRequest | None
    api: Api
    version: int
    correlation_id: int
    sent_at: float
    expects_response: bool
    size_bytes: int
    written_at: float | None = None
    throttled_s: float = 0.0

    @property
    def held_back_s(self) -> float:
        """How long the broker may delay the response: throttle times, and a Fetch's max_wait_ms."""
        message = None if self.request is None else self.request.message
        max_wait_ms: int = getattr(message, "max_wait_ms", 0)
        return self.throttled_s + max_wait_ms / 1000


class Unanswered(NamedTuple):
    """The API of a request in flight, and for how many seconds the broker has sent nothing."""

    api: Api
    silent_s: float


class InFlightRequests:
    """The requests in flight on one connection, oldest first; times are seconds of the clock."""

    def __init__(self, request_timeout_s: float) -> None:
        self._request_timeout_s = request_timeout_s
        self._requests: deque[InFlightRequest] = deque()
        # The requests whose frames are not written yet.
        self._unwritten: deque[InFlightRequest] = deque()
        # When bytes were last received. `missed` adds the time in which the client did not read.
        self._received_at = float("-inf")
        # When the socket last took bytes of a request, and when the last response was complete.
        self._taken_at = self._answered_at = float("-inf")

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: InFlightRequest) -> None:
        """Add a request that is being sent."""
        self._requests.append(request)
        self._unwritten.append(request)

    def oldest(self) -> InFlightRequest | None:
        """Return the request that the next response belongs to, or None if no response is due."""
        if not self._requests or not self._requests[0].expects_response:
            return None
        return self._requests[0]

    def unanswered(self, now: float) -> Unanswered | None:
        """Return the request whose response is due next, or None if no response is due.

        No response is due while a request is being written. The time for which the broker may delay
        the response (`held_back_s`) does not count in `silent_s`. Any thread may call this.
        """
        try:
            oldest = self._requests[0]
        except IndexError:
            return None
        if not oldest.expects_response or oldest.written_at is None:
            return None
        since = max(oldest.written_at, self._received_at)
        return Unanswered(oldest.api, now - since - oldest.held_back_s)

    def received(self, now: float) -> None:
        """Record that bytes were received. They may be only a part of a response."""
        self._received_at = now

    def missed(self, gap_s: float) -> None:
        """Record that the client did not read for `gap_s` seconds. They do not count as silence."""
        oldest = self.oldest()
        if oldest is not None and oldest.written_at is not None:
            self._received_at = max(oldest.written_at, self._received_at) + gap_s

    def complete_oldest(self, now: float) -> None:
        """Remove the oldest request, because its response has arrived."""
        self._requests.popleft()
        self._received_at = self._answered_at = now

    def taken(self, now: float) -> None:
        """Record that the socket has taken a part of the next frame."""
        self._taken_at = now

    @property
    def next_frame_bytes(self) -> int:
        """The size of the first frame that is not completely written."""
        return self._unwritten[0].size_bytes

    def written(self, now: float) -> InFlightRequest | None:
        """Record that the next frame has been written.

        Return the request in that frame if it expects no response (acks=0), otherwise None.
        """
        request = self._unwritten.popleft()
        request.written_at = self._taken_at = now
        if request.expects_response:
            return None
        self._requests.remove(request)
        return request

    def throttle(self, pause_s: float) -> None:
        """Extend the timeout of the requests in flight by a throttle time.

        The broker does not read from the connection during the throttle time (KIP-219).
        """
        for request in self._requests:
            request.throttled_s += pause_s

    def expires_at(self) -> float:
        """Return when the oldest request times out; infinity if no request is in flight.

        While the request is being written, its time begins again whenever the socket takes bytes.
        So an upload that is slow but steady never times out. Then the time begins with the last
        byte, or with a later response: brokers process the requests of a connection one by one, so
        a request may wait for the earlier ones.
        """
        if not self._requests:
            return float("inf")
        oldest = self._requests[0]
        if oldest.written_at is None:
            since = max(oldest.sent_at, self._taken_at)
        else:
            since = max(oldest.written_at, self._answered_at)
        return since + self._request_timeout_s + oldest.throttled_s

    def largest_produce_bytes(self) -> int:
        """Return the size of the largest Produce request in flight; 0 if there is none."""
        sizes = (each.size_bytes for each in self._requests if each.api is PRODUCE)
        return max(sizes, default=0)

    def clear(self) -> list[InFlightRequest]:
        """Remove and return all requests in flight, oldest first."""
        requests = list(self._requests)
        self._requests.clear()
        self._unwritten.clear()
        return requests


class UnansweredRequests(NamedTuple):
    """The requests of a closed connection that got no response, oldest first.

    held: the requests that were not sent before the connection closed, for example because it was
    re-authenticating or waited for credentials. They were made after the requests in flight.
    """

    in_flight: list[ClientRequest]
    held: list[ClientRequest]


# Greater correlation ids are reserved for SASL, as in the Java client (SaslClientAuthenticator).
MAX_CORRELATION_ID: Final = 2**31 - 1 - 8
# Every known broker takes requests of up to this size. The smallest known limit is that of Azure
# Event Hubs, 1,046,528 bytes.
LARGE_REQUEST_BYTES: Final = 1_000_000
# Metadata of 200,000 partitions is 10 MB. No other response to a producer is larger.
MAX_RESPONSE_BYTES: Final = 100 * 1024 * 1024
# Responses are small until the client has logged in.
_SETUP_RESPONSE_BYTES: Final = 1024 * 1024
# For each API key, the first version in which a throttling broker responds at once, so that the
# client must wait for the throttle time (KIP-219). In lower versions, the broker waits first.
_CLIENT_PAUSES_SINCE: Final[Mapping[int, int]] = {
    0: 6, 1: 8, 2: 3, 3: 6, 9: 4, 10: 2, 18: 2, 19: 3, 20: 2, 22: 1, 24: 1, 25: 1, 26: 1, 28: 1,
    32: 2, 37: 1, 38: 1, 39: 1, 40: 1, 41: 1,
}  # fmt: skip
_NEVER: Final = 2**15
_SOFTWARE_NAME: Final = "spark-kafka-sink"
_RENEWALS: Final = (ConnectionState.RENEWAL_HANDSHAKE, ConnectionState.RENEWAL_TOKENS)
# The version that stands for a bare SASL token, which has no header and no correlation id.
_BARE: Final = -1


class Connection:
    """The protocol state of one connection to the node `node_id`; times are seconds of the clock.

    peer: the name of the node in error messages.
    """

    def __init__(
        self,
        node_id: int,
        client_id: str,
        request_timeout_s: float,
        api_versions_version: int = API_VERSIONS.max_version,
        *,
        has_tls: bool = False,
        login: Login | None = None,
        peer: str = "",
        software_version: str = "unknown",
    ) -> None:
        self._peer = peer or f"node {node_id}"
        self._authenticator = SaslAuthenticator(login, self._peer, node_id)
        self.awaits_login_since: float | None = None
        """The time since which requests wait for credentials because the session has ended.

        None if no request waits for credentials.
        """
        # The requests that wait for the end of a re-authentication, with their frames.
        self._held: deque[tuple[InFlightRequest, list[Buffer]]] = deque()
        self.node_id = node_id
        self.has_tls = has_tls
        """Whether the connection uses TLS."""
        self._api_versions_version = api_versions_version
        self._software_version = software_version
        self.in_flight = InFlightRequests(request_timeout_s)
        self._client_id = client_id
        self._state = ConnectionState.CONNECTING
        self._splitter = FrameSplitter(_SETUP_RESPONSE_BYTES, has_tls=has_tls)
        self._versions: NodeApiVersions | None = None
        self._next_correlation_id = 0
        self.has_answered = False
        """Whether the broker has answered a request of a caller, not only the connection's own."""
        self.has_answered_large = False
        """Whether a request of more than `LARGE_REQUEST_BYTES` was answered."""
        self._outgoing: list[list[Buffer]] = []

    @property
    def state(self) -> ConnectionState:
        """The state of the connection."""
        return self._state

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent."""
        return self._state is ConnectionState.READY or self._state in _RENEWALS

    @property
    def has_login(self) -> bool:
        """Whether the connection uses SASL."""
        return self._authenticator.is_used

    @property
    def is_renewing(self) -> bool:
        """Whether the connection is re-authenticating."""
        return self._state in _RENEWALS

    def take_renewals(self) -> list[float]:
        """Return the duration in seconds of each re-authentication since the last call."""
        return self._authenticator.take_renewals()

    @property
    def load(self) -> int:
        """The number of requests that are in flight, or held until a re-authentication ends."""
        return len(self.in_flight) + len(self._held)

    @property
    def is_inside_answer(self) -> bool:
        """Whether only a part of a response has arrived."""
        return self._splitter.is_inside_frame

    def take_outgoing(self) -> list[list[Buffer]]:
        """Return the frames to write, each as a list of buffers."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def connected(self, now: float) -> None:
        """Record that TCP is connected. Send ApiVersions, unless a TLS handshake comes first."""
        self._begin(ConnectionEvent.CONNECT_TLS if self.has_tls else ConnectionEvent.CONNECT, now)

    def secured(self, now: float) -> None:
        """Record that the TLS handshake is complete, and send ApiVersions."""
        self._begin(ConnectionEvent.SECURE, now)

    def _begin(self, event: ConnectionEvent, now: float) -> None:
        if self._handle(event) is ConnectionAction.ASK_API_VERSIONS:
            self._ask_api_versions(self._api_versions_version, now)

    def send(self, request: ClientRequest, now: float) -> None:
        """Send a request in the highest version that both sides support.

        Raise UnsupportedVersionException if there is no such version, and IllegalStateException if
        the connection is not ready.
        """
        if self._versions is None or not self.is_ready:
            message = f"node {self.node_id} is {self._state.value} and accepts no requests"
            raise IllegalStateException(message)
        api = API_OF[type(request.message)]
        version = self._versions.latest_usable_version(
            api, request.max_version, request.min_version
        )
        correlation_id = self._correlation_id()
        frame = encode_request(api, version, correlation_id, self._client_id, request.message)
        # Re-authenticate only after the request is known to be valid: the caller writes the frames
        # of the re-authentication only if `send` returns.
        if self._state is ConnectionState.READY and self._authenticator.may_renew(now):
            self._renew(now)
        sent = InFlightRequest(
            request, api, version, correlation_id, now, request.expects_response, _size(frame)
        )
        if self._state in _RENEWALS or self.awaits_login_since is not None:
            self._held.append((sent, frame))
            return
        self.in_flight.add(sent)
        self._outgoing.append(frame)

    def received(self, data: Buffer, now: float) -> Iterator[Answered | NodeReady | NodeThrottled]:
        """Process bytes from the broker, and yield the events of each complete frame.

        Raise ProtocolError for an invalid frame, AuthenticationException if the broker or this
        client rejects the login, and NetworkException if there are no credentials now. After an
        exception, the connection is unusable. The request whose response could not be processed and
        all later requests are still in flight; `closed` returns them.
        """
        self.in_flight.received(now)
        for frame in self._frames(data):
            sent = self.in_flight.oldest()
            if sent is not None and sent.version == _BARE:
                self.in_flight.complete_oldest(now)
                yield from self._token_came(frame, None, now)
                continue
            answered_id = response_correlation_id(frame)
            if sent is None or sent.correlation_id != answered_id:
                asked = "nothing" if sent is None else str(sent.correlation_id)
                message = (
                    f"node {self.node_id} answered with correlation id {answered_id}, "
                    f"expected {asked}"
                )
                raise ProtocolError(message, node_id=self.node_id)
            if sent.request is None:
                self.in_flight.complete_oldest(now)
                yield from self._own_answered(sent, frame, now)
            else:
                response = decode_response(sent.api, sent.version, frame)
                self.in_flight.complete_oldest(now)
                self.has_answered = True
                if sent.size_bytes > LARGE_REQUEST_BYTES:
                    self.has_answered_large = True
                latency = now - sent.sent_at
                yield Answered(sent.request, self.node_id, response, sent.version, latency)
                yield from self._throttled(sent, response, now)

    def _frames(self, data: Buffer) -> Iterator[bytes]:
        try:
            yield from self._splitter.feed(data)
        except ProtocolError:
            is_first_answer = self._state is ConnectionState.CHECKING_API_VERSIONS
            if self.has_tls or not (is_first_answer and self._splitter.holds_tls):
                raise
            raise SslAuthenticationException(
                f"{self._peer} expects TLS: set {Option('security.protocol')} to SSL or SASL_SSL, "
                "or use the port of a listener without TLS"
            ) from None

    def _throttled(
        self, sent: InFlightRequest, response: Response, now: float
    ) -> list[NodeThrottled]:
        """Return the event for a response's throttle time, if the client has to wait."""
        pause_ms: int = getattr(response, "throttle_time_ms", 0)
        if pause_ms <= 0 or sent.version < _CLIENT_PAUSES_SINCE.get(sent.api.key, _NEVER):
            return []
        self.in_flight.throttle(pause_ms / 1000)
        return [NodeThrottled(self.node_id, now + pause_ms / 1000)]

    def sent(self, now: float) -> Answered | None:
        """Record that the next frame was written.

        Return an event if the request in that frame expects no response.
        """
        done = self.in_flight.written(now)
        if done is None or done.request is None:
            return None
        return Answered(done.request, self.node_id, None)

    def closed(self) -> UnansweredRequests:
        """Record that the connection is closed, and return its unanswered requests."""
        if self._state is not ConnectionState.CLOSED:
            self._handle(ConnectionEvent.CLOSE)
        requests = self.in_flight.clear()
        # The frames that `take_outgoing` has not returned belong to the last requests.
        count = len(requests) - len(self._outgoing)
        in_flight, held = requests[:count], requests[count:]
        self._outgoing.clear()
        held += [sent for sent, _ in self._held]
        self._held.clear()
        self.awaits_login_since = None
        return UnansweredRequests(_of_callers(in_flight), _of_callers(held))

    def _ask_api_versions(self, version: int, now: float) -> None:
        message = ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME, client_software_version=self._software_version
        )
        self._ask(API_VERSIONS, version, message, now)

    def _ask(self, api: Api, version: int, message: Request, now: float) -> None:
        """Send a request that the connection itself makes, such as ApiVersions."""
        correlation_id = self._correlation_id()
        frame = encode_request(api, version, correlation_id, self._client_id, message)
        self._outgoing.append(frame)
        self.in_flight.add(
            InFlightRequest(None, api, version, correlation_id, now, True, _size(frame))  # noqa: FBT003 - expects_response, as in the class
        )

    def _own_answered(
        self, sent: InFlightRequest, frame: bytes, now: float
    ) -> Iterator[Answered | NodeReady | NodeThrottled]:
        if sent.api is API_VERSIONS:
            yield from self._api_versions_answered(sent, frame, now)
            return
        response = decode_response(sent.api, sent.version, frame)
        if isinstance(response, SaslHandshakeResponse):
            self._authenticator.check_handshake(response, is_renewal=self.is_renewing)
            self._handle(ConnectionEvent.ACCEPT_MECHANISM)
            self._send_token(self._authenticator.first(), now)
        elif isinstance(response, SaslAuthenticateResponse):
            if response.error_code != error_codes.NONE:
                raise self._authenticator.refusal(response.error_code, response.error_message)
            lifetime_ms = response.session_lifetime_ms if sent.version > 0 else None
            # The Java client also treats a missing token as an empty one.
            yield from self._token_came(bytes(response.auth_bytes or b""), lifetime_ms, now)

    # -- the login --------------------------------------------------------------------------------

    def _renew(self, now: float) -> None:
        """Begin to re-authenticate if there are credentials now."""
        has_begun = False
        # If this fails, the session may still be valid for a while, and the next request tries
        # again. After the session's end, requests are held, because the broker would reject them.
        # NetworkClient then calls `go_on`, and closes the connection if that fails.
        with suppress(KafkaException):
            has_begun = self.go_on(now)
        if not has_begun and self._authenticator.is_over(now) and self.awaits_login_since is None:
            self.awaits_login_since = now

    def go_on(self, now: float) -> bool:
        """Begin to re-authenticate if there are credentials now, and return whether it has begun.

        Raise KafkaException if no credentials can be obtained.
        """
        return self._begin_login(ConnectionEvent.RENEW, now)

    def _begin_login(self, event: ConnectionEvent, now: float) -> bool:
        mechanism = self._authenticator.begin(now)
        if mechanism is None:
            return False
        self.awaits_login_since = None
        self._handle(event)
        # SaslHandshake version 0 is for brokers without SaslAuthenticate. After it, tokens have no
        # header.
        version = self._version(SASL_HANDSHAKE, 1 if self._has_authenticate else 0)
        self._ask(SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism), now)
        return True

    @property
    def _has_authenticate(self) -> bool:
        try:
            self._version(SASL_AUTHENTICATE)
        except IllegalSaslStateException:
            return False
        return True

    def _version(self, api: Api, most: int | None = None) -> int:
        if self._versions is not None:
            with suppress(UnsupportedVersionException):
                return self._versions.latest_usable_version(api, most)
        raise IllegalSaslStateException(f"{self._peer} does not know the request {api.name}")

    def _send_token(self, token: bytes, now: float, *, expects_response: bool = True) -> None:
        """Send a SASL token. expects_response: may be False only for a token without a header."""
        if self._has_authenticate:
            message = SaslAuthenticateRequest(auth_bytes=token)
            self._ask(SASL_AUTHENTICATE, self._version(SASL_AUTHENTICATE), message, now)
            return
        frame = len(token).to_bytes(4, "big") + token
        self._outgoing.append([frame])
        self.in_flight.add(
            InFlightRequest(
                None, SASL_AUTHENTICATE, _BARE, _BARE, now, expects_response, len(frame)
            )
        )

    def _token_came(self, token: bytes, lifetime_ms: int | None, now: float) -> Iterator[NodeReady]:
        """Process a SASL token from the broker. Respond to it, or complete the login.

        lifetime_ms: the lifetime of the session; 0 for no limit, or None if the broker does not
        return it.
        """
        answer = self._authenticator.step(token)
        if answer is not None:
            # The broker does not respond to a last token without a header, as in GSSAPI.
            is_last = not self._has_authenticate and self._authenticator.is_complete
            self._send_token(answer, now, expects_response=not is_last)
            if not is_last:
                return
        self._authenticator.completed(lifetime_ms, now, is_renewal=self.is_renewing)
        action = self._handle(ConnectionEvent.COMPLETE_LOGIN)
        if action is ConnectionAction.REPORT_READY and self._versions is not None:
            yield NodeReady(self.node_id, self._versions)
        callers = [sent.request for sent, _ in self._held if sent.request is not None]
        if any(now >= request.send_by for request in callers):
            # Then `closed` returns all held requests as never sent.
            message = f"{self._peer} took too long to re-authenticate"
            raise NetworkException(message, node_id=self.node_id)
        while self._held:
            sent, frame = self._held.popleft()
            sent.sent_at = now
            self.in_flight.add(sent)
            self._outgoing.append(frame)

    def _api_versions_answered(
        self, sent: InFlightRequest, frame: bytes, now: float
    ) -> Sequence[NodeReady | NodeThrottled]:
        version = sent.version
        code = int.from_bytes(frame[4:6], "big", signed=True)
        refused = code == error_codes.UNSUPPORTED_VERSION
        try:
            # An error response has version 0, and lists the versions that the broker supports
            # (KIP-511).
            response = decode_response(API_VERSIONS, 0 if refused else version, frame)
        except ProtocolError:
            # If SASL is used, brokers may close a connection that sends ApiVersions again after a
            # successful response. So this connection fails, and the next connection uses version 0.
            if version == 0 or (self._authenticator.is_used and not refused):
                raise
            self._ask_api_versions(0, now)
            return []
        if not isinstance(response, ApiVersionsResponse):
            message = f"node {self.node_id} answered ApiVersions with a response to another API"
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
        throttled = self._throttled(sent, response, now)
        if self._authenticator.is_used:
            if not self._begin_login(ConnectionEvent.LEARN_VERSIONS_SASL, now):
                # The client connects again when there are credentials.
                raise NetworkException(f"{self._peer}: there are no credentials to log in with now")
            return throttled
        self._handle(ConnectionEvent.LEARN_VERSIONS)
        return [NodeReady(self.node_id, self._versions), *throttled]

    def _correlation_id(self) -> int:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % (MAX_CORRELATION_ID + 1)
        return correlation_id

    def _handle(self, event: ConnectionEvent) -> ConnectionAction:
        transition = EVENTS[self._state].get(event)
        if transition is None:
            message = f"a connection that is {self._state.name} cannot take the event {event.name}"
            raise IllegalStateException(message)
        self._state = transition.state
        if self._state is ConnectionState.READY:
            self._splitter.max_size_bytes = MAX_RESPONSE_BYTES
        return transition.action


def _size(frame: list[Buffer]) -> int:
    return sum(map(len, frame))


def _of_callers(requests: Iterable[InFlightRequest]) -> list[ClientRequest]:
    """Return the requests of callers, without the connection's own requests."""
    return [each.request for each in requests if each.request is not None]

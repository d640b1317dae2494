"""One connection's protocol: versions first, responses in order, garbage rejected. No sockets."""

from __future__ import annotations

import itertools
import re
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.jvm import run_java

from spark_kafka_sink import __version__
from spark_kafka_sink.errors import (
    IllegalStateException,
    ProtocolError,
    SslAuthenticationException,
    UnsupportedVersionException,
    name_options,
)
from spark_kafka_sink.network.connection import (
    _CLIENT_PAUSES_SINCE,
    Connection,
)
from spark_kafka_sink.network.connection_state import ConnectionState
from spark_kafka_sink.network.sasl_authenticator import Login
from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, NodeReady, NodeThrottled
from spark_kafka_sink.wire.messages import (
    API_OF,
    APIS,
    Api,
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    ProduceRequest,
    ProduceResponse,
    Response,
)
from spark_kafka_sink.wire.primitives import Writer

METADATA = MetadataRequest(topics=[])
BROKERS = MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)], topics=[])


class Broker:
    """Reads what a connection sends and makes answers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.requests: list[tuple[int, int, int]] = []

    def read(self) -> list[tuple[int, int, int]]:
        """Take what was sent: (api key, version, correlation id) of each request."""
        found = []
        for buffers in self.connection.take_outgoing():
            frame = b"".join(bytes(b) for b in buffers)
            size, key, version, correlation_id = struct.unpack_from(">ihhi", frame)
            assert size == len(frame) - 4
            found.append((key, version, correlation_id))
        self.requests += found
        return found

    def frame(self, api: Api, version: int, correlation_id: int, response: Response) -> bytes:
        """Make the frame of an answer."""
        flexible = api.is_flexible(version)
        writer = Writer()
        writer.out += struct.pack(">i", correlation_id)
        if flexible and api.name != "ApiVersions":
            writer.out.append(0)
        message_codecs.writer(api.response, version, flexible=flexible)(response, writer)
        return struct.pack(">i", len(writer.out)) + bytes(writer.out)


def all_versions() -> ApiVersionsResponse:
    """Return the response of a broker that has every version."""
    return ApiVersionsResponse(
        error_code=0,
        api_keys=[ApiVersion(api_key=key, min_version=0, max_version=99) for key in APIS],
    )


def ready() -> tuple[Connection, Broker]:
    """Bring a connection up."""
    connection = Connection(1, "client", 30.0)
    broker = Broker(connection)
    connection.connected(0.0)
    ((key, version, correlation_id),) = broker.read()
    assert connection.sent(0.0) is None
    frame = broker.frame(APIS[key], version, correlation_id, all_versions())
    (event,) = connection.received(frame, 0.0)
    assert isinstance(event, NodeReady)
    return connection, broker


def test_versions_are_asked_first_and_then_requests_may_go() -> None:
    connection = Connection(1, "client", 30.0)
    with pytest.raises(IllegalStateException):
        connection.send(ClientRequest(node_id=1, message=METADATA), 0.0)
    connection.connected(0.0)
    assert connection.state is ConnectionState.CHECKING_API_VERSIONS
    assert Broker(connection).read() == [(18, 4, 0)]
    connection, broker = ready()
    assert connection.is_ready
    request = ClientRequest(node_id=1, message=METADATA)
    connection.send(request, 0.0)
    assert broker.read() == [(3, 13, 1)]
    frame = broker.frame(API_OF[MetadataRequest], 13, 1, BROKERS)
    (answered,) = connection.received(frame, 0.0)
    assert isinstance(answered, Answered)
    assert answered.request is request
    assert answered.response == BROKERS


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        ([ApiVersion(api_key=18, min_version=0, max_version=2)], 2),
        ([ApiVersion(api_key=18, min_version=0, max_version=-5)], 0),
        ([], 0),
    ],
)
def test_a_broker_that_refuses_the_version_is_asked_in_one_it_speaks(
    listed: list[ApiVersion], asked: int
) -> None:
    connection = Connection(1, "client", 30.0)
    broker = Broker(connection)
    connection.connected(0.0)
    broker.read()
    api = APIS[18]
    refusal = ApiVersionsResponse(error_code=35, api_keys=listed)
    assert list(connection.received(broker.frame(api, 0, 0, refusal), 0.0)) == []
    assert broker.read() == [(18, asked, 1)]
    (event,) = connection.received(broker.frame(api, asked, 1, all_versions()), 0.0)
    assert isinstance(event, NodeReady)


@pytest.mark.parametrize(
    "answer",
    [
        # librdkafka's mock cluster: a refusal whose list has the length of a compact array less 1.
        "0023 01 0012 0000 0002 00 00000000",
        "0023",
        "0000 ffffffff",
        "00",
    ],
)
def test_versions_that_cannot_be_read_are_asked_for_in_version_0_on_the_same_connection(
    answer: str,
) -> None:
    connection = Connection(1, "client", 30.0)
    broker = Broker(connection)
    connection.connected(0.0)
    broker.read()
    body = struct.pack(">i", 0) + bytes.fromhex(answer)
    assert list(connection.received(struct.pack(">i", len(body)) + body, 0.0)) == []
    assert broker.read() == [(18, 0, 1)]
    (event,) = connection.received(broker.frame(APIS[18], 0, 1, all_versions()), 0.0)
    assert isinstance(event, NodeReady)


def test_with_a_login_they_are_asked_for_on_the_next_connection() -> None:
    connection = Connection(1, "client", 30.0, login=Login(lambda: None, "of user 'u'"))
    broker = Broker(connection)
    connection.connected(0.0)
    broker.read()
    with pytest.raises(ProtocolError, match="ApiVersions v4 response of 4 bytes cannot be read"):
        list(connection.received(struct.pack(">ii", 4, 0), 0.0))
    assert broker.read() == []


def test_after_a_refusal_they_are_asked_for_on_the_same_connection_also_with_a_login() -> None:
    connection = Connection(1, "client", 30.0, login=Login(lambda: None, "of user 'u'"))
    broker = Broker(connection)
    connection.connected(0.0)
    broker.read()
    assert list(connection.received(struct.pack(">iih", 6, 0, 35), 0.0)) == []
    assert broker.read() == [(18, 0, 1)]


def test_versions_that_cannot_be_read_in_version_0_either_are_an_error() -> None:
    connection = Connection(1, "client", 30.0, 0)
    connection.connected(0.0)
    with pytest.raises(ProtocolError, match="ApiVersions v0 response of 6 bytes cannot be read"):
        list(connection.received(struct.pack(">iih", 6, 0, 0), 0.0))


def test_any_other_refusal_of_versions_is_told() -> None:
    connection = Connection(1, "client", 30.0)
    broker = Broker(connection)
    connection.connected(0.0)
    refusal = ApiVersionsResponse(error_code=42, api_keys=[])
    with pytest.raises(ProtocolError, match=r"refused ApiVersions: INVALID_REQUEST \(42\)"):
        list(connection.received(broker.frame(APIS[18], 4, 0, refusal), 0.0))


def test_a_refusal_of_version_0_ends_instead_of_going_round() -> None:
    connection = Connection(1, "client", 30.0)
    broker = Broker(connection)
    connection.connected(0.0)
    refusal = ApiVersionsResponse(error_code=35, api_keys=[])
    list(connection.received(broker.frame(APIS[18], 0, 0, refusal), 0.0))
    with pytest.raises(ProtocolError, match="refused ApiVersions: UNSUPPORTED_VERSION"):
        list(connection.received(broker.frame(APIS[18], 0, 1, refusal), 0.0))


def test_answers_in_pieces_and_several_at_once_are_the_same() -> None:
    connection, broker = ready()
    requests = [ClientRequest(node_id=1, message=METADATA) for _ in range(3)]
    for request in requests:
        connection.send(request, 0.0)
    api = API_OF[MetadataRequest]
    stream = b"".join(broker.frame(api, v, c, BROKERS) for _, v, c in broker.read())
    got: list[Answered | NodeReady | NodeThrottled] = []
    for byte in stream[:-30]:
        got += connection.received(bytes([byte]), 0.0)
    got += connection.received(stream[-30:], 0.0)
    assert [e.request for e in got if isinstance(e, Answered)] == requests


@given(
    where=st.integers(0, 200), damage=st.binary(min_size=1, max_size=8), cuts=st.sets(st.integers())
)
def test_whatever_a_broker_sends_every_request_is_answered_or_given_back_once(
    where: int, damage: bytes, cuts: set[int]
) -> None:
    connection, broker = ready()
    requests = [ClientRequest(node_id=1, message=METADATA) for _ in range(3)]
    for request in requests:
        connection.send(request, 0.0)
    api = API_OF[MetadataRequest]
    stream = b"".join(broker.frame(api, v, c, BROKERS) for _, v, c in broker.read())
    where %= len(stream)
    stream = stream[:where] + damage + stream[where + len(damage) :]
    edges = [0, *sorted({cut % len(stream) for cut in cuts}), len(stream)]
    answered: list[Answered | NodeReady | NodeThrottled] = []
    with suppress(ProtocolError):
        for start, end in itertools.pairwise(edges):
            answered += connection.received(stream[start:end], 0.0)
    found = [event.request for event in answered if isinstance(event, Answered)]
    assert found + connection.closed().in_flight == requests


def test_an_answer_to_something_else_is_refused() -> None:
    connection, broker = ready()
    connection.send(ClientRequest(node_id=1, message=METADATA), 0.0)
    with pytest.raises(ProtocolError, match="answered with correlation id 77, expected 1"):
        list(connection.received(broker.frame(API_OF[MetadataRequest], 13, 77, BROKERS), 0.0))
    connection, broker = ready()
    with pytest.raises(ProtocolError, match="expected nothing"):
        list(connection.received(broker.frame(API_OF[MetadataRequest], 13, 1, BROKERS), 0.0))


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request", b"\x15\x03\x03\x00\x02\x02\x46", b"\xff\xff\xff\xff"]
)
def test_a_peer_that_does_not_speak_kafka_is_refused_before_memory_is_taken(data: bytes) -> None:
    connection, _ = ready()
    with pytest.raises(ProtocolError, match="does not speak Kafka's protocol"):
        list(connection.received(data, 0.0))


@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_a_listener_that_expects_tls_is_refused_by_its_alert(prefix: str) -> None:
    connection = Connection(1, "client", 30.0)
    connection.connected(0.0)
    expected = f"expects TLS: set {prefix}security.protocol to SSL"
    with (
        name_options(prefix.__add__),
        pytest.raises(SslAuthenticationException, match=re.escape(expected)),
    ):
        list(connection.received(b"\x15\x03\x03\x00\x02\x02\x50", 0.0))


def test_a_broker_without_a_usable_version_is_told_by_name() -> None:
    connection = Connection(1, "client", 30.0)
    broker = Broker(connection)
    connection.connected(0.0)
    old = ApiVersionsResponse(
        error_code=0, api_keys=[ApiVersion(api_key=3, min_version=0, max_version=0)]
    )
    list(connection.received(broker.frame(APIS[18], 4, 0, old), 0.0))
    with pytest.raises(UnsupportedVersionException, match=r"Metadata: it supports 0 to 0"):
        connection.send(ClientRequest(node_id=1, message=METADATA), 0.0)
    produce = ProduceRequest(acks=1, timeout_ms=1, topic_data=[])
    with pytest.raises(UnsupportedVersionException, match=r"Produce: it supports none"):
        connection.send(ClientRequest(node_id=1, message=produce), 0.0)


def test_a_request_is_refused_where_no_version_can_say_what_it_says() -> None:
    connection, _ = ready()
    request = ClientRequest(node_id=1, message=METADATA, max_version=11, min_version=12)
    with pytest.raises(UnsupportedVersionException, match=r"supports 12 to 11"):
        connection.send(request, 0.0)


def test_a_request_without_an_answer_is_done_when_its_own_frame_is_written() -> None:
    connection, broker = ready()
    silent = ClientRequest(
        node_id=1,
        message=ProduceRequest(acks=0, timeout_ms=1, topic_data=[]),
        expects_response=False,
    )
    loud = [ClientRequest(node_id=1, message=METADATA) for _ in range(2)]
    for request in (loud[0], silent, loud[1]):
        connection.send(request, 0.0)
    assert connection.sent(0.0) is None
    done = connection.sent(0.0)
    assert done is not None
    assert (done.request, done.response) == (silent, None)
    assert connection.sent(0.0) is None
    (_, version, first), _, (_, _, last) = broker.read()
    api = API_OF[MetadataRequest]
    stream = b"".join(broker.frame(api, version, number, BROKERS) for number in (first, last))
    answered = [e.request for e in connection.received(stream, 0.0) if isinstance(e, Answered)]
    assert answered == loud


def test_an_answer_to_a_request_that_wants_none_is_refused() -> None:
    connection, broker = ready()
    silent = ClientRequest(
        node_id=1,
        message=ProduceRequest(acks=0, timeout_ms=1, topic_data=[]),
        expects_response=False,
    )
    connection.send(silent, 0.0)
    ((_, version, correlation_id),) = broker.read()
    answer = broker.frame(APIS[0], version, correlation_id, ProduceResponse(responses=[]))
    with pytest.raises(ProtocolError, match="expected nothing"):
        list(connection.received(answer, 0.0))
    assert connection.closed().in_flight == [silent]


def test_an_answer_that_comes_twice_is_refused_and_given_once() -> None:
    connection, broker = ready()
    requests = [ClientRequest(node_id=1, message=METADATA) for _ in range(2)]
    for request in requests:
        connection.send(request, 0.0)
    (_, version, first), _ = broker.read()
    twice = 2 * broker.frame(API_OF[MetadataRequest], version, first, BROKERS)
    answers = connection.received(twice, 0.0)
    answered = next(answers)
    assert isinstance(answered, Answered)
    assert answered.request is requests[0]
    with pytest.raises(ProtocolError, match="answered with correlation id 1, expected 2"):
        next(answers)
    assert connection.closed().in_flight == [requests[1]]


def test_a_connection_that_breaks_gives_back_what_is_unanswered() -> None:
    connection, broker = ready()
    requests = [ClientRequest(node_id=1, message=METADATA) for _ in range(3)]
    for request in requests:
        connection.send(request, 5.0)
        if request is not requests[-1]:
            broker.read()
    assert connection.in_flight.expires_at() == 35.0
    assert connection.closed() == (requests[:2], requests[2:])
    assert connection.closed() == ([], [])
    assert connection.state is ConnectionState.CLOSED


def test_a_request_of_which_the_socket_takes_nothing_times_out_after_its_time() -> None:
    connection, broker = ready()
    connection.in_flight.taken(4.0)
    connection.send(ClientRequest(node_id=1, message=METADATA), 5.0)
    broker.read()
    assert connection.in_flight.expires_at() == 35.0


def test_a_request_that_is_steadily_written_does_not_time_out() -> None:
    connection, broker = ready()
    for _ in range(2):
        connection.send(ClientRequest(node_id=1, message=METADATA), 5.0)
    (_, version, number), _ = broker.read()
    for now in (20.0, 40.0, 60.0):
        connection.in_flight.taken(now)
        assert connection.in_flight.expires_at() == now + 30.0
    assert connection.sent(80.0) is None
    list(connection.received(broker.frame(API_OF[MetadataRequest], version, number, BROKERS), 81.0))
    assert connection.in_flight.expires_at() == 110.0, "the second: since bytes were last taken"


def test_a_request_that_is_written_times_out_by_its_last_byte() -> None:
    connection, broker = ready()
    for _ in range(2):
        connection.send(ClientRequest(node_id=1, message=METADATA), 5.0)
    broker.read()
    connection.in_flight.taken(20.0)
    assert connection.sent(25.0) is None
    connection.in_flight.taken(40.0)
    assert connection.in_flight.expires_at() == 55.0


def test_a_request_waits_while_earlier_ones_are_answered() -> None:
    connection, broker = ready()
    for _ in range(4):
        connection.send(ClientRequest(node_id=1, message=METADATA), 5.0)
    numbers = broker.read()
    for _ in numbers:
        connection.sent(5.0)
    for now, (_, version, number) in zip((20.0, 40.0, 60.0), numbers, strict=False):
        frame = broker.frame(API_OF[MetadataRequest], version, number, BROKERS)
        list(connection.received(frame, now))
        assert connection.in_flight.expires_at() == now + 30.0


def test_a_request_without_an_answer_times_out_when_no_byte_is_taken() -> None:
    connection, broker = ready()
    message = ProduceRequest(acks=0, timeout_ms=1, topic_data=[])
    connection.send(ClientRequest(node_id=1, message=message, expects_response=False), 5.0)
    broker.read()
    connection.in_flight.taken(20.0)
    assert connection.in_flight.expires_at() == 50.0


@pytest.mark.parametrize(("version", "expected"), [(5, []), (6, [NodeThrottled(1, 11.5)])])
def test_the_client_pauses_only_for_brokers_that_leave_it_to_the_client(
    version: int, expected: list[NodeThrottled]
) -> None:
    connection = Connection(1, "client", 30.0)
    broker = Broker(connection)
    connection.connected(0.0)
    broker.read()
    versions = all_versions()
    for each in versions.api_keys:
        each.max_version = version if each.api_key == 3 else 4
    list(connection.received(broker.frame(APIS[18], 4, 0, versions), 0.0))
    connection.send(ClientRequest(node_id=1, message=METADATA), 0.0)
    ((_, spoken, correlation_id),) = broker.read()
    assert spoken == version
    slow = MetadataResponse(brokers=BROKERS.brokers, topics=[], throttle_time_ms=1500)
    events = list(connection.received(broker.frame(APIS[3], version, correlation_id, slow), 10.0))
    assert [e for e in events if isinstance(e, NodeThrottled)] == expected


def test_versions_answered_with_a_pause_are_kept_to() -> None:
    connection = Connection(1, "client", 30.0)
    broker = Broker(connection)
    connection.connected(0.0)
    versions = all_versions()
    versions.throttle_time_ms = 500
    events = list(connection.received(broker.frame(APIS[18], 4, 0, versions), 1.0))
    assert events[1:] == [NodeThrottled(1, 1.5)]


def test_the_versions_that_pause_are_those_of_the_java_client() -> None:
    java = {
        int(key): int(version)
        for key, _, version in (line.split() for line in run_java("ClientThrottles").splitlines())
    }
    assert {key: java[key] for key in _CLIENT_PAUSES_SINCE} == _CLIENT_PAUSES_SINCE
    spoken_here = {key for key in APIS if key in java}
    assert spoken_here <= _CLIENT_PAUSES_SINCE.keys(), "an API whose pauses nobody keeps to"


def test_what_the_client_calls_itself_is_what_brokers_accept() -> None:
    # KIP-511: brokers reject names and versions of another form.
    form = r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?"
    assert re.fullmatch(form, "spark-kafka-sink")
    assert re.fullmatch(form, __version__)
    connection = Connection(1, "client", 30.0, software_version=__version__)
    connection.connected(0.0)
    (sent,) = connection.take_outgoing()
    frame = b"".join(bytes(b) for b in sent)
    assert b"spark-kafka-sink" in frame
    assert __version__.encode() in frame

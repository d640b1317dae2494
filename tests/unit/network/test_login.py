"""The login by SASL on a connection, and its renewal: each row of the table, byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.mechanisms import PlainExchange, SaslExchange
from spark_kafka_sink.auth.oauthbearer import OAuthBearerExchange, OAuthBearerToken
from spark_kafka_sink.auth.scram import ScramExchange
from spark_kafka_sink.errors import (
    AuthenticationException,
    IllegalSaslStateException,
    NetworkException,
    SaslAuthenticationException,
    UnsupportedSaslMechanismException,
    name_options,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.connection_state import ConnectionState
from spark_kafka_sink.network.node_state import NodeState
from spark_kafka_sink.network.sasl_authenticator import Login
from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, NodeReady
from spark_kafka_sink.wire.messages import (
    APIS,
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    Response,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from spark_kafka_sink.wire.primitives import Writer

HANDSHAKE, TOKEN, METADATA, VERSIONS = 17, 36, 3, 18


class Broker:
    """The other end of a connection: sees requests in order, and answers on command."""

    def __init__(self, login: Login | None = None, *, has_tls: bool = False) -> None:
        self.now = 0.0
        self.connection = Connection(
            1,
            "client",
            30.0,
            has_tls=has_tls,
            login=login or Login(lambda: PlainExchange("u", "secret"), "of user 'u' by PLAIN"),
            peer="host:1 (id: 1)",
        )
        self.asked: list[tuple[int, int, int]] = []
        self.bare: list[bytes] = []
        self.is_bare = False

    def look(self) -> list[int]:
        """Receive the sent bytes, and return the keys of the requests."""
        found = []
        for buffers in self.connection.take_outgoing():
            frame = b"".join(bytes(buffer) for buffer in buffers)
            if self.is_bare:
                self.bare.append(frame)
                continue
            _, key, version, correlation_id = struct.unpack_from(">ihhi", frame)
            self.asked.append((key, version, correlation_id))
            found.append(key)
            self.is_bare = (key, version) == (HANDSHAKE, 0)
        return found

    def frame(self, response: Response) -> bytes:
        """Make the answer to the oldest request."""
        key, version, correlation_id = self.asked.pop(0)
        flexible = APIS[key].is_flexible(version)
        writer = Writer()
        writer.out += struct.pack(">ii", 0, correlation_id)
        if flexible and key != VERSIONS:
            writer.out.append(0)
        message_codecs.writer(APIS[key].response, version, flexible=flexible)(response, writer)
        struct.pack_into(">i", writer.out, 0, len(writer.out) - 4)
        return bytes(writer.out)

    def answer(self, response: Response) -> list[object]:
        """Answer the oldest request byte by byte; return the resulting events."""
        happened: list[object] = []
        for byte in self.frame(response):
            happened += self.connection.received(bytes([byte]), self.now)
        return happened

    def announce_versions(self, *without: int) -> list[object]:
        """Answer ApiVersions."""
        keys = [
            ApiVersion(api_key=api.key, min_version=0, max_version=api.max_version)
            for api in APIS.values()
            if api.key not in without
        ]
        return self.answer(ApiVersionsResponse(error_code=0, api_keys=keys))

    def shake_hands(self, *without: int) -> None:
        """Announce the versions and accept the mechanism; the next frame is the first token."""
        self.connection.connected(self.now)
        assert self.look() == [VERSIONS]
        assert self.announce_versions(*without) == []
        assert self.look() == [HANDSHAKE]
        assert self.answer(handshake()) == []

    def let_in(self, lifetime_ms: int = 0) -> None:
        """Go through a first login by PLAIN."""
        self.shake_hands()
        assert self.look() == [TOKEN]
        (ready,) = self.answer(token(lifetime_ms=lifetime_ms))
        assert isinstance(ready, NodeReady)

    def begin_renewal(self, lifetime_ms: int) -> None:
        """Go through a first login, then up to the last token of a re-authentication."""
        self.let_in(lifetime_ms=lifetime_ms)
        self.now = 0.9 * lifetime_ms / 1000
        self.send()
        assert self.look() == [HANDSHAKE]
        self.answer(handshake())
        self.look()

    def send(self, send_by: float = float("inf")) -> ClientRequest:
        """Send a request of the client."""
        request = ClientRequest(node_id=1, message=MetadataRequest(topics=[]), send_by=send_by)
        self.connection.send(request, self.now)
        return request


def handshake(code: int = 0, *mechanisms: str) -> SaslHandshakeResponse:
    """Make an answer to SaslHandshake."""
    return SaslHandshakeResponse(error_code=code, mechanisms=list(mechanisms))


def token(
    data: bytes = b"", code: int = 0, words: str | None = None, lifetime_ms: int = 0
) -> SaslAuthenticateResponse:
    """Make an answer to SaslAuthenticate."""
    return SaslAuthenticateResponse(
        error_code=code, error_message=words, auth_bytes=data, session_lifetime_ms=lifetime_ms
    )


METADATA_ANSWER = MetadataResponse(brokers=[], topics=[])


def test_the_first_login_comes_between_the_versions_and_the_first_request() -> None:
    broker = Broker()
    broker.let_in()
    assert broker.connection.state is ConnectionState.READY
    request = broker.send()
    assert broker.look() == [METADATA]
    (answered,) = broker.answer(METADATA_ANSWER)
    assert isinstance(answered, Answered)
    assert answered.request is request


def test_versions_are_asked_for_until_they_are_answered_and_never_again_before_the_login() -> None:
    broker = Broker()
    broker.connection.connected(0.0)
    assert broker.look() == [VERSIONS]
    *_, (key, _, correlation_id) = broker.asked
    # As a broker that knows version 0 alone refuses, in that version.
    broker.asked[-1] = (key, 0, correlation_id)
    listed = [ApiVersion(api_key=VERSIONS, min_version=0, max_version=0)]
    refused = ApiVersionsResponse(error_code=codes.UNSUPPORTED_VERSION, api_keys=listed)
    assert broker.answer(refused) == []
    assert broker.look() == [VERSIONS]
    assert broker.announce_versions() == []
    assert broker.look() == [HANDSHAKE]
    assert broker.answer(handshake()) == []
    assert broker.look() == [TOKEN]
    (ready,) = broker.answer(token())
    assert isinstance(ready, NodeReady)
    assert broker.look() == []


def test_tls_comes_before_everything() -> None:
    broker = Broker(has_tls=True)
    broker.connection.connected(0.0)
    assert broker.look() == []
    assert broker.connection.state is ConnectionState.TLS_HANDSHAKE
    broker.connection.secured(0.0)
    assert broker.look() == [VERSIONS]


def test_bare_tokens_follow_where_a_broker_has_nothing_else() -> None:
    broker = Broker()
    broker.connection.connected(0.0)
    broker.look()
    broker.announce_versions(TOKEN)
    assert broker.look() == [HANDSHAKE]
    assert broker.asked[0][1] == 0
    broker.answer(handshake())
    assert broker.look() == []
    secret = b"\0u\0secret"
    assert broker.bare == [struct.pack(">i", len(secret)) + secret]
    broker.connection.sent(0.0)
    broker.connection.sent(0.0)
    broker.connection.sent(0.0)
    (ready,) = broker.connection.received(b"\0\0\0\0", 0.0)
    assert isinstance(ready, NodeReady)


def test_a_broker_that_hangs_up_after_the_login_does_not_expect_sasl() -> None:
    broker = Broker()
    broker.let_in()
    broker.send()
    state = NodeState(Node(id=1, host="host", port=1), connection=broker.connection)
    assert state.why_closed(speaks_tls=False, was_ever_answered=False) == ""
    assert not state.may_have_other_protocol(speaks_tls=False)


def test_a_broker_that_hangs_up_during_a_renewal_may_have_refused_it() -> None:
    given: list[SaslExchange | None] = [PlainExchange("u", "p"), None, PlainExchange("u", "p")]
    broker = Broker(Login(lambda: given.pop(0), "u"))
    broker.let_in(lifetime_ms=10_000)
    state = NodeState(Node(id=1, host="host", port=1), connection=broker.connection)
    broker.now = 11.0
    broker.send()
    assert broker.look() == []
    ended = " after its session ended, while it waited for a ticket or token to re-authenticate"
    refused = ", without an error: some brokers reject a login this way"
    assert state.why_closed(speaks_tls=False, was_ever_answered=False) == ended + refused
    assert broker.connection.go_on(broker.now)
    assert (
        state.why_closed(speaks_tls=False, was_ever_answered=False)
        == " while re-authenticating" + refused
    )
    broker.look()
    broker.answer(handshake())
    assert (
        state.why_closed(speaks_tls=False, was_ever_answered=False)
        == " while re-authenticating" + refused
    )
    broker.look()
    broker.answer(token(lifetime_ms=10_000))
    assert state.why_closed(speaks_tls=False, was_ever_answered=False) == ""


class ChosenLast:
    """A mechanism whose last token is the client's, as in GSSAPI."""

    mechanism = "GSSAPI"
    secrets = ()
    is_complete = False

    def first(self) -> bytes:
        """Return the first token."""
        return b"first"

    def step(self, challenge: bytes) -> bytes | None:
        """Return the last token."""
        if self.is_complete:
            return None
        assert challenge == b"offer"
        self.is_complete = True
        return b"choice"


def test_a_bare_token_that_ends_the_exchange_gets_no_answer() -> None:
    broker = Broker(Login(ChosenLast, "of principal 'p' by GSSAPI"))
    broker.shake_hands(TOKEN)
    broker.look()
    (ready,) = broker.connection.received(struct.pack(">i", 5) + b"offer", 0.0)
    assert isinstance(ready, NodeReady)
    broker.look()
    assert [frame[4:] for frame in broker.bare] == [b"first", b"choice"]
    # The next answer is that of the next request.
    for _ in range(4):
        assert broker.connection.sent(0.0) is None
    broker.is_bare = False
    request = broker.send()
    assert broker.look() == [METADATA]
    (answered,) = broker.answer(METADATA_ANSWER)
    assert isinstance(answered, Answered)
    assert answered.request is request


def test_with_headers_the_last_token_gets_an_answer() -> None:
    broker = Broker(Login(ChosenLast, "of principal 'p' by GSSAPI"))
    broker.shake_hands()
    broker.look()
    assert broker.answer(token(b"offer")) == []
    assert broker.look() == [TOKEN]
    (ready,) = broker.answer(token())
    assert isinstance(ready, NodeReady)


def test_a_mechanism_of_another_name_is_refused_by_both_names() -> None:
    login = Login(ChosenLast, "of user 'u' by AWS_MSK_IAM", mechanism="AWS_MSK_IAM")
    broker = Broker(login)
    broker.connection.connected(broker.now)
    broker.look()
    broker.announce_versions()
    broker.look()
    with pytest.raises(
        UnsupportedSaslMechanismException,
        match=r"mechanism \w+, which sasl.mechanism=AWS_MSK_IAM needs: it offers AWS_MSK_IAM; "
        "have the broker offer",
    ):
        broker.answer(handshake(codes.UNSUPPORTED_SASL_MECHANISM, "AWS_MSK_IAM"))


@pytest.mark.parametrize(
    ("refuse", "kind", "sentence"),
    [
        (
            lambda b: b.answer(handshake(codes.UNSUPPORTED_SASL_MECHANISM, "GSSAPI", "X")),
            UnsupportedSaslMechanismException,
            r"host:1 .*does not offer the mechanism PLAIN: it offers GSSAPI, X; set sasl\.mech",
        ),
        # A list of almost a megabyte.
        (
            lambda b: b.answer(handshake(codes.UNSUPPORTED_SASL_MECHANISM, *["X" * 150] * 6_000)),
            UnsupportedSaslMechanismException,
            r"it offers X[X, ]{199}…; set sasl\.mechanism",
        ),
        (
            lambda b: b.answer(handshake(codes.ILLEGAL_SASL_STATE)),
            IllegalSaslStateException,
            r"host:1 .*does not accept a SASL login on this listener: .*security\.protocol",
        ),
        (
            lambda b: (
                b.answer(handshake()),
                b.look(),
                b.answer(token(code=codes.SASL_AUTHENTICATION_FAILED, words="No\nway")),
            ),
            SaslAuthenticationException,
            r"host:1 .*refused the login of user 'u' by PLAIN: No way \(58\)",
        ),
    ],
)
def test_a_refusal_is_told_with_node_mechanism_and_the_broker_s_words(
    refuse: Callable[[Broker], object], kind: type[AuthenticationException], sentence: str
) -> None:
    broker = Broker()
    broker.connection.connected(0.0)
    broker.look()
    broker.announce_versions()
    broker.look()
    with pytest.raises(kind, match=sentence) as caught:
        refuse(broker)
    assert "secret" not in str(caught.value)


def by_token() -> Login:
    """Return the login of a delegation token; the exchange of PLAIN is shorter than SCRAM's."""
    user, hint = "of the delegation token 'id'", "raise the limit"
    return Login(lambda: PlainExchange("u", "secret"), user, is_token=True, hint=hint)


def test_a_refused_delegation_token_is_told_with_a_hint() -> None:
    broker = Broker(by_token())
    broker.shake_hands()
    broker.look()
    with pytest.raises(
        SaslAuthenticationException,
        match=r"refused the login of the delegation token 'id': No \(58\); raise the limit$",
    ):
        broker.answer(token(code=codes.SASL_AUTHENTICATION_FAILED, words="No"))


def test_a_mechanism_that_is_not_offered_is_told_with_the_option_that_sets_it() -> None:
    with name_options("kafka.".__add__):
        for login, option in (
            (None, r"kafka\.sasl\.mechanism"),
            (replace(by_token(), mechanism_option="delegationToken.mechanism"), "delegationToken"),
        ):
            broker = Broker(login)
            broker.connection.connected(0.0)
            broker.look()
            broker.announce_versions()
            broker.look()
            with pytest.raises(UnsupportedSaslMechanismException, match=rf"; set {option}"):
                broker.answer(handshake(codes.UNSUPPORTED_SASL_MECHANISM, "GSSAPI"))


def test_a_session_that_has_no_time_is_that_of_an_expired_delegation_token() -> None:
    with pytest.raises(
        SaslAuthenticationException,
        match=r"'id': the delegation token has expired \(58\); raise the limit",
    ):
        Broker(by_token()).let_in(lifetime_ms=0)
    broker = Broker(by_token())
    broker.begin_renewal(lifetime_ms=10_000)
    with pytest.raises(SaslAuthenticationException, match="the delegation token has expired"):
        broker.answer(token(lifetime_ms=0))
    assert len(broker.connection.closed().held) == 1


def test_a_login_is_given_the_lifetime_of_each_session() -> None:
    lifetimes: list[float] = []
    broker = Broker(replace(by_token(), is_token=False, accepted=lifetimes.append))
    broker.begin_renewal(lifetime_ms=10_000)
    broker.answer(token(lifetime_ms=0))
    assert lifetimes == [10.0, 0.0]


def test_a_broker_that_does_not_say_how_long_a_session_is_takes_a_delegation_token() -> None:
    broker = Broker(by_token())
    broker.shake_hands(TOKEN)
    broker.look()
    (ready,) = broker.connection.received(b"\0\0\0\0", 0.0)
    assert isinstance(ready, NodeReady)


def test_a_broker_that_cannot_prove_itself_is_refused() -> None:
    def exchange() -> SaslExchange:
        return ScramExchange("SCRAM-SHA-256", "u", "secret", nonce="abc")

    broker = Broker(Login(exchange, "user 'u' by SCRAM-SHA-256"))
    broker.shake_hands()
    broker.look()
    broker.answer(token(b"r=abcdef,s=c2FsdA==,i=4096"))
    assert broker.look() == [TOKEN]
    with pytest.raises(SaslAuthenticationException, match=r"host:1 .*signature is wrong"):
        broker.answer(token(b"v=AAAA"))


LOGINS_WITH_SECRETS: Final[dict[str, SaslExchange]] = {
    "password": PlainExchange("alice", "hunter2"),
    "HMAC of a token": ScramExchange("SCRAM-SHA-256", "id", "hunter2", nonce="a", is_token=True),
    "OAuth token": OAuthBearerExchange(OAuthBearerToken("hunter2")),
}


@pytest.mark.parametrize("name", LOGINS_WITH_SECRETS)
def test_a_broker_s_words_do_not_show_the_secret_that_it_got(name: str) -> None:
    broker = Broker(Login(lambda: LOGINS_WITH_SECRETS[name], "user 'alice'"))
    broker.shake_hands()
    broker.look()
    with pytest.raises(SaslAuthenticationException, match=r"login .*: \*\*\* is wrong \(58\)"):
        broker.answer(token(code=58, words="hunter2 is wrong"))


class Endless:
    """An exchange that no number of challenges completes."""

    mechanism = "ENDLESS"
    secrets = ()
    is_complete = False

    def first(self) -> bytes:
        """Return an empty token."""
        return b""

    def step(self, challenge: bytes) -> bytes | None:
        """Return a part of the challenge."""
        return challenge[:1]


def test_a_login_that_never_ends_is_given_up() -> None:
    broker = Broker(Login(Endless, "nobody"))
    broker.shake_hands()

    def go_on() -> None:
        for _ in range(100):
            broker.look()
            broker.answer(token(b"again"))

    with pytest.raises(SaslAuthenticationException, match="still sends SASL challenges"):
        go_on()


TOO_LARGE = "has sent SASL challenges of more than 1048576 bytes in one login"


def test_the_challenges_of_a_login_may_have_one_mebibyte_in_sum() -> None:
    broker = Broker(Login(Endless, "nobody"))
    broker.shake_hands()
    for _ in range(4):
        broker.look()
        list(broker.connection.received(broker.frame(token(bytes(1 << 18))), 0.0))
    broker.look()
    with pytest.raises(SaslAuthenticationException, match=TOO_LARGE):
        broker.answer(token(b"x"))


def test_a_challenge_of_a_renewal_may_have_one_mebibyte_too() -> None:
    # Then a frame may be larger, as an answer to an earlier request.
    exchanges: list[SaslExchange] = [PlainExchange("u", "p"), Endless(), Endless()]
    broker = Broker(Login(lambda: exchanges.pop(0), "nobody"))
    broker.begin_renewal(lifetime_ms=10_000)
    with pytest.raises(SaslAuthenticationException, match=TOO_LARGE):
        list(broker.connection.received(broker.frame(token(bytes((1 << 20) + 1))), broker.now))


# -- renewal -------------------------------------------------------------------------------------


def test_a_renewal_goes_behind_what_is_in_flight_and_holds_what_comes_meanwhile() -> None:
    broker = Broker()
    broker.let_in(lifetime_ms=10_000)
    early = [broker.send(), broker.send()]
    assert broker.look() == [METADATA, METADATA]
    broker.now = 7.9
    early.append(broker.send())
    assert broker.look() == [METADATA]
    assert not broker.connection.is_renewing
    broker.now = 8.1
    held = [broker.send(), broker.send()]
    assert broker.connection.is_renewing
    assert broker.look() == [HANDSHAKE]
    assert broker.connection.is_ready
    assert broker.connection.load == 6
    for request in early:
        (answered,) = broker.answer(METADATA_ANSWER)
        assert isinstance(answered, Answered)
        assert answered.request is request
    assert broker.answer(handshake()) == []
    held.append(broker.send())
    assert broker.look() == [TOKEN]
    assert broker.connection.take_renewals() == []
    broker.now = 8.35
    assert broker.answer(token(lifetime_ms=10_000)) == []
    assert broker.connection.take_renewals() == [pytest.approx(0.25)]
    assert broker.connection.take_renewals() == []
    assert broker.look() == [METADATA] * 3
    assert broker.connection.state is ConnectionState.READY
    for request in held:
        (answered,) = broker.answer(METADATA_ANSWER)
        assert isinstance(answered, Answered)
        assert answered.request is request


def test_an_idle_connection_is_renewed_by_its_next_request_even_too_late() -> None:
    broker = Broker()
    broker.let_in(lifetime_ms=10_000)
    broker.now = 100.0
    broker.send()
    assert broker.look() == [HANDSHAKE]


@pytest.mark.parametrize(
    ("lifetime_ms", "chance", "due"),
    [(10_000, 0.0, 8.0), (100_000, 0.0, 85.0), (100_000, 1.0, 95.0), (2_000, 0.0, 1.7)],
)
def test_a_renewal_is_due_in_time(lifetime_ms: int, chance: float, due: float) -> None:
    for at, keys in ((due - 0.01, [METADATA]), (due + 0.01, [HANDSHAKE])):
        broker = Broker(Login(lambda: PlainExchange("u", "p"), "u", chance))
        broker.let_in(lifetime_ms)
        broker.now = at
        broker.send()
        assert broker.look() == keys, at


def test_a_session_without_an_end_is_not_renewed_and_none_twice_within_a_second() -> None:
    broker = Broker()
    broker.let_in()
    broker.now = 1e9
    broker.send()
    assert broker.look() == [METADATA]
    broker = Broker()
    broker.let_in(lifetime_ms=100)
    for at, keys in ((0.2, [METADATA]), (0.99, [METADATA]), (1.0, [HANDSHAKE])):
        broker.now = at
        broker.send()
        assert broker.look() == keys, at


def test_the_second_begins_when_a_slow_broker_has_answered() -> None:
    broker = Broker()
    broker.let_in(lifetime_ms=1000)
    broker.now = 1.0
    broker.send()
    assert broker.look() == [HANDSHAKE]
    broker.now = 1.8
    broker.answer(handshake())
    assert broker.look() == [TOKEN]
    broker.answer(token(lifetime_ms=1000))
    assert broker.look() == [METADATA]
    # The broker may have read SaslHandshake at 1.8 s.
    for at, keys in ((2.7, [METADATA]), (2.8, [HANDSHAKE])):
        broker.now = at
        broker.send()
        assert broker.look() == keys, at


def test_a_first_login_without_credentials_now_is_no_refusal() -> None:
    broker = Broker(Login(lambda: None, "u"))
    broker.connection.connected(0.0)
    broker.look()
    with pytest.raises(NetworkException, match="no credentials to log in with now"):
        broker.announce_versions()


def test_without_credentials_now_requests_go_on_until_there_are_some() -> None:
    given: list[SaslExchange | None] = [PlainExchange("u", "p"), None, PlainExchange("u", "p")]
    broker = Broker(Login(lambda: given.pop(0), "u"))
    broker.let_in(lifetime_ms=100_000)
    broker.now = 90.0
    broker.send()
    assert broker.look() == [METADATA]
    broker.send()
    assert broker.look() == [HANDSHAKE]


def test_after_a_failure_the_next_credentials_are_asked_for_a_second_later() -> None:
    asked: list[float] = []

    def exchange() -> SaslExchange:
        asked.append(broker.now)
        if broker.now:
            raise SaslAuthenticationException("the KDC refused the key")
        return PlainExchange("u", "p")

    broker = Broker(Login(exchange, "u"))
    broker.let_in(lifetime_ms=100_000)
    for now in (97.0, 97.1, 97.9, 98.0, 99.5):
        broker.now = now
        broker.send()
        assert broker.look() == [METADATA]
    assert asked == [0.0, 97.0, 98.0, 99.5]
    # Nothing is sent into a session that is over, whatever the pause.
    broker.now = 100.1
    broker.send()
    assert broker.look() == []


def test_when_the_session_is_over_requests_are_held_until_there_are_credentials() -> None:
    given: list[SaslExchange | None] = [PlainExchange("u", "p"), None, None]
    broker = Broker(Login(lambda: given.pop(0), "u"))
    broker.let_in(lifetime_ms=100_000)
    broker.now = 101.0
    broker.send()
    broker.send()
    assert broker.look() == []
    assert broker.connection.load == 2
    assert broker.connection.awaits_login_since == 101.0
    given.extend([None, PlainExchange("u", "p")])
    assert not broker.connection.go_on(broker.now)
    assert broker.connection.go_on(broker.now)
    assert broker.connection.awaits_login_since is None
    assert broker.look() == [HANDSHAKE]
    broker.answer(handshake())
    assert broker.look() == [TOKEN]
    broker.answer(token(lifetime_ms=100_000))
    assert broker.look() == [METADATA, METADATA]


@pytest.mark.parametrize("expects_response", [True, False])
def test_if_the_login_fails_after_the_session_s_end_nothing_is_sent(
    expects_response: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    given: list[SaslExchange] = [PlainExchange("u", "p")]

    def exchange() -> SaslExchange:
        if not given:
            raise SaslAuthenticationException("the token endpoint answered 401")
        return given.pop()

    broker = Broker(Login(exchange, "u"))
    broker.let_in(lifetime_ms=100_000)
    for now, sent, held in ((99.0, [METADATA], 0), (101.0, [], 1)):
        request = ClientRequest(
            node_id=1, message=MetadataRequest(topics=[]), expects_response=expects_response
        )
        broker.connection.send(request, now)
        assert broker.look() == sent
        assert len(broker.connection._held) == held
    assert broker.connection.awaits_login_since == 101.0
    with pytest.raises(SaslAuthenticationException, match="answered 401"):
        broker.connection.go_on(101.0)
    assert broker.connection.closed().held == [request]


def test_what_is_held_for_credentials_is_given_back_with_the_connection() -> None:
    given: list[SaslExchange | None] = [PlainExchange("u", "p"), None]
    broker = Broker(Login(lambda: given.pop(0), "u"))
    broker.let_in(lifetime_ms=100_000)
    broker.now = 101.0
    held = broker.send()
    assert broker.connection.closed() == ([], [held])
    assert broker.connection.awaits_login_since is None


def test_a_request_that_is_held_too_long_is_not_sent() -> None:
    broker = Broker()
    broker.let_in(lifetime_ms=10_000)
    broker.now = 9.0
    held = [broker.send(), broker.send(send_by=12.0)]
    assert broker.look() == [HANDSHAKE]
    assert broker.answer(handshake()) == []
    assert broker.look() == [TOKEN]
    broker.now = 12.0
    with pytest.raises(NetworkException, match="took too long to re-authenticate"):
        broker.answer(token(lifetime_ms=10_000))
    assert broker.look() == []
    assert broker.connection.closed().held == held


def test_a_connection_that_breaks_gives_back_what_is_in_flight_and_what_is_held() -> None:
    broker = Broker()
    broker.let_in(lifetime_ms=10_000)
    first = broker.send()
    broker.now = 9.0
    held = broker.send()
    broker.look()
    assert broker.connection.closed() == ([first], [held])
    assert broker.connection.load == 0


def test_a_renewal_that_is_refused_is_an_error() -> None:
    broker = Broker()
    broker.let_in(lifetime_ms=10_000)
    broker.now = 9.0
    broker.send()
    broker.look()
    broker.answer(handshake())
    broker.look()
    with pytest.raises(SaslAuthenticationException, match="Cannot change principals"):
        broker.answer(token(code=58, words="Cannot change principals"))

"""The driver's requests before a job take exactly max.block.ms at most, in all cases.

Time passes only in waits, and a network of the test answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from types import SimpleNamespace

import pytest
from support.pure.timed_waits import Clock
from support.pure.unreachable import NOBODY, TOPIC

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.admin import KafkaAdmin, NewTopic, admin_requests
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import NO_BROKER, ApiException, TimeoutException, error_code
from spark_kafka_sink.model import Secret
from spark_kafka_sink.network.request_client import ConsumerNetworkClient, RequestFuture
from spark_kafka_sink.wire.admin_messages import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafka_sink.wire.delegation_token_messages import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.messages import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
    Request,
    Response,
)

MAX_BLOCK_S = 1.0


class Network:
    """Replaces ConsumerNetworkClient: every request is answered after a while, or never.

    restarts_until: until then, too few brokers run to create a topic. expire_errors: the error code
    of each response to ExpireDelegationToken; None for a response that is lost.
    """

    def __init__(
        self, clock: Clock, answer_s: float | None, creation_error: int = codes.REQUEST_TIMED_OUT
    ) -> None:
        self._clock = clock
        self._answer_s = answer_s
        self._creation_error = creation_error
        self.restarts_until = 0.0
        self.expire_errors: list[int | None] = []
        self.broker_ids = [1]
        self.asked: list[Request] = []

    def send(self, node_id: int | None, message: Request, *, min_version: int = 0) -> RequestFuture:
        """Take a request; it is answered when its time comes."""
        request = ClientRequest(node_id=node_id, message=message, min_version=min_version)
        future = RequestFuture(request, float("inf"))
        self.asked.append(message)
        self._clock.after(self._answer_s, self._end_of(future))
        return future

    def _end_of(self, future: RequestFuture) -> Callable[[], None]:
        message = future.request.message
        if isinstance(message, ExpireDelegationTokenRequest):
            code = self.expire_errors.pop(0)
            if code is None:
                return lambda: future.fail(codes.NETWORK_EXCEPTION, "the connection was closed", 1)
            expired = ExpireDelegationTokenResponse(
                error_code=code, expiry_timestamp_ms=0, throttle_time_ms=0
            )
            return lambda: future.complete(expired)
        restarts = self._clock.now < self.restarts_until
        creation_error = codes.INVALID_REPLICATION_FACTOR if restarts else self._creation_error
        answer = _answer(message, creation_error, self.broker_ids)
        return lambda: future.complete(answer)

    def poll(self, timeout_s: float) -> None:
        """Let time pass up to the next answer, or to the end of the time limit."""
        happen = self._clock.next_until(self._clock.now + timeout_s)
        if happen is not None:
            happen()

    def set_nodes(self, nodes: object) -> None:
        """Do nothing."""

    def set_initial_nodes(self, brokers: object) -> None:
        """Do nothing."""

    no_broker = NO_BROKER

    def last_errors(self) -> str:
        """Return no errors."""
        return ""

    def close(self) -> None:
        """Do nothing."""


def _answer(message: Request, creation_error: int, broker_ids: Iterable[int]) -> Response:
    """Know no topic, make none, and be no controller."""
    if isinstance(message, DescribeDelegationTokenRequest):
        return DescribeDelegationTokenResponse(error_code=41, tokens=[], throttle_time_ms=0)
    if isinstance(message, CreateTopicsRequest):
        words = "x" * 30_000
        error = CreatableTopicResult(name=TOPIC, error_code=creation_error, error_message=words)
        return CreateTopicsResponse(topics=[error])
    unknown = MetadataResponseTopic(
        error_code=codes.UNKNOWN_TOPIC_OR_PARTITION, name=TOPIC, partitions=[]
    )
    brokers = [MetadataResponseBroker(node_id=n, host="127.0.0.1", port=1) for n in broker_ids]
    return MetadataResponse(brokers=brokers, topics=[unknown])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the admin goes by; to sleep is to let its time pass."""
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    # Only of the admin: a thread of an earlier test may sleep at any time, too.
    times = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(admin_requests, "time", times)
    return clock


@pytest.mark.parametrize("new", [None, NewTopic(partitions=1, replication=1)])
@pytest.mark.parametrize("answer_s", [None, 0.0, 0.07, 0.4, 0.999, 5.0])
def test_a_topic_that_does_not_come_takes_max_block_ms(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, answer_s: float | None, new: NewTopic | None
) -> None:
    def network(
        _: ProducerConfig, __: Callable[[], float], ___: Random, *, identity: str
    ) -> Network:
        assert not identity
        return Network(clock, answer_s)

    monkeypatch.setattr(ConsumerNetworkClient, "of", network)
    began = clock.now
    config = producer_config({"bootstrap.servers": NOBODY, "max.block.ms": MAX_BLOCK_S * 1000})
    is_answered = answer_s is not None and answer_s <= MAX_BLOCK_S
    said = (
        f"Topic {TOPIC} not present in metadata after" if is_answered else "no broker has answered"
    )
    with (
        KafkaAdmin(config) as asked,
        pytest.raises(TimeoutException, match=rf"{said}.* max\.block\.ms=1000") as call,
    ):
        asked.topics([TOPIC], new)
    cause = call.value.__cause__
    assert (cause is not None) is is_answered
    assert cause is None or str(call.value).endswith(f": {cause}")
    assert clock.now - began == pytest.approx(MAX_BLOCK_S)


def admin_of(
    network: Network, monkeypatch: pytest.MonkeyPatch, max_block_s: float = MAX_BLOCK_S
) -> KafkaAdmin:
    """Make one that talks to a network of the test."""
    monkeypatch.setattr(ConsumerNetworkClient, "of", lambda *_, **__: network)
    config = producer_config({"bootstrap.servers": NOBODY, "max.block.ms": max_block_s * 1000})
    return KafkaAdmin(config)


def test_a_broker_with_the_id_of_a_bootstrap_address_is_ignored(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(clock, 0.0)
    network.broker_ids = [-1, 1]
    with admin_of(network, monkeypatch) as asked:
        assert asked.existing_topics([TOPIC]) == {}
    assert [node.id for node in asked.brokers] == [1]


@pytest.mark.parametrize(
    "code", [codes.INVALID_PARTITIONS, codes.INVALID_REPLICATION_FACTOR, codes.INVALID_CONFIG]
)
def test_what_is_said_against_settings_is_raised(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    began = clock.now
    network = Network(clock, 0.0, code)
    with admin_of(network, monkeypatch) as asked, pytest.raises(ApiException) as refused:
        asked.check_creation(NewTopic(partitions=7, replication=2, configs=(("a.b", "c"),)))
    assert refused.value.code == code
    assert str(refused.value).startswith(
        "topics cannot be created with topic.partitions=7, topic.replication=2, "
        f"topic.config.a.b=c: {error_code(code).name} ({code})"
    )
    assert f"{'x' * 1000}…" in str(refused.value), "a broker's words are cut"
    may_be_temporary = code == codes.INVALID_REPLICATION_FACTOR
    assert clock.now - began == pytest.approx(MAX_BLOCK_S if may_be_temporary else 0.0)


@pytest.mark.parametrize("code", [codes.NONE, 41])  # 41: NOT_CONTROLLER
def test_a_broker_that_restarts_fails_no_write(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    network = Network(clock, 0.0, code)
    network.restarts_until = clock.now + MAX_BLOCK_S / 2
    with admin_of(network, monkeypatch) as asked:
        asked.check_creation(NewTopic(replication=3))
    assert clock.now >= network.restarts_until
    assert len(network.asked) > 1


def test_a_broker_that_restarts_until_the_end_does_not_hide_a_wrong_replication_factor(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock.now
    # The second response would come after max.block.ms.
    network = Network(clock, MAX_BLOCK_S * 0.6, codes.INVALID_REPLICATION_FACTOR)
    with (
        admin_of(network, monkeypatch) as asked,
        pytest.raises(ApiException, match="INVALID_REPLICATION_FACTOR"),
    ):
        asked.check_creation(NewTopic(replication=9))
    assert len(network.asked) == 2
    assert clock.now - began == pytest.approx(MAX_BLOCK_S)


def test_a_wrong_replication_factor_is_reported_long_before_max_block_ms(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock.now
    network = Network(clock, 0.0, codes.INVALID_REPLICATION_FACTOR)
    with (
        admin_of(network, monkeypatch, max_block_s=60.0) as asked,
        pytest.raises(ApiException, match="INVALID_REPLICATION_FACTOR"),
    ):
        asked.check_creation(NewTopic(replication=9))
    assert clock.now - began == pytest.approx(15.0)


def test_of_many_settings_that_are_rejected_ten_are_named(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = tuple((f"c.{number}", "x") for number in range(12))
    with (
        admin_of(Network(clock, 0.0, codes.INVALID_CONFIG), monkeypatch) as asked,
        pytest.raises(ApiException) as refused,
    ):
        asked.check_creation(NewTopic(configs=configs))
    shown = ", ".join(f"topic.config.c.{number}=x" for number in range(10))
    said = f"topics cannot be created with {shown} and 2 more: INVALID_CONFIG (40), "
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    "code",
    [
        codes.NONE,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.INVALID_TOPIC_EXCEPTION,
        44,  # POLICY_VIOLATION
        codes.REQUEST_TIMED_OUT,
        41,  # NOT_CONTROLLER
    ],
)
def test_what_is_said_against_a_name_that_was_made_up_is_not(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    network = Network(clock, 0.0, code)
    with admin_of(network, monkeypatch) as asked:
        asked.check_creation(NewTopic())
    (request,) = network.asked
    assert isinstance(request, CreateTopicsRequest)
    assert request.validate_only


def test_a_controller_that_does_not_answer_holds_nobody_up_but_for_max_block_ms(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock.now
    with admin_of(Network(clock, None), monkeypatch) as asked:
        asked.check_creation(NewTopic(partitions=1, replication=1))
    assert clock.now - began == pytest.approx(MAX_BLOCK_S)


def test_a_call_that_times_out_names_the_error_for_which_it_was_repeated(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"max\.block\.ms=1000 has passed; the last error was: .* NOT_CONTROLLER \(41\)"
    with (
        admin_of(Network(clock, 0.1), monkeypatch) as asked,
        pytest.raises(TimeoutException, match=said) as late,
    ):
        asked.describe_delegation_token()
    assert isinstance(late.value.__cause__, ApiException)


TOKEN_HMAC = Secret("aG1hYw==")


@pytest.mark.parametrize(
    "answers",
    [
        [codes.DELEGATION_TOKEN_NOT_FOUND],
        # A broker may not know a new token yet, so the lost request has not expired it for sure.
        [None, codes.DELEGATION_TOKEN_NOT_FOUND],
        [None, codes.DELEGATION_TOKEN_OWNER_MISMATCH],
    ],
)
def test_a_token_that_is_not_expired_is_an_error(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, answers: list[int | None]
) -> None:
    network = Network(clock, 0.0)
    network.expire_errors = list(answers)
    with admin_of(network, monkeypatch) as asked, pytest.raises(ApiException) as refused:
        asked.expire_delegation_token(TOKEN_HMAC)
    assert refused.value.code == answers[-1]
    assert str(refused.value).startswith("the delegation token cannot be expired: ")

"""Delegation tokens of a real cluster: they are created, log clients in, and end."""

from __future__ import annotations

import base64
import logging
import time
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
from support.brokers.kdc import Kdc
from support.brokers.scripted_broker import ScriptedBroker
from support.brokers.secured_kafka import PASSWORD, USER, SecuredKafka
from support.oracles.readers import create_topic, read_with_confluent

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.auth.delegation_tokens import FRESH_MS, TokenLife, with_delegation_token
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import (
    ApiException,
    IllegalArgumentException,
    SaslAuthenticationException,
    TimeoutException,
    TopicAuthorizationException,
    UnsupportedVersionException,
)
from spark_kafka_sink.model import DelegationToken, Secret
from spark_kafka_sink.task_producer import TaskProducer
from spark_kafka_sink.wire.delegation_token_messages import (
    CreateDelegationTokenResponse,
    RenewDelegationTokenResponse,
)
from spark_kafka_sink.wire.messages import CREATE_DELEGATION_TOKEN, RENEW_DELEGATION_TOKEN

pytestmark = pytest.mark.kafka

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
LISTENERS = ["SASL_PLAINTEXT", "SASL_SSL"]
DAY_MS = 24 * 3_600_000


@pytest.fixture
def topic(secured_kafka: SecuredKafka) -> str:
    """A topic of one partition."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(secured_kafka.bootstrap, name, 1)
    return name


@pytest.fixture
def user(secured_kafka: SecuredKafka) -> Iterator[str]:
    """A user whose tokens no other test creates."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    secured_kafka.set_scram_user(name, PASSWORD)
    yield name
    secured_kafka.delete_scram_user(name)


def login(
    kafka: SecuredKafka, listener: str = "SASL_SSL", user: str = USER, **more: str
) -> ProducerConfig:
    """Return the configuration of a client that logs in with a password; names with _ for a dot."""
    options = {
        "bootstrap.servers": kafka.address(listener),
        "security.protocol": listener,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "max.block.ms": "20000",
    }
    if listener == "SASL_SSL":
        options["ssl.truststore.location"] = str(kafka.ca)
    return producer_config(options | {n.replace("_", "."): value for n, value in more.items()})


def created(config: ProducerConfig, max_lifetime_ms: int | None = None) -> DelegationToken:
    """Create a token, as of this machine's clock."""
    with KafkaAdmin(config) as admin:
        token = admin.create_delegation_token(max_lifetime_ms)
    return TokenLife.created(token, round(time.time() * 1000)).token


def aged(token: DelegationToken) -> DelegationToken:
    """Return a token that does not look new, so that a refusal is not retried."""
    return replace(token, issue_timestamp_ms=token.issue_timestamp_ms - FRESH_MS)


def write(config: ProducerConfig, topic: str, first: int, last: int) -> None:
    """Write numbered rows."""
    with TaskProducer(config) as producer:
        values = pa.array([str(row) for row in range(first, last)])
        producer.append(topic, pa.record_batch({"value": values}))
        producer.flush()


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_that_are_written_by_a_new_token_arrive_once(
    secured_kafka: SecuredKafka,
    topic: str,
    listener: str,
    mechanism: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    driver = login(secured_kafka, listener)
    token = created(driver)
    assert token.owner == f"User:{USER}"
    assert token.expiry_timestamp_ms - token.issue_timestamp_ms == DAY_MS
    assert token.max_timestamp_ms - token.issue_timestamp_ms == 7 * DAY_MS
    # At once: the broker may not know it yet.
    write(with_delegation_token(driver, token, mechanism), topic, 0, 1000)
    secured_kafka.check_rows(topic, 1000)
    assert token.hmac.value not in caplog.text
    assert PASSWORD not in caplog.text


def test_a_token_is_described_renewed_and_expired(secured_kafka: SecuredKafka, user: str) -> None:
    with KafkaAdmin(login(secured_kafka, user=user)) as admin:
        assert admin.describe_delegation_token([]) == []
        token = admin.create_delegation_token()
        assert token.owner == f"User:{user}"
        while not (found := admin.describe_delegation_token([token.owner])):
            pass  # brokers learn of it soon
        assert found == [token]
        assert token in admin.describe_delegation_token()
        assert admin.describe_delegation_token(["User:nobody"]) == []
        assert admin.renew_delegation_token(token.hmac) > token.expiry_timestamp_ms
        admin.expire_delegation_token(token.hmac)
        while admin.describe_delegation_token([token.owner]):
            pass
        for call in (admin.renew_delegation_token, admin.expire_delegation_token):
            with pytest.raises(ApiException, match=r"DELEGATION_TOKEN_NOT_FOUND \(62\)"):
                call(token.hmac)
    assert token.hmac.value not in repr(token)


def test_a_user_s_own_token_logs_in_by_jaas(secured_kafka: SecuredKafka, topic: str) -> None:
    token = created(login(secured_kafka))
    write(with_delegation_token(login(secured_kafka), token, "SCRAM-SHA-256"), topic, 0, 1)
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token.token_id}" password="{token.hmac.value}" tokenauth="true";'
    )
    options = {
        "bootstrap.servers": secured_kafka.address("SASL_SSL"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(secured_kafka.ca),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": jaas,
    }
    with KafkaProducer(options) as producer:
        producer.send(topic, "1").result(20)
    secured_kafka.check_rows(topic, 2)
    without = options | {"sasl.jaas.config": jaas.replace(' tokenauth="true"', "")}
    with (
        pytest.raises(SaslAuthenticationException, match="invalid credentials"),
        KafkaProducer(without) as producer,
    ):
        producer.send(topic, "2").result(20)
    with (
        pytest.raises(ApiException, match=r"NOT_ALLOWED \(64\); log in by SASL or with a cert"),
        KafkaAdmin(producer_config(options)) as admin,
    ):
        admin.create_delegation_token()


def test_a_ticket_of_kerberos_creates_a_token(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str
) -> None:
    by_ticket = producer_config(
        {
            "bootstrap.servers": secured_kafka.address("SASL_SSL"),
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(secured_kafka.ca),
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.principal": USER,
            "sasl.kerberos.keytab": str(realm.keytab(USER)),
        }
    )
    token = created(by_ticket)
    assert token.owner == f"User:{USER}"
    write(with_delegation_token(by_ticket, token, "SCRAM-SHA-512"), topic, 0, 10)
    secured_kafka.check_rows(topic, 10)


def test_a_token_that_was_expired_is_refused_at_once(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    driver = login(secured_kafka)
    token = created(driver)
    soon = login(secured_kafka, max_block_ms="5000")
    config = with_delegation_token(soon, aged(token), "SCRAM-SHA-512")
    write(with_delegation_token(driver, token, "SCRAM-SHA-512"), topic, 0, 1)
    with KafkaAdmin(driver) as admin:
        admin.expire_delegation_token(token.hmac)
    said = refused(config, topic)
    assert f"refused the login of the delegation token {token.token_id!r} by SCRAM-SHA-512" in said
    assert "somebody may have expired it" in said
    assert token.hmac.value not in said
    secured_kafka.check_rows(topic, 1)


def test_a_token_whose_life_is_over_is_refused_with_the_broker_s_setting(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    """Brokers accept it until they delete it, which they do once an hour."""
    driver = login(secured_kafka)
    token = created(driver, max_lifetime_ms=1)
    soon = login(secured_kafka, max_block_ms="5000")
    said = refused(with_delegation_token(soon, aged(token), "SCRAM-SHA-256"), topic)
    assert "raise delegation.token.max.lifetime.ms of the brokers" in said
    assert read_with_confluent(secured_kafka.bootstrap, topic) == []
    with (
        pytest.raises(ApiException, match=r"DELEGATION_TOKEN_(EXPIRED|NOT_FOUND)"),
        KafkaAdmin(driver) as admin,
    ):
        admin.renew_delegation_token(token.hmac)


def refused(config: ProducerConfig, topic: str) -> str:
    """Return what producer and admin say of a token that does not log in."""
    with pytest.raises(SaslAuthenticationException) as by_producer:
        write(config, topic, 0, 1)
    with pytest.raises(SaslAuthenticationException) as by_admin, KafkaAdmin(config) as admin:
        admin.topics([topic])
    assert "delegation token" in str(by_admin.value)
    return "".join(traceback.format_exception(by_producer.value))


def test_rows_that_outlive_their_token_fail_with_the_broker_s_setting(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    driver = login(secured_kafka, request_timeout_ms="1500", delivery_timeout_ms="2000")
    driver = msgspec.structs.replace(driver, linger_ms=0)
    token = created(driver, max_lifetime_ms=4_000)
    written: list[int] = []

    def write_for_ever() -> None:
        with TaskProducer(with_delegation_token(driver, token, "SCRAM-SHA-512")) as producer:
            while True:
                producer.append(topic, pa.record_batch({"value": [str(len(written))]}))
                producer.flush()
                written.append(len(written))

    with pytest.raises(SaslAuthenticationException) as caught:
        write_for_ever()
    said = str(caught.value)
    assert f"the delegation token {token.token_id!r}" in said
    assert "raise delegation.token.max.lifetime.ms of the brokers" in said
    assert written
    secured_kafka.check_rows(topic, len(written))


def test_a_token_has_the_rights_of_its_owner(
    secured_kafka: SecuredKafka, topic: str, user: str
) -> None:
    secured_kafka.run_acls_script(
        "--bootstrap-server", secured_kafka.bootstrap, "--add", "--allow-principal", "User:other",
        "--operation", "WRITE", "--topic", topic,
    )  # fmt: skip
    driver = login(secured_kafka, user=user)
    token = created(driver)
    with pytest.raises(TopicAuthorizationException) as caught:
        write(with_delegation_token(driver, token, "SCRAM-SHA-512"), topic, 0, 1)
    assert f"--allow-principal User:{user} --operation WRITE" in str(caught.value)


def test_who_has_no_login_gets_no_token(secured_kafka: SecuredKafka) -> None:
    plain = producer_config({"bootstrap.servers": secured_kafka.bootstrap})
    with KafkaAdmin(plain) as admin:
        for call in (admin.create_delegation_token, admin.describe_delegation_token):
            with pytest.raises(ApiException, match=r"DELEGATION_TOKEN_REQUEST_NOT_ALLOWED \(64\)"):
                call()


# -- brokers that cannot ---------------------------------------------------------------------------


@pytest.fixture
def scripted() -> Iterator[ScriptedBroker]:
    """A broker that answers as a test says."""
    broker = ScriptedBroker()
    yield broker
    broker.stop()


def of_scripted(broker: ScriptedBroker, max_block_ms: int = 20_000) -> KafkaAdmin:
    return KafkaAdmin(
        producer_config({"bootstrap.servers": broker.address, "max.block.ms": str(max_block_ms)})
    )


def answer(code: int) -> CreateDelegationTokenResponse:
    """Return a response with an error."""
    return CreateDelegationTokenResponse(
        error_code=code, principal_type="", principal_name="", issue_timestamp_ms=0,
        expiry_timestamp_ms=0, max_timestamp_ms=0, token_id="", hmac=b"", throttle_time_ms=0,
    )  # fmt: skip


def test_brokers_without_tokens_say_which_setting_they_lack(scripted: ScriptedBroker) -> None:
    scripted.answers[CREATE_DELEGATION_TOKEN.key] = answer(codes.DELEGATION_TOKEN_AUTH_DISABLED)
    with of_scripted(scripted) as admin, pytest.raises(ApiException) as caught:
        admin.create_delegation_token()
    assert str(caught.value) == (
        "the delegation token cannot be created: DELEGATION_TOKEN_AUTH_DISABLED (61); set "
        "delegation.token.secret.key on each broker and controller"
    )
    scripted.speaks[CREATE_DELEGATION_TOKEN.key] = None
    with (
        of_scripted(scripted) as admin,
        pytest.raises(UnsupportedVersionException, match="CreateDelegationToken"),
    ):
        admin.create_delegation_token()


def test_errors_that_pass_are_tried_again_within_the_time_limit(scripted: ScriptedBroker) -> None:
    not_controller = 41
    scripted.answers[CREATE_DELEGATION_TOKEN.key] = answer(not_controller)
    with of_scripted(scripted, 500) as admin, pytest.raises(TimeoutException):
        admin.create_delegation_token()
    assert scripted.asked.count(CREATE_DELEGATION_TOKEN.key) > 1
    scripted.answers[RENEW_DELEGATION_TOKEN.key] = RenewDelegationTokenResponse(
        error_code=0, expiry_timestamp_ms=17, throttle_time_ms=0
    )
    with of_scripted(scripted) as admin:
        hmac = Secret(base64.b64encode(b"hmac").decode())
        assert admin.renew_delegation_token(hmac) == 17
        with pytest.raises(IllegalArgumentException, match="hmac is of type str") as caught:
            admin.renew_delegation_token("hidden")  # type: ignore[arg-type]
        assert "hidden" not in str(caught.value)
        with pytest.raises(IllegalArgumentException, match="max_lifetime_ms"):
            admin.create_delegation_token(0)

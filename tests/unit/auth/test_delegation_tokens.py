"""Delegation tokens: when one is renewed or replaced, and what a task gets of the credentials."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.auth.delegation_tokens import (
    TokenAction,
    TokenLife,
    checked_token_mechanism,
    is_fresh,
    refusal_hint,
    with_delegation_token,
)
from spark_kafka_sink.config import SECRETS, option_fields, producer_config
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import DelegationToken, Secret

HOUR = 3_600_000
DAY = 24 * HOUR
# The defaults of brokers.
EXPIRY, MAX_LIFE = DAY, 7 * DAY


def new_token(
    now_ms: int = 0, expiry_ms: int = EXPIRY, max_ms: int = MAX_LIFE, name: str = "t1"
) -> DelegationToken:
    """Return a token as brokers create it."""
    return DelegationToken(
        token_id=name,
        hmac=Secret("aG1hYw=="),
        owner="User:alice",
        issue_timestamp_ms=now_ms,
        expiry_timestamp_ms=now_ms + min(expiry_ms, max_ms),
        max_timestamp_ms=now_ms + max_ms,
    )


def test_a_token_is_renewed_and_later_replaced_after_three_quarters_of_its_times() -> None:
    life = TokenLife.created(new_token(), 0)
    for now_ms, action in (
        (0, TokenAction.KEEP),
        (18 * HOUR - 1, TokenAction.KEEP),
        (18 * HOUR, TokenAction.RENEW),
        (EXPIRY - 1, TokenAction.RENEW),
        (EXPIRY, TokenAction.REPLACE),
    ):
        assert (now_ms, life.action(now_ms)) == (now_ms, action)
    renewed = life.renewed(18 * HOUR + EXPIRY, 0, 18 * HOUR)
    assert renewed.action(36 * HOUR - 1) is TokenAction.KEEP
    assert renewed.action(36 * HOUR) is TokenAction.RENEW
    late = renewed.renewed(107 * HOUR + EXPIRY, 0, 107 * HOUR)
    assert late.action(126 * HOUR - 1) is TokenAction.RENEW
    assert late.action(126 * HOUR) is TokenAction.REPLACE


def test_a_token_that_another_process_has_just_renewed_is_replaced_all_the_same() -> None:
    life = TokenLife.created(new_token(), 0)
    renewed = life.renewed(125 * HOUR + EXPIRY, 0, 125 * HOUR)
    assert renewed.action(126 * HOUR - 1) is TokenAction.KEEP
    assert renewed.action(126 * HOUR) is TokenAction.REPLACE


def test_a_token_that_cannot_be_renewed_is_replaced() -> None:
    life = TokenLife.created(new_token(max_ms=8 * HOUR), 0)
    assert life.action(6 * HOUR - 1) is TokenAction.KEEP
    assert life.action(6 * HOUR) is TokenAction.REPLACE


@dataclass
class Brokers:
    """Create and renew tokens as brokers do; their clock is behind."""

    expiry_ms: int
    max_ms: int
    behind_ms: int = 0
    created: int = 0

    def create(self, now_ms: int) -> TokenLife:
        """Return the life of a new token."""
        self.created += 1
        token = new_token(now_ms - self.behind_ms, self.expiry_ms, self.max_ms)
        return TokenLife.created(token, now_ms)

    def renew(self, life: TokenLife, now_ms: int) -> TokenLife:
        """Renew a token, never past its life."""
        last_ms = life.token.max_timestamp_ms - self.behind_ms
        expiry_ms = min(now_ms - self.behind_ms + self.expiry_ms, last_ms)
        return life.renewed(expiry_ms, self.behind_ms, now_ms)


@given(
    expiry_ms=st.integers(1_000, DAY),
    max_ms=st.integers(1_000, MAX_LIFE),
    behind_ms=st.integers(-DAY, DAY),
    gaps=st.lists(st.tuples(st.integers(0, 120), st.booleans()), min_size=1, max_size=50),
)
def test_what_begins_with_a_token_has_at_least_a_quarter_of_its_time(
    expiry_ms: int, max_ms: int, behind_ms: int, gaps: list[tuple[int, bool]]
) -> None:
    brokers = Brokers(expiry_ms, max_ms, behind_ms)
    now_ms = 10 * MAX_LIFE
    life = brokers.create(now_ms)
    for percent, is_renewed_by_a_running_write in gaps:
        now_ms += percent * min(expiry_ms, max_ms) // 100
        if is_renewed_by_a_running_write and now_ms < life.token.expiry_timestamp_ms:
            life = brokers.renew(life, now_ms)
        action = life.action(now_ms)
        if action is TokenAction.RENEW:
            life = brokers.renew(life, now_ms)
        elif action is TokenAction.REPLACE:
            life = brokers.create(now_ms)
        left_ms = life.token.expiry_timestamp_ms - now_ms
        assert 4 * left_ms >= min(expiry_ms, max_ms)
        assert life.token.expiry_timestamp_ms <= life.token.max_timestamp_ms


@pytest.mark.parametrize("minutes", [1, 8])
def test_a_thousand_micro_batches_take_two_tokens_at_most(minutes: int) -> None:
    brokers = Brokers(EXPIRY, MAX_LIFE)
    life = brokers.create(0)
    for batch in range(1, 1000):
        now_ms = batch * minutes * 60_000
        action = life.action(now_ms)
        assert action is not TokenAction.REPLACE or brokers.created == 1
        if action is TokenAction.RENEW:
            life = brokers.renew(life, now_ms)
        elif action is TokenAction.REPLACE:
            life = brokers.create(now_ms)
    assert brokers.created == (1 if minutes == 1 else 2)


def test_a_clock_that_is_wrong_moves_all_times_of_a_token() -> None:
    ahead = 5 * HOUR
    life = TokenLife.created(new_token(1_000), 1_000 + ahead)
    assert life.token.issue_timestamp_ms == 1_000 + ahead
    assert life.action(1_000 + ahead + 18 * HOUR - 1) is TokenAction.KEEP
    again = TokenLife.known(new_token(1_000), 1_000 + ahead, ahead)
    assert again == life


def test_a_token_is_fresh_for_ten_seconds() -> None:
    token = new_token(100_000)
    assert is_fresh(token, 109_999)
    assert not is_fresh(token, 110_000)
    # The clock of an executor may be behind.
    assert is_fresh(token, 90_000)


MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
CREDENTIALS = {
    "PLAIN": {"sasl.mechanism": "PLAIN", "sasl.username": "hidden-u", "sasl.password": "hidden-p"},
    "JAAS": {
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{MODULE} required username="hidden-u" password="hidden-p";',
    },
    "Kerberos": {
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": "hidden-u",
        "sasl.kerberos.keytab": "/hidden-path.keytab",
    },
    "OAuth": {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://hidden-host/token",
        "sasl.oauthbearer.client.credentials.client.id": "hidden-u",
        "sasl.oauthbearer.client.credentials.client.secret": "hidden-p",
        "sasl.oauthbearer.assertion.private.key.passphrase": "hidden-pp",
    },
}


@pytest.mark.parametrize("kind", CREDENTIALS)
def test_a_task_logs_in_by_the_token_and_has_none_of_the_driver_s_credentials(kind: str) -> None:
    config = producer_config(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_SSL",
            "linger.ms": "7",
            "ssl.truststore.location": "/certs/trusted.pem",
            "ssl.keystore.key": "hidden-key",
            "ssl.keystore.certificate.chain": "hidden-chain",
            "ssl.key.password": "hidden-key-password",
        }
        | CREDENTIALS[kind]
    )
    made = with_delegation_token(config, new_token(), "SCRAM-SHA-256")
    pickled = pickle.dumps(made)
    assert b"hidden" in pickle.dumps(config)
    assert b"hidden" not in pickled
    assert b"aG1hYw==" in pickled
    assert (made.sasl_mechanism, made.linger_ms) == ("SCRAM-SHA-256", 7)
    assert (made.ssl_truststore_location, made.security_protocol) == (
        "/certs/trusted.pem",
        "SASL_SSL",
    )


def test_no_secret_option_is_left_beside_those_of_the_truststore() -> None:
    given: dict[str, str] = {
        name: "hidden"
        for name in SECRETS
        if name not in ("sasl.jaas.config", "ssl.truststore.certificates")
    }
    config = producer_config(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_SSL",
            "sasl.username": "u",
            "ssl.truststore.location": "/trusted.pem",
            **given,
        }
    )
    made = with_delegation_token(config, new_token(), "SCRAM-SHA-512")
    left = {
        each.encode_name for each in option_fields() if getattr(made, each.name) == Secret("hidden")
    }
    assert left == {"ssl.truststore.password"}


def test_the_hmac_is_not_shown() -> None:
    config = producer_config({"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL"})
    token = new_token()
    made = with_delegation_token(config, token, "SCRAM-SHA-512")
    for thing in (token, made, TokenLife.created(token, 0)):
        assert "t1" in repr(thing)
        assert "aG1hYw" not in repr(thing)


def test_tokens_of_other_ids_make_other_configurations() -> None:
    config = producer_config({"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL"})
    first, second = (
        with_delegation_token(config, new_token(name=name), "SCRAM-SHA-512") for name in "ab"
    )
    assert first != second
    assert len({first, second}) == 2


def test_only_scram_takes_tokens() -> None:
    assert checked_token_mechanism("o", "SCRAM-SHA-256") == "SCRAM-SHA-256"
    for wrong in ("PLAIN", "scram-sha-256", "", "GSSAPI"):
        with pytest.raises(ConfigException, match="expected SCRAM-SHA-256 or SCRAM-SHA-512"):
            checked_token_mechanism("o", wrong)


def test_a_refusal_names_the_setting_of_the_brokers() -> None:
    token = replace(new_token(), expiry_timestamp_ms=DAY, max_timestamp_ms=7 * DAY)
    for now_ms, sentence in (
        (DAY - 1, "should be valid until at least 1970-01-02T00:00:00+00:00: "),
        (DAY, "expired at 1970-01-02T00:00:00+00:00 unless the driver renewed it"),
        (
            DAY,
            "in a classic session, and only for write_batch or after register(spark): use one of",
        ),
        (DAY, "or raise delegation.token.expiry.time.ms of the brokers, or let tasks"),
        (7 * DAY, "life ended at 1970-01-08T00:00:00+00:00: raise delegation.token.max.lifetime"),
    ):
        assert sentence in refusal_hint(token, now_ms)
    said = refusal_hint(None, 0)
    assert "delegation.token.expiry.time.ms" in said
    assert "delegation.token.max.lifetime.ms" in said

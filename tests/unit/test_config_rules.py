"""The producer's configuration: Java's defaults, and the rules between options."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config import SECRETS, ConfigProvider, producer_config
from spark_kafka_sink.errors import ConfigException

ADDRESS = {"bootstrap.servers": "127.0.0.1:9092"}


def test_defaults_are_those_of_the_java_client() -> None:
    config = producer_config(ADDRESS)
    assert (config.acks, config.enable_idempotence, config.retries) == ("all", True, 2**31 - 1)
    assert (config.linger_ms, config.batch_size, config.buffer_memory) == (5, 16_384, 33_554_432)
    assert (config.max_request_size, config.max_block_ms) == (1_048_576, 60_000)
    assert (config.delivery_timeout_ms, config.request_timeout_ms) == (120_000, 30_000)
    assert config.max_in_flight_requests_per_connection == 5


@given(
    acks=st.sampled_from([None, "all", "-1", "1", "0"]),
    retries=st.sampled_from([None, 0, 1]),
    in_flight=st.sampled_from([None, 5, 6]),
    asked=st.sampled_from([None, True, False]),
)
def test_idempotence_by_default_gives_way_where_asked_for_it_insists(
    *, acks: str | None, retries: int | None, in_flight: int | None, asked: bool | None
) -> None:
    given = {
        "acks": acks,
        "retries": retries,
        "max.in.flight.requests.per.connection": in_flight,
        "enable.idempotence": asked,
    }
    options = ADDRESS | {name: str(value) for name, value in given.items() if value is not None}
    conflicts = acks in ("0", "1") or retries == 0
    # Too many in flight is an error even if not set explicitly: order would be lost silently.
    if asked is not False and (in_flight == 6 or (asked and conflicts)):
        with pytest.raises(ConfigException, match=r"idempoten.*(must be|allows)"):
            producer_config(options)
    else:
        expected = asked is not False and not conflicts
        assert producer_config(options).enable_idempotence is expected


def test_the_delivery_timeout_is_at_least_linger_and_one_request() -> None:
    times = {"linger.ms": "100", "request.timeout.ms": "200000"}
    assert producer_config(ADDRESS | times).delivery_timeout_ms == 200_100
    with pytest.raises(ConfigException, match=r"delivery\.timeout\.ms is 200099: .* 200100"):
        producer_config(ADDRESS | times | {"delivery.timeout.ms": "200099"})
    exact = producer_config(ADDRESS | times | {"delivery.timeout.ms": "200100"})
    assert exact.delivery_timeout_ms == 200_100


def test_what_is_secured_by_half_or_twice_is_refused() -> None:
    for options, message in (
        ({"sasl.username": "u"}, r"sasl\.username and sasl\.password go together"),
        (
            {"sasl.username": "u", "sasl.password": "MARKER", "sasl.jaas.config": "MARKER"},
            r"sasl\.username and sasl\.jaas\.config both name a user",
        ),
        ({"ssl.keystore.key": "MARKER"}, r"ssl\.keystore\.key is set without"),
        (
            {"ssl.truststore.location": "/a", "ssl.truststore.certificates": "b"},
            r"ssl\.truststore\.location and options with its contents are both set",
        ),
        ({"security.protocol": "SSL", "sasl.password": "MARKER"}, r"sasl\.password has no effect"),
    ):
        with pytest.raises(ConfigException, match=message) as caught:
            producer_config(ADDRESS | {"security.protocol": "SASL_SSL"} | options)
        assert "MARKER" not in str(caught.value)


def test_options_of_a_provider_belong_to_its_name() -> None:
    given = {"config.providers": "Mine, other", "config.providers.other.class": "B"}
    for name in ("Mine", "mine"):  # Spark writes names of options in lower case
        config = producer_config(ADDRESS | given | {f"config.providers.{name}.class": "A"})
        assert config.config_providers == (
            ConfigProvider("Mine", (("class", "A"),)),
            ConfigProvider("other", (("class", "B"),)),
        )
    with pytest.raises(ConfigException, match=r"config\.providers\.third\.class is an option"):
        producer_config(ADDRESS | given | {"config.providers.third.class": "C"})


@pytest.mark.parametrize("value", [b"MARKER", ["MARKER"], {"MARKER": 1}])
def test_a_secret_that_is_no_text_is_refused_and_not_shown(value: object) -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": value}
    with pytest.raises(ConfigException, match=r"^sasl\.password is of type \w+: expected a str$"):
        producer_config(ADDRESS | given)


def test_no_text_of_a_configuration_shows_a_secret() -> None:
    names = dict.fromkeys(sorted(SECRETS - {"sasl.password", "ssl.keystore.key"}), "MARKER")
    chain = {"ssl.keystore.key": "MARKER", "ssl.keystore.certificate.chain": "c"}
    config = producer_config(ADDRESS | {"security.protocol": "SASL_SSL"} | names | chain)
    assert "MARKER" not in f"{config} {config!r} {(config,)}"
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(pickle.loads(pickle.dumps(config))) == hash(config)
    other = producer_config(
        ADDRESS | {"security.protocol": "SASL_SSL"} | names | chain | {"sasl.jaas.config": "other"}
    )
    assert other != config

"""The producer's configuration: Java's defaults, and the rules between options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config import producer_config
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
    # Too many in flight is an error also where nobody asked: order would be lost silently.
    if asked is not False and (in_flight == 6 or (asked and conflicts)):
        with pytest.raises(ConfigException, match=r"idempoten.*(needs|allows)"):
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


def test_a_security_protocol_that_is_not_there_yet_is_refused_by_a_sentence() -> None:
    with pytest.raises(ConfigException, match=r"SASL is not supported yet"):
        producer_config(ADDRESS | {"security.protocol": "SASL_SSL"})
    config = producer_config(ADDRESS | {"security.protocol": "plaintext"})
    assert config.security_protocol == "PLAINTEXT"

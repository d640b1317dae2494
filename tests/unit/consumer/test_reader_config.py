"""A reader's options: the Java consumer's names, checked before anything is connected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.brokers.jvm import run_java

from spark_kafka_sink.config import option_fields
from spark_kafka_sink.consumer.reader_config import ReaderConfig, reader_config
from spark_kafka_sink.errors import ConfigException

ADDRESS = {"bootstrap.servers": "h:9092"}
# The message on the metrics of a client: a reader has none.
OF_METRICS = {"metrics.num.samples", "metrics.sample.window.ms"}

# An option that the Java consumer does not have.
OF_KIP_81 = "buffer.memory"


def test_defaults_are_those_of_the_java_consumer() -> None:
    config = reader_config(ADDRESS)
    assert (config.fetch_max_bytes, config.max_partition_fetch_bytes) == (52_428_800, 1_048_576)
    assert (config.fetch_max_wait_ms, config.fetch_min_bytes) == (500, 1)
    assert config.buffer_memory == 64 * 1024 * 1024
    assert (config.default_api_timeout_ms, config.client.request_timeout_ms) == (60_000, 30_000)
    assert config.client.receive_buffer_bytes == 65_536
    assert config.client.client_id == "topic-reader"


def test_every_option_of_connections_is_taken_with_the_java_consumer_s_default() -> None:
    java = dict(line.split("\t") for line in run_java("ConsumerOptions", "all").splitlines())
    config = reader_config(ADDRESS)
    own = {f.encode_name: f.name for f in msgspec.structs.fields(ReaderConfig)}
    shared = {f.encode_name: f.name for f in option_fields() if f.encode_name in java}
    assert not shared.keys() & {"sasl.username", "sasl.password"}
    # The reader fetches from leaders only, so it has no rack.
    for name in shared.keys() - OF_METRICS - {"bootstrap.servers", "client.id", "client.rack"}:
        value = getattr(config.client, shared[name])
        protocol = {"security.protocol": "SASL_SSL"} if name.startswith(("ssl.", "sasl.")) else {}
        taken = reader_config(ADDRESS | protocol | {name: value}).client
        assert getattr(taken, shared[name]) == value, name
        # Java writes a list in brackets.
        found = java[name].removeprefix("class ")
        in_java = {
            "null": None,
            "[]": "" if isinstance(value, str) else (),
            "true": True,
            "false": False,
        }.get(found, found)
        assert str(value) == str(in_java).strip("[]").replace(", ", ","), name
    for name in own.keys() - {"client", OF_KIP_81}:
        assert str(getattr(config, own[name])) == java[name], name


def test_hosts_are_looked_up_as_is_said() -> None:
    given = ADDRESS | {"client.dns.lookup": "Resolve_canonical_bootstrap_servers_only"}
    config = reader_config(given).client
    assert config.client_dns_lookup == "resolve_canonical_bootstrap_servers_only"


def test_options_come_as_strings_or_values() -> None:
    given = {**ADDRESS, "fetch.max.bytes": " +1000 ", "retry.backoff.ms": 7, "client.id": "c"}
    config = reader_config(given)
    assert config.fetch_max_bytes == 1000
    assert (config.client.retry_backoff_ms, config.client.client_id) == (7, "c")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"bootstrap\.servers is not set"),
        ({**ADDRESS, "linger.ms": 5}, r"linger\.ms is not an option of a topic reader"),
        ({**ADDRESS, "fetch.max.byte": 5}, r"did you mean fetch\.max\.bytes"),
        ({**ADDRESS, "fetch.max.bytes": "many"}, r"fetch\.max\.bytes"),
        ({**ADDRESS, "fetch.max.bytes": "1e6"}, r"fetch\.max\.bytes"),
        ({**ADDRESS, "fetch.max.bytes": 0}, r"fetch\.max\.bytes"),
        ({**ADDRESS, "fetch.max.bytes": 2**30}, r"bytes is 1073741824: .* from 1 to 67108864$"),
        ({**ADDRESS, "buffer.memory": 0}, r"buffer\.memory is 0: .* from 1 to 2147483647$"),
        ({**ADDRESS, "request.timeout.ms": -1}, r"request\.timeout\.ms"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigException, match=message):
        reader_config(options)


@pytest.mark.parametrize(
    "name", [f.encode_name for f in msgspec.structs.fields(ReaderConfig) if f.name != "client"]
)
def test_text_with_half_of_a_surrogate_pair_is_refused(name: str) -> None:
    with pytest.raises(ConfigException, match=f"^{name} cannot be encoded as UTF-8, because"):
        reader_config(ADDRESS | {name: "\ud800"})


def test_a_reader_that_may_not_wait_at_all_is_refused() -> None:
    with pytest.raises(ConfigException, match=r"default\.api\.timeout\.ms is 0: expected"):
        reader_config(ADDRESS | {"default.api.timeout.ms": 0})

"""The options about a schema registry: their names, values and contradictions."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.schema_registry.settings import (
    REGISTRY_OPTIONS,
    RegistrySettings,
    SubjectNameStrategy,
    registry_settings,
)
from spark_kafka_sink.spark.options import sink_options

URL = {"schema.registry.url": "http://localhost:8081"}


def settings(**options: str) -> RegistrySettings:
    """Return the settings of options, whose names have _ for a dot."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    found = registry_settings({**URL, **given})
    assert found is not None
    return found


def test_without_a_url_there_is_no_registry() -> None:
    assert registry_settings({"topic": "t"}) is None
    for name in REGISTRY_OPTIONS:
        if name != "schema.registry.url":
            with pytest.raises(ConfigException, match=f"option {name} has no effect: set schema.r"):
                registry_settings({name.lower(): "x"})


@pytest.mark.parametrize("url", ["", " ", ",", " , ,"])
def test_a_url_option_that_names_no_url_is_refused(url: str) -> None:
    """So an unset variable does not write plain Avro."""
    given = {"kafka.bootstrap.servers": "h:1", "schema.registry.url": url, "valueFormat": "avro"}
    with pytest.raises(ConfigException) as refused:
        sink_options(given)
    assert str(refused.value) == (
        f"option schema.registry.url is {url!r}, which has no URL in it: set it to "
        "https://host:port, several separated by commas, or remove the option"
    )


def test_the_defaults() -> None:
    found = settings()
    assert found.auto_register
    assert not found.use_latest
    assert not found.normalize
    assert (found.cache_ttl_s, found.schema_id) == (-1.0, None)
    assert found.strategy_of("key") is SubjectNameStrategy.TOPIC
    assert found.subject_of("value") is None


def test_values_are_those_of_confluent_s_clients() -> None:
    found = settings(
        auto_register_schemas="False",
        use_latest_version="true",
        normalize_schemas=" TRUE ",
        latest_cache_ttl_sec="60",
        use_schema_id="7",
        valuesubject="orders",
        key_subject_name_strategy="io.confluent.kafka.serializers.subject.RecordNameStrategy",
        avro_use_logical_type_converters="true",
        latest_compatibility_strict="true",
        id_compatibility_strict="false",
        key_schema_id_serializer="io.confluent.kafka.serializers.schema.id.HeaderSchemaIdSerializer",
        value_schema_id_serializer="io.confluent.kafka.serializers.schema.id.PrefixSchemaIdSerializer",
    )
    assert (found.auto_register, found.use_latest, found.normalize) == (False, True, True)
    assert (found.cache_ttl_s, found.schema_id) == (60.0, 7)
    assert found.subject_of("value") == "orders"
    assert found.ids_in_headers == ("key",)
    assert found.strategy_of("key") is SubjectNameStrategy.RECORD
    assert settings(use_schema_id="-1").schema_id is None


@pytest.mark.parametrize("name", ["TopicRecordNameStrategy", "TOPIC_RECORD", "topicrecordname"])
def test_a_strategy_has_a_short_name(name: str) -> None:
    found = settings(value_subject_name_strategy=name)
    assert found.strategy_of("value") is SubjectNameStrategy.TOPIC_RECORD


def test_subjects_are_named_as_in_java() -> None:
    names = [each.subject("t", "value", "com.shop.Order") for each in SubjectNameStrategy]
    assert names == ["t-value", "com.shop.Order", "t-com.shop.Order"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("auto.register.schemas", "yes", "expected true or false"),
        ("use.schema.id", "x", "expected the id of a schema"),
        ("use.schema.id", "2147483648", "expected the id of a schema"),
        ("latest.cache.ttl.sec", "soon", "expected seconds, or -1 for no limit"),
        ("latest.cache.ttl.sec", "nan", "expected seconds, or -1 for no limit"),
        ("value.subject.name.strategy", "ASSOCIATED", "expected TopicNameStrategy, RecordNameStr"),
        ("valueSubject", " ", "expected the name of a subject"),
        ("key.schema.id.serializer", "Prefix", "expected PrefixSchemaIdSerializer or HeaderSchem"),
    ],
)
def test_an_invalid_value_is_refused(name: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigException, match=f"option {name} is .*{expected}"):
        registry_settings({**URL, name.lower(): value})


@pytest.mark.parametrize(
    ("name", "what_to_do"),
    [
        ("proxy", "set http_proxy or https_proxy in the environment of the driver"),
        ("proxy.host", "set http_proxy or https_proxy in the environment of the driver"),
        ("schema.registry.proxy.port", "set http_proxy or https_proxy in the environment of the"),
        ("max.retries", "remove it, because the time limits and retries of calls to the registry"),
        ("cache.latest.ttl.sec", "set latest.cache.ttl.sec"),
        ("subject.name.strategy", "set key.subject.name.strategy or value.subject.name.strategy"),
        ("schema.registry.basic.auth.user.info", "set basic.auth.user.info"),
        ("schema.registry.ssl.ca.location", "set schema.registry.ssl.truststore.location"),
        ("schema.registry.ssl.key.location", "set schema.registry.ssl.keystore.location; the file"),
    ],
)
def test_an_option_of_confluent_s_clients_is_answered_with_what_to_do(
    name: str, what_to_do: str
) -> None:
    given = {**URL, "kafka.bootstrap.servers": "h:1", name: "s3cret"}
    with pytest.raises(ConfigException, match=f"^option {name} is an option of") as refused:
        sink_options(given)
    assert f" clients: {what_to_do}" in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "java", "advice"),
    [
        ("ssl.ca.location", "ssl.truststore.location", ""),
        ("ssl.certificate.location", "ssl.keystore.location", "; the file of the key store has"),
        ("ssl.key.location", "ssl.keystore.location", "; the file of the key store has the key"),
    ],
)
def test_a_tls_option_of_confluent_kafka_may_be_meant_for_the_registry(
    name: str, java: str, advice: str
) -> None:
    given = {"kafka.bootstrap.servers": "h:1", name: "/ca.pem"}
    brokers = f"option {name} is an option of other clients: set kafka.{java}"
    with pytest.raises(ConfigException, match=f"^{brokers}{advice}"):
        sink_options(given)
    both = f"set schema.registry.{java} for the schema registry, or kafka.{java} for the brokers"
    with pytest.raises(ConfigException, match=f"^option {name} is an option of .*: {both}{advice}"):
        sink_options({**URL, **given})


def test_no_secret_is_shown() -> None:
    found = settings(basic_auth_user_info="user:s3cret", bearer_auth_token="s3cret")
    assert "s3cret" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found

"""Serializers and records: valid values, and the messages on others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from spark_kafka_sink.config import SECRETS, producer_config
from spark_kafka_sink.errors import ConfigException, DataException, SerializationException
from spark_kafka_sink.model import ProducerRecord
from spark_kafka_sink.plugins import loading
from spark_kafka_sink.plugins.loading import OwnedPlugins
from spark_kafka_sink.plugins.serializers import as_bytes, load_serializer

VALUE = "value.serializer"


class Reverse:
    """A serializer as the Java client has them."""

    def __init__(self) -> None:
        self.configured: list[tuple[dict[str, Any], bool]] = []

    def configure(self, configs: Mapping[str, object], is_key: bool) -> None:  # noqa: FBT001 - Java's
        """Keep what is given."""
        self.configured.append((dict(configs), is_key))

    def serialize(self, topic: str, value: str) -> bytes:
        """Return topic and value reversed."""
        return f"{topic}:{value}".encode()[::-1]


MADE = Reverse()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, None),
        (b"", b""),
        (b"x", b"x"),
        ("é", "é".encode()),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
    ],
)
def test_bytes_text_and_none_need_no_serializer(data: object, expected: bytes | None) -> None:
    assert as_bytes(VALUE, data) == expected


def test_a_copy_is_taken_of_what_may_change() -> None:
    data = bytearray(b"before")
    taken = as_bytes(VALUE, data)
    data[:] = b"after!"
    assert taken == b"before"


def test_other_types_are_refused_with_class_and_option() -> None:
    with pytest.raises(SerializationException, match=r"value of class int .* value\.serializer"):
        as_bytes(VALUE, 12)


class UnspeakableError(Exception):
    """An exception that does not say what it is."""

    def __str__(self) -> str:
        raise UnspeakableError


def test_an_exception_that_cannot_be_printed_is_told_by_its_class() -> None:
    def serialize(_: object) -> bytes:
        raise UnspeakableError

    serializer = load_serializer(VALUE, serialize, {}, OwnedPlugins())
    assert serializer is not None
    with pytest.raises(SerializationException, match="UnspeakableError: <its __str__ raised>"):
        serializer("t", 1)


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(SerializationException, match="class str to UTF-8"):
        as_bytes(VALUE, "half a pair: \ud800")


def test_a_function_takes_the_value_and_an_object_the_topic_too() -> None:
    function = load_serializer(VALUE, json.dumps, {}, OwnedPlugins())
    assert function is not None
    assert function("t", {"a": 1}) == b'{"a": 1}'
    made = load_serializer("key.serializer", Reverse(), {}, OwnedPlugins())
    assert made is not None
    assert made("t", "ab") == b"ba:t"
    assert load_serializer(VALUE, None, {}, OwnedPlugins()) is None


def test_a_class_is_made_and_configured_and_an_object_is_not() -> None:
    by_name = load_serializer(
        "key.serializer", f"{__name__}.Reverse", {"acks": "1"}, OwnedPlugins()
    )
    assert by_name is not None
    assert by_name("t", "x") == b"x:t"
    assert load_serializer(VALUE, MADE, {"acks": "1"}, OwnedPlugins()) is not None
    assert MADE.configured == []


def test_secrets_come_in_a_type_that_prints_none() -> None:
    plugin = Reverse()
    given = {"acks": "1", **dict.fromkeys(SECRETS, "hunter2")}
    loading.configure(plugin, given, True)  # noqa: FBT003 - Java's
    ((configs, is_key),) = plugin.configured
    assert is_key
    assert configs["acks"] == "1"
    assert "hunter2" not in str(configs)
    assert {configs[name].value for name in SECRETS} == {"hunter2"}
    assert set(given.values()) == {"1", "hunter2"}
    # A plugin may configure its own plugins.
    loading.configure(plugin, configs, True)  # noqa: FBT003 - as above
    assert {plugin.configured[-1][0][name].value for name in SECRETS} == {"hunter2"}


def test_a_plugin_can_make_a_client_of_the_options_that_it_gets() -> None:
    plugin = Reverse()
    given = {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.username": "alice",
        "sasl.password": " hunter2 ",
    }
    loading.configure(plugin, given, True)  # noqa: FBT003 - Java's
    ((configs, _),) = plugin.configured
    assert producer_config(configs) == producer_config(given)


@pytest.mark.parametrize(
    ("serializer", "message"),
    [
        (json.dumps, r"of class object with dumps, specified in value\.serializer: TypeError"),
        (lambda _: 7, r"specified in value\.serializer, returned int for object"),
    ],
)
def test_a_serializer_that_fails_is_named_with_class_and_option(
    serializer: object, message: str
) -> None:
    loaded = load_serializer(VALUE, serializer, {}, OwnedPlugins())
    assert loaded is not None
    with pytest.raises(SerializationException, match=message):
        loaded("t", object())


@pytest.mark.parametrize("given", [7, "no.such.Thing"])
def test_what_is_no_serializer_is_refused(given: object) -> None:
    with pytest.raises(ConfigException, match=r"value\.serializer is"):
        load_serializer(VALUE, given, {}, OwnedPlugins())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"topic": None}, "Topic cannot be None"),
        ({"partition": -1}, "Invalid partition: -1. Partition should always be non-negative"),
        ({"partition": True}, "Invalid partition: True"),
        ({"partition": 2**31}, "Invalid partition: 2147483648. Expected at most 2147483647.$"),
        ({"timestamp_ms": -1}, "Invalid timestamp: -1. Timestamp should always be non-negative"),
        ({"timestamp_ms": 2**63}, "Expected at most 9223372036854775807.$"),
        ({"timestamp_ms": 1.5}, "Invalid timestamp: 1.5. Expected an int"),
        ({"headers": [("a", "b")]}, r"\('a', 'b'\) is not a header"),
        ({"headers": [(None, b"b")]}, "is not a header"),
        ({"headers": ["ab"]}, "'ab' is not a header"),
    ],
)
def test_a_record_that_cannot_be_is_refused_when_it_is_made(
    parts: dict[str, object], message: str
) -> None:
    with pytest.raises(DataException, match=message):
        ProducerRecord(**({"topic": "t"} | parts))  # type: ignore[arg-type] # wrong on purpose


def test_half_a_surrogate_pair_in_a_header_key_becomes_the_replacement_character() -> None:
    record = ProducerRecord("t", headers=[("a\ud800b\udc00", b""), ("\ud83d\ude00", b"")])
    assert record.headers == (("a\ufffdb\ufffd", b""), ("\U0001f600", b""))


def test_headers_are_kept_as_they_were_when_given() -> None:
    value = bytearray(b"before")
    headers: list[tuple[str, bytes | None]] = [("a", None), ("a", value)]  # type: ignore[list-item]
    record = ProducerRecord("t", headers=headers)
    value[:] = b"after!"
    headers.clear()
    assert record.headers == (("a", None), ("a", b"before"))


@pytest.mark.parametrize("option", ["key.serializer", "value.serializer"])
@pytest.mark.parametrize(
    "given", ["org.apache.kafka.common.serialization.StringSerializer", "MySerializer"]
)
def test_a_serializer_written_in_java_is_answered_with_what_to_use(option: str, given: str) -> None:
    with pytest.raises(ConfigException, match="Java classes cannot run here; use a Python func"):
        load_serializer(option, given, {}, OwnedPlugins())

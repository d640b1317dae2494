"""A private key or a token that is set as the wrong option: no error and no warning shows it."""

from __future__ import annotations

import logging
import traceback
from typing import Final

import pytest

from spark_kafka_sink.config import option_fields, producer_config
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.logs import _warn, may_be_key, shown_value
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.plugins.loading import load

BODY: Final = "MC4CAQAwBQYDK2VwBCIEIPASTED0KEY"
KEYS: Final = {
    "lines": f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----\n",
    "one line": f"-----BEGIN RSA PRIVATE KEY----- {BODY} -----END RSA PRIVATE KEY-----",
    "body": f"\n{BODY}\n{BODY}\n",
    "long": f"{BODY}/" * 20,
    "token": ".".join([BODY * 5] * 3),
}
JAAS: Final = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true principal=u"
CLIENTS: Final[dict[str, dict[str, str]]] = {
    "TLS": {"security.protocol": "SSL"},
    "PLAIN": {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "hush",
    },
    "OAUTHBEARER": {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/",
        "sasl.oauthbearer.client.credentials.client.id": "c",
        "sasl.oauthbearer.client.credentials.client.secret": "hush",
    },
    "GSSAPI": {
        "security.protocol": "SASL_SSL",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": "alice",
    },
    "keytab in JAAS": {
        "security.protocol": "SASL_SSL",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": f'{JAAS} keyTab="{KEYS["long"]}";',
    },
}
OPTIONS: Final = sorted(
    {each.encode_name for each in option_fields() if each.encode_name != "config.providers"}
    | {"enable.metrics.push", "sasl.kerberos.kinit.cmd", "config.providers.env.class"}
)


def said_of(options: dict[str, str]) -> str:
    """Return the error of a client with these options, and its login; empty if there is none."""
    try:
        made = Security.of(producer_config({"bootstrap.servers": "h:1", **options}))
        assert made is not None
        try:
            login = made.login(Node(id=1, host="h", port=1), 0.5)
            return "" if login is None else f"{login.user} {login.hint}"
        finally:
            made.close()
    except KafkaException as error:
        return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_no_message_shows_a_key_that_is_set_as_any_option(
    client: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    _warn.cache_clear()
    shows = [name for name in OPTIONS if BODY in said_of({**CLIENTS[client], name: KEYS[key]})]
    assert shows == []
    assert BODY not in caplog.text


@pytest.mark.parametrize("key", KEYS)
def test_the_name_of_an_object_that_may_be_a_key_is_not_shown(key: str) -> None:
    with pytest.raises(KafkaException, match=r"option is a text of \d+ characters") as caught:
        load("option", KEYS[key])
    assert BODY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("key", KEYS)
def test_a_value_that_may_be_a_key_is_described(key: str) -> None:
    assert may_be_key(KEYS[key])
    assert shown_value(KEYS[key]) == (f"a text of {len(KEYS[key])} characters, which is not shown")


@pytest.mark.parametrize("value", ["", "a b", "/certs/ca.pem", "TLSv1.3\n", 5, None, 2**70])
def test_other_values_are_shown_in_quotes(value: object) -> None:
    assert shown_value(value) == repr(value)

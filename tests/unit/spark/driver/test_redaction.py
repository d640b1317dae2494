"""The masking of a session: every secret of Kafka, and what it masks already."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from spark_kafka_sink.config import NOT_YET, OTHER_CLIENTS, option_fields
from spark_kafka_sink.schema_registry.settings import REGISTRY_OPTIONS
from spark_kafka_sink.spark.driver.register import SETTINGS, mask_secrets

OPTIONS, STRING = "spark.sql.redaction.options.regex", "spark.sql.redaction.string.regex"
CONF = Path(__file__).parents[4] / "conf" / "spark-defaults.conf"
SECRETS = {
    "sasl.jaas.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.certificates",
    "ssl.truststore.password",
}


class Conf(dict[str, str | None]):
    """A session's settings: get() of one without a value returns None, as Spark's does."""

    refused: str | None = None

    def set(self, name: str, value: str) -> None:
        """Set one."""
        if name == self.refused:
            message = f"[CANNOT_MODIFY_CONFIG] {name}\nand a stack"
            raise PySparkException(message)
        self[name] = value


def masking(conf: Conf, times: int = 1) -> Conf:
    for _ in range(times):
        mask_secrets(SimpleNamespace(conf=conf))  # type: ignore[arg-type]
    return conf


def request(name: str, value: str) -> str:
    """Return options in the text form of a request."""
    options = ("topic", 'value: "t"'), (name, value)
    return "".join(f'options {{\n  key: "{key}"\n  {each}\n}}\n' for key, each in options)


def test_the_secrets_of_kafka_are_found_by_their_names() -> None:
    kept = {each.encode_name for each in option_fields() if "Secret" in str(each.type)}
    assert kept == SECRETS
    known = NOT_YET | {each.encode_name for each in option_fields()}
    found = {name for name in known if re.search(SETTINGS[OPTIONS], f"kafka.{name}")}
    assert found >= SECRETS
    # Spark masks options of tokens by itself.
    assert all("token" in name for name in found - SECRETS), found - SECRETS


def test_the_secrets_of_other_clients_are_found_by_their_names() -> None:
    names = {name for name, javas in OTHER_CLIENTS.items() if SECRETS & {*javas.names}}
    assert {"ssl_key", "ssl.key.pem", "sasl_plain_password", "sasl.oauthbearer.config"} <= names
    # Options by Java's names with underscores are a usual mistake.
    names |= {name.replace(".", "_") for name in SECRETS}
    assert names == {name for name in names if re.search(SETTINGS[OPTIONS], f"kafka.{name}")}


def test_the_secrets_of_a_schema_registry_are_found_by_their_names() -> None:
    found = {name for name in REGISTRY_OPTIONS if re.search(SETTINGS[OPTIONS], name)}
    assert found == {
        "basic.auth.user.info",
        "bearer.auth.client.secret",
        "bearer.auth.token",
        "schema.registry.ssl.key.password",
        "schema.registry.ssl.keystore.certificate.chain",
        "schema.registry.ssl.keystore.key",
        "schema.registry.ssl.keystore.password",
        "schema.registry.ssl.truststore.certificates",
        "schema.registry.ssl.truststore.password",
        "schema.registry.url",
    }


# The last two are of librdkafka's options, which people write.
@pytest.mark.parametrize("name", [*sorted(SECRETS), "ssl.key.pem", "ssl.certificate.pem"])
@pytest.mark.parametrize(
    "value",
    [
        'value: "hunter2"',
        r'value: "a \"hunter2\" \\"',
        f'value: "{"hunter2" * 100_000}"',
        'value {\n    literal {\n      string: "hunter2"\n    }\n  }',
    ],
    ids=["plain", "quotes", "long", "literal"],
)
def test_a_secret_in_a_request_is_masked_and_nothing_else(name: str, value: str) -> None:
    text = request(f"kafka.{name.upper()}", value) + request("acks", 'value: "all"')
    shown = re.sub(SETTINGS[STRING], "***", text)
    assert "hunter2" not in shown
    assert shown.count('key: "topic"\n  value: "t"') == 2
    assert shown.count('key: "acks"\n  value: "all"') == 1


def test_other_values_are_shown() -> None:
    text = request("acks", 'value: "password"') + "sql {\n  query: \"SELECT 'token' AS value\"\n}\n"
    assert re.sub(SETTINGS[STRING], "***", text) == text


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("theirs", ["(?i)url", "mine|other"])
def test_what_is_masked_already_stays_masked(theirs: str, times: int) -> None:
    conf = masking(Conf(dict.fromkeys(SETTINGS, theirs)), times)
    assert conf == {name: f"{ours}|{theirs}" for name, ours in SETTINGS.items()}


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_not_set_is_set(times: int) -> None:
    assert masking(Conf(dict.fromkeys(SETTINGS)), times) == SETTINGS


def test_a_setting_that_is_refused_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    conf = Conf(dict.fromkeys(SETTINGS))
    conf.refused = OPTIONS
    with caplog.at_level(logging.WARNING):
        masking(conf, times=2)
    assert conf == {OPTIONS: None, STRING: SETTINGS[STRING]}
    (warning,) = caplog.messages
    assert warning.startswith(f"{OPTIONS} could not be set ([CANNOT_MODIFY_CONFIG] {OPTIONS}), so ")


def test_the_settings_that_users_copy_mask_the_same() -> None:
    lines = [line.split(None, 1) for line in CONF.read_text().splitlines() if line[:6] == "spark."]
    settings = dict(lines)
    assert settings["spark.redaction.regex"] == SETTINGS[OPTIONS]
    assert settings["spark.redaction.string.regex"] == SETTINGS[STRING]
    # A file of properties would take one away.
    assert "\\" not in "".join(SETTINGS.values())


def test_a_client_of_a_connect_server_that_hides_secret_values_can_read_what_is_set() -> None:
    # From Spark 4.3 on, a server gives no value that its spark.redaction.regex finds.
    sparks_default = "(?i)secret|password|token|access[.]?key"
    for hidden in (sparks_default, SETTINGS[OPTIONS]):
        assert [each for each in SETTINGS.values() if re.search(hidden, each)] == []

"""`Security`: what a connection needs, what is rejected, and that no message shows a secret."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest

from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.security import Security

SECRET = "hunter2-of-the-environment"
REFERENCE = "${env:SECRET_OF_A_TEST}"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the environment of the process."""
    monkeypatch.setenv("SECRET_OF_A_TEST", SECRET)


def security(**options: str) -> Security:
    """Return the security of a configuration; options by name with _ for the dot."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    made = Security.of(producer_config({"bootstrap.servers": "h:1", **given}))
    assert made is not None
    return made


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"ssl_truststore_location": REFERENCE}, id="truststore"),
        pytest.param({"ssl_truststore_location": f"s3://{REFERENCE}"}, id="scheme"),
        pytest.param({"ssl_keystore_location": REFERENCE}, id="keystore"),
    ],
)
def test_a_path_that_a_reference_gives_is_not_shown(options: dict[str, str]) -> None:
    with pytest.raises(ConfigException) as caught:
        security(security_protocol="SSL", **options)
    assert SECRET not in str(caught.value)
    assert REFERENCE in str(caught.value)


def test_a_user_that_a_reference_gives_is_not_shown() -> None:
    options = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_password": "p"}
    made = security(security_protocol="SASL_SSL", sasl_username=REFERENCE, **options)
    login = made.login(Node(id=1, host="h", port=1), 0.5)
    assert login is not None
    assert SECRET not in repr(login)
    assert REFERENCE in repr(login)


def test_a_user_that_is_not_ascii_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_A_TEST", "pässwort")
    options = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_password": "p"}
    with pytest.raises(ConfigException, match="ASCII names only") as caught:
        security(security_protocol="SASL_SSL", sasl_username=REFERENCE, **options)
    assert "pässwort" not in str(caught.value)


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/self/root/proc/self/environ"])
@pytest.mark.parametrize("kind", ["file", "directory", "location"])
def test_the_environment_is_not_read_as_a_file(path: str, kind: str) -> None:
    folder, name = os.path.split(path)
    value = {
        "file": f"${{file:{path}:SECRET_OF_A_TEST}}",
        "directory": f"${{directory:{folder}:{name}}}",
        "location": path,
    }[kind]
    with pytest.raises(ConfigException) as caught:
        security(security_protocol="SSL", ssl_truststore_location=value)
    assert SECRET not in str(caught.value)


def test_a_device_is_no_store() -> None:
    with pytest.raises(ConfigException, match="not a regular file on a disk"):
        security(security_protocol="SSL", ssl_truststore_location="/dev/zero")


def test_a_pipe_is_no_store_and_nobody_waits_for_its_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.pem"
    os.mkfifo(pipe)
    with pytest.raises(ConfigException, match="not a regular file on a disk"):
        security(security_protocol="SSL", ssl_truststore_location=str(pipe))


@pytest.mark.parametrize("allowed", [None, "/nowhere"])
def test_the_path_of_a_token_that_a_reference_gives_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, allowed: str | None
) -> None:
    if allowed is not None:
        monkeypatch.setenv("PYKAFKA_ALLOWED_PATHS", allowed)
    with pytest.raises(ConfigException, match="cannot be read") as caught:
        security(
            security_protocol="SASL_SSL",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=f"file:///{REFERENCE}",
        )
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_file_that_is_too_large_is_no_store(tmp_path: Path) -> None:
    large = tmp_path / "large.pem"
    with large.open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(ConfigException, match="more than 16777216 bytes"):
        security(security_protocol="SSL", ssl_truststore_location=str(large))


PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    "password", [REFERENCE, r"$\{env:SECRET_OF_A_TEST}", r"\044{env:SECRET_OF_A_TEST}"]
)
def test_no_reference_goes_in_clear_however_it_is_written(password: str) -> None:
    jaas = f'{PLAIN_MODULE} required username="u" password="{password}";'
    with pytest.raises(ConfigException, match="SASL_PLAINTEXT"):
        security(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=jaas)

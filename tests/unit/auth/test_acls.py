"""Acls: the command that allows a client what the brokers denied, and whom it names."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from spark_kafka_sink.auth.acls import READ, Acls
from spark_kafka_sink.auth.delegation_tokens import with_delegation_token
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import ERROR_CODES
from spark_kafka_sink.model import DelegationToken, Secret

MODULES = "org.apache.kafka.common.security"
SASL = {"security.protocol": "SASL_SSL"}


def hint(options: Mapping[str, str], code: int = 29, name: str | None = "events") -> str:
    config = producer_config({"bootstrap.servers": "broker:9092", **options})
    found = Acls.of(config).hint(code, name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("code", "name", "rest"),
    [
        (29, "events", "--operation WRITE --operation DESCRIBE --topic events"),
        (30, "orders", "--operation READ --group orders"),
        (31, None, "--operation IdempotentWrite --cluster"),
        (53, "a b", "--operation WRITE --operation DESCRIBE --transactional-id 'a b'"),
        (53, None, "--operation WRITE --operation DESCRIBE --transactional-id NAME"),
    ],
)
def test_each_denial_has_the_command_that_allows_it(code: int, name: str | None, rest: str) -> None:
    before = "to allow it: kafka-acls.sh --bootstrap-server broker:9092 --add "
    assert hint({}, code, name) == f"{before}--allow-principal User:ANONYMOUS {rest}"


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_the_command_of_a_secured_listener_names_a_file_for_its_own_login(protocol: str) -> None:
    command = "kafka-acls.sh --bootstrap-server broker:9092 --command-config admin.properties --add"
    assert command in hint({"security.protocol": protocol})


def test_other_errors_have_none() -> None:
    assert Acls().hint(3, "events") is None
    assert Acls().writer_advice(5, "events") is None
    assert Acls().writer_advice(3, "events") == "create the topic"


def test_an_operation_may_be_another_one_than_a_writers() -> None:
    assert "--operation READ --operation DESCRIBE --topic t" in str(Acls().hint(29, "t", READ))


# The names that kafka-acls.sh accepts for those of AclOperation (SecurityUtils.operation). For
# names of one word, it also accepts upper case, which is shown.
IN_COMMANDS = {
    "READ": "READ", "WRITE": "WRITE", "CREATE": "CREATE", "DELETE": "DELETE", "ALTER": "ALTER",
    "DESCRIBE": "DESCRIBE", "CLUSTER_ACTION": "ClusterAction",
    "DESCRIBE_CONFIGS": "DescribeConfigs", "ALTER_CONFIGS": "AlterConfigs",
    "IDEMPOTENT_WRITE": "IdempotentWrite",
}  # fmt: skip


@pytest.mark.parametrize("operation", IN_COMMANDS)
def test_an_operation_has_the_name_that_the_script_knows(operation: str) -> None:
    assert f"--operation {IN_COMMANDS[operation]} " in str(Acls().hint(29, "t", (operation,)))


def test_the_operations_of_every_error_are_known_to_the_script() -> None:
    operations = [each for row in ERROR_CODES.values() for each in row.operations]
    assert {*operations} <= {*IN_COMMANDS}
    for row in ERROR_CODES.values():
        said = (Acls().hint(row.code, "t") or "").split()
        shown = [word for option, word in pairwise(said) if option == "--operation"]
        assert shown == [IN_COMMANDS[each] for each in row.operations]


def by_jaas(module: str, options: str) -> dict[str, str]:
    return SASL | {"sasl.jaas.config": f"{MODULES}.{module} required {options};"}


@pytest.mark.parametrize(
    ("options", "principal"),
    [
        ({}, "User:ANONYMOUS "),
        ({"security.protocol": "SSL"}, "User:ANONYMOUS "),
        (
            SASL | {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "x"},
            "User:alice ",
        ),
        (
            by_jaas("scram.ScramLoginModule", 'username="b\'ob" password="x"')
            | {"sasl.mechanism": "SCRAM-SHA-256"},
            "'User:b'\"'\"'ob' ",
        ),
        (
            by_jaas("scram.ScramLoginModule", 'username="erin" password="x" tokenauth=""')
            | {"sasl.mechanism": "SCRAM-SHA-256"},
            "User:erin ",
        ),
        (
            by_jaas("scram.ScramLoginModule", 'username="dave" password="x" tokenauth="${env:T}"')
            | {"sasl.mechanism": "PLAIN"},
            "User:dave ",
        ),
        (SASL | {"sasl.kerberos.principal": "carol/host@REALM"}, "User:carol "),
    ],
)
def test_the_principal_is_named_where_the_configuration_says_it(
    options: dict[str, str], principal: str
) -> None:
    assert f"--allow-principal {principal}" in hint(options)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"security.protocol": "SSL", "ssl.keystore.location": "/c.pem"}, "certificate"),
        (
            by_jaas("oauthbearer.OAuthBearerLoginModule", "") | {"sasl.mechanism": "OAUTHBEARER"},
            "the claim sub of the token",
        ),
        (
            by_jaas("scram.ScramLoginModule", 'username="id" password="x" tokenauth="true"')
            | {"sasl.mechanism": "SCRAM-SHA-256"},
            "the owner of the delegation token",
        ),
        (
            by_jaas("scram.ScramLoginModule", 'username="id" password="x" tokenauth="${env:T}"')
            | {"sasl.mechanism": "SCRAM-SHA-256"},
            "the user who logs in, or the owner of the delegation token",
        ),
        (
            by_jaas("plain.PlainLoginModule", 'username="${env:U}" password="x" tokenauth="true"')
            | {"sasl.mechanism": "PLAIN"},
            "the user who logs in",
        ),
        (
            SASL
            | {"sasl.mechanism": "PLAIN", "sasl.username": "${env:USER}", "sasl.password": "x"},
            "the user who logs in",
        ),
        (
            SASL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "${env:JAAS}"},
            "the user who logs in",
        ),
        (SASL, "the first part of the Kerberos principal"),
    ],
)
def test_it_is_described_where_the_configuration_does_not_say_it(
    options: dict[str, str], what: str
) -> None:
    said = hint(options)
    assert "--allow-principal User:NAME " in said
    assert f", where User:NAME is {what}" in said or (what == "certificate" and what in said)


def test_logins_show_the_name_that_the_configuration_does_not_say() -> None:
    options = SASL | {"sasl.mechanism": "OAUTHBEARER"}
    shown = [""]
    acls = Acls.of(producer_config({"bootstrap.servers": "h:1"} | options), lambda: shown[0])
    assert "User:NAME is the claim sub" in str(acls.hint(29, "t"))
    shown[0] = "service account"
    assert str(acls.hint(29, "t")).endswith(
        "--allow-principal 'User:service account' --operation WRITE --operation DESCRIBE --topic t"
    )


def test_a_certificate_s_subject_is_named_with_a_note_that_brokers_may_map_it() -> None:
    options = {"security.protocol": "SSL", "ssl.keystore.location": "/c.pem"}
    acls = Acls.of(producer_config({"bootstrap.servers": "h:1"} | options), lambda: "CN=a b,O=Acme")
    said = str(acls.hint(29, "t"))
    assert "--allow-principal 'User:CN=a b,O=Acme' --operation WRITE" in said
    assert said.endswith(
        "--topic t; if the brokers map the subject (ssl.principal.mapping.rules), name what they "
        "map it to"
    )


def test_a_token_of_the_driver_has_the_rights_of_its_owner() -> None:
    token = DelegationToken(
        token_id="id",
        hmac=Secret("hmac"),
        owner="User:alice",
        issue_timestamp_ms=0,
        expiry_timestamp_ms=1,
        max_timestamp_ms=1,
    )
    config = producer_config({"bootstrap.servers": "broker:9092", **SASL})
    said = Acls.of(with_delegation_token(config, token, "SCRAM-SHA-512")).hint(29, "events") or ""
    assert "--allow-principal User:alice " in said
    assert "NAME" not in said


def test_aws_has_no_acls() -> None:
    assert "IAM policies" in hint(SASL | {"sasl.mechanism": "AWS_MSK_IAM"})

"""Each way to log in to a `SecuredKafka` that checks rights, with the options that it needs."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from spark_kafka_sink import KafkaProducer
from support.brokers.secured_kafka import LISTENERS, MECHANISMS, PASSWORD, USER, SecuredKafka
from support.brokers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from support.oracles.readers import create_topic, read_with_confluent

BY_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ROWS, PARTITIONS, REPLICAS = 2_000, 3, 3
SHORT_LIVED: Final = "short-lived"
"""A principal for tickets that end soon."""
# The users with rights; the client of the certificate and that of signed tokens, too.
_USERS: Final = (USER, "client", CLIENT_ID, SHORT_LIVED)


@dataclass(frozen=True)
class Login:
    """A way to log in."""

    mechanism: str
    listener: str

    @property
    def name(self) -> str:
        """For ids of tests."""
        return f"{self.mechanism}-{self.listener}".lower().strip("-")


# Unsigned tokens of a file, and with the listeners of `SIGNED_LOGINS`, signed ones of an endpoint.
LOGINS: Final = tuple(Login(each, listener) for each in MECHANISMS for listener in LISTENERS)
SIGNED: Final = Login("OAUTHBEARER", "JWT")
SIGNED_LOGINS: Final = (SIGNED, Login("OAUTHBEARER", "JWT_PLAINTEXT"))
MUTUAL: Final = Login("", "MUTUAL")


def unsigned_token(user: str = USER, life_s: float = 3600, **claims: str) -> str:
    """Return a token that the tests' brokers take where they need no signature."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": user, "iat": now - 7200, "exp": now + life_s, **claims})
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join(part.rstrip("=") for part in coded) + "."


def by_tls(kafka: SecuredKafka, listener: str = "SSL") -> dict[str, str]:
    """Return the options of a client that does not log in."""
    return {
        "bootstrap.servers": kafka.address(listener),
        "security.protocol": "SSL",
        "ssl.truststore.location": str(kafka.ca),
    }


def options(
    kafka: SecuredKafka, login: Login, folder: Path, server: TokenServer | None = None
) -> dict[str, str]:
    """Return the options of a client that logs in; folder: for a file with a token."""
    if login == MUTUAL:
        return by_tls(kafka, "MUTUAL") | {"ssl.keystore.location": str(kafka.client_pem)}
    is_plaintext = login.listener in ("SASL_PLAINTEXT", "JWT_PLAINTEXT")
    found = {
        "bootstrap.servers": kafka.address(login.listener),
        "security.protocol": "SASL_PLAINTEXT" if is_plaintext else "SASL_SSL",
        "sasl.mechanism": login.mechanism,
    }
    if not is_plaintext:
        found["ssl.truststore.location"] = str(kafka.ca)
    if login in SIGNED_LOGINS:
        assert server is not None
        client = "sasl.oauthbearer.client.credentials.client"
        found["sasl.oauthbearer.token.endpoint.url"] = server.url
        found |= {f"{client}.id": CLIENT_ID, f"{client}.secret": CLIENT_SECRET}
    elif login.mechanism == "OAUTHBEARER":
        token = folder / "token"
        token.write_text(unsigned_token())
        found["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
    elif login.mechanism == "GSSAPI":
        assert kafka.kdc is not None
        found |= by_keytab(USER, kafka.kdc.keytab(USER))
    else:
        found |= {"sasl.username": USER, "sasl.password": PASSWORD}
    return found


def by_keytab(principal: str, keytab: Path) -> dict[str, str]:
    """Return the options of a client that logs in by Kerberos."""
    return {
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": principal,
        "sasl.kerberos.keytab": str(keytab),
    }


def new_topic(kafka: SecuredKafka, *, may_write: bool = True, replicas: int = REPLICAS) -> str:
    """Make a topic that the users may read, and may write to unless told otherwise."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    operations = ["READ", "DESCRIBE", *(["WRITE"] if may_write else [])]
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    rights = [(topic, name, operation) for operation in operations] + [(group, "*", "READ")]
    bindings = [
        AclBinding(
            kind, resource, ResourcePatternType.LITERAL, f"User:{user}", "*",
            AclOperation[operation], AclPermissionType.ALLOW,
        )
        for user in _USERS
        for kind, resource, operation in rights
    ]  # fmt: skip
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for created in admin.create_acls(bindings).values():
        created.result()
    # Brokers that lead a partition know what came before the topic, too.
    create_topic(kafka.bootstrap, name, PARTITIONS, None, replicas)
    return name


def write(given: Mapping[str, Any], topic: str, rows: int = ROWS) -> None:
    """Write numbered rows."""
    values = pa.array([str(row) for row in range(rows)])
    with KafkaProducer({"max.block.ms": "20000", **given}) as producer:
        producer.append(topic, pa.record_batch({"value": values}))
        producer.flush()


def numbers(kafka: SecuredKafka, topic: str) -> list[int]:
    """Return the numbers in a topic, sorted, read past all security."""
    return sorted(int(each.value or b"-1") for each in read_with_confluent(kafka.bootstrap, topic))


def measured(producer: KafkaProducer, name: str) -> float:
    """Return a metric of a producer's connections."""
    return next(float(value) for metric, value in producer.metrics().items() if metric.name == name)

"""Acls: the kafka-acls.sh command that grants a client the access that the brokers denied.

The command needs the client's principal. If the configuration does not contain it, the command has
a placeholder. A note after the command then says which principal to insert.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_kafka_sink import error_codes
from spark_kafka_sink.auth.delegation_tokens import delegation_token
from spark_kafka_sink.auth.jaas import JaasEntry, parse_jaas
from spark_kafka_sink.auth.mechanisms import GSSAPI, OAUTHBEARER
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException, error_code, topic_advice
from spark_kafka_sink.logs import masked, unless_key
from spark_kafka_sink.model import Secret

_ANONYMOUS: Final = "ANONYMOUS"
_UNKNOWN: Final = "NAME"
_ADMIN: Final = "admin.properties"
_BY_CERTIFICATE: Final = "the subject of the client's certificate, or what the brokers map it to"
_MAPPING: Final = "ssl.principal.mapping.rules"
# The operations that a reader needs on a topic, and the advice to grant them.
READ: Final = ("READ", "DESCRIBE")
READ_ADVICE: Final = "grant READ and DESCRIBE on the topic to this client"


@dataclass(frozen=True, slots=True)
class Acls:
    """Builds the kafka-acls.sh commands for one client.

    principal: the name of the client's principal, or an empty string if the configuration does not
    contain it. described: a description of that principal. servers: the bootstrap servers, or None
    if the brokers do not use Kafka's ACLs. is_secured: whether these servers need TLS or a login.
    logged_in: returns the name of the principal that has logged in, or an empty string before a
    login. has_certificate: whether the principal is the subject of a certificate.
    """

    principal: str = ""
    described: str = "the principal that the brokers see for this client"
    servers: str | None = "HOST:PORT"
    is_secured: bool = False
    logged_in: Callable[[], str] = str
    has_certificate: bool = False

    @classmethod
    def of(cls, config: ProducerConfig, logged_in: Callable[[], str] = str) -> Acls:
        """Return the Acls for a client with this configuration."""
        servers = masked(config.bootstrap_servers)
        if config.has_sasl and config.has_aws_tokens:
            return cls(servers=None)
        token = delegation_token(config)
        if token is not None:
            return cls(token.owner.removeprefix("User:"), "", servers, is_secured=True)
        principal, described = _principal(config)
        is_secured = config.has_sasl or config.has_tls
        by_certificate = described == _BY_CERTIFICATE
        return cls(principal, described, servers, is_secured, logged_in, by_certificate)

    def hint(
        self,
        code: int,
        name: str | None,
        operations: tuple[str, ...] | None = None,
        *,
        is_prefix: bool = False,
    ) -> str | None:
        """Return the kafka-acls.sh command that grants the access that an error code denied.

        If AWS IAM controls the access, return a hint about IAM policies instead. Return None if the
        error code does not mean that access was denied. name: the name of the topic, group or
        transactional id. operations: None for the operations that a writer needs. is_prefix:
        whether to grant access to all names that begin with `name`.
        """
        denied = error_code(code)
        if denied.resource is None:
            return None
        if self.servers is None:
            return "AWS IAM policies grant this access, not the ACLs of Kafka"
        principal = self.principal or self.logged_in()
        words = ["--bootstrap-server", self.servers]
        words += ["--command-config", _ADMIN] if self.is_secured else []
        words += ["--add", "--allow-principal", f"User:{principal or _UNKNOWN}"]
        for operation in operations or denied.operations:
            words += ["--operation", _tool_name(operation)]
        words += ["--resource-pattern-type", "prefixed"] if is_prefix else []
        words.append(f"--{denied.resource}")
        if code != error_codes.CLUSTER_AUTHORIZATION_FAILED:
            words.append(name or _UNKNOWN)
        note = "" if principal else f", where User:{_UNKNOWN} is {self.described}"
        if principal and self.has_certificate:
            note = f"; if the brokers map the subject ({_MAPPING}), name what they map it to"
        return f"to allow it: kafka-acls.sh {shlex.join(words)}{note}"

    def writer_advice(self, code: int, name: str) -> str | None:
        """Return advice for a writer that got an error code, or None if there is no advice.

        name: the topic, or for TRANSACTIONAL_ID_AUTHORIZATION_FAILED the transactional id.
        """
        return _joined(topic_advice(code, name), self.hint(code, name))


def _tool_name(operation: str) -> str:
    """Return the name by which kafka-acls.sh knows an operation: IdempotentWrite, but WRITE."""
    return operation.title().replace("_", "") if "_" in operation else operation


def _joined(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


def _principal(config: ProducerConfig) -> tuple[str, str]:
    """Return the name of the client's principal, and a description of the principal.

    The name is an empty string if the configuration does not contain it.
    """
    if not config.has_sasl:
        certificate = config.ssl_keystore_location or config.ssl_keystore_key
        if config.has_tls and certificate is not None:
            return "", _BY_CERTIFICATE
        return _ANONYMOUS, ""
    jaas = _jaas(config.sasl_jaas_config)
    if config.sasl_mechanism == OAUTHBEARER:
        return "", f"the claim {unless_key(config.sasl_oauthbearer_sub_claim_name)} of the token"
    if config.sasl_mechanism == GSSAPI:
        found = config.sasl_kerberos_principal or jaas.options.get("principal", "")
        primary = found.partition("@")[0].partition("/")[0]
        return _known(primary), "the first part of the Kerberos principal"
    if jaas.has_token(config.sasl_mechanism):
        return "", "the owner of the delegation token"
    user = config.sasl_username or jaas.options.get("username", "")
    described = "the user who logs in"
    # The value of tokenauth may be a reference, and the reference's value may be "true".
    if jaas.resolved(lambda v: "true" if "${" in v else v).has_token(config.sasl_mechanism):
        user, described = "", f"{described}, or the owner of the delegation token"
    return _known(user), described


def _known(name: str) -> str:
    """Return a name, or an empty string if it contains a reference (``${…}``)."""
    return "" if "${" in name else name


def _jaas(text: Secret | None) -> JaasEntry:
    none = JaasEntry("", {})
    if text is None:
        return none
    try:
        return parse_jaas(text.value)
    except ConfigException:  # a reference (``${…}``), which is not resolved here
        return none

"""Real Kafka with a listener for each security protocol and mechanism.

PLAINTEXT is for the tests' own readers. The certificates are signed by an intermediate. Sessions
of SCRAM-SHA-256 and of GSSAPI without TLS last two seconds, others for ever, unless the settings
that a test adds say otherwise. Resources without an ACL are open to everyone; a client without a
login may do everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import confluent_kafka.admin

from support.brokers import token_server
from support.brokers.certificates import Authority, Certificate
from support.brokers.kafka_cluster import KafkaCluster, free_ports
from support.brokers.kdc import REALM, Kdc
from support.brokers.token_server import TokenServer
from support.oracles.readers import read_with_confluent

USER: Final = "alice"
# Only SCRAM has this user.
ODD_USER: Final = "a=b,c"
PASSWORD: Final = 'a"lice\\ sécret, =5'
# Only PLAIN has this user, as Azure Event Hubs does.
CONNECTION_STRING_USER: Final = "$ConnectionString"
CONNECTION_STRING: Final = "Endpoint=sb://ns/;SharedAccessKeyName=k;SharedAccessKey=abc="
# Only PLAIN has this user, whose password the leak test looks for.
MARKED_USER: Final = "user-of-secrets"
MARKED_PASSWORD: Final = '"hunter2\\ pässword'
SERVICE: Final = "kafka/localhost"
SESSION_MS: Final = 2_000
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
LISTENERS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
"""Listeners that take each of `MECHANISMS`."""
_LISTENERS: Final = {
    "SSL": "SSL",
    "MUTUAL": "SSL",
    # Certificates that clients reject.
    "OTHERNAME": "SSL",
    "EXPIRED": "SSL",
    "NOINTERMEDIATE": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    # Both take OAuth tokens that are signed by the key of `jwt_key`.
    "JWT": "SASL_SSL",
    "JWT_PLAINTEXT": "SASL_PLAINTEXT",
    # Each takes one mechanism alone: SCRAM-SHA-512 or PLAIN.
    "SCRAM": "SASL_SSL",
    "SCRAM_PLAINTEXT": "SASL_PLAINTEXT",
    "PLAIN_PLAINTEXT": "SASL_PLAINTEXT",
}
_OF_SIGNED_TOKENS: Final = ("jwt", "jwt_plaintext")
_PAST: Final = (datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 2, 1, tzinfo=UTC))
# Any: what it re-exports, type checkers do not see.
_CONFLUENT: Final[Any] = confluent_kafka.admin
_SCRAM: Final[Any] = _CONFLUENT.ScramMechanism
_MODULES: Final = "org.apache.kafka.common.security"


def quoted(text: str) -> str:
    """Return a text as a double-quoted JAAS string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def guarded(session_ms: int) -> dict[str, object]:
    """Return settings: logins are valid for this time, and whatever has no ACL is denied."""
    prefixes = [f"{each}.{mechanism}".lower() for each in LISTENERS for mechanism in MECHANISMS]
    prefixes += [f"{each}.oauthbearer" for each in _OF_SIGNED_TOKENS]
    sessions = {f"listener.name.{each}.connections.max.reauth.ms": session_ms for each in prefixes}
    return sessions | {"allow.everyone.if.no.acl.found": "false"}


class SecuredKafka(KafkaCluster):
    """The nodes, and the settings that clients need; `address` returns a listener's addresses.

    kdc: a KDC that runs and has `SERVICE` and `USER`; None: there is no GSSAPI. has_tokens: whether
    there is OAUTHBEARER, which Kafka 3 has by other classes, and whether there are delegation
    tokens. more: settings of each node.
    """

    def __init__(
        self,
        libs: Path,
        folder: Path,
        java_options: Sequence[str],
        kdc: Kdc | None = None,
        *,
        nodes: int = 1,
        has_tokens: bool = True,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(libs, folder, nodes, None, None, java_options)
        self._more = dict(more or {})
        self._has_tokens = has_tokens
        self.kdc = kdc
        if kdc is not None:
            self._java_options.append(f"-Djava.security.krb5.conf={kdc.config}")
        folder.mkdir(parents=True)
        authority = Authority()
        signer = authority.intermediate()
        ports = iter(free_ports(nodes * len(_LISTENERS)))
        names = [name for name in _LISTENERS if has_tokens or name.lower() not in _OF_SIGNED_TOKENS]
        self._secured_ports = {node: dict(zip(names, ports, strict=False)) for node in self.ports}
        self.ca = self._written("ca.pem", authority.root.certificate)
        self.other_ca = self._written("other.pem", Authority("other").root.certificate)
        self.client = authority.leaf("client", signer)
        self.client_pem = self._written("client.pem", self.client.key + self.client.chain)
        expired = authority.leaf("expired-client", signer, dates=_PAST)
        self.expired_client_pem = self._written("expired-client.pem", expired.key + expired.chain)
        server = authority.leaf("localhost", signer)
        self._server = self._store(server)
        self._bad_stores = {
            "othername": self._store(authority.leaf("other", signer, names=("other",))),
            "expired": self._store(authority.leaf("expired", signer, dates=_PAST)),
            "nointermediate": self._store(replace(server, name="alone", chain=server.certificate)),
        }
        self.jwt_key = self._written("jwt.pem", token_server.new_key())
        self._key_port = free_ports(1)[0]
        self._key_server: TokenServer | None = None
        self._java_options.append(
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys_url}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the server of the keys, too."""
        return super().__getstate__() | {"_key_server": None}

    @property
    def _keys_url(self) -> str:
        return f"http://localhost:{self._key_port}{token_server.KEYS_PATH}"

    def address(self, listener: str) -> str:
        """Return host and port of a listener, of all nodes."""
        return ",".join(f"localhost:{ports[listener]}" for ports in self._secured_ports.values())

    def check_rows(self, topic: str, rows: int) -> None:
        """Check that the rows 0 to rows - 1 are there once each, as confluent-kafka reads them."""
        found = sorted(
            int(each.value or b"-1") for each in read_with_confluent(self.bootstrap, topic)
        )
        assert found == list(range(rows))

    def _written(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        return path

    def _store(self, server: Certificate) -> Path:
        return self._written(f"{server.name}-store.pem", server.key + server.chain)

    def start(self) -> None:
        """Start the nodes, and create the users of SCRAM."""
        if self._has_tokens:
            # Brokers read the keys when they start.
            self._key_server = TokenServer(self.jwt_key.read_text(), port=self._key_port)
        super().start()
        for user in (USER, ODD_USER):
            self.set_scram_user(user, PASSWORD)

    def set_scram_user(self, user: str, password: str) -> None:
        """Create a user of SCRAM, or give it another password; return when each node knows it."""
        for mechanism in (_SCRAM.SCRAM_SHA_256, _SCRAM.SCRAM_SHA_512):
            info = _CONFLUENT.ScramCredentialInfo(mechanism, 4096)
            self._alter(_CONFLUENT.UserScramCredentialUpsertion(user, info, password.encode()))
        # The controller answers before the nodes have read the change. librdkafka tries a login
        # that was refused again.
        for ports in self._secured_ports.values():
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                client = _CONFLUENT.AdminClient(
                    {
                        "bootstrap.servers": f"localhost:{ports['SASL_PLAINTEXT']}",
                        "security.protocol": "SASL_PLAINTEXT",
                        "sasl.mechanism": mechanism,
                        "sasl.username": user,
                        "sasl.password": password,
                        "reconnect.backoff.max.ms": 100,
                    }
                )
                client.list_topics(timeout=20)

    def delete_scram_user(self, user: str) -> None:
        """Delete a user of SCRAM."""
        for mechanism in (_SCRAM.SCRAM_SHA_256, _SCRAM.SCRAM_SHA_512):
            self._alter(_CONFLUENT.UserScramCredentialDeletion(user, mechanism))

    def _alter(self, change: object) -> None:
        admin = _CONFLUENT.AdminClient({"bootstrap.servers": self.bootstrap})
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(20)

    def stop(self) -> None:
        """End the nodes, and the server of the keys."""
        try:
            super().stop()
        finally:
            if self._key_server is not None:
                self._key_server.stop()

    def _properties_of(self, node: int) -> str:
        # Java reads properties as Latin-1, and a backslash begins an escape.
        text = super()._properties_of(node).replace("\\", "\\\\")
        return "".join(c if c.isascii() else f"\\u{ord(c):04x}" for c in text)

    def _settings_of(self, node: int) -> dict[str, object]:
        settings = super()._settings_of(node)
        listeners = self._secured_ports[node]
        own = ",".join(f"{name}://localhost:{port}" for name, port in listeners.items())
        protocols = ",".join(f"{name}:{_LISTENERS[name]}" for name in listeners)
        login = f"username={quoted(USER)} password={quoted(PASSWORD)}"
        users = {
            USER: PASSWORD,
            CONNECTION_STRING_USER: CONNECTION_STRING,
            MARKED_USER: MARKED_PASSWORD,
        }
        known = " ".join(f"user_{user}={quoted(secret)}" for user, secret in users.items())
        plain = f"{_MODULES}.plain.PlainLoginModule required {login} {known};"
        more: dict[str, object] = {
            "listeners": f"{settings['listeners']},{own}",
            "advertised.listeners": f"{settings['advertised.listeners']},{own}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            + protocols,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._server,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
            "listener.name.mutual.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
            + (",OAUTHBEARER" if self._has_tokens else ""),
        }
        for listener, store in self._bad_stores.items():
            more[f"listener.name.{listener}.ssl.keystore.type"] = "PEM"
            more[f"listener.name.{listener}.ssl.keystore.location"] = store
        scram = f"{_MODULES}.scram.ScramLoginModule required;"
        for listener in ("scram", "scram_plaintext"):
            more[f"listener.name.{listener}.sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
            more[f"listener.name.{listener}.scram-sha-512.sasl.jaas.config"] = scram
        more["listener.name.plain_plaintext.sasl.enabled.mechanisms"] = "PLAIN"
        more["listener.name.plain_plaintext.plain.sasl.jaas.config"] = plain
        for listener in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{listener}"
            more[f"{prefix}.plain.sasl.jaas.config"] = plain
            if self._has_tokens:
                # Accepts unsigned tokens.
                more[f"{prefix}.oauthbearer.sasl.jaas.config"] = (
                    f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
                    'unsecuredLoginStringClaim_sub="broker";'
                )
            for bits in (256, 512):
                more[f"{prefix}.scram-sha-{bits}.sasl.jaas.config"] = scram
            more[f"{prefix}.scram-sha-256.connections.max.reauth.ms"] = SESSION_MS
            if self.kdc is not None:
                more[f"{prefix}.gssapi.sasl.jaas.config"] = (
                    "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
                    f'storeKey=true keyTab="{self.kdc.keytab(SERVICE)}" '
                    f'principal="{SERVICE}@{REALM}";'
                )
        if self._has_tokens:
            more |= self._token_settings()
        if self.kdc is not None:
            more["sasl.enabled.mechanisms"] = f"{more['sasl.enabled.mechanisms']},GSSAPI"
            # It is not found behind the prefix of a listener.
            more["sasl.kerberos.service.name"] = "kafka"
            more["listener.name.sasl_plaintext.gssapi.connections.max.reauth.ms"] = SESSION_MS
        return settings | more | self._more

    def _token_settings(self) -> dict[str, object]:
        bearer = f"{_MODULES}.oauthbearer.OAuthBearer"
        found: dict[str, object] = {"delegation.token.secret.key": "of-tests"}
        for jwt in (f"listener.name.{each}" for each in _OF_SIGNED_TOKENS):
            found |= {
                f"{jwt}.sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{jwt}.oauthbearer.sasl.jaas.config": f"{bearer}LoginModule required;",
                f"{jwt}.oauthbearer.sasl.server.callback.handler.class": f"{bearer}Validator"
                "CallbackHandler",
                f"{jwt}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self._keys_url,
                f"{jwt}.oauthbearer.sasl.oauthbearer.expected.audience": token_server.AUDIENCE,
                f"{jwt}.oauthbearer.sasl.oauthbearer.expected.issuer": token_server.ISSUER,
            }
        return found

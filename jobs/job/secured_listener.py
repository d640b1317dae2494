"""A listener with TLS and SCRAM for the demo's broker: its settings, and what a client needs.

The certificate and the user are new for each start, and Java's keytool makes the certificate.
"""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path
from typing import Final

from job import java_version

_USER: Final = "demo"
_MECHANISM: Final = "SCRAM-SHA-512"
_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_TIMEOUT_S: Final = 60.0


class ListenerError(Exception):
    """The listener cannot be set up; the message is one sentence with the reason."""


class SecuredListener:
    """The listener `SASL_SSL` of a node, with a certificate for 127.0.0.1 and one user.

    folder: for the certificate. address: host and port of the listener. Raise ListenerError if the
    certificate cannot be made.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self.address = address
        self._password = secrets.token_hex(16)
        self._store = folder / "listener.p12"
        self._certificate = folder / "listener.pem"
        made = ("-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "2")
        names = ("-dname", "CN=localhost", "-ext", "SAN=IP:127.0.0.1,DNS:localhost")
        self._keytool(*made, *names)
        self._keytool("-exportcert", "-rfc", "-file", self._certificate)

    def _keytool(self, *arguments: str | Path) -> None:
        keytool = Path(java_version.command()).with_name("keytool")
        store = ("-alias", "broker", "-storetype", "PKCS12", "-keystore", self._store)
        password = ("-storepass", self._password)
        try:
            ended = subprocess.run(  # noqa: S603 - the demo's own command
                [str(keytool), *map(str, (*arguments, *store, *password))],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            message = f"Java's keytool, which makes the certificate, cannot be run: {error}"
            raise ListenerError(message) from None
        if ended.returncode != 0:
            said = (ended.stdout.strip() or ended.stderr.strip() or "it printed nothing").split(
                "\n"
            )
            raise ListenerError(f"Java's keytool cannot make the certificate: {said[0]}")

    @property
    def settings(self) -> dict[str, object]:
        """The node's settings; the caller adds the listener to `listeners`."""
        prefix = "listener.name.sasl_ssl."
        return {
            f"{prefix}sasl.enabled.mechanisms": _MECHANISM,
            f"{prefix}{_MECHANISM.lower()}.sasl.jaas.config": f"{_LOGIN};",
            f"{prefix}ssl.keystore.type": "PKCS12",
            f"{prefix}ssl.keystore.location": self._store,
            f"{prefix}ssl.keystore.password": self._password,
        }

    @property
    def format_arguments(self) -> list[str]:
        """The arguments of Kafka's StorageTool that create the user."""
        return ["--add-scram", f"{_MECHANISM}=[name={_USER},password={self._password}]"]

    @property
    def client_options(self) -> dict[str, str]:
        """The options of a client, without bootstrap.servers."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._certificate),
            "sasl.mechanism": _MECHANISM,
            "sasl.username": _USER,
            "sasl.password": self._password,
        }

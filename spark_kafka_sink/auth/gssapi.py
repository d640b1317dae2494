"""GSSAPI (Kerberos, RFC 4752): the principals in the options, and the SASL messages.

The Kerberos protocol is not implemented here, but by a `KerberosContext`. It requests tickets,
which may take time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from spark_kafka_sink.auth.mechanisms import GSSAPI
from spark_kafka_sink.errors import ConfigException, Option, SaslAuthenticationException

# The bit of the security layer "none": data is neither signed nor encrypted. It is in the first
# byte of the broker's offer and of the client's response.
_NO_LAYER: Final = 1
_LAYERS: Final = {2: "auth-int", 4: "auth-conf"}
# One byte for the security layer, and three for the maximum message size, which has no meaning
# without a layer.
_OFFER_BYTES: Final = 4
_CHOICE: Final = bytes((_NO_LAYER, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class KerberosOptions:
    """The client's and the brokers' principals.

    service: the first part of the brokers' principals. principal: the client's principal, or None
    for the principal of the ticket cache. keytab: the file with the key of `principal`, or None if
    tickets exist already. keytab_name: the name of the keytab in error messages. cache: the ticket
    cache with the existing tickets, or None for the process's default cache. shown: pairs of a
    resolved value and the text that error messages show instead of it. There is a pair for each
    principal or service that contains references (``${…}``).
    """

    service: str
    principal: str | None
    keytab: str | None = None
    keytab_name: str = ""
    cache: str | None = None
    shown: tuple[tuple[str, str], ...] = ()

    @property
    def user(self) -> str:
        """The text that error messages show for the client's principal."""
        if self.principal is None:
            return "the ticket cache"
        return f"principal {self.for_message(self.principal)!r}"

    def for_message(self, text: str) -> str:
        """Return a string with resolved values replaced with their references (``${…}``)."""
        for value, written in self.shown:
            text = text.replace(value, written)
        return text


def kerberos_options(
    jaas: Mapping[str, str] | None,
    principal: str | None,
    keytab: str | None,
    service: str | None,
) -> KerberosOptions:
    """Return the Kerberos options. Raise ConfigException if they are incomplete or contradictory.

    jaas: the options of Krb5LoginModule, or None without a JAAS entry. principal, keytab, service:
    the values of sasl.kerberos.principal, .keytab and .service.name.
    """
    in_jaas = None if jaas is None else jaas.get("serviceName") or None
    if service and in_jaas and service != in_jaas:
        raise ConfigException(
            f"{Option('sasl.kerberos.service.name')} and serviceName in "
            f"{Option('sasl.jaas.config')} have different values: remove one of the two"
        )
    name = service or in_jaas
    if not name:
        raise ConfigException(
            f"{Option('sasl.kerberos.service.name')} is not set: set it to the first part of the "
            "brokers' principal, which is kafka in kafka/host@REALM"
        )
    if jaas is not None:
        return _of_jaas(jaas, name)
    named, file = Option("sasl.kerberos.principal"), Option("sasl.kerberos.keytab")
    if not principal:
        raise ConfigException(
            f"{file} needs {named}, the principal whose key is in it"
            if keytab
            else f"GSSAPI needs credentials: set {named} and {file}, or "
            f"{named} alone for tickets that kinit has put into the ticket cache, or "
            f"{Option('sasl.jaas.config')}"
        )
    return KerberosOptions(name, principal, keytab or None)


def _of_jaas(jaas: Mapping[str, str], service: str) -> KerberosOptions:
    principal = jaas.get("principal") or None
    if _is_true(jaas, "useKeyTab"):
        keytab = jaas.get("keyTab")
        if not keytab:
            raise ConfigException(
                f"{Option('sasl.jaas.config')} has useKeyTab=true without keyTab: set keyTab to "
                "the path of the keytab, because this client does not look for a default keytab"
            )
        if principal is None:
            raise ConfigException(
                f"{Option('sasl.jaas.config')} has useKeyTab=true without principal: set "
                "principal to the principal whose key is in the keytab"
            )
        return KerberosOptions(service, principal, keytab.removeprefix("FILE:"))
    if not _is_true(jaas, "useTicketCache"):
        raise ConfigException(
            f"{Option('sasl.jaas.config')} has neither useKeyTab=true nor useTicketCache=true: "
            "this client does not prompt for a password, so set one of them"
        )
    return KerberosOptions(service, principal, cache=jaas.get("ticketCache") or None)


def _is_true(jaas: Mapping[str, str], name: str) -> bool:
    return jaas.get(name, "").strip().lower() == "true"


def cache_path(cache: str) -> str:
    """Return the path of a ticket cache; an empty string if its type is neither FILE nor DIR.

    The name of a cache consists of a type (such as ``FILE``, ``DIR`` or ``KCM``), a colon, and the
    rest. A name without a type is a path.
    """
    kind, colon, rest = cache.partition(":")
    # MIT Kerberos treats a single letter as a Windows drive.
    if not colon or len(kind) == 1:
        return cache
    # DIR::path is the path of one cache inside a folder of caches.
    return rest.lstrip(":") if kind in ("FILE", "DIR") else ""


class KerberosContext(Protocol):
    """The Kerberos security context of a login.

    All methods raise SaslAuthenticationException if the login fails.
    """

    @property
    def is_complete(self) -> bool:
        """Whether client and broker have authenticated each other."""

    def step(self, token: bytes) -> bytes | None:
        """Process the broker's token. Return the next token to send, or None if there is none."""

    def unwrap(self, message: bytes) -> bytes:
        """Return the content of a message that the broker has wrapped (GSS_Unwrap)."""

    def wrap(self, message: bytes) -> bytes:
        """Return a message wrapped with the client's signature (GSS_Wrap)."""


class GssapiExchange:
    """One GSSAPI login: the Kerberos tokens, then the security layers that the broker offers.

    The client chooses to use no security layer. first_token: the first token of the context.
    """

    mechanism: Final = GSSAPI

    def __init__(self, context: KerberosContext, first_token: bytes) -> None:
        self._context = context
        self._first = first_token
        # Kerberos sends no secret.
        self.secrets: tuple[str, ...] = ()
        self.is_complete = False

    def first(self) -> bytes:
        """Return the first Kerberos token."""
        return self._first

    def step(self, challenge: bytes) -> bytes | None:
        """Return the response to the broker's token, or None if the exchange is complete."""
        if not self._context.is_complete:
            answer = self._context.step(challenge)
            # An empty token is sent, too, because the broker responds to it with its security
            # layers.
            return answer or b""
        if self.is_complete:
            return None
        offer = self._context.unwrap(challenge)
        if len(offer) != _OFFER_BYTES:
            raise SaslAuthenticationException(
                f"the broker's offer of security layers has {len(offer)} bytes: expected 4"
            )
        if not offer[0] & _NO_LAYER:
            names = [name for bit, name in _LAYERS.items() if offer[0] & bit]
            raise SaslAuthenticationException(
                f"the broker asks for {' or '.join(names) or 'an unknown security layer'}, which "
                "neither this client nor Kafka's own clients support: use SASL_SSL to encrypt, "
                "and configure the broker to offer auth (no security layer)"
            )
        self.is_complete = True
        # Without an authorization id, the client acts as its own principal.
        return self._context.wrap(_CHOICE)

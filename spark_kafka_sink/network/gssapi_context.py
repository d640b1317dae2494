"""Kerberos with the library gssapi (the extra ``kerberos``); only this module imports it.

Tickets that come from a keytab are kept in the memory of the process, without kinit. The library
renews them after half of their lifetime, as it does for any client keytab. The tickets in a ticket
cache are managed by another program, so each login reads them again.

This module does not query DNS itself. krb5.conf configures how the host names in principals are
resolved.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, Final

from spark_kafka_sink.auth.gssapi import GssapiExchange, KerberosOptions
from spark_kafka_sink.auth.mechanisms import GSSAPI, printable
from spark_kafka_sink.errors import (
    ConfigException,
    NetworkException,
    Option,
    SaslAuthenticationException,
    install_extra,
)

# The first error code of the library, as an unsigned number (krb5.h).
_FIRST_CODE: Final = -1765328384 + (1 << 32)
_C_PRINCIPAL_UNKNOWN, _S_PRINCIPAL_UNKNOWN = 6, 7
_PREAUTH_FAILED, _BAD_INTEGRITY = 24, 31
_NO_CACHE: Final = (141, 195)
# A realm that neither krb5.conf nor DNS knows. The code is the same if DNS does not respond, but
# more often the name of the realm is wrong.
_REALM_UNKNOWN: Final = 154
# Errors that a retry may overcome: the KDC cannot be reached, or the client or the service is not
# valid yet.
_PASSING: Final = frozenset({21, 22, 29, 33, 34, 156})
_KEYTAB_MAGIC: Final = (b"\x05\x01", b"\x05\x02")


def check_kerberos() -> None:
    """Raise ConfigException if the library gssapi cannot be imported."""
    try:
        import gssapi  # noqa: F401, PLC0415
    except (ImportError, OSError) as error:
        why = error.msg if isinstance(error, ImportError) else error.strerror
        raise ConfigException(
            f"{Option('sasl.mechanism', GSSAPI)} needs the Python package gssapi on the driver and "
            f"on each executor: {install_extra('kerberos')}; it is compiled, which needs "
            f"libkrb5-dev (krb5-devel) and a C compiler ({why})"
        ) from None


def check_keytab(content: bytes, origin: str) -> None:
    """Raise ConfigException if the contents of a file are not a keytab."""
    if not content.startswith(_KEYTAB_MAGIC):
        raise ConfigException(f"{origin} is not a keytab: make one with ktutil or kadmin")


def cached_principal(options: KerberosOptions) -> str:
    """Return the principal of the ticket cache.

    Raise SaslAuthenticationException if the cache has no tickets.
    """
    return ticket_facts(kerberos_credentials(options, b""))[0]


def ticket_facts(credentials: Any) -> tuple[str, int]:  # noqa: ANN401 - of the library
    """Return the principal of the client's ticket, and when the ticket expires.

    The time is in seconds since 1970.
    """
    return str(credentials.name), int(time.time()) + int(credentials.lifetime or 0)


def gssapi_exchange(
    options: KerberosOptions,
    host: str,
    credentials: Any,  # noqa: ANN401 - of the library
) -> GssapiExchange:
    """Return the SASL exchange of a Kerberos login at the broker `host`.

    This may block until the KDC sends a ticket for the broker.

    credentials: those that `kerberos_credentials` has returned. Raise SaslAuthenticationException
    if there is no ticket, and NetworkException if a retry may succeed.
    """
    from gssapi import MechType, Name, NameType, RequirementFlag, SecurityContext  # noqa: PLC0415
    from gssapi.exceptions import GSSError  # noqa: PLC0415

    service = f"{options.service}@{host}"
    try:
        context = SecurityContext(
            name=Name(service, NameType.hostbased_service),
            creds=credentials,
            mech=MechType.kerberos,
            usage="initiate",
            flags=[RequirementFlag.mutual_authentication, RequirementFlag.integrity],
        )
        token = context.step()
    except GSSError as error:
        what = f"no ticket for the service {options.for_message(service)}"
        has_keytab = options.keytab is not None
        raise _failure(error, options, what, had_ticket=has_keytab) from None
    return GssapiExchange(_Context(context), bytes(token or b""))


class _Context:
    """A security context of the library gssapi."""

    def __init__(self, context: Any) -> None:  # noqa: ANN401 - of the library, which may be absent
        self._context = context

    @property
    def is_complete(self) -> bool:
        return bool(self._context.complete)

    def step(self, token: bytes) -> bytes | None:
        return self._checked(lambda: self._context.step(token))

    def unwrap(self, message: bytes) -> bytes:
        return self._checked(lambda: self._context.unwrap(message).message) or b""

    def wrap(self, message: bytes) -> bytes:
        return self._checked(lambda: self._context.wrap(message, encrypt=False).message) or b""

    def _checked(self, call: Callable[[], bytes | None]) -> bytes | None:
        from gssapi.exceptions import GSSError  # noqa: PLC0415

        try:
            return call()
        except GSSError as error:
            words = _words(error)
        raise SaslAuthenticationException(
            f"the Kerberos token that the broker sent is not valid: {words}"
        )


def kerberos_credentials(options: KerberosOptions, keytab: bytes) -> Any:  # noqa: ANN401 - of the library
    """Return a `gssapi.Credentials` that holds the Kerberos tickets of the login.

    With a keytab, this may block until the KDC sends the ticket of the client.

    keytab: the contents of the keytab. Raise SaslAuthenticationException if there is no ticket, and
    NetworkException if a retry may succeed.
    """
    from gssapi import Credentials, Name, NameType  # noqa: PLC0415
    from gssapi.exceptions import ExpiredCredentialsError, GSSError  # noqa: PLC0415

    store: dict[str, str] | None = None
    if options.keytab is not None:
        # The name of the cache contains a digest of the principal and the keytab. So these tickets
        # are not used with a different keytab.
        digest = hashlib.sha256(b"\0".join((str(options.principal).encode(), keytab))).hexdigest()
        store = {"client_keytab": f"FILE:{options.keytab}", "ccache": f"MEMORY:kafka-{digest}"}
    elif options.cache is not None:
        store = {"ccache": options.cache}
    try:
        name = None
        if options.principal is not None:
            name = Name(options.principal, NameType.kerberos_principal)
        credentials = Credentials(name=name, usage="initiate", store=store)
        # The library also returns expired tickets. Brokers reject them only some minutes after they
        # expire.
        if not credentials.lifetime:
            raise _expired(options)
    except ExpiredCredentialsError:
        raise _expired(options) from None
    except GSSError as error:
        raise _failure(error, options, f"no ticket for {options.user}") from None
    return credentials


def _expired(options: KerberosOptions) -> SaslAuthenticationException:
    return SaslAuthenticationException(
        f"the ticket of {options.user} has expired: run kinit again, or set "
        f"{Option('sasl.kerberos.keytab')}"
    )


def _failure(
    error: Any,  # noqa: ANN401 - of the library
    options: KerberosOptions,
    what: str,
    *,
    had_ticket: bool = False,
) -> SaslAuthenticationException | NetworkException:
    """Return the exception to raise. Its message contains the library's error, and often a remedy.

    The exception is a NetworkException if a retry may succeed. had_ticket: whether the ticket of
    the client was in memory a moment before. If it is missing now, the library is renewing it for
    another client with the same keytab.
    """
    code = error.min_code - _FIRST_CODE
    words = options.for_message(_words(error))
    if code in _PASSING or (had_ticket and code in _NO_CACHE):
        return NetworkException(f"{what}: {words}")
    keytab = "" if options.keytab is None else options.keytab_name
    advice = ""
    if code == _REALM_UNKNOWN:
        advice = "; is the name of the realm right, and is its KDC in krb5.conf or in DNS?"
    elif code == _S_PRINCIPAL_UNKNOWN:
        advice = (
            f"; the broker's principal must be {Option('sasl.kerberos.service.name')}, then a "
            "slash and the host name that the broker advertises, which cannot be an IP address; if "
            "the principal is right, the Kerberos library may have looked up a different host "
            "name: set rdns = false in krb5.conf"
        )
    elif code == _C_PRINCIPAL_UNKNOWN:
        advice = (
            f"; compare {Option('sasl.kerberos.principal')} and its realm with those of the KDC"
        )
    elif code in (_PREAUTH_FAILED, _BAD_INTEGRITY) and keytab:
        advice = f"; the keytab {keytab} has an old or wrong key: create the keytab again"
    elif code in _NO_CACHE:
        advice = (
            f"; does the keytab {keytab} have a key of that principal and realm?"
            if keytab
            else "; run kinit as the same user of the operating system, or set "
            f"{Option('sasl.kerberos.keytab')}"
        )
        words = "nothing was found" if keytab else words
    return SaslAuthenticationException(f"{what}: {words}{advice}")


def _words(error: Any) -> str:  # noqa: ANN401 - of the library
    """Return the library's message for an error."""
    found = error.get_all_statuses(error.min_code, False)  # noqa: FBT003 - a code of Kerberos
    if not found or found == ["Success"]:
        found = error.get_all_statuses(error.maj_code, True)  # noqa: FBT003 - a code of GSSAPI
    return printable(", ".join(map(str, found)))

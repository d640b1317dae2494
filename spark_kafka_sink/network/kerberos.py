"""Kerberos: the GSSAPI logins of one configuration, prepared outside the network's thread.

Each login requests a ticket for its broker from the KDC, which may take a long time. So a login is
prepared before its connection is made, and before the connection re-authenticates.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from random import Random
from typing import Final, TypeVar

from spark_kafka_sink.auth.gssapi import (
    GssapiExchange,
    KerberosOptions,
    cache_path,
    kerberos_options,
)
from spark_kafka_sink.auth.mechanisms import GSSAPI, OTHER_USER, printable
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException, Option, SaslAuthenticationException
from spark_kafka_sink.logs import may_be_key, unless_key
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.gssapi_context import (
    cached_principal,
    check_kerberos,
    check_keytab,
    gssapi_exchange,
    kerberos_credentials,
    ticket_facts,
)
from spark_kafka_sink.network.helper_thread import MadeAhead
from spark_kafka_sink.network.option_values import OptionValues
from spark_kafka_sink.network.sasl_authenticator import Login

_T = TypeVar("_T")
# The pauses after final failures. A KDC may lock an account after a few failures.
_PAUSE: Final = ExponentialBackoff(base_s=1.0, max_s=30.0)


class _Failures:
    """Pauses requests to the KDC after a failure that a retry would repeat.

    During a pause, the failure is raised again without a request. With each further failure, the
    pause is about twice as long, up to a limit. A successful request resets this length.
    """

    def __init__(self) -> None:
        self._random = Random()  # noqa: S311 - jitter, not secrets
        # The last failure of each kind: the argument `given` of the request, the message, when the
        # pause ends, and the number of failures. Each change is one atomic operation, so no lock is
        # needed.
        self._kept: dict[str, tuple[Hashable, str, float, int]] = {}

    def result(self, kind: str, given: Hashable, request: Callable[[], _T]) -> _T:
        """Return the result of a request to the KDC.

        Raise SaslAuthenticationException if the request fails and a retry would fail in the same
        way. A pause then begins. Until it ends, raise the same error for the same `kind` without a
        request. given: a value that identifies the keytab or the ticket. A pause applies only to
        the keytab or ticket that caused it.
        """
        given_before, message, ends_at, failures = self._kept.get(kind, (given, "", 0.0, 0))
        if given_before != given:
            ends_at, failures = 0.0, 0
        if time.monotonic() < ends_at:
            raise SaslAuthenticationException(message)
        try:
            found = request()
        except SaslAuthenticationException as error:
            ends_at = time.monotonic() + _PAUSE.delay_s(failures, self._random)
            self._kept[kind] = given, str(error), ends_at, failures + 1
            raise
        self._kept.pop(kind, None)
        return found


class Kerberos:
    """Makes the Kerberos logins of one configuration.

    Raise ConfigException if the configuration is invalid. wake: called from another thread when a
    login is ready. identity: the result of `login_identity`; empty if it is not known yet.
    """

    def __init__(
        self,
        config: ProducerConfig,
        values: OptionValues,
        wake: Callable[[], None],
        identity: str = "",
    ) -> None:
        self._config = config
        self._values = values
        self._logins = MadeAhead(self._exchange, wake)
        self._failures = _Failures()
        # `_principal`: the principal that the options set. `_cached_principal`: if they set none,
        # the principal of the ticket cache at the first login.
        self._principal = self._options()[0].principal
        self._cached_principal = identity or None if self._principal is None else None
        check_kerberos()

    def has_login(self, node: Node) -> bool:
        """Return whether `login` can be called now. If not, a login is being prepared."""
        return self._logins.is_there(_host(node))

    def give_up(self, node: Node) -> None:
        """Discard the login that is being prepared for a node."""
        self._logins.give_up(_host(node))

    def login(self, node: Node, chance: float) -> Login:
        """Return the login of a connection. Call this only after `has_login` has returned True.

        Raise SaslAuthenticationException if there are no tickets, and NetworkException if a retry
        may succeed.
        """
        host = _host(node)
        # The connection's first exchange is the login that was prepared for it.
        first = [self._logins.take(host)]
        user = self._options()[0].user
        if self._cached_principal is not None:
            user = f"principal {self._cached_principal!r}"
        return Login(
            lambda: first.pop() if first else self._logins.take(host),
            f"of {printable(user)} by {GSSAPI}",
            chance,
        )

    @property
    def principal(self) -> str:
        """The principal of the ticket cache up to its first "/" or "@"; empty if not known yet."""
        return (self._cached_principal or "").partition("@")[0].partition("/")[0]

    def identity(self) -> str:
        """Return the principal of the ticket cache; an empty string if the options set a principal.

        Raise SaslAuthenticationException if the cache has no tickets.
        """
        options, _ = self._options()
        return "" if options.principal is not None else cached_principal(options)

    def _exchange(self, host: str) -> GssapiExchange:
        """Return the SASL exchange for the broker `host`; a helper thread calls this."""
        options, keytab = self._options()
        if options.principal != self._principal:
            raise SaslAuthenticationException(
                f"the {options.user} has changed since this client was created: {OTHER_USER}"
            )
        given: Hashable
        if options.keytab is None:
            credentials = kerberos_credentials(options, b"")
            given = ticket_facts(credentials)
            if options.principal is None:
                self._check_cached_principal(given[0])
        else:
            # A failure applies to all brokers. If the keytab has been replaced, it is tried at
            # once.
            given = hashlib.sha256(keytab).digest()
            credentials = self._failures.result(
                "", given, lambda: kerberos_credentials(options, keytab)
            )
        return self._failures.result(
            host, given, lambda: gssapi_exchange(options, host, credentials)
        )

    def _check_cached_principal(self, found: str) -> None:
        """Raise SaslAuthenticationException if the principal of the ticket cache has changed."""
        before = self._cached_principal = self._cached_principal or found
        if found != before:
            raise SaslAuthenticationException(
                f"the ticket cache now has tickets of {found!r}, and had tickets of {before!r} "
                f"before: {OTHER_USER}"
            )

    def _options(self) -> tuple[KerberosOptions, bytes]:
        """Return the Kerberos options and the contents of the keytab (``b""`` without a keytab).

        Raise ConfigException if an option is missing, or if the keytab cannot be used.
        """
        config = self._config
        if config.sasl_username is not None:
            raise ConfigException(
                f"{Option('sasl.username')} has no effect with {GSSAPI}, which is the default: set "
                f"{Option('sasl.mechanism')}, or set {Option('sasl.kerberos.principal')} "
                "instead"
            )
        entry = None
        if config.sasl_jaas_config is not None:
            entry = self._values.jaas(config.sasl_jaas_config.value, GSSAPI)
        keytab = config.sasl_kerberos_keytab
        options = kerberos_options(
            None if entry is None else entry.options,
            self._values.text("sasl.kerberos.principal", config.sasl_kerberos_principal),
            self._values.text("sasl.kerberos.keytab", keytab),
            self._values.text("sasl.kerberos.service.name", config.sasl_kerberos_service_name),
        )
        principal = config.sasl_kerberos_principal or self._in_jaas("principal")
        service = config.sasl_kerberos_service_name or self._in_jaas("serviceName")
        given = ((options.principal, principal), (options.service, service))
        texts = [(value, "***" if may_be_key(text) else text) for value, text in given]
        options = replace(
            options, shown=tuple((value, text) for value, text in texts if value and value != text)
        )
        if options.keytab is None:
            return replace(options, cache=self._checked_cache(options.cache)), b""
        if keytab:
            name = f"{unless_key(keytab)} of {Option('sasl.kerberos.keytab')}"
        else:
            # The name of the file is not shown, because the text of this option is secret.
            name = f"keyTab of {Option('sasl.jaas.config')}"
        origin = f"the keytab {name}"
        found = self._values.content(options.keytab, origin)
        check_keytab(found, origin)
        path = self._values.path(options.keytab)
        return replace(options, keytab=path, keytab_name=name), found

    def _in_jaas(self, name: str) -> str:
        """Return a JAAS option with references (``${…}``) unresolved; an empty string if unset."""
        jaas = self._config.sasl_jaas_config
        return "" if jaas is None else self._values.shown_jaas(jaas.value, name)

    def _checked_cache(self, cache: str | None) -> str | None:
        """Return the ticket cache that JAAS names, with the real path of its file or folder.

        Raise ConfigException if this process may not read that path.
        """
        path = cache_path(cache or "")
        if cache is None or not path:
            return cache
        try:
            return cache.removesuffix(path) + self._values.path(path)
        except ConfigException as error:
            raise ConfigException(
                f"ticketCache of {Option('sasl.jaas.config')} cannot be read: {error}"
            ) from None


def _host(node: Node) -> str:
    return node.host.rstrip(".")

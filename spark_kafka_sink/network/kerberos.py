"""Kerberos: the GSSAPI logins of one configuration, prepared outside the network's thread.

The KDC is asked for a ticket for each broker, which may take long. So a thread of its own prepares
a login before its connection is made, and before a session is renewed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from spark_kafka_sink.auth.gssapi import GssapiExchange, KerberosOptions, kerberos_options
from spark_kafka_sink.auth.mechanisms import GSSAPI, printable
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    ConfigException,
    KafkaException,
    Option,
    as_options_are_named_here,
)
from spark_kafka_sink.logs import masked, without_path
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.gssapi import (
    cached_principal,
    check_kerberos,
    check_keytab,
    gssapi_exchange,
)
from spark_kafka_sink.network.option_values import OptionValues, content
from spark_kafka_sink.network.sasl_authenticator import Login

_T = TypeVar("_T")
# What was made for a connection that did not come about; tickets' tokens are good for minutes.
_STALE_S: Final = 60.0


class HelperThread:
    """A thread that makes calls one after the other, and is there as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], object]] = deque()
        self._is_there = False

    def run(self, call: Callable[[], object]) -> None:
        """Run a call in the thread; it must not raise. Any thread may call this.

        Raise RuntimeError, and run nothing, if no thread can be started.
        """
        with self._lock:
            self._calls.append(call)
            if self._is_there:
                return
            self._is_there = True
        try:
            threading.Thread(target=self._run, name="kafka-login", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._calls.clear()
                self._is_there = False
            raise

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._is_there = False
                    return
                call = self._calls.popleft()
            call()


@dataclass(frozen=True, slots=True)
class _Made(Generic[_T]):
    value: _T | None
    error: KafkaException | None
    at: float


class MadeAhead(Generic[_T]):
    """Objects that the helper thread makes in advance, by key; each is taken once.

    make: may take long, and raises KafkaException on failure. wake: called from the helper thread
    when an object is ready.
    """

    def __init__(self, make: Callable[[str], _T], wake: Callable[[], None]) -> None:
        self._make = make
        self._wake = wake
        self._thread = HelperThread()
        # None: it is being made. Each change is one step, which no other thread sees half done.
        self._made: dict[str, _Made[_T] | None] = {}

    def is_there(self, key: str) -> bool:
        """Return whether `take` returns or raises; otherwise it is being made from now on."""
        made = self._made.get(key)
        if made is not None and time.monotonic() < made.at + _STALE_S:
            return True
        if key not in self._made or made is not None:
            self._made[key] = None
            try:
                self._thread.run(as_options_are_named_here(lambda: self._run(key)))
            except RuntimeError:
                # The program ends, or the system has no room for a thread.
                error = KafkaException("no thread can be started to log in")
                self._made[key] = _Made(None, error, time.monotonic())
                return True
        return False

    def take(self, key: str) -> _T | None:
        """Return the object, None while it is being made. Raise KafkaException if that failed.

        The next one is not started.
        """
        if not self.is_there(key):
            return None
        made = self._made.pop(key)
        if made is None:
            return None
        if made.error is not None:
            raise made.error
        return made.value

    def _run(self, key: str) -> None:
        value, error = None, None
        try:
            value = self._make(key)
        except KafkaException as failure:
            error = failure
        except BaseException as failure:  # noqa: BLE001 - the thread goes on, whatever it is
            error = KafkaException(f"the login cannot be made: {type(failure).__name__}")
        self._made[key] = _Made(value, error, time.monotonic())
        self._wake()


class Kerberos:
    """Makes the logins of one configuration. Raise ConfigException if it cannot.

    wake: called by another thread when a login is ready.
    """

    def __init__(
        self, config: ProducerConfig, values: OptionValues, wake: Callable[[], None]
    ) -> None:
        self._config = config
        self._values = values
        self._logins = MadeAhead(self._exchange, wake)
        # The principal of the ticket cache at the first login.
        self._cached_principal = config.login_identity or None
        self._options()
        check_kerberos()

    def has_login(self, node: Node) -> bool:
        """Return whether `login` can be called now; if not, a login is being made."""
        return self._logins.is_there(_host(node))

    def login(self, node: Node, chance: float) -> Login:
        """Return the login of a connection; `has_login` has returned True.

        Raise SaslAuthenticationException if there are no tickets, and NetworkException if there may
        be some later.
        """
        host = _host(node)
        # The connection begins with the login that it has waited for.
        first = [self._logins.take(host)]
        user = self._options()[0].user
        if self._cached_principal is not None:
            user = f"principal {self._cached_principal!r}"
        return Login(
            lambda: first.pop() if first else self._logins.take(host),
            f"of {printable(user)} by {GSSAPI}",
            chance,
        )

    def identity(self) -> str:
        """Return the principal of the ticket cache, empty if the options name one.

        Raise SaslAuthenticationException if the cache has no tickets.
        """
        options, _ = self._options()
        return "" if options.principal is not None else cached_principal(options)

    def _exchange(self, host: str) -> GssapiExchange:
        """Return a login at a broker; the helper thread calls this."""
        options, keytab = self._options()
        if options.principal is None and self._cached_principal is None:
            self._cached_principal = cached_principal(options)
        return gssapi_exchange(options, host, keytab, self._cached_principal)

    def _options(self) -> tuple[KerberosOptions, bytes]:
        """Return the options, and the contents of the keytab, empty if there is none.

        Raise ConfigException if an option is missing, or the keytab cannot be used.
        """
        config = self._config
        if config.sasl_username is not None:
            raise ConfigException(
                f"{Option('sasl.username')} has no effect with {GSSAPI}, which is the default: set "
                f"{Option('sasl.mechanism')}, or set {Option('sasl.kerberos.principal')} in its "
                "place"
            )
        entry = None
        if config.sasl_jaas_config is not None:
            entry = self._values.jaas(config.sasl_jaas_config.value, GSSAPI)
        principal, keytab = config.sasl_kerberos_principal, config.sasl_kerberos_keytab
        options = kerberos_options(
            None if entry is None else entry.options,
            self._values.text("sasl.kerberos.principal", principal),
            self._values.text("sasl.kerberos.keytab", keytab),
            config.sasl_kerberos_service_name,
        )
        if options.keytab is None:
            return options, b""
        if keytab:
            origin = f"the keytab {masked(keytab)} of {Option('sasl.kerberos.keytab')}"
        else:
            name = Path(options.keytab).name
            origin = f"the keytab {name} of {Option('sasl.jaas.config')}"
        try:
            found = content(options.keytab)
        except (OSError, ValueError) as error:
            why = without_path(error)
        else:
            check_keytab(found, origin)
            return options, found
        raise ConfigException(f"{origin} cannot be read: {why}")


def _host(node: Node) -> str:
    return node.host.rstrip(".")

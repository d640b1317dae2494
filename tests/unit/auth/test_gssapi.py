"""GSSAPI without Kerberos: whom options say to log in, and what answers the broker's tokens."""

from __future__ import annotations

import pytest

from spark_kafka_sink.auth.gssapi import (
    GssapiExchange,
    KerberosOptions,
    cache_path,
    kerberos_options,
)
from spark_kafka_sink.errors import ConfigException, SaslAuthenticationException


class Context:
    """Complete after the broker's second token; signs by a letter."""

    def __init__(self, last: bytes | None = None) -> None:
        self.is_complete = False
        self._last = last
        self.taken: list[bytes] = []

    def step(self, token: bytes) -> bytes | None:
        """Return a second token, then the last one."""
        self.taken.append(token)
        self.is_complete = len(self.taken) == 2
        return self._last if self.is_complete else b"second"

    def unwrap(self, message: bytes) -> bytes:
        """Return what is behind the letter."""
        assert message[:1] == b"S"
        return message[1:]

    def wrap(self, message: bytes) -> bytes:
        """Return it behind the letter."""
        return b"S" + message


@pytest.mark.parametrize("last", [None, b"", b"last"])
def test_a_login_ends_by_choosing_no_layer(last: bytes | None) -> None:
    context = Context(last)
    exchange = GssapiExchange(context, b"first")
    assert exchange.first() == b"first"
    assert exchange.step(b"a") == b"second"
    assert exchange.step(b"b") == (last or b"")
    assert context.taken == [b"a", b"b"]
    assert not exchange.is_complete
    assert exchange.step(b"S\x07\x00\xff\xff") == b"S\x01\x00\x00\x00"
    # A broker that takes bare tokens sends nothing more, and all others an empty token.
    assert exchange.is_complete
    assert exchange.step(b"") is None


@pytest.mark.parametrize(
    ("offer", "sentence"),
    [
        (b"S\x04\x00\xff\xff", "asks for auth-conf, which neither this client"),
        (b"S\x06\x00\xff\xff", "asks for auth-int or auth-conf"),
        (b"S\x00\x00\xff\xff", "asks for an unknown security layer"),
        (b"S", "has 0 bytes: expected 4"),
        (b"S\x01\x00\x00\x00\x00", "has 5 bytes: expected 4"),
    ],
)
def test_an_offer_without_auth_alone_is_refused(offer: bytes, sentence: str) -> None:
    exchange = GssapiExchange(Context(), b"")
    exchange.step(b"a")
    exchange.step(b"b")
    with pytest.raises(SaslAuthenticationException, match=sentence):
        exchange.step(offer)
    assert not exchange.is_complete


def test_options_of_the_producer_say_whom_to_log_in() -> None:
    assert kerberos_options(None, "p", "/k", "kafka") == KerberosOptions("kafka", "p", "/k")
    assert kerberos_options(None, "p", None, "kafka") == KerberosOptions("kafka", "p")


def test_jaas_says_it_as_in_java() -> None:
    given = {"useKeyTab": "TRUE", "keyTab": "FILE:/k", "principal": "p", "serviceName": "kafka"}
    assert kerberos_options(given, None, None, None) == KerberosOptions("kafka", "p", "/k")
    cache = {"useTicketCache": "true", "ticketCache": "/c"}
    assert kerberos_options(cache, None, None, "k") == KerberosOptions("k", None, cache="/c")
    named = {"useTicketCache": "true", "principal": "p", "serviceName": "k"}
    assert kerberos_options(named, None, None, "k") == KerberosOptions("k", "p")


@pytest.mark.parametrize(
    ("cache", "path"),
    [
        ("/tmp/cache", "/tmp/cache"),
        ("cache", "cache"),
        ("FILE:/tmp/cache", "/tmp/cache"),
        ("FILE:cache", "cache"),
        ("DIR:/tmp/caches", "/tmp/caches"),
        ("DIR::/tmp/caches/tkt1", "/tmp/caches/tkt1"),
        ("c:/tmp/cache", "c:/tmp/cache"),
        ("KCM:1000", ""),
        ("KEYRING:persistent:1000", ""),
        ("MEMORY:a", ""),
        ("", ""),
    ],
)
def test_a_ticket_cache_that_is_a_file_or_a_folder_has_a_path(cache: str, path: str) -> None:
    assert cache_path(cache) == path


def test_what_references_give_is_not_in_messages() -> None:
    options = KerberosOptions(
        "kafka-hidden", "hidden@R", shown=(("hidden@R", "${env:P}"), ("kafka-hidden", "${env:S}"))
    )
    assert options.user == "principal '${env:P}'"
    assert options.for_message("kafka-hidden@h: Client hidden@R not found") == (
        "${env:S}@h: Client ${env:P} not found"
    )


@pytest.mark.parametrize(
    ("jaas", "given", "sentence"),
    [
        (None, ("p", "/k", None), "sasl.kerberos.service.name is not set"),
        (None, (None, "/k", "kafka"), "keytab needs sasl.kerberos.principal"),
        (None, (None, None, "kafka"), "needs credentials: set sasl.kerberos.principal"),
        ({"serviceName": "a"}, (None, None, "b"), "different values: remove one"),
        ({"useKeyTab": "true", "keyTab": "/k"}, (None, None, "k"), "useKeyTab=true without princ"),
        ({"principal": "p"}, (None, None, "k"), "neither useKeyTab=true nor useTicketCache=true"),
    ],
)
def test_what_says_it_by_half_is_refused(
    jaas: dict[str, str] | None, given: tuple[str | None, str | None, str | None], sentence: str
) -> None:
    with pytest.raises(ConfigException, match=sentence):
        kerberos_options(jaas, *given)


def test_no_default_keytab_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_KTNAME", "/etc/krb5.keytab")
    given = {"useKeyTab": "true", "principal": "p", "serviceName": "kafka"}
    with pytest.raises(ConfigException, match="has useKeyTab=true without keyTab: set keyTab to"):
        kerberos_options(given, None, None, None)

"""Kerberos logins without the library: what it is asked for, and how often the KDC is asked."""

from __future__ import annotations

import socket
import sys
import threading
from enum import Enum, Flag, auto
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import KafkaException, NetworkException, SaslAuthenticationException
from spark_kafka_sink.model import Node
from spark_kafka_sink.network import gssapi_context, kerberos
from spark_kafka_sink.network.security import Security

WAIT_S = 20
NODES = [Node(id=number, host=f"broker-{number}", port=1) for number in range(3)]


def kerberos_client(options: dict[str, str]) -> Security:
    """Return a client that logs in by Kerberos. options: whose tickets it takes."""
    made = Security.of(
        producer_config(
            {
                "bootstrap.servers": "h:1",
                "security.protocol": "SASL_SSL",
                "sasl.kerberos.service.name": "kafka",
                **options,
            }
        )
    )
    assert made is not None
    return made


class Kdc:
    """Stands for the library and the KDC, with a clock of its own.

    asked: a principal for each request of a client's ticket, and a host for each of a broker's.
    refused: which of them the KDC refuses, and how. principal, ends_at: of the client's ticket.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.asked: list[str] = []
        self.refused: dict[str, KafkaException] = {}
        self.principal, self.ends_at = "u@REALM", 9000
        self.keytab = folder / "keytab"
        self.put(b"first")
        monkeypatch.setattr(kerberos, "check_kerberos", lambda: None)
        monkeypatch.setattr(kerberos, "kerberos_credentials", lambda options, _: self._ask("u"))
        monkeypatch.setattr(kerberos, "gssapi_exchange", lambda _, host, *__: self._ask(host))
        monkeypatch.setattr(kerberos, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(gssapi_context, "time", SimpleNamespace(time=lambda: self.now))
        monkeypatch.setattr(kerberos, "Random", lambda: SimpleNamespace(uniform=lambda *_: 1.0))

    def put(self, key: bytes) -> None:
        """Write the keytab."""
        self.keytab.write_bytes(b"\x05\x02" + key)

    def _ask(self, name: str) -> object:
        self.asked.append(name)
        if name in self.refused:
            raise self.refused[name]
        return SimpleNamespace(name=self.principal, lifetime=self.ends_at - self.now)

    def client(self, *, has_cache: bool = False) -> Security:
        """Return a client that logs in by the keytab, or by a ticket cache."""
        by_keytab = {
            "sasl.kerberos.principal": "u",
            "sasl.kerberos.keytab": str(self.keytab),
        }
        module = "com.sun.security.auth.module.Krb5LoginModule"
        by_cache = {"sasl.jaas.config": f"{module} required useTicketCache=true;"}
        return kerberos_client(by_cache if has_cache else by_keytab)


@pytest.fixture
def kdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kdc:
    """A KDC that refuses nothing at first."""
    return Kdc(tmp_path, monkeypatch)


def result(client: Security, node: Node) -> str:
    """Log in at a node as a client does; return why there is no login, empty if there is one."""
    woken = threading.Event()
    client.wake = woken.set
    while not client.has_login(node):
        assert woken.wait(WAIT_S)
        woken.clear()
    try:
        assert client.login(node, 0.5) is not None
    except KafkaException as error:
        return str(error)
    return ""


def asked_in(client: Security, kdc: Kdc, seconds: int, nodes: list[Node]) -> list[tuple[int, str]]:
    """Try each node once a second; return in which second the KDC was asked for what."""
    found = []
    for second in range(seconds):
        for node in nodes:
            result(client, node)
        found += [(second, name) for name in kdc.asked]
        kdc.asked.clear()
        kdc.now += 1
    return found


def test_a_wrong_key_is_sent_to_the_kdc_more_and_more_rarely_whatever_node_needs_it(
    kdc: Kdc,
) -> None:
    client = kdc.client()
    assert [result(client, node) for node in NODES] == ["", "", ""]
    kdc.asked.clear()
    kdc.refused["u"] = SaslAuthenticationException("wrong key")
    assert [result(client, node) for node in NODES] == ["wrong key"] * 3
    assert kdc.asked == ["u"]
    kdc.asked.clear()
    kdc.now += 1
    asked = asked_in(client, kdc, 120, NODES)
    assert asked == [(second, "u") for second in (0, 2, 6, 14, 30, 60, 90)]
    # One that succeeds ends the pauses.
    kdc.refused.clear()
    assert asked_in(client, kdc, 2, NODES[:1]) == [
        *((0, name) for name in ("u", "broker-0")),
        *((1, name) for name in ("u", "broker-0")),
    ]
    kdc.refused["u"] = SaslAuthenticationException("wrong key")
    assert [second for second, _ in asked_in(client, kdc, 5, NODES)] == [0, 1, 3]


def test_another_keytab_is_tried_at_once(kdc: Kdc) -> None:
    client = kdc.client()
    kdc.refused["u"] = SaslAuthenticationException("wrong key")
    assert result(client, NODES[0]) == "wrong key"
    kdc.refused.clear()
    assert result(client, NODES[0]) == "wrong key"
    kdc.put(b"second")
    assert result(client, NODES[0]) == ""


def test_a_broker_is_tried_at_once_with_another_keytab(kdc: Kdc) -> None:
    client = kdc.client()
    kdc.refused["broker-0"] = SaslAuthenticationException("unknown service")
    assert result(client, NODES[0]) == "unknown service"
    kdc.refused.clear()
    kdc.put(b"second")
    assert result(client, NODES[0]) == ""


def test_a_ticket_cache_that_is_restored_counts_at_once(kdc: Kdc) -> None:
    client = kdc.client(has_cache=True)
    assert result(client, NODES[0]) == ""
    kdc.asked.clear()
    kdc.principal = "mallory@REALM"
    for _ in range(3):
        said = result(client, NODES[0])
        assert "now has tickets of 'mallory@REALM', and had tickets of 'u@REALM' before" in said
    assert "broker-0" not in kdc.asked
    kdc.principal = "u@REALM"
    assert result(client, NODES[0]) == ""


def test_a_broker_is_tried_at_once_with_another_ticket_and_rarely_with_the_same(kdc: Kdc) -> None:
    client = kdc.client(has_cache=True)
    kdc.refused["broker-0"] = SaslAuthenticationException("revoked")
    assert [second for second, name in asked_in(client, kdc, 8, NODES[:1]) if name != "u"] == [
        *(0, 1, 3, 7)
    ]
    kdc.refused.clear()
    assert result(client, NODES[0]) == "revoked"
    kdc.ends_at += 3600
    assert result(client, NODES[0]) == ""


def test_a_broker_that_the_kdc_does_not_know_holds_up_no_other(kdc: Kdc) -> None:
    client = kdc.client()
    kdc.refused["broker-1"] = SaslAuthenticationException("unknown service")
    assert [result(client, node) for node in NODES] == ["", "unknown service", ""]
    kdc.asked.clear()
    assert [result(client, node) for node in NODES] == ["", "unknown service", ""]
    assert "broker-1" not in kdc.asked
    kdc.now += 1
    kdc.refused.clear()
    assert result(client, NODES[1]) == ""


def test_a_kdc_that_cannot_be_reached_is_tried_at_each_login(kdc: Kdc) -> None:
    client = kdc.client()
    kdc.refused["u"] = NetworkException("unreachable")
    assert [result(client, node) for node in NODES] == ["unreachable"] * 3
    assert kdc.asked == ["u", "u", "u"]


class NameType(Enum):
    """The library's kinds of names."""

    hostbased_service = auto()
    kerberos_principal = auto()


class RequirementFlag(Flag):
    """What the library can be asked for."""

    mutual_authentication = auto()
    integrity = auto()


def test_the_library_gets_the_advertised_host_and_nobody_looks_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = []

    def context(*, name: tuple[str, NameType], **_: object) -> object:
        services.append(name)
        return SimpleNamespace(complete=False, step=lambda: b"a token")

    def look_up(*given: object) -> None:
        raise AssertionError(f"{given} was looked up")

    library, errors = ModuleType("gssapi"), ModuleType("gssapi.exceptions")
    vars(library).update(
        Credentials=lambda **_: SimpleNamespace(name="u@REALM", lifetime=9000),
        MechType=SimpleNamespace(kerberos="kerberos"),
        Name=lambda text, kind: (text, kind),
        NameType=NameType,
        RequirementFlag=RequirementFlag,
        SecurityContext=context,
    )
    vars(errors).update(ExpiredCredentialsError=OSError, GSSError=OSError)
    for module in (library, errors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("getaddrinfo", "gethostbyaddr", "gethostbyname", "getfqdn", "getnameinfo"):
        monkeypatch.setattr(socket, name, look_up)
    keytab = tmp_path / "keytab"
    keytab.write_bytes(b"\x05\x02")
    client = kerberos_client({"sasl.kerberos.principal": "u", "sasl.kerberos.keytab": str(keytab)})
    for host in ("Broker-7.example.com", "broker-8.example.com."):
        assert result(client, Node(id=7, host=host, port=1)) == ""
    assert services == [
        ("kafka@Broker-7.example.com", NameType.hostbased_service),
        ("kafka@broker-8.example.com", NameType.hostbased_service),
    ]

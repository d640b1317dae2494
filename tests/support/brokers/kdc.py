"""A Kerberos KDC of MIT for tests: a realm of its own on loopback, in a folder of its own.

Needs Debian's krb5-kdc, krb5-admin-server and krb5-user, and for clients the extra ``kerberos``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from support.brokers import processes

REALM: Final = "LAB.TEST"
# Not all users have the folder of the daemons on their PATH.
_PATH: Final = os.pathsep.join(
    (os.environ.get("PATH", ""), os.environ.get("KRB5_PROGRAMS", "/usr/sbin"))
)
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist")
_START_TIMEOUT_S: Final = 30.0


def missing() -> str | None:
    """Return what a KDC, or a client of one, lacks here; None if nothing."""
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if absent:
        return (
            f"No test logged in by Kerberos: {', '.join(absent)} not found. Install them (Debian: "
            "apt install krb5-kdc krb5-admin-server krb5-user libkrb5-dev gcc), then make test."
        )
    try:
        import gssapi  # noqa: F401
    except ImportError:
        return (
            "No test logged in by Kerberos: the Python package gssapi is not here. It needs "
            "libkrb5-dev and a compiler; then: make clean test."
        )
    return None


def variables(folder: Path) -> dict[str, str]:
    """Return the environment of the clients of a KDC whose folder this is, or will be."""
    return {
        "KRB5_CONFIG": str(folder / "krb5.conf"),
        "KRB5CCNAME": f"FILE:{folder}/nobody-has-tickets-here",
    }


@contextlib.contextmanager
def read_by_kerberos(address: str, ca: Path, topic: str, cache: Path) -> Iterator[Any]:
    """Read a topic by kafka-python, which logs in with the tickets of a cache."""
    import kafka

    before = os.environ.get("KRB5CCNAME", "")
    os.environ["KRB5CCNAME"] = str(cache)
    consumer = None
    try:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=address,
            security_protocol="SASL_SSL",
            ssl_cafile=str(ca),
            sasl_mechanism="GSSAPI",
            sasl_kerberos_service_name="kafka",
            auto_offset_reset="earliest",
            consumer_timeout_ms=20_000,
        )
        yield consumer
    finally:
        os.environ["KRB5CCNAME"] = before
        if consumer is not None:
            consumer.close()


class Kdc:
    """The realm `REALM`; its clients need the environment of `variables`."""

    def __init__(self, folder: Path, port: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._port = port
        self.config = folder / "krb5.conf"
        self.config.write_text(
            f"""
[libdefaults]
    default_realm = {REALM}
    dns_lookup_realm = false
    dns_lookup_kdc = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {REALM} = {{
        kdc = 127.0.0.1:{port}
    }}
[domain_realm]
    localhost = {REALM}
"""
        )
        (folder / "kdc.conf").write_text(
            f"""
[kdcdefaults]
    kdc_listen = 127.0.0.1:{port}
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {REALM} = {{
        database_name = {folder}/principal
        key_stash_file = {folder}/stash
        acl_file = {folder}/kadm5.acl
        max_life = 10h
    }}
"""
        )
        self._environment = variables(folder) | {"KRB5_KDC_PROFILE": str(folder / "kdc.conf")}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __getstate__(self) -> dict[str, object]:
        """Leave the process to the one that has started it."""
        return self.__dict__ | {"_process": None}

    def start(self) -> None:
        """Make the realm and serve it."""
        self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of-tests")
        self.serve()

    def serve(self) -> None:
        """Start the KDC, and wait until it responds."""
        log = self._folder / "kdc.log"
        program = shutil.which("krb5kdc", path=_PATH)
        assert program is not None
        self._process = processes.start(
            [program, "-n", "-r", REALM], log=log, env=os.environ | self._environment
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"the KDC did not start:\n{log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End the KDC; the realm stays."""
        if self._process is not None:
            processes.kill(self._process)
            self._process = None

    def add(self, principal: str, *options: str) -> Path:
        """Add a principal, and return a keytab with its key.

        All workers of a test run share the realm, so a principal that others use keeps its key.
        """
        keytab = self.keytab(principal)
        assert not keytab.exists(), f"{principal} is in the realm: use `keytab` or `change_key`"
        self.run("kadmin.local", "-q", f"addprinc {' '.join(options)} -randkey {principal}")
        self.change_key(principal)
        return keytab

    def change_key(self, principal: str) -> None:
        """Change the key of a principal, and add the new one to its keytab."""
        self.run("kadmin.local", "-q", f"ktadd -k {self.keytab(principal)} {principal}")

    def keytab(self, principal: str) -> Path:
        """Return the path of the keytab of a principal."""
        return self._folder / f"{principal.replace('/', '-')}.keytab"

    def tickets(self, principal: str, keytab: Path, *options: str) -> Path:
        """Return a ticket cache with a new ticket, as kinit makes it."""
        cache = self._folder / f"cache-{uuid.uuid4().hex[:12]}"
        self.run("kinit", *options, "-c", str(cache), "-k", "-t", str(keytab), principal)
        return cache

    def wait_until_expired(self, cache: Path) -> None:
        """Wait until no ticket of a cache is valid any more."""
        while self._status("klist", "-s", "-c", str(cache)) == 0:
            time.sleep(0.1)

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of Kerberos in this realm, and return what it prints."""
        done = self._run(program, *arguments)
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def _status(self, program: str, *arguments: str) -> int:
        return self._run(program, *arguments).returncode

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        found = shutil.which(program, path=_PATH)
        assert found is not None
        environment: Mapping[str, str] = os.environ | self._environment
        return subprocess.run(
            [found, *arguments], env=environment, capture_output=True, text=True, check=False
        )

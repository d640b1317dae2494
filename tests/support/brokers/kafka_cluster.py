"""Real Apache Kafka for tests: KRaft nodes as child processes on loopback.

It uses the jars that `fetch_kafka` puts into the cache. Every node is both broker and controller.
Nodes can be killed, stopped and started again individually.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from job import broker

from support.brokers import processes

_START_TIMEOUT_S = 90.0
# Other tests run at the same time.
_FRUGAL = ("-Xmx768m", "-XX:+UseSerialGC")


# Below Linux's range for outgoing connections, so that no connection takes the port of a node that
# is down.
_PORTS = range(20_000, 32_000)
_returned: set[int] = set()
_lock = threading.Lock()


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free, and that this function returned nowhere else.

    A port is taken only once a JVM listens there, and a node that is down needs its port again. So
    a process claims its ports as long as it runs, also against another run of the tests.
    """
    with _lock, contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = secrets.choice(_PORTS)
            if port in _returned:
                continue
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                probe.bind(("127.0.0.1", port))
                found.append(port)
                _returned.add(port)
        return found


@functools.cache
def _claims() -> int:
    """Return the descriptor of a file in which a locked byte is a port that a process claims."""
    path = Path(tempfile.gettempdir()) / f"spark-kafka-sink-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


class KafkaCluster:
    """Kafka nodes of one version, with the ids 1, 2 and so on.

    proxies: by node id, the port of a proxy for clients. Such a node has a listener of its own for
    the proxy to forward to (`behind_proxies`), which advertises the proxy's port. `bootstrap`
    bypasses the proxies.

    java_options: options of the nodes after heap and collector. java: replaces the default options.
    """

    def __init__(
        self,
        libs: Path,
        folder: Path,
        nodes: int = 1,
        settings: dict[str, str] | None = None,
        proxies: Mapping[int, int] | None = None,
        java_options: Sequence[str] = (),
        java: Sequence[str] = _FRUGAL,
    ) -> None:
        self._libs = libs
        self._java_options = [*java, *java_options]
        self._folder = folder
        self._ids = list(range(1, nodes + 1))
        self._proxies = dict(proxies or {})
        ports = free_ports(2 * nodes + len(self._proxies))
        self.ports = dict(zip(self._ids, ports[:nodes], strict=True))
        self._controllers = dict(zip(self._ids, ports[nodes : 2 * nodes], strict=True))
        self.behind_proxies = dict(zip(self._proxies, ports[2 * nodes :], strict=True))
        self._settings = settings or {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the processes: only the process that started them can stop them."""
        return self.__dict__ | {"_processes": {}}

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, for bootstrap.servers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def controllers(self) -> str:
        """The addresses of all nodes as controllers, which clients should not use."""
        return ",".join(f"127.0.0.1:{port}" for port in self._controllers.values())

    def start(self) -> None:
        """Format and start all nodes, and wait until each is registered."""
        for node in self._ids:
            self._config(node).parent.mkdir(parents=True, exist_ok=True)
            self._config(node).write_text(self._properties_of(node))
            self._format(node)
        for node in self._ids:
            self.start_node(node, wait=False)
        for node in self._ids:
            self.wait_for(node)

    def stop(self) -> None:
        """End all nodes. Raise RuntimeError if one had ended by itself."""
        fallen = [node for node, process in self._processes.items() if process.poll() is not None]
        for process in self._processes.values():
            processes.kill(process)
        if fallen:
            message = f"Kafka node {fallen[0]} ended by itself:\n{self._log_tail(fallen[0])}"
            raise RuntimeError(message)

    def kill(self, node: int) -> None:
        """SIGKILL a node, as a power failure would."""
        processes.kill(self._processes.pop(node))

    def terminate(self, node: int) -> None:
        """Let a node hand over its leadership and end, as for an upgrade."""
        processes.stop(self._processes.pop(node))

    def limit_files(self, node: int, size_bytes: int) -> None:
        """Limit the size of a node's files until it is started again, as if its disk were full."""
        limits = (size_bytes, resource.RLIM_INFINITY)
        resource.prlimit(self.pid(node), resource.RLIMIT_FSIZE, limits)

    def pid(self, node: int) -> int:
        """Return the process id of a node."""
        return self._processes[node].pid

    def start_node(self, node: int, *, wait: bool = True) -> None:
        """Start a node that is not running."""
        self._processes[node] = processes.start(
            self._java(*broker.start_arguments(self._config(node))), log=self._log(node)
        )
        if wait:
            self.wait_for(node)

    def wait_for(self, node: int) -> None:
        """Wait until a node has joined the cluster. Raise with its log if it does not."""
        own_address = f"127.0.0.1:{self.ports[node]}"
        admin = AdminClient({"bootstrap.servers": own_address, "log_level": 0})
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._processes[node].poll() is None:
            with contextlib.suppress(KafkaException):
                if node in admin.list_topics(timeout=1).brokers:
                    return
        message = f"Kafka node {node} did not start:\n{self._log_tail(node)}"
        raise RuntimeError(message)

    def _properties_of(self, node: int) -> str:
        return broker.properties(self._settings_of(node))

    def _format(self, node: int) -> None:
        """Format the node's data folder, which takes a JVM only once in an environment.

        The folders of all nodes of a version are the same, but for their ids.
        """
        data = broker.data_folder(self._config(node).parent)
        formatted = Path(sys.prefix) / f"formatted-{self._libs.name}"
        if not formatted.is_dir():
            self._run(*broker.format_arguments(self._config(node)))
            with tempfile.TemporaryDirectory(dir=sys.prefix) as copy, contextlib.suppress(OSError):
                # Another process may have done the same.
                shutil.copytree(data, Path(copy, "data")).rename(formatted)
            return
        shutil.copytree(formatted, data)
        ids = {"node.id": node, "directory.id": secrets.token_urlsafe(16)}
        properties = data / "meta.properties"
        lines = (line.partition("=") for line in properties.read_text().splitlines())
        properties.write_text("".join(f"{n}{e}{ids.get(n, value)}\n" for n, e, value in lines))

    def limit_bytes(self, client_id: str, bytes_per_second: int) -> None:
        """Set a producer quota for a client id; brokers apply it a little later."""
        # Kafka 4.4 has the command among its tools.
        (tools,) = self._libs.glob("kafka-tools-[0-9]*.jar")
        with zipfile.ZipFile(tools) as jar:
            is_tool = "org/apache/kafka/tools/ConfigCommand.class" in jar.namelist()
        package = "org.apache.kafka.tools" if is_tool else "kafka.admin"
        self._run(
            f"{package}.ConfigCommand", "--bootstrap-server", self.bootstrap, "--alter",
            "--add-config", f"producer_byte_rate={bytes_per_second}",
            "--entity-type", "clients", "--entity-name", client_id,
        )  # fmt: skip

    def run_topics_script(self, *arguments: str) -> None:
        """Run Kafka's kafka-topics.sh, which needs only the jars."""
        self._run("org.apache.kafka.tools.TopicCommand", *arguments)

    def run_acls_script(self, *arguments: str) -> None:
        """Run Kafka's kafka-acls.sh, which needs only the jars."""
        self._run("org.apache.kafka.tools.AclCommand", *arguments)

    def change_transaction_version(self, version: int) -> None:
        """Let the cluster finalize another transaction.version; Kafka 4 begins with 2."""
        self._run(
            "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", self.bootstrap,
            "upgrade" if version == 2 else "downgrade",
            "--feature", f"transaction.version={version}",
        )  # fmt: skip

    def _run(self, main: str, *arguments: str | Path) -> None:
        subprocess.run(self._java(main, *arguments), check=True, capture_output=True)

    def _java(self, main: str, *arguments: str | Path) -> list[str | Path]:
        return ["java", *self._java_options, "-cp", f"{self._libs}/*", main, *arguments]

    def _config(self, node: int) -> Path:
        return self._folder / f"node-{node}" / "server.properties"

    def _log(self, node: int) -> Path:
        return self._folder / f"node-{node}" / "node.log"

    def _log_tail(self, node: int) -> str:
        """Return the errors in a node's log, and the end of the log."""
        log = self._log(node).read_text(errors="replace")
        wrong = [line for line in log.splitlines() if " ERROR " in line or "Exception" in line]
        return "\n".join([*wrong[:20], log[-1500:]])

    def _settings_of(self, node: int) -> dict[str, object]:
        listeners = advertised = f"PLAINTEXT://127.0.0.1:{self.ports[node]}"
        if node in self._proxies:
            listeners += f",PROXIED://127.0.0.1:{self.behind_proxies[node]}"
            advertised += f",PROXIED://127.0.0.1:{self._proxies[node]}"
        return (
            broker.node_settings(node, self._folder / f"node-{node}", self._controllers)
            | {
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._controllers[node]}",
                "advertised.listeners": advertised,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,"
                "CONTROLLER:PLAINTEXT",
                "offsets.topic.num.partitions": 3,
                "transaction.state.log.num.partitions": 3,
                "group.initial.rebalance.delay.ms": 0,
                # No node can take over from a single one, which a busy machine may slow down for
                # long.
                "broker.session.timeout.ms": 3000 if len(self._ids) > 1 else 9000,
                # Idle clusters should cost little, because other tests run at the same time.
                "broker.heartbeat.interval.ms": 1000,
                "metadata.max.idle.interval.ms": 0,
                "replica.fetch.wait.max.ms": 2000,
                "num.network.threads": 1,
                "num.io.threads": 2,
                "log.retention.ms": -1,
                # For topics that a test does not create itself.
                "log.retention.bytes": 1 << 30,
                "log.segment.bytes": 256 << 20,
                # Tests wait for transactions that time out.
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            }
            | self._settings
        )

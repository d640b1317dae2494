"""A Kafka node for a measurement, with Kafka's own start options.

It differs in one thing: it deletes logs soon, so that neither disk nor memory fills up.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import psutil
from job import broker, kafka_jars

from support.brokers import fetch_kafka
from support.brokers.certificates import Authority
from support.brokers.kafka_cluster import KafkaCluster, free_ports

_SETTINGS: Final = {
    "log.retention.check.interval.ms": "2000",
    "log.segment.delete.delay.ms": "500",
    # Kafka's own options instead of those of the tests.
    "num.network.threads": "3",
    "num.io.threads": "8",
    "broker.heartbeat.interval.ms": "2000",
    "metadata.max.idle.interval.ms": "500",
}
# From kafka-server-start.sh and kafka-run-class.sh.
_JAVA: Final = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 8 << 30


def memory_with_room(room_bytes: int) -> str | None:
    """Return a folder in memory with room for a broker's logs, None if there is none."""
    if not os.access(_MEMORY, os.W_OK):
        return None
    free = min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available)
    return str(_MEMORY) if free > room_bytes else None


@contextmanager
def own_broker() -> Iterator[KafkaCluster]:
    """Start one node of the newest Kafka, with its logs in memory if there is room.

    End the program if Kafka is not available.
    """
    try:
        kafka_jars.fetch(kafka_jars.KAFKA)
    except kafka_jars.JarsError as error:
        raise SystemExit(str(error)) from None
    with broker_in(memory_with_room(_ROOM_BYTES)) as cluster:
        yield cluster


class TlsKafka(KafkaCluster):
    """One node that has a listener with TLS, too; ca: the file with the certificate to trust."""

    def __init__(
        self, libs: Path, folder: Path, nodes: int, settings: dict[str, str], *, java: Sequence[str]
    ) -> None:
        super().__init__(libs, folder, nodes, settings, java=java)
        folder.mkdir(parents=True, exist_ok=True)
        (self._tls_port,) = free_ports(1)
        authority = Authority()
        leaf = authority.leaf("localhost", authority.intermediate())
        self.ca = folder / "ca.pem"
        self.ca.write_text(authority.root.certificate)
        self._store = folder / "server.pem"
        self._store.write_text(leaf.key + leaf.chain)

    @property
    def tls_bootstrap(self) -> str:
        """The address of the listener with TLS."""
        return f"localhost:{self._tls_port}"

    def _settings_of(self, node: int) -> dict[str, object]:
        settings = super()._settings_of(node)
        own = f"SSL://{self.tls_bootstrap}"
        return settings | {
            "listeners": f"{settings['listeners']},{own}",
            "advertised.listeners": f"{settings['advertised.listeners']},{own}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._store,
        }


_Kind = TypeVar("_Kind", bound=KafkaCluster)


def broker_in(folder: str | None) -> AbstractContextManager[KafkaCluster]:
    """Start one node of the newest Kafka; its logs are in `folder`, or on disk if that is None."""
    return _started(KafkaCluster, folder)


def tls_broker_in(folder: str | None) -> AbstractContextManager[TlsKafka]:
    """Start one node as `broker_in` does, with a listener that has TLS, too."""
    return _started(TlsKafka, folder)


@contextmanager
def _started(kind: type[_Kind], folder: str | None) -> Iterator[_Kind]:
    with broker.scratch_folder("bench", folder) as logs:
        libs = fetch_kafka.libs(fetch_kafka.NEWEST)
        cluster = kind(libs, logs, 1, dict(_SETTINGS), java=_JAVA)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()

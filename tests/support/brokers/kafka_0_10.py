"""A real Kafka 0.10.2 with its ZooKeeper: a broker older than record batches (0.11)."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from support.brokers import fetch_kafka, processes
from support.brokers.kafka_cluster import free_ports

_START_TIMEOUT_S: Final = 90.0
_LOG4J: Final = """\
log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.SimpleLayout
"""


class OldBroker:
    """One broker and its ZooKeeper on loopback."""

    def __init__(self, libs: Path, folder: Path) -> None:
        self._libs = libs
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port, self._zookeeper_port = free_ports(2)

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start both and wait until the broker answers. Raise with its log if it does not."""
        self._folder.mkdir(parents=True)
        self._write("log4j.properties", _LOG4J)
        self._write(
            "zookeeper.properties",
            f"dataDir={self._folder / 'zookeeper'}\n"
            f"clientPort={self._zookeeper_port}\nclientPortAddress=127.0.0.1\n",
        )
        self._write(
            "kafka.properties",
            f"broker.id=1\nlisteners=PLAINTEXT://{self.bootstrap}\n"
            f"zookeeper.connect=127.0.0.1:{self._zookeeper_port}\n"
            f"log.dirs={self._folder / 'data'}\nauto.create.topics.enable=false\n"
            "log.cleaner.enable=false\noffsets.topic.num.partitions=1\nlog.retention.ms=-1\n"
            f"log.segment.bytes={64 << 20}\nlog.retention.bytes={256 << 20}\n",
        )
        self._run("org.apache.zookeeper.server.quorum.QuorumPeerMain", "zookeeper.properties")
        self._run("kafka.Kafka", "kafka.properties")
        self._wait()

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic; this old broker has no default replication factor."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1)
        for future in admin.create_topics([new]).values():
            future.result()

    def stop(self) -> None:
        """End both."""
        for process in reversed(self._processes):
            processes.kill(process)

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def _run(self, main: str, config: str) -> None:
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC"]
        command += [f"-Djava.io.tmpdir={self._folder}", "-cp", f"{self._libs}/*"]
        command += [f"-Dlog4j.configuration=file:{self._folder}/log4j.properties"]
        command += [main, str(self._folder / config)]
        log = self._folder / f"{main}.log"
        self._processes.append(processes.start(command, log=log, cwd=self._folder))

    def _wait(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._processes[-1].poll() is None:
            with contextlib.suppress(KafkaException):
                if admin.list_topics(timeout=1).brokers:
                    return
        tail = (self._folder / "kafka.Kafka.log").read_text(errors="replace")[-3000:]
        message = f"Kafka {fetch_kafka.OLDEST} did not start:\n{tail}"
        raise RuntimeError(message)

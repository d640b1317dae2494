"""A real Kafka 0.10.2, with the ZooKeeper it needs: a broker from before record batches (0.11)."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from support import fetch_kafka, processes
from support.kafka_cluster import free_ports

VERSION: Final = "0.10.2.2"
_START_TIMEOUT_S: Final = 90.0
# The broker wants javax.xml.bind, which Java had up to version 10.
_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-libs</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.12</artifactId>
      <version>{VERSION}</version></dependency>
    <dependency><groupId>javax.xml.bind</groupId><artifactId>jaxb-api</artifactId>
      <version>2.3.1</version></dependency>
  </dependencies>
</project>
"""
_LOG4J: Final = """\
log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.SimpleLayout
"""


def fetch() -> Path | None:
    """Fetch the jars by Maven if they are not there; None where that cannot be done."""
    target = fetch_kafka.libs(VERSION)
    if target.is_dir():
        return target
    if shutil.which("mvn") is None or shutil.which("java") is None:
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        Path(folder, "pom.xml").write_text(_POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
        command += ["-DoutputDirectory=libs", "-DincludeScope=runtime"]
        if subprocess.run(command, cwd=folder, check=False).returncode != 0:
            return None
        Path(folder, "libs").rename(target)
    return target


class OldBroker:
    """One broker and its ZooKeeper, on loopback."""

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
        """Start both and wait until the broker answers; raises with its log if it never does."""
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
            "log.cleaner.enable=false\noffsets.topic.num.partitions=1\nlog.retention.ms=-1\n",
        )
        self._run("org.apache.zookeeper.server.quorum.QuorumPeerMain", "zookeeper.properties")
        self._run("kafka.Kafka", "kafka.properties")
        self._wait()

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic; this old a broker has no default replication factor."""
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
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{self._libs}/*"]
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
        message = f"Kafka {VERSION} did not start:\n{tail}"
        raise RuntimeError(message)

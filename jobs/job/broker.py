"""Runs Apache Kafka on this machine: one node on 127.0.0.1, until this program ends.

    make broker
    PYTHONPATH=jobs python -m job.broker --port 9093

The program needs only Java and pyspark; the first start fetches Kafka's jars (kafka_jars.py). The
broker keeps the last 32 MiB of every partition, and less if it has more than 12 partitions, so that
its topics take less than 1 GB of disk however fast they are written (disk_limits.py). Ctrl-C ends
the broker and deletes its data. The broker also ends if the program that started it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from errno import EADDRINUSE
from pathlib import Path
from typing import Final

from job import children, disk_limits, java_version, kafka_jars
from job.children import Children, end_with_parent
from job.secured_listener import ListenerError, SecuredListener

PORT: Final = "9092"
_LAST_PORT: Final = 65_535
HOST: Final = "127.0.0.1"
_NAME: Final = "make broker"
_START_TIMEOUT_S: Final = 60.0
_PREFIX: Final = "spark-kafka-sink-"
_LOCK: Final = "lock"
_DATA: Final = "data"
_LOG: Final = "broker.log"
# The interval at which the broker's partitions are counted.
_LOOK_S: Final = 0.2
_CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"
_STARTED: Final = "Kafka Server started"
# At level info, a broker under full load logs 100 MB per hour.
_LOGGING: Final = "-Dorg.slf4j.simpleLogger"
_LOGGED: Final = re.compile(r"\] (?:INFO|WARN) ")
_JAVA: Final = (
    "-Xmx1g",
    f"{_LOGGING}.defaultLogLevel=warn",
    f"{_LOGGING}.log.kafka.server.KafkaRaftServer=info",  # the log line of a completed start
)
# Retention deletes closed segments only, partition by partition, and deletes the file of a segment
# some time later. So the disk usage depends on five settings: the bytes that are kept, the size of
# segments, how often the broker checks, how long the file of a deleted segment stays, and when the
# broker checks for the first time (after 30 s by default).
_LIMITS: Final = disk_limits.limits(0) | {
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 100,
    "log.initial.task.delay.ms": 500,
}
# The timestamps of the demo's flights are in 2013. With retention by time, a broker would delete
# the flights at once, and begin a segment for every week of that year.
_SETTINGS: Final = _LIMITS | {
    "log.retention.ms": -1,
    "log.roll.ms": 1 << 62,
    "num.partitions": 4,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}


class BrokerError(Exception):
    """The broker cannot run; the message is one sentence with the reason and the remedy."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a broker until Ctrl-C; return the exit code."""
    # From here on, Ctrl-C prints one line instead of a traceback.
    with Children() as processes:
        end_with_parent()
        return _run(processes, argv)


def _run(processes: Children, argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__.partition("\n")[0])
    parser.add_argument("--port", default=PORT, help="the port to listen on (%(default)s)")
    given = parser.parse_args(argv)
    try:
        with running(processes, _port(given.port)) as broker:
            try:
                print(
                    f"{kafka_jars.KAFKA.name} listens on {broker.address}. Paste this into a "
                    f'write:\n\n    .option("kafka.bootstrap.servers", "{broker.address}")\n\n'
                    "It keeps the last 32 MiB of each partition, less where there are more than "
                    f"12: up to {disk_limits.MOST_PARTITIONS} partitions take less than 1 GB "
                    "on disk. "
                    "Ctrl-C ends it and deletes its data.",
                    flush=True,
                )
                _limit_until_it_ends(broker)
            except SystemExit:
                return 0  # Ctrl-C is the normal end; make reports other exit codes as errors
            problem = broker.failure("ended by itself")
    except (BrokerError, kafka_jars.JarsError) as error:
        problem = str(error)
    print(f"{_NAME}: {problem}", file=sys.stderr)
    return 2


def _limit_until_it_ends(broker: Broker) -> None:
    """Adapt the broker's limits to its number of partitions, until the broker ends.

    Raise BrokerError if the broker rejects a limit.
    """
    limited = disk_limits.limits(0)
    while not broker.has_ended_in(_LOOK_S):
        limits = disk_limits.limits(disk_limits.count_partitions(broker.data))
        if limits == limited:
            continue
        try:
            disk_limits.change(broker.endpoint, limits)
        except disk_limits.LimitsError as error:
            if broker.process.poll() is not None:
                return
            message = f"{kafka_jars.KAFKA.name} rejected a smaller limit for partitions: {error}"
            raise BrokerError(message) from None
        limited = limits


class Broker:
    """A running node: its address, its process, its data and its log.

    secured: its listener with TLS and SCRAM; None if it has none.
    """

    def __init__(
        self,
        port: int,
        process: subprocess.Popen[bytes],
        folder: Path,
        secured: SecuredListener | None = None,
    ) -> None:
        self.secured = secured
        self.endpoint = (HOST, port)
        self.address = f"{HOST}:{port}"
        self.process = process
        self.data = data_folder(folder)
        self._log = folder / _LOG

    def has_ended_in(self, seconds: float) -> bool:
        """Wait up to `seconds` for the broker to end by itself; return whether it did."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def wait(self) -> None:
        """Wait until the broker has started. Raise BrokerError if it does not."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if _STARTED in self._log.read_text(errors="replace"):
                return
            time.sleep(0.05)
        raise BrokerError(self.failure("did not start"))

    def end(self) -> None:
        """Kill the broker, and wait until it has ended and no longer writes to its folder."""
        children.kill(self.process)

    def failure(self, what: str) -> str:
        """Return a sentence: `what` happened to the broker, and the first error in its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        wrong = [line for line in lines if "ERROR" in line or "Exception" in line]
        other = [line for line in lines if not _LOGGED.search(line)]
        reason = (wrong or other or [f"its exit code is {self.process.poll()}"])[0].strip()
        return f"{kafka_jars.KAFKA.name} {what}: {reason}"


@contextlib.contextmanager
def running(
    processes: Children, port: int = 0, *, java: Sequence[str] = (), is_secured: bool = False
) -> Iterator[Broker]:
    """Run a broker for a `with` block. Raise BrokerError or JarsError if it cannot run.

    processes: the children of this program. port: 0 takes a free port. java: options of the
    broker's JVM. is_secured: whether the broker also has a listener with TLS and SCRAM.
    """
    if (problem := java_version.problem()) is not None:
        raise BrokerError(problem)
    if port:
        _check_port(port)
    libs = kafka_jars.fetch(kafka_jars.KAFKA)
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder("broker"))
            secured = SecuredListener(folder, f"{HOST}:{free_port()}") if is_secured else None
            broker = _start(processes, folder, libs, port or free_port(), java, secured)
        except ListenerError as error:
            raise BrokerError(str(error)) from None
        except OSError as error:
            message = (
                f"the broker cannot write its files: {error}; make room or give access, or name "
                "another folder by the environment variable TMPDIR"
            )
            raise BrokerError(message) from None
        stack.callback(broker.end)
        broker.wait()
        yield broker


def _start(
    processes: Children,
    folder: Path,
    libs: Path,
    port: int,
    options: Sequence[str],
    secured: SecuredListener | None,
) -> Broker:
    address, controller = f"{HOST}:{port}", free_port()
    config = folder / "server.properties"
    clients = f"PLAINTEXT://{address}"
    if secured is not None:
        clients += f",SASL_SSL://{secured.address}"
    config.write_text(
        properties(
            node_settings(1, folder, {1: controller})
            | {"listeners": f"{clients},CONTROLLER://{HOST}:{controller}"}
            | {"advertised.listeners": clients}
            | _SETTINGS
            | (secured.settings if secured is not None else {})
        )
    )
    java = [java_version.command(), *_JAVA, *options, "-cp", f"{libs}/*"]
    with (folder / _LOG).open("wb") as output:
        users = secured.format_arguments if secured is not None else []
        formatting = processes.start([*java, *format_arguments(config), *users], output=output)
        if formatting.wait() != 0:
            raise BrokerError(Broker(port, formatting, folder).failure("cannot be set up"))
        started = processes.start([*java, *start_arguments(config)], output=output)
        return Broker(port, started, folder, secured)


def node_settings(node: int, folder: Path, controllers: Mapping[int, int]) -> dict[str, object]:
    """Return the settings of a node that is broker and controller in one process (KRaft).

    node: the id of the node. folder: the folder for its data. controllers: the controller port of
    each node, by node id. The caller adds the listeners.
    """
    replicas = min(3, len(controllers))
    in_sync = max(1, replicas - 1)
    return {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": ",".join(
            f"{each}@{HOST}:{port}" for each, port in controllers.items()
        ),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT"
        ),
        "log.dirs": data_folder(folder),
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "auto.create.topics.enable": "false",
    }


def data_folder(folder: Path) -> Path:
    """Return the folder for the data of a node; `folder` is the node's own folder."""
    return folder / _DATA


def properties(settings: Mapping[str, object]) -> str:
    """Return the text of a properties file."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def format_arguments(config: Path) -> list[str]:
    """Return the arguments of java that format a node's data folder."""
    return ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(config)]


def start_arguments(config: Path) -> list[str]:
    """Return the arguments of java that start a node."""
    # A killed broker does not delete the native libraries that lz4 and snappy write.
    return [f"-Djava.io.tmpdir={config.parent}", "kafka.Kafka", str(config)]


@contextlib.contextmanager
def scratch_folder(purpose: str, place: str | None = None) -> Iterator[Path]:
    """Make a temporary folder for a `with` block, and remove the folders that killed programs left.

    place: the parent folder; None for the system's folder for temporary files.

    A folder in use is locked, and the kernel releases the lock when the program ends.
    """
    for left in Path(place or tempfile.gettempdir()).glob(f"{_PREFIX}{purpose}-*"):
        with contextlib.suppress(OSError), (left / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if children.END_WITH_PARENT or not _is_used(left):
                shutil.rmtree(left, ignore_errors=True)
    # The folder gets its final name after it is locked, so no other program removes it before.
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}{purpose}-", dir=place))
    folder = made.with_name(made.name[1:])
    try:
        with (made / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made.rename(folder)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_used(folder: Path) -> bool:
    """Return whether the command line of a process names the folder, as those of JVMs do."""
    listing = subprocess.run(
        ["ps", "-A", "-ww", "-o", "args="],  # noqa: S607 - a command of every such system
        capture_output=True,
        text=True,
        check=False,
    )
    return str(folder) in listing.stdout


def _port(given: str) -> int:
    """Return the port that a user set; 0 for a free one. Raise BrokerError if it is invalid."""
    port = int(given) if given.isascii() and given.isdecimal() else -1
    if 0 <= port <= _LAST_PORT:
        return port
    message = (
        f"the port is {given!r}, expected a number from 1 to {_LAST_PORT}: make broker PORT={PORT}"
    )
    raise BrokerError(message)


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            end = "end the program that listens there, or " if error.errno == EADDRINUSE else ""
            message = (
                f"port {port} of {HOST} cannot be used: {error.strerror}; {end}choose another "
                "port: make broker PORT=n"
            )
            raise BrokerError(message) from None


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())

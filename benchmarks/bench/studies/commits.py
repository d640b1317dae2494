"""The cost of exactly once on the driver: requests, markers, milliseconds, and a recovery.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.commits``, in the environment of ``make
test``. ``--secured``: over SASL_SSL with SCRAM-SHA-256, without the requests.

Jobs of a row per task are planned, written and committed, without Spark, over warm connections.
Plan: from the options to the writer that tasks get. Commit: until it returns. Visible: from the
start of the commit until read_committed readers get to the end. The last line is of a plan after a
driver that died when its decision was made, and before the first transaction of a task was
committed. Milliseconds are medians and quartiles.
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from exactly_once.moments import Moments, before_end
from job import broker
from support.brokers import fetch_kafka
from support.brokers.fault_proxy import FaultProxy
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.own_broker import own_broker
from support.brokers.secured_kafka import SecuredKafka
from support.oracles.readers import create_topic
from support.spark.single_job import SingleJob, handed_over

from spark_kafka_sink.spark.commit_clients import close_all

TASKS: Final = {1: 100, 4: 100, 200: 10}
"""The rounds by the number of tasks, each of which has a row for its own partition."""
MODES: Final = ("two-phase", "single")
_USER: Final = ("bench", "bench-secret")


@dataclass(slots=True)
class _Place:
    """A broker, and how a job reaches it."""

    cluster: KafkaCluster
    options: dict[str, str]
    requests: Callable[[], int]


@dataclass(slots=True)
class _Times:
    plan_ms: list[float] = field(default_factory=list)
    commit_ms: list[float] = field(default_factory=list)
    visible_ms: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)


@contextmanager
def _proxied() -> Iterator[_Place]:
    with FaultProxy() as proxy, broker.scratch_folder("bench", None) as folder:
        libs = fetch_kafka.libs(fetch_kafka.NEWEST)
        cluster = KafkaCluster(libs, Path(folder) / "proxied", 1, proxies={1: proxy.port})
        try:
            cluster.start()
            proxy.broker_port = cluster.behind_proxies[1]
            options = {"kafka.bootstrap.servers": f"127.0.0.1:{proxy.port}"}
            yield _Place(cluster, options, proxy.requests.total)
        finally:
            cluster.stop()


@contextmanager
def _plain() -> Iterator[_Place]:
    with own_broker() as cluster:
        yield _Place(cluster, {}, lambda: 0)


@contextmanager
def _secured() -> Iterator[_Place]:
    with broker.scratch_folder("bench", None) as folder:
        libs = fetch_kafka.libs(fetch_kafka.NEWEST)
        cluster = SecuredKafka(libs, Path(folder) / "secured", ("-Xmx1G",))
        try:
            cluster.start()
            cluster.set_scram_user(*_USER)
            options = {
                "kafka.bootstrap.servers": cluster.address("SASL_SSL"),
                "kafka.security.protocol": "SASL_SSL",
                "kafka.sasl.mechanism": "SCRAM-SHA-256",
                "kafka.sasl.username": _USER[0],
                "kafka.sasl.password": _USER[1],
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": str(cluster.ca),
            }
            yield _Place(cluster, options, lambda: 0)
        finally:
            cluster.stop()


def main() -> None:
    """Print what exactly once costs a driver, by mode and number of tasks."""
    is_secured = "--secured" in sys.argv[1:]
    headings = ["mode", "tasks", "requests a job", "markers", "plan ms", "commit ms", "visible ms"]
    print(f"| {' | '.join(headings)} |\n{'|---' * len(headings)}|")
    counted = {} if is_secured else _counted_requests()
    with (_secured if is_secured else _plain)() as place, _closing_clients():
        for tasks, rounds in TASKS.items():
            for mode in MODES:
                job = _job(place, mode, tasks)
                found = _timed(job, place, rounds)
                columns = [mode, tasks, counted.get((mode, tasks), "-"), job.partitions]
                spans = (found.plan_ms, found.commit_ms, found.visible_ms)
                print("|", " | ".join(map(str, (*columns, *map(_spread, spans)))), "|", flush=True)
        recovered = [_recovery_ms(_job(place, "two-phase", 200)) for _ in range(5)]
        print(f"\nA plan that commits 200 transactions of a run that was decided: "
              f"{_spread(recovered)} ms")  # fmt: skip


@contextmanager
def _closing_clients() -> Iterator[None]:
    """Close the clients that this process keeps for its commits, before the broker ends."""
    try:
        yield
    finally:
        close_all()


def _counted_requests() -> dict[tuple[str, int], int]:
    """Return the requests of a job by mode and tasks, behind a proxy that counts them."""
    with _proxied() as place, _closing_clients():
        return {
            (mode, tasks): round(
                statistics.median(_timed(_job(place, mode, tasks), place, 5).requests)
            )
            for tasks in TASKS
            for mode in MODES
        }


def _job(place: _Place, mode: str, tasks: int) -> SingleJob:
    topic, log = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("bench", "commits"))
    create_topic(place.cluster.bootstrap, topic, tasks)
    create_topic(place.cluster.bootstrap, log, 1, {"cleanup.policy": "compact"})
    return SingleJob(place.cluster, topic, tasks, log, **{"exactlyOnce": mode, **place.options})


def _timed(job: SingleJob, place: _Place, rounds: int) -> _Times:
    """Run the job this often, after two runs that do not count."""
    found, ends = _Times(), _Ends(job)
    for version in range(rounds + 2):
        before, began = place.requests(), time.perf_counter()
        writer = job.plan(txnVersion=str(version))
        planned = time.perf_counter()
        messages = job.write(writer, {number: ["row"] for number in range(job.partitions)})
        commits = handed_over(writer)
        began_commit = time.perf_counter()
        commits.commit(messages)
        committed = time.perf_counter()
        ends.wait()
        visible = time.perf_counter()
        if version > 1:
            found.plan_ms.append((planned - began) * 1e3)
            found.commit_ms.append((committed - began_commit) * 1e3)
            found.visible_ms.append((visible - began_commit) * 1e3)
            found.requests.append(place.requests() - before)
    return found


class _Ends:
    """The ends of a topic's partitions, as readers of both isolation levels see them."""

    def __init__(self, job: SingleJob) -> None:
        self._admin = AdminClient({"bootstrap.servers": job.cluster.bootstrap})
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        self._asked = {TopicPartition(job.topic, n): latest for n in range(job.partitions)}

    def wait(self) -> None:
        """Wait until nothing is hidden from readers of committed records."""
        while self._at(IsolationLevel.READ_COMMITTED) != self._at(IsolationLevel.READ_UNCOMMITTED):
            pass

    def _at(self, level: IsolationLevel) -> list[int]:
        found = self._admin.list_offsets(self._asked, isolation_level=level)
        return [future.result().offset for future in found.values()]


def _recovery_ms(job: SingleJob) -> float:
    """Return the time of a plan after a driver that died once its decision was made."""
    writer = job.plan()
    messages = job.write(writer, {number: ["row"] for number in range(job.partitions)})
    with pytest.MonkeyPatch.context() as patched:
        moment = before_end(2, of="pykafka/")
        if not Moments(patched).dies(moment, lambda: handed_over(writer).commit(messages)):
            raise RuntimeError("the commit was not broken off")
    began = time.perf_counter()
    job.plan(txnVersion="2")
    return (time.perf_counter() - began) * 1e3


def _spread(values_ms: list[float]) -> str:
    low, middle, high = statistics.quantiles(values_ms, n=4)
    return f"{middle:.1f} ({low:.1f}-{high:.1f})"


if __name__ == "__main__":
    main()

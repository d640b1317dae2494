"""The clusters of exactly once: both levels of transactions, and clients for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from conftest import NewTopic, need_kafka, running_cluster, topic_maker
from support.brokers import fetch_kafka
from support.brokers.fault_proxy import FaultProxy
from support.brokers.kafka_cluster import KafkaCluster
from support.documents import exactly_once_cases
from support.spark.single_job import SingleJob

from exactly_once.moments import IS_ALL, SPARK_LEVELS, Moments
from spark_kafka_sink import commit
from spark_kafka_sink.commit import two_phase_abort
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.spark import kept_plans
from spark_kafka_sink.spark.commit_clients import close_all
from spark_kafka_sink.spark.committing import two_phase_commit
from spark_kafka_sink.task_producer import TaskProducer

NewClient: TypeAlias = Callable[[], CommitClient]
NewTaskProducer: TypeAlias = Callable[[], TaskProducer]
NewJob: TypeAlias = Callable[..., SingleJob]
LOG: str = "__pykafka_commits"
Proxied: TypeAlias = tuple[KafkaCluster, FaultProxy]

_LEVELS = ["level 2", "level 1"]
_LEVEL_1_OF_KAFKA_4 = "level 1 of Kafka 4"
if IS_ALL:
    _LEVELS.append(_LEVEL_1_OF_KAFKA_4)
# Its brokers answer as those of Kafka 3.9 do at that level: these files ask them for all answers,
# or are short.
_WITH_LEVEL_1_OF_KAFKA_4 = (
    "test_attempts.py",
    "test_crashes.py",
    "test_end_txn.py",
    "test_joined_transactions.py",
    "test_recover.py",
    "test_single_batches.py",
    "test_streams.py",
    "test_two_phase_batches.py",
)


def _is_left_out(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if params.get("cluster") == _LEVEL_1_OF_KAFKA_4:
        return item.path.name not in _WITH_LEVEL_1_OF_KAFKA_4
    if IS_ALL or "application" not in params:
        return False
    mode, level = params["application"], params["level"]
    return bool(SPARK_LEVELS[mode] != level)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out Kafka 4 at level 1, but for some files.

    Unless all levels are tested, each mode has one level in Spark's own processes.
    """
    left_out = {item for item in items if isinstance(item, pytest.Function) and _is_left_out(item)}
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=str))
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print figures of the tests, and what the cases of exactly-once-cases.md came to."""
    if not IS_ALL:
        return
    terminalreporter.section("Figures of exactly once")
    for report in terminalreporter.stats.get("passed", ()):
        for line in report.capstdout.splitlines():
            terminalreporter.write_line(f"{report.nodeid.removeprefix('tests/')}: {line}")
    outcomes = {
        outcome: [each.nodeid for each in reports if hasattr(each, "nodeid")]
        for outcome, reports in terminalreporter.stats.items()
    }
    terminalreporter.section("Cases of exactly once")
    for line in exactly_once_cases.summary(outcomes):
        terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def commit_clients_are_closed() -> Iterator[None]:
    """Close the clients that a test has left in this process."""
    yield
    close_all()


@pytest.fixture(autouse=True)
def aborts_wait_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let aborts wait for the linger time and a second for tasks, which the tests have ended."""
    monkeypatch.setattr(two_phase_commit, "SETTLES_S", 0.1)


@pytest.fixture
def aborts_wait_for_long(monkeypatch: pytest.MonkeyPatch, aborts_wait_for_a_moment: None) -> None:
    """Let aborts wait for tasks as they do outside tests."""
    monkeypatch.setattr(two_phase_commit, "SETTLES_S", two_phase_abort.SETTLES_S)


@pytest.fixture(scope="session")
def lowered_kafka(scratch: Path) -> Iterator[KafkaCluster]:
    """One node of the newest Kafka that has finalized transaction.version 1."""
    need_kafka()
    with running_cluster(fetch_kafka.NEWEST, scratch / "lowered", 1) as found:
        found.change_transaction_version(1)
        yield found


@pytest.fixture(scope="session", params=_LEVELS)
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """Kafka 4 with transaction.version 2, and Kafka 3.9, which does not have the feature."""
    names = dict(zip(_LEVELS, ("kafka", "old_kafka", "lowered_kafka"), strict=False))
    found: KafkaCluster = request.getfixturevalue(names[request.param])
    return found


@pytest.fixture(scope="session", params=["level 2", "level 1"])
def proxied(request: pytest.FixtureRequest, scratch: Path) -> Iterator[Proxied]:
    """One node of each level and its proxy."""
    need_kafka()
    if request.param == "level 2":
        yield request.getfixturevalue("proxied_kafka")
        return
    with (
        FaultProxy() as proxy,
        running_cluster(fetch_kafka.OLD, scratch / "proxied-old", 1, {1: proxy}) as cluster,
    ):
        yield cluster, proxy


@pytest.fixture
def proxy(proxied: Proxied) -> Iterator[FaultProxy]:
    """The proxy, without faults at the end."""
    yield proxied[1]
    proxied[1].clear()


@pytest.fixture(params=["single", "two-phase"])
def mode(request: pytest.FixtureRequest) -> str:
    """A mode of exactly once."""
    found: str = request.param
    return found


@pytest.fixture
def job(cluster: KafkaCluster, new_topic: NewTopic, mode: str) -> SingleJob:
    """A job that writes to a topic with four partitions."""
    log = new_topic(1, {"cleanup.policy": "compact"})
    return SingleJob(cluster, new_topic(4), 4, log, exactlyOnce=mode)


@pytest.fixture
def driver_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the driver's files."""
    monkeypatch.setattr(kept_plans, "driver_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Moments:
    """The moments of all runs of the test."""
    return Moments(monkeypatch)


@pytest.fixture
def coordinators_are_never_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machines believe the second answer of a coordinator after a moment."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{commit.__name__}.") and hasattr(module, "STALE_S"):
            monkeypatch.setattr(module, "STALE_S", 0.05)


@pytest.fixture
def new_topic(cluster: KafkaCluster) -> NewTopic:
    """Makes a topic in the cluster of the test."""
    return topic_maker(cluster)


@pytest.fixture
def config(cluster: KafkaCluster) -> ProducerConfig:
    """The configuration of all clients."""
    return producer_config({"bootstrap.servers": cluster.bootstrap, "linger.ms": "5"})


@pytest.fixture
def log(new_topic: NewTopic) -> str:
    """The topic of a commit log that no other test uses."""
    return new_topic(1)


@pytest.fixture
def new_client(config: ProducerConfig, log: str) -> Iterator[NewClient]:
    """Makes clients, each with connections of its own, as another process has them."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(CommitClient(config, log))


@pytest.fixture
def client(new_client: NewClient) -> CommitClient:
    """The client of the driver."""
    return new_client()


@pytest.fixture
def new_producer(config: ProducerConfig) -> Iterator[NewTaskProducer]:
    """Makes producers of tasks."""
    made: list[TaskProducer] = []

    def make() -> TaskProducer:
        made.append(TaskProducer(config, allow_auto_create_topics=False))
        return made[-1]

    yield make
    for producer in made:
        producer.close(0)

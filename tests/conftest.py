"""Fixtures: real brokers and Spark, started once for all tests that ask for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from support import class_archives, fetch_kafka
from support.fault_proxy import FaultProxy
from support.kafka_cluster import KafkaCluster
from support.readers import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Workers must run the Python that has the sink installed, and Spark must stay on loopback.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
_SPARK = " ".join(class_archives.spark_options())
os.environ["SPARK_DAEMON_JAVA_OPTS"] = _SPARK
os.environ["SPARK_SUBMIT_OPTS"] = f'{_SPARK} "-Dspark.executor.defaultJavaOptions={_SPARK}"'

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    max_examples=60,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "soak",
    deadline=None,
    print_blob=True,
    max_examples=100_000,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

NO_KAFKA = fetch_kafka.missing()


# Where two processes share the tests, what takes long comes first: in turn what keeps a processor
# busy and what waits for brokers to come and go.
_FIRST = (
    "integration/test_main_path.py",
    "integration/test_cluster_faults.py",
    "spark/test_save_modes.py",
    "integration/test_transactions.py",
    "spark/test_places_standalone.py",
    "integration/test_topic_reader.py",
    "jobs/test_batch.py",
    "integration/test_row_api.py",
    "jobs/test_submit.py",
    "integration/test_broker_failure.py",
    "spark/test_to_kafka.py",
    "integration/test_faults.py",
    "spark/test_streaming.py",
    "integration/test_split.py",
    "spark/test_refusals.py",
    "integration/test_old_produce_versions.py",
    "spark",
    "jobs",
    "parity/test_bench.py",
    "parity/test_cases.py",
    "parity",
    "integration",
    "simulation",
    "benchmarks",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests by place, so that none begins a minute's work when the others are through."""
    first = [Path(__file__).parent / name for name in _FIRST]

    def place(item: pytest.Item) -> int:
        around = {item.path, *item.path.parents}
        return next((number for number, each in enumerate(first) if each in around), len(first))

    items.sort(key=place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested, so that a green run without brokers is not mistaken for one with."""
    lines = _not_tested(terminalreporter)
    if lines:
        terminalreporter.section("NOT TESTED", red=True, bold=True)
    for line in lines:
        terminalreporter.write_line(line)


def _not_tested(terminalreporter: pytest.TerminalReporter) -> list[str]:
    if NO_KAFKA is not None:
        return [f"No test ran on real brokers. {NO_KAFKA}"]
    lines = []
    reasons = {report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())}
    if fetch_kafka.takes_jvm_sink() and (problem := fetch_kafka.missing_jvm_sink()) is not None:
        lines.append(f"This sink was compared with no other. {problem}")
        reasons.discard(f"Skipped: {problem}")
    return lines + sorted(reasons)


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder for the data of brokers and Spark."""
    folder = Path(tempfile.mkdtemp(prefix="spark-kafka-sink-tests-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def running_cluster(
    version: str,
    folder: Path,
    nodes: int,
    proxies: Mapping[int, FaultProxy] | None = None,
    settings: dict[str, str] | None = None,
) -> Iterator[KafkaCluster]:
    """Run a cluster for a fixture; skip, or fail where it is required, if there is no Kafka."""
    if NO_KAFKA is not None:
        if os.environ.get("REQUIRE_KAFKA") == "1":
            pytest.fail(NO_KAFKA)
        pytest.skip(NO_KAFKA)
    ports = {node: proxy.port for node, proxy in (proxies or {}).items()}
    options = class_archives.kafka_options(version)
    cluster = KafkaCluster(fetch_kafka.libs(version), folder, nodes, settings, ports, options)
    for node, proxy in (proxies or {}).items():
        proxy.broker_port = cluster.behind_proxies[node]
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def proxies() -> Iterator[dict[int, FaultProxy]]:
    """By node of `kafka`, a proxy that clients may use: they then stay behind the proxies."""
    with contextlib.ExitStack() as stack:
        yield {node: stack.enter_context(FaultProxy()) for node in (1, 2, 3)}


@pytest.fixture(scope="session")
def kafka(scratch: Path, proxies: dict[int, FaultProxy]) -> Iterator[KafkaCluster]:
    """Three nodes of the newest Kafka."""
    yield from running_cluster(fetch_kafka.NEWEST, scratch / "kafka", nodes=3, proxies=proxies)


@pytest.fixture(scope="session")
def old_kafka(scratch: Path) -> Iterator[KafkaCluster]:
    """One node of the last Kafka 3."""
    yield from running_cluster(fetch_kafka.OLD, scratch / "old-kafka", nodes=1)


@pytest.fixture(scope="session")
def proxied_kafka(scratch: Path) -> Iterator[tuple[KafkaCluster, FaultProxy]]:
    """One node of the newest Kafka and its proxy."""
    with FaultProxy() as proxy:
        for cluster in running_cluster(fetch_kafka.NEWEST, scratch / "proxied", 1, {1: proxy}):
            yield cluster, proxy


@pytest.fixture(scope="session")
def guarded_kafka(scratch: Path) -> Iterator[KafkaCluster]:
    """One node of the newest Kafka where everybody may do with a resource what its ACLs allow.

    Everything, while it has none: a test gives ACLs to topics of its own. It creates topics that a
    client asks for.
    """
    settings = {
        "auto.create.topics.enable": "true",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    yield from running_cluster(fetch_kafka.NEWEST, scratch / "guarded", 1, settings=settings)


NewTopic = Callable[..., str]


def topic_maker(cluster: KafkaCluster) -> NewTopic:
    def make(partitions: int = 3, config: dict[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        create_topic(cluster.bootstrap, name, partitions, config)
        return name

    return make


@pytest.fixture
def new_topic(kafka: KafkaCluster) -> NewTopic:
    """Makes a topic of its own for a test, on the newest Kafka."""
    return topic_maker(kafka)


@pytest.fixture
def new_old_topic(old_kafka: KafkaCluster) -> NewTopic:
    """Makes a topic of its own for a test, on the old Kafka."""
    return topic_maker(old_kafka)


@pytest.fixture(scope="session")
def spark(scratch: Path) -> Iterator[SparkSession]:
    """A classic local session; the sink is found because it is installed.

    It has Spark's own Kafka sink where that is published for this Spark (tests/parity).
    """
    from pyspark.sql import SparkSession

    jars = fetch_kafka.jvm_sink_jars() if fetch_kafka.takes_jvm_sink() else []
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()

"""Fixtures: real brokers and Spark, started once for all tests that ask for them."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from job import broker
from support.brokers import class_archives, fetch_kafka, kdc, shared
from support.brokers.fault_proxy import FaultProxy
from support.brokers.kafka_cluster import KafkaCluster, free_ports
from support.brokers.secured_kafka import SERVICE, USER, SecuredKafka, guarded
from support.oracles.readers import create_topic
from support.pure.logging_state import logging_state
from support.spark import preloaded
from support.spark.job_server import JobServer, job_server
from support.spark.spark_processes import ConnectServer, connect_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Workers must run the Python that has the sink installed, and Spark must stay on loopback.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
_SPARK = " ".join(class_archives.spark_options())
os.environ["SPARK_DAEMON_JAVA_OPTS"] = _SPARK
os.environ["SPARK_SUBMIT_OPTS"] = f'{_SPARK} "-Dspark.executor.defaultJavaOptions={_SPARK}"'
preloaded.put_on_path(os.environ)

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    max_examples=30,
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
NO_KDC = kdc.missing()
_TESTS = Path(__file__).parent


# Workers share the tests file by file. The longest files come first, so that no worker begins one
# when the others have nothing left.
_FIRST = (
    "security/test_renewals.py",
    "exactly_once/test_spark.py",
    "exactly_once/test_two_phase_model.py",
    "exactly_once/test_many_batches.py",
    "exactly_once/test_crashes.py",
    "integration/test_cluster_faults.py",
    "spark/test_save_modes.py",
    "integration/test_transactions.py",
    "integration/test_main_path.py",
    "spark/test_places_standalone.py",
    "integration/test_topic_reader.py",
    "spark/test_secrets.py",
    "spark/test_look_ahead.py",
    "integration/test_row_api.py",
    "spark",
    "exactly_once",
    "parity",
    "jobs",
    "integration",
    "simulation",
    "benchmarks",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests by place."""
    first = [_TESTS / name for name in _FIRST]

    def place(item: pytest.Item) -> int:
        around = {item.path, *item.path.parents}
        return next((number for number, each in enumerate(first) if each in around), len(first))

    items.sort(key=place)


def pytest_configure(config: pytest.Config) -> None:
    """Be ready to start what workers share; nothing is started before a test asks for it."""
    if hasattr(config, "workerinput"):
        return
    stack = config.stash.setdefault(_STACK, contextlib.ExitStack())

    if NO_KDC is None:
        # Before there is a worker or a JVM: processes know their KDC by their environment alone.
        os.environ.update(kdc.variables(stack.enter_context(broker.scratch_folder("kerberos"))))

    @functools.cache
    def folder() -> Path:
        return stack.enter_context(broker.scratch_folder("tests"))

    def realm() -> kdc.Kdc | None:
        found = config.stash[shared.IN_STASH].get("kdc") if NO_KDC is None else None
        assert found is None or isinstance(found, kdc.Kdc)
        return found

    config.stash[shared.IN_STASH] = shared.Shared(
        {name: partial(maker, folder) for name, maker in _MAKERS.items()}
        | {name: partial(maker, folder, realm) for name, maker in _SECURED_MAKERS.items()}
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make pytest's logging handlers keep their formatters.

    A logger of PySpark changes the formatter of each handler that is added to it: the handler then
    writes JSON without tracebacks. Pytest adds its handlers to all loggers that do not propagate.
    PySpark has such loggers, and a test may set `propagate` of another.
    """
    plugin = session.config.pluginmanager.get_plugin("logging-plugin")
    assert plugin is not None, "tests need pytest's logging plugin"
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter = lambda _formatter: None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what workers share."""
    if shared.IN_STASH in config.stash:
        config.stash[shared.IN_STASH].close()
        config.stash[_STACK].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Pass the address of the shared things to a worker."""
    node.workerinput["shared"] = node.config.stash[shared.IN_STASH].address  # type: ignore[attr-defined] # pytest-xdist's


def shared_value(request: pytest.FixtureRequest, name: str) -> object:
    """Return what workers share under a name."""
    config = request.config
    if shared.IN_STASH in config.stash:
        return config.stash[shared.IN_STASH].get(name)
    return shared.ask(config.workerinput["shared"], name)  # type: ignore[attr-defined] # pytest-xdist's


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was not tested, so that a run without brokers is not mistaken for one with."""
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
    with broker.scratch_folder("tests") as folder:
        yield folder


@contextlib.contextmanager
def running_cluster(
    version: str,
    folder: Path,
    nodes: int,
    proxies: Mapping[int, FaultProxy] | None = None,
    settings: dict[str, str] | None = None,
) -> Iterator[KafkaCluster]:
    """Run a cluster for a `with` block."""
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


def need_kafka(problem: str | None = NO_KAFKA) -> None:
    """Skip the test if there is a problem with Kafka's jars, or fail it if Kafka is required."""
    if problem is not None:
        if os.environ.get("REQUIRE_KAFKA") == "1":
            pytest.fail(problem)
        pytest.skip(problem)


def need_kdc() -> None:
    """Skip the test if there is no KDC, or fail it where one is required."""
    if NO_KDC is not None:
        if os.environ.get("REQUIRE_KDC") == "1":
            pytest.fail(NO_KDC)
        pytest.skip(NO_KDC)


Folder = Callable[[], Path]


def _run_kafka(folder: Folder) -> contextlib.AbstractContextManager[KafkaCluster]:
    # Topics of tests have one replica here: three take three times the processor.
    settings = {"min.insync.replicas": "1"}
    return running_cluster(fetch_kafka.NEWEST, folder() / "kafka", 3, settings=settings)


def _run_old_kafka(folder: Folder) -> contextlib.AbstractContextManager[KafkaCluster]:
    return running_cluster(fetch_kafka.OLD, folder() / "old-kafka", nodes=1)


def _run_guarded_kafka(folder: Folder) -> contextlib.AbstractContextManager[KafkaCluster]:
    settings = {
        "auto.create.topics.enable": "true",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    return running_cluster(fetch_kafka.NEWEST, folder() / "guarded", 1, settings=settings)


@contextlib.contextmanager
def _run_kdc(folder: Folder) -> Iterator[kdc.Kdc]:
    del folder
    with kdc.Kdc(Path(os.environ["KRB5_CONFIG"]).parent, free_ports(1)[0]) as running:
        for principal in (SERVICE, USER):
            running.add(principal)
        yield running


@contextlib.contextmanager
def running_secured(cluster: SecuredKafka) -> Iterator[SecuredKafka]:
    """Run a secured cluster for a `with` block."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


Realm = Callable[[], kdc.Kdc | None]


def _run_secured_kafka(
    folder: Folder, realm: Realm
) -> contextlib.AbstractContextManager[SecuredKafka]:
    options = class_archives.kafka_options(fetch_kafka.NEWEST)
    libs = fetch_kafka.libs(fetch_kafka.NEWEST)
    return running_secured(SecuredKafka(libs, folder() / "secured", options, realm()))


def _run_guarded_cluster(
    folder: Folder, realm: Realm
) -> contextlib.AbstractContextManager[SecuredKafka]:
    options = class_archives.kafka_options(fetch_kafka.NEWEST)
    libs, more = fetch_kafka.libs(fetch_kafka.NEWEST), guarded(session_ms=5_000)
    place = folder() / "guarded-cluster"
    return running_secured(SecuredKafka(libs, place, options, realm(), nodes=3, more=more))


@contextlib.contextmanager
def _run_connect(folder: Folder) -> Iterator[ConnectServer]:
    place = folder() / "connect"
    place.mkdir()
    with connect_server(place) as remote:
        yield ConnectServer(remote, place / "connect.log")


@contextlib.contextmanager
def _run_jobs(folder: Folder) -> Iterator[JobServer]:
    place = folder() / "jobs"
    place.mkdir()
    with job_server(place) as server:
        yield server


_STACK = pytest.StashKey[contextlib.ExitStack]()
_MAKERS: Mapping[str, Callable[[Folder], contextlib.AbstractContextManager[object]]] = {
    "kafka": _run_kafka,
    "old_kafka": _run_old_kafka,
    "guarded_kafka": _run_guarded_kafka,
    "kdc": _run_kdc,
    "connect": _run_connect,
    "jobs": _run_jobs,
}


_SECURED_MAKERS: Mapping[
    str, Callable[[Folder, Realm], contextlib.AbstractContextManager[object]]
] = {"secured_kafka": _run_secured_kafka, "guarded_cluster": _run_guarded_cluster}


def _shared_cluster(request: pytest.FixtureRequest, name: str) -> KafkaCluster:
    need_kafka()
    cluster = shared_value(request, name)
    assert isinstance(cluster, KafkaCluster)
    return cluster


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> KafkaCluster:
    """Three nodes of the newest Kafka, which all workers share: no test may stop one."""
    return _shared_cluster(request, "kafka")


@pytest.fixture(scope="session")
def old_kafka(request: pytest.FixtureRequest) -> KafkaCluster:
    """One node of the last Kafka 3, which all workers share."""
    return _shared_cluster(request, "old_kafka")


@pytest.fixture(scope="session")
def guarded_kafka(request: pytest.FixtureRequest) -> KafkaCluster:
    """One node of the newest Kafka with an authorizer that allows everything without ACLs.

    Tests set ACLs on topics of their own. The broker creates topics that a client asks for.
    """
    return _shared_cluster(request, "guarded_kafka")


@pytest.fixture(scope="session")
def secured_kafka(request: pytest.FixtureRequest) -> SecuredKafka:
    """One node of the newest Kafka with a listener for each way to be secured; all share it."""
    cluster = _shared_cluster(request, "secured_kafka")
    assert isinstance(cluster, SecuredKafka)
    return cluster


@pytest.fixture(scope="session")
def guarded_cluster(request: pytest.FixtureRequest) -> SecuredKafka:
    """Three nodes like that of `secured_kafka`, whose sessions last five seconds; all share it.

    Access to a resource without an ACL is denied.
    """
    cluster = _shared_cluster(request, "guarded_cluster")
    assert isinstance(cluster, SecuredKafka)
    return cluster


@pytest.fixture(scope="session")
def shared_kdc(request: pytest.FixtureRequest) -> kdc.Kdc | None:
    """The KDC that all workers share, for clusters of tests; None where there can be none."""
    found = shared_value(request, "kdc") if NO_KDC is None else None
    assert found is None or isinstance(found, kdc.Kdc)
    return found


@pytest.fixture(scope="session")
def realm(secured_kafka: SecuredKafka) -> kdc.Kdc:
    """The KDC of `secured_kafka`."""
    need_kdc()
    assert secured_kafka.kdc is not None
    return secured_kafka.kdc


@pytest.fixture(scope="session")
def connect(request: pytest.FixtureRequest) -> ConnectServer:
    """A server of Spark Connect, which all workers share."""
    server = shared_value(request, "connect")
    assert isinstance(server, ConnectServer)
    return server


@pytest.fixture(scope="module")
def proxies() -> Iterator[dict[int, FaultProxy]]:
    """By node of `frail_kafka`, a proxy: clients that connect to it stay behind the proxies."""
    with contextlib.ExitStack() as stack:
        yield {node: stack.enter_context(FaultProxy()) for node in (1, 2, 3)}


@pytest.fixture(scope="module")
def frail_kafka(scratch: Path, proxies: dict[int, FaultProxy]) -> Iterator[KafkaCluster]:
    """Three nodes of the newest Kafka for the tests of a file that stop them."""
    need_kafka()
    with running_cluster(fetch_kafka.NEWEST, scratch / "frail", 3, proxies) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def proxied_kafka(scratch: Path) -> Iterator[tuple[KafkaCluster, FaultProxy]]:
    """One node of the newest Kafka and its proxy."""
    need_kafka()
    with (
        FaultProxy() as proxy,
        running_cluster(fetch_kafka.NEWEST, scratch / "proxied", 1, {1: proxy}) as cluster,
    ):
        yield cluster, proxy


@pytest.fixture(autouse=True)
def logging_is_left_as_it_was() -> Iterator[None]:
    """Fail a test that changes what later tests log."""
    before = logging_state()
    yield
    assert logging_state() == before, "the test has changed the state of logging"


@pytest.fixture(scope="module", autouse=True)
def idle_producers_are_closed() -> Iterator[None]:
    """Close the producers that tasks in this process left, for they end by timers of a minute."""
    yield
    module = sys.modules.get("spark_kafka_sink.spark.tasks.producer_pool")
    if module is not None:
        for config, kept in list(module.POOL._kept.items()):
            kept.timer.cancel()
            module.POOL._close_idle(config)


NewTopic = Callable[..., str]


def topic_maker(cluster: KafkaCluster, replicas: int = 1) -> NewTopic:
    def make(partitions: int = 3, config: dict[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        create_topic(cluster.bootstrap, name, partitions, config, replicas)
        return name

    return make


@pytest.fixture
def new_topic(request: pytest.FixtureRequest) -> NewTopic:
    """Makes a topic of its own for a test: on `frail_kafka` with replicas, if the test has that."""
    if "frail_kafka" in request.fixturenames:
        return topic_maker(request.getfixturevalue("frail_kafka"), replicas=3)
    return topic_maker(request.getfixturevalue("kafka"))


@pytest.fixture
def new_old_topic(old_kafka: KafkaCluster) -> NewTopic:
    """Makes a topic of its own for a test, on the old Kafka."""
    return topic_maker(old_kafka)


@pytest.fixture(scope="session")
def spark(scratch: Path) -> Iterator[SparkSession]:
    """A classic local session; the sink is found because it is installed.

    It has Spark's own Kafka sink (tests/parity) and its Avro if they are published for this Spark.
    """
    from pyspark.sql import SparkSession

    jars = fetch_kafka.spark_jars() if fetch_kafka.takes_jvm_sink() else []
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

"""The same fault has the same class and message, wherever it occurs.

On the driver, in a task, in the producer for columns and for rows, in KafkaAdmin and TopicReader,
and for a user of Spark, whose exception has our class and message, also with Spark Connect.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructType
from support.brokers.mock_cluster import PRODUCE, MockCluster
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.pure.unreachable import NOBODY
from support.spark.sink import registered_for_now, save
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import KafkaProducer, last_reports, recover, write_batch
from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import KafkaException, TopicAuthorizationException
from spark_kafka_sink.spark.commit_clients import commit_client
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.tasks.task import write_task

WAITS_MS: Final = 500
LARGEST: Final = 1000
OF_THE_OPTION = StructType().add("value", StringType())
MESSAGE_TOO_LARGE, UNKNOWN_TOPIC, DENIED = 10, 3, 29
DESCRIBE: Final = 8  # the number of the right in Kafka's protocol


class Cause(NamedTuple):
    """A fault: its class and its message; {p} is the prefix of options, {n} a size.

    code: the mock cluster's error for the topic. produced: its response to the rows. is_large:
    whether the row is too large for a request. on_driver: whether the driver finds it.
    """

    kind: str
    words: str
    code: int = 0
    produced: int = 0
    is_large: bool = False
    on_driver: bool = True


CAUSES: Final = {
    "no-broker": Cause(
        "TimeoutException",
        "no broker has answered within {p}max.block.ms=500; check "
        "{p}bootstrap.servers=127.0.0.1:1 (bootstrap (127.0.0.1:1): Connection refused)",
    ),
    "no-topic": Cause(
        "TimeoutException",
        "Topic no-topic not present in metadata after {p}max.block.ms=500: topic no-topic: "
        "UNKNOWN_TOPIC_OR_PARTITION (3); create the topic",
        code=UNKNOWN_TOPIC,
    ),
    "no-right": Cause(
        "TopicAuthorizationException",
        "topic no-right: TOPIC_AUTHORIZATION_FAILED (29); grant WRITE and DESCRIBE on the topic to "
        "this client",
        code=DENIED,
    ),
    "no-right-to-write": Cause(
        "TopicAuthorizationException",
        "topic no-right-to-write: TOPIC_AUTHORIZATION_FAILED (29); grant WRITE and DESCRIBE on the "
        "topic to this client",
        produced=DENIED,
        on_driver=False,  # the mock cluster does not tell it rights; see below
    ),
    "too-large": Cause(
        "RecordTooLargeException",
        " is up to {n} bytes when serialized, more than {p}max.request.size=1000; make the record "
        "smaller, or raise {p}max.request.size (and the topic's max.message.bytes where needed)",
        is_large=True,
        on_driver=False,
    ),
    "too-large-for-brokers": Cause(
        "RecordTooLargeException",
        " is {n} bytes when serialized, more than topic too-large-for-brokers takes "
        "(max.message.bytes); make the record smaller, compress it, or raise the topic's "
        "max.message.bytes; MESSAGE_TOO_LARGE (10) from node 1",
        produced=MESSAGE_TOO_LARGE,
        on_driver=False,
    ),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    """A cluster with a topic for each cause, of the same name."""
    with MockCluster() as cluster:
        for name, cause in CAUSES.items():
            cluster.create_topic(name)
            cluster.topic_error(name, cause.code)
        yield cluster


class Case:
    """A cause, and what is written to meet it."""

    def __init__(self, name: str, cluster: MockCluster) -> None:
        self.topic, self.cause, self._cluster = name, CAUSES[name], cluster
        self.value = b"x" * (2 * LARGEST) if self.cause.is_large else b"x"
        self.bootstrap = NOBODY if name == "no-broker" else cluster.bootstrap
        self.configs: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "max.block.ms": WAITS_MS,
            "enable.idempotence": "false",  # so that an error of one batch is its own
            "acks": "1",
        }
        if self.cause.is_large:
            self.configs["max.request.size"] = LARGEST

    @property
    def options(self) -> dict[str, str]:
        """The options of the sink."""
        return {f"kafka.{name}": str(value) for name, value in self.configs.items()}

    def check(self, said: str, prefix: str) -> None:
        """Compare a message, which begins with the name of the class."""
        parts = self.cause.words.replace("{p}", prefix).split("{n}")
        words = r"\d+".join(re.escape(part) for part in parts)
        assert re.search(rf"\b{self.cause.kind}: [^\n]*{words}", said), said

    @contextlib.contextmanager
    def met(self) -> Iterator[None]:
        """Let brokers respond to rows as the cause says."""
        if self.cause.produced:
            self._cluster.answer_next(PRODUCE, [self.cause.produced])
        try:
            yield
        finally:
            self._cluster.clear(PRODUCE)


def plan(case: Case) -> None:
    KafkaDataSource(case.options | {"topic": case.topic}).writer(OF_THE_OPTION, overwrite=False)


def run_task(case: Case) -> None:
    batch = pa.record_batch({"value": [case.value], "topic": [case.topic]})
    write_task(sink_options(case.options), iter([batch]))


def append(case: Case) -> None:
    with KafkaProducer(case.configs) as producer:
        producer.append(case.topic, pa.record_batch({"value": [case.value]}))


def send(case: Case) -> None:
    with KafkaProducer(case.configs) as producer:
        future = producer.send(case.topic, case.value)
        producer.flush()
        future.result(0)


def ask(case: Case) -> None:
    with KafkaAdmin(producer_config(case.configs)) as admin:
        admin.topics([case.topic])


IN_THIS_PROCESS: Final[dict[Callable[[Case], None], str]] = {
    plan: "kafka.",
    run_task: "kafka.",
    append: "",
    send: "",
    ask: "",
}


@pytest.mark.parametrize("name", CAUSES)
@pytest.mark.parametrize("place", IN_THIS_PROCESS, ids=lambda place: place.__name__)
def test_a_fault_has_the_same_class_and_words_everywhere(
    place: Callable[[Case], None], name: str, cluster: MockCluster
) -> None:
    case = Case(name, cluster)
    if place in (plan, ask) and not case.cause.on_driver:
        place(case)
        return
    with case.met(), pytest.raises(KafkaException) as met:
        place(case)
    prefix = IN_THIS_PROCESS[place]
    case.check(f"{type(met.value).__name__}: {met.value}", prefix)


def test_a_driver_that_is_told_its_rights_says_what_a_task_would() -> None:
    topic = "no-right-to-write"
    with ScriptedBroker() as broker:
        broker.metadata = describe(broker.port, topic)
        broker.metadata.topics[0].topic_authorized_operations = 1 << DESCRIBE
        options = {"kafka.bootstrap.servers": broker.address, "topic": topic}
        with pytest.raises(TopicAuthorizationException) as met:
            KafkaDataSource(options).writer(OF_THE_OPTION, overwrite=False)
    said, _, command = str(met.value).partition("; to allow it: ")
    assert said == f"{CAUSES[topic].words}; now it is allowed only DESCRIBE"
    assert command.startswith("kafka-acls.sh --bootstrap-server ")


@pytest.mark.parametrize("name", ["no-broker", "no-topic", "no-right"])
def test_a_reader_says_so_in_the_same_words(name: str, cluster: MockCluster) -> None:
    case = Case(name, cluster)
    configs = {"bootstrap.servers": case.bootstrap, "default.api.timeout.ms": WAITS_MS}
    with TopicReader(configs) as reader, pytest.raises(KafkaException) as met:
        next(reader.read(case.topic))
    said, _, command = f"{type(met.value).__name__}: {met.value}".partition("; to allow it: ")
    assert command.startswith("kafka-acls.sh ") is (name == "no-right")
    words = case.cause.words.replace("{p}max.block.ms", "default.api.timeout.ms")
    words = words.replace("{p}", "").replace("grant WRITE", "grant READ")
    words = words.replace("create the topic", "create the topic, or check its name")
    kind = case.cause.kind
    if name == "no-topic":
        # It does not wait for a topic to come, as who writes does.
        kind, words = "UnknownTopicOrPartitionException", words.partition("=500: ")[2]
    assert said == f"{kind}: {words}"


def test_exactly_once_and_recover_say_so_in_the_same_words(
    cluster: MockCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case("no-broker", cluster)
    del case.configs["acks"], case.configs["enable.idempotence"]
    once = {"topic": case.topic, "exactlyOnce": "true", "txnAppId": "a", "txnVersion": "1"}
    with pytest.raises(KafkaException) as met:
        KafkaDataSource(case.options | once).writer(OF_THE_OPTION, overwrite=False)
    case.check(f"{type(met.value).__name__}: {met.value}", "kafka.")
    with (
        commit_client(producer_config(case.configs), "log") as client,
        pytest.raises(KafkaException) as met,
    ):
        client.check_brokers(client.now() + WAITS_MS / 1000)
    case.check(f"{type(met.value).__name__}: {met.value}", "")
    file = tmp_path / "client.properties"
    file.write_text(f"max.block.ms={WAITS_MS}\n")
    assert recover.main(["--bootstrap", case.bootstrap, "--config", str(file)]) == 2
    case.check(capsys.readouterr().err.replace("recover", case.cause.kind), "")


def test_a_row_over_its_topic_s_limit_is_told_alike_whether_that_is_known_before_or_not(
    cluster: MockCluster,
) -> None:
    case = Case("too-large-for-brokers", cluster)
    expected, _, _ = case.cause.words.rpartition(";")
    with KafkaProducer(case.configs) as producer:
        producer._columns.limit_messages({case.topic: 1}, None)
        with pytest.raises(KafkaException) as met:
            producer.append(case.topic, pa.record_batch({"value": [case.value]}))
    assert type(met.value).__name__ == case.cause.kind
    said = str(met.value).replace("=1, while max.request.size=1048576", "")
    assert said == "row 0 of the Arrow batch: the record" + expected.replace("{n}", "69")


# How the topic is named: by the option, which the driver looks at, or by a column.
SQL: Final = {
    "driver": "SELECT '{value}' AS value",
    "task": "SELECT '{value}' AS value, '{topic}' AS topic",
}
JOBS: Final = [
    (name, where)
    for name, cause in CAUSES.items()
    for where in SQL
    # Without the option, the driver still sees that no broker answers.
    if cause.on_driver or where == "task"
]


def job(case: Case, where: str) -> tuple[str, str | None, dict[str, str]]:
    """Return the rows of a job as SQL, its topic and its options."""
    sql = SQL[where].format(value=case.value.decode(), topic=case.topic)
    options = {name: value for name, value in case.options.items() if "bootstrap" not in name}
    return sql, case.topic if where == "driver" else None, options


@pytest.mark.spark
@pytest.mark.parametrize(("name", "where"), JOBS)
def test_spark_hands_it_on(
    spark: SparkSession, cluster: MockCluster, name: str, where: str
) -> None:
    case = Case(name, cluster)
    sql, topic, options = job(case, where)
    with case.met(), pytest.raises(PySparkException) as met:
        save(spark.sql(sql), case.bootstrap, topic, **options)
    case.check(str(met.value), "kafka.")


USERS_CODE: Final = """
def looked_up(shelf):
    return {}[shelf]

def by_shelf(topic, batch, partitions):
    return looked_up("no such shelf")

def at_the_end(topic, batch, partitions):
    raise SystemExit("the shop is closed")
"""
# Frames of Spark's own Python, of the sink, and of the user's module.
_FRAME: Final = re.compile(r'^  File "([^"]+)", line \d+, in (\w+)$', re.MULTILINE)
# Workers may run another copy of the sink than this process.
SINK_FOLDER: Final = "/spark_kafka_sink/"


def python_traceback(error: PySparkException) -> str:
    """Return the traceback of Spark's Python worker in an exception of Spark."""
    said = str(error)
    begin = said.index("Traceback (most recent call last)")
    return re.split(r"\n SQLSTATE|\n\s*at |\n\n\tat |\n\nDriver stack", said[begin:])[0].rstrip()


def own_frames(trace: str) -> list[str]:
    """Return the functions of the sink that a traceback has frames of."""
    return [function for file, function in _FRAME.findall(trace) if SINK_FOLDER in file]


@pytest.fixture(scope="module")
def users_code(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A module of the user, on driver and executors."""
    module = tmp_path_factory.mktemp("code") / "code_of_this_test.py"
    module.write_text(USERS_CODE)
    spark.sparkContext.addPyFile(str(module))
    return module.stem


def failed_task(spark: SparkSession, case: Case, **more: str) -> tuple[PySparkException, str]:
    """Return the exception of a job whose task fails, and the traceback of its Python worker."""
    sql, topic, options = job(case, "task")
    with case.met(), pytest.raises(PySparkException) as met:
        save(spark.sql(sql), case.bootstrap, topic, **options | more)
    return met.value, python_traceback(met.value)


@pytest.mark.spark
@pytest.mark.parametrize("name", ["no-topic", "too-large", "no-right-to-write"])
def test_a_failing_task_shows_its_sentence_at_the_end_and_no_frame_of_the_sink(
    spark: SparkSession, cluster: MockCluster, name: str
) -> None:
    case = Case(name, cluster)
    _, trace = failed_task(spark, case)
    _, full = failed_task(spark, case, fullTraceback="true")
    assert own_frames(trace) == []
    assert all("pyspark" in file for file, _ in _FRAME.findall(trace))
    assert "write_task" in own_frames(full)
    case.check(trace.splitlines()[-1], "kafka.")
    assert trace.splitlines()[-1].startswith("spark_kafka_sink.errors.")
    assert trace.count("spark_kafka_sink.errors.") == 1
    # Lines are no measure: Python 3.13 and newer draw more lines below some frames of Spark.
    assert len(own_frames(full)) >= 2


@pytest.mark.spark
@pytest.mark.parametrize(
    ("function", "raised", "frames"),
    [
        ("by_shelf", "KeyError: 'no such shelf'", ["by_shelf", "looked_up"]),
        ("at_the_end", "SystemExit: the shop is closed", ["at_the_end"]),
    ],
)
def test_a_partitioner_that_fails_is_shown_and_named(
    spark: SparkSession,
    cluster: MockCluster,
    users_code: str,
    function: str,
    raised: str,
    frames: list[str],
) -> None:
    case = Case("no-right-to-write", cluster)
    given = {"kafka_partitioner_class": f"{users_code}.{function}"}
    _, trace = failed_task(spark, case, **given)
    _, full = failed_task(spark, case, **given, fullTraceback="true")
    assert own_frames(trace) == []
    assert len(full.splitlines()) - len(trace.splitlines()) >= len(own_frames(full)) >= 5
    for text in (trace, full):
        assert [f for file, f in _FRAME.findall(text) if users_code in file] == frames
        *_, error, sentence = text.splitlines()
        assert error == raised
        named = f"{function}, specified in kafka.partitioner.class"
        assert sentence == f"spark_kafka_sink: {named}, raised {raised}"


@pytest.fixture
def registered(spark: SparkSession) -> Iterator[None]:
    """`register` was called, until the test ends."""
    with registered_for_now(spark):
        yield


@pytest.mark.spark
@pytest.mark.usefixtures("registered")
def test_after_register_the_sentence_is_the_last_line_of_spark_s_exception(
    spark: SparkSession, cluster: MockCluster, users_code: str
) -> None:
    case = Case("no-topic", cluster)
    error, trace = failed_task(spark, case)
    last = "".join(traceback.format_exception(error)).splitlines()[-1]
    assert last == trace.splitlines()[-1]
    case.check(last, "kafka.")
    error, _ = failed_task(spark, case, kafka_partitioner_class=f"{users_code}.at_the_end")
    case.check("".join(traceback.format_exception(error)).splitlines()[-1], "kafka.")


HIDES_TRACEBACK: Final = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"


@pytest.fixture(params=[False, True], ids=["shown", "hidden"])
def is_hidden(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether Spark hides the tracebacks of its Python workers, until the test ends."""
    if request.param:
        spark.conf.set(HIDES_TRACEBACK, "true")
    yield request.param
    spark.conf.unset(HIDES_TRACEBACK)


@pytest.mark.spark
@pytest.mark.usefixtures("registered")
def test_after_register_a_stream_says_the_sentence_wherever_its_failure_is_seen(
    spark: SparkSession, cluster: MockCluster, tmp_path: Path, *, is_hidden: bool
) -> None:
    case = Case("no-topic", cluster)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("row\n")
    frame = (
        spark.readStream.format("text")
        .load(str(tmp_path / "source"))
        .selectExpr("value", "'no-topic' AS topic")
    )
    for name in ("format", "function"):
        spark.streams.resetTerminated()
        writer = frame.writeStream.trigger(availableNow=True)
        reports = tmp_path / f"{name}.jsonl"
        options = {**case.options, "reportPath": str(reports)}
        if name == "format":
            writer = writer.format("pykafka").options(**options)
        else:
            writer = writer.foreachBatch(partial(write_batch, options=options))
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        found: list[BaseException | None] = []
        for wait in (spark.streams.awaitAnyTermination, query.awaitTermination):
            with pytest.raises(PySparkException) as met:
                wait()
            found.append(met.value)
            (report,) = last_reports(spark, 1)
            assert report["write_id"] is not None
            case.check(report["error"], "kafka.")
            assert json.loads(reports.read_text().splitlines()[-1]) == report
        for error in (*found, query.exception()):
            assert isinstance(error, PySparkException)
            last = "".join(traceback.format_exception(error)).splitlines()[-1]
            case.check(last, "kafka.")
            assert ("Traceback (most recent" in str(error)) is not is_hidden or name == "function"
            if name == "format":
                assert last == report["error"]
                assert is_hidden or last == python_traceback(error).splitlines()[-1]
    spark.streams.resetTerminated()


CONNECT: Final = """
import json, sys
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
for line in sys.stdin:
    bootstrap, sql, topic, options = json.loads(line)
    try:
        write = spark.sql(sql).write.format("pykafka").mode("append")
        if topic is not None:
            options["topic"] = topic
        write.option("kafka.bootstrap.servers", bootstrap).options(**options).save()
        said = "nothing"
    except PySparkException as error:
        said = str(error)
    print(json.dumps(said), flush=True)
spark.stop()
"""


@pytest.mark.spark
def test_spark_connect_hands_it_on(
    connect: ConnectServer, cluster: MockCluster, tmp_path: Path
) -> None:
    script = tmp_path / "jobs.py"
    script.write_text(CONNECT)
    with subprocess.Popen(
        [sys.executable, script, connect.remote],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        for name, where in JOBS:
            case = Case(name, cluster)
            sql, topic, options = job(case, where)
            with case.met():
                client.stdin.write(json.dumps([case.bootstrap, sql, topic, options]) + "\n")
                client.stdin.flush()
                said = client.stdout.readline()
            case.check(json.loads(said), "kafka.")
        client.stdin.close()

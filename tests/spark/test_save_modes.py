"""Save modes, with and without ``register``: each has its meaning, in any order of calls.

The hook is process-wide, so it is tested in Python processes of its own: one with a classic
session, and a client of Spark Connect.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.spark import attached
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import KafkaDataSource

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_REFUSED = "cannot be written in the"


def test_append_works_and_the_default_mode_is_refused_by_spark_itself(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
    frame = spark.sql("SELECT 'x' AS value")
    frame.write.format("pykafka").mode("append").options(**options).save()
    for mode in ("errorifexists", "error", "ignore"):
        with pytest.raises(PySparkException, match=_REFUSED):
            frame.write.format("pykafka").mode(mode).options(**options).save()
    with pytest.raises(PySparkException, match=_REFUSED):
        frame.write.format("pykafka").options(**options).save()
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 1


def test_a_new_session_knows_the_format_by_itself(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    writer = spark.newSession().sql("SELECT 'x' AS value").write.format("pykafka").mode("append")
    writer.option("kafka.bootstrap.servers", kafka.bootstrap).option("topic", topic).save()
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 1


def test_a_new_session_does_not_know_a_source_that_was_registered_in_another(
    spark: SparkSession,
) -> None:
    class NotInstalled(KafkaDataSource):
        """The sink by a name that Spark does not find among the installed modules."""

        @classmethod
        def name(cls) -> str:
            return "pykafka_not_installed"

    spark.dataSource.register(NotInstalled)
    writer = spark.newSession().sql("SELECT 'x' AS value").write.format(NotInstalled.name())
    with pytest.raises(PySparkException, match=r"^\[DATA_SOURCE_NOT_EXIST\]"):
        writer.mode("append").save()


def test_overwrite_says_what_to_do(spark: SparkSession, kafka: KafkaCluster) -> None:
    writer = spark.sql("SELECT 'x' AS value").write.format("pykafka").mode("overwrite")
    with pytest.raises(PySparkException) as refused:
        writer.option("kafka.bootstrap.servers", kafka.bootstrap).option("topic", "any").save()
    assert "Save mode Overwrite not allowed for Kafka" in str(refused.value)
    assert 'Use .mode("append")' in str(refused.value)


_SCRIPT = '''
"""Tries every way of saving after register(spark); prints one line per row expected in Kafka."""
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_kafka_sink import register
from spark_kafka_sink.errors import ConfigException, KafkaException

remote, bootstrap, topic, folder = sys.argv[1:]
if remote == "classic":
    from support.spark import attached

    spark = attached.session()
else:
    spark = SparkSession.builder.remote(remote).getOrCreate()
options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}


def frame(value):
    return spark.sql(f"SELECT '{value}' AS value")


def writer(value):
    return frame(value).write.options(**options)


def refused(call, words=""):
    try:
        call()
    except (KafkaException, Py4JJavaError, PySparkException) as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError("not refused")


def registered():
    """Return the identity of the registered source in a classic session."""
    if remote == "classic":
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        source = manager.lookupDataSource("pykafka")
        return spark._jvm.java.lang.System.identityHashCode(source)
    return None


WAYS = (
    lambda name, mode: writer("x").format(name).mode(mode).save(),
    lambda name, mode: writer("x").mode(mode).format(name).save(),
    lambda name, mode: writer("x").format(name).save(mode=mode),
    lambda name, mode: writer("x").mode(mode).save(format=name),
    lambda name, mode: writer("x").mode("append").format(name).save(mode=mode),
)
MODES = ("error", "errorifexists", "ignore", "overwrite", "Default")
LAYOUTS = {
    "partitionBy is": (
        lambda name: writer("x").format(name).partitionBy("value").save(),
        lambda name: writer("x").partitionBy(["value"]).format(name).mode("append").save(),
        lambda name: writer("x").format(name).save(mode="Append", partitionBy="value"),
        lambda name: writer("x").save(None, name, "append", ["value"]),
    ),
    "clusterBy is": (
        lambda name: writer("x").format(name).clusterBy("value").mode("append").save(),
    ),
    "bucketBy is": (
        lambda name: writer("x").format(name).bucketBy(2, "value").mode("append").save(),
    ),
    "sortBy is": (
        lambda name: writer("x").format(name).mode("append").sortBy("value").save(),
    ),
    "bucketBy and sortBy are": (
        lambda name: writer("x").bucketBy(2, "value").sortBy("value").format(name).save(),
    ),
}


def outcome(what, save):
    try:
        save()
    except (ConfigException, PySparkException) as error:
        said = str(error) if isinstance(error, ConfigException) else " ".join(str(error).split())
        return what, type(error).__name__, said
    return what, "written"


def outcomes(name, ways=1):
    """Return the outcome of each mode that is not append, and of layouts, given in so many ways."""
    return [
        *(outcome(mode, lambda: save(name, mode)) for mode in MODES for save in WAYS[:ways]),
        *(outcome(by, lambda: save(name)) for by in LAYOUTS for save in LAYOUTS[by][:ways]),
    ]


before = outcomes("pykafka")
assert all(len(outcome) == 3 for outcome in before), before
assert [o for o in before if o[0] == "overwrite" and "Save mode Overwrite" not in o[2]] == []
# One takes most modes, and one misses its path.
others = [outcomes("noop"), outcomes("json")]

# Found because it is installed, also by a server of Spark Connect.
writer("append unregistered").format("pykafka").mode("append").save()

# Writers that are older than register(): a mode that was named is never taken for none.
older_threads, all_started = ThreadPoolExecutor(4), threading.Barrier(4)
list(older_threads.map(lambda _: all_started.wait(60), range(4)))
if remote == "classic":
    # By its name alone Spark finds the sink only in a thread that has an active session.
    in_thread = older_threads.submit(lambda: WAYS[0]("pykafka", "append"))
    refused(in_thread.result, "DATA_SOURCE_NOT_FOUND")
early_modes = [writer("x").mode(mode) for mode in MODES]
early_both = [writer("x").format("pykafka").mode(mode) for mode in MODES]
early_appends = writer("append before register").mode("append")
early_format = writer("append after register").format("pykafka")
early_bare = writer("format before register").format("pykafka")
found = registered()
register(spark)
assert registered() == found, "Spark has found the source, and warns where another replaces it"
for early in early_both:
    refused(early.save)
for early in early_modes:
    refused(early.format("pykafka").save)
    refused(lambda: early.save(format="pykafka"))
    refused(lambda: early.mode("Ignore").save(format="pykafka"), "Save mode Ignore not")
early_appends.format("pykafka").save()
early_format.mode("append").save()
if remote == "classic":
    refused(early_bare.save, "cannot be written in the")
else:
    early_bare.save()

register(spark)
save = type(writer("x")).save
register(spark)
assert type(writer("x")).save is save, "hooked twice"
for what, *how in outcomes("PyKafka", ways=5):
    assert how[:1] == ["ConfigException"], (what, how)
    if what in MODES:
        wanted = f"Save mode {what} not allowed for Kafka, expected append: records of a topic can "
        assert how[1].startswith(wanted), (what, how)
        assert '. Use .mode("append")' in how[1], (what, how)
    else:
        assert how[1].startswith(f"{what} about files, and a topic has none: "), (what, how)
assert [outcomes("noop"), outcomes("json")] == others

writer("bare").format("pykafka").save()
writer("bare in capitals").format("PyKafka").save()
writer("format by save").save(format="pykafka")
writer("mode none").format("pykafka").mode(None).save()
writer("save mode none").format("pykafka").save(mode=None)
writer("append").mode("append").format("pykafka").save()
writer("append by save").format("pykafka").save(mode="append")
writer("append in capitals").mode("APPEND").format("pykafka").save()
writer("append at last").mode("ignore").format("pykafka").save(mode="Append")
writer("layout taken back").format("pykafka").partitionBy("value").partitionBy([]).save()
writer("layout taken back").format("pykafka").partitionBy("value").save(partitionBy=())
again = writer("one writer twice").format("pykafka")
again.save()
again.save()


def save_in_thread(number):
    at_once.wait(60)
    if number % 2:
        writer(f"append in thread {number}").mode("append").format("pykafka").save()
    else:
        writer(f"bare in thread {number}").format("pykafka").save()


at_once = threading.Barrier(8)
newer_threads = ThreadPoolExecutor(4)
saves = [
    threads.submit(save_in_thread, number + first)
    for first, threads in ((0, older_threads), (4, newer_threads))
    for number in range(4)
]
for each in saves:
    each.result()

# Other formats: the default is still to refuse what exists, also on a writer that was ours.
frame("x").write.format("json").save(folder + "/json")
refused(lambda: frame("x").write.format("json").save(folder + "/json"), "already exists")
refused(lambda: frame("x").write.json(folder + "/json"), "already exists")
once = writer("then json").format("pykafka")
once.save()
refused(lambda: once.format("json").save(folder + "/json"), "already exists")
failed = writer("x").option("topic", "bad topic!").format("pykafka")
refused(failed.save)
refused(lambda: failed.format("json").save(folder + "/json"), "already exists")
if remote != "classic":
    spark.stop()
print("all tried")
'''

_SAVED = [
    "append",
    "append after register",
    "append at last",
    "append before register",
    "append by save",
    "append in capitals",
    *(f"append in thread {number}" for number in (1, 3, 5, 7)),
    "append unregistered",
    "bare",
    *(f"bare in thread {number}" for number in (0, 2, 4, 6)),
    "bare in capitals",
    "format by save",
    "layout taken back",
    "layout taken back",
    "mode none",
    "one writer twice",
    "one writer twice",
    "save mode none",
    "then json",
]


def _check_every_way(
    run: Callable[..., subprocess.CompletedProcess[str]],
    remote: str,
    kafka: KafkaCluster,
    topic: str,
    folder: Path,
    *more: str,
) -> None:
    """Run the script, and hold the topic to `_SAVED` and `more`."""
    script = folder / "modes.py"
    script.write_text(_SCRIPT)
    done = run([sys.executable, script, remote, kafka.bootstrap, topic, folder])
    assert done.stdout.endswith("all tried\n"), done.stderr[-5000:]
    values = [(r.value or b"").decode() for r in read_with_confluent(kafka.bootstrap, topic)]
    assert sorted(values) == sorted([*_SAVED, *more])


def test_register_lets_the_bare_save_append_in_a_classic_session(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    run = partial(attached.run, spark)
    _check_every_way(run, "classic", kafka, new_topic(1), tmp_path)


def test_register_lets_the_bare_save_append_by_spark_connect(
    kafka: KafkaCluster, new_topic: NewTopic, connect: ConnectServer, tmp_path: Path
) -> None:
    run = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=200)
    topic = new_topic(1)
    _check_every_way(run, connect.remote, kafka, topic, tmp_path, "format before register")

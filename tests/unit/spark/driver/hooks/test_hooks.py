"""The table of Spark's writers fits Spark, and the arguments of the last call come last."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.connect.plan import Range, WriteOperation
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.driver.hooks import session_settings, writers
from spark_kafka_sink.spark.driver.hooks.notes import join_options, take_notes
from spark_kafka_sink.spark.driver.hooks.writers import WRITERS, SparkWriter, Write
from spark_kafka_sink.spark.exactly_once import ExactlyOnce
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.planning.datasource import (
    KafkaDataSource,
    check_options_and_columns_of_stream,
)

WRITE = Write("json", "append", None, {"partitionBy": True}, {"a": "1"}, True)  # noqa: FBT003 - a tuple


@pytest.mark.parametrize("kind", WRITERS, ids=lambda kind: kind.module)
def test_spark_s_writers_have_what_the_table_names(kind: SparkWriter) -> None:
    writer_class = getattr(import_module(kind.module), kind.name)
    assert {kind.method, *(note.method for note in kind.notes or ())} <= set(dir(writer_class))
    parameters = inspect.signature(getattr(writer_class, kind.method)).parameters
    assert tuple(parameters) == ("self", *kind.parameters, "options")
    assert ("mode" in parameters) is (kind.set_mode is not None)


@pytest.mark.parametrize(
    ("given", "options", "changed"),
    [
        ({}, {}, {}),
        ({"format": None, "mode": None, "partitionBy": None}, {}, {}),
        ({"format": "pykafka", "mode": "o"}, {}, {"format": "pykafka", "mode": "o"}),
        ({"outputMode": "update"}, {}, {"output_mode": "update"}),
        ({"partitionBy": []}, {}, {"layouts": {"partitionBy": False}}),
        ({}, {"A": 2, "b": True, "c": None}, {"options": {"a": "2", "b": "true"}}),
    ],
)
def test_the_arguments_of_the_last_call_come_last(
    given: dict[str, Any], options: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert WRITE.joined(given, options) == WRITE._replace(**changed)


@pytest.mark.parametrize("kind", [each for each in WRITERS if each.method == "start"])
def test_a_stream_in_output_mode_update_is_refused(kind: SparkWriter) -> None:
    for mode in (None, "append", "Complete"):
        for check in kind.checks:
            check(WRITE._replace(layouts={}, output_mode=mode))
    assert writers._refuse_update in kind.checks
    with pytest.raises(ConfigException, match=r"Write each micro-batch in foreachBatch: \."):
        writers._refuse_update(WRITE._replace(output_mode="Update"))


@pytest.mark.parametrize(
    ("columns", "layout"),
    [
        ("partitioning_cols", "partitionBy"),
        ("clustering_cols", "clusterBy"),
        ("bucket_cols", "bucketBy"),
        ("sort_cols", "sortBy"),
    ],
)
def test_each_layout_of_a_batch_over_spark_connect_is_noted(columns: str, layout: str) -> None:
    plan = WriteOperation(Range(0, 1, 1))
    setattr(plan, columns, ["value"])
    layouts = writers._planned_batch(SimpleNamespace(_write=plan)).layouts
    assert [name for name, of_columns in layouts.items() if of_columns] == [layout]


def test_an_option_without_a_value_leaves_an_earlier_one() -> None:
    assert join_options({"a": "1"}, {"A": None, "B": 1.5}) == {"a": "1", "b": "1.5"}


class JvmWriter:
    """Spark's writer in the JVM, which keeps its settings, and the options of each start."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.started: list[Mapping[str, str]] = []

    def option(self, name: str, value: str) -> JvmWriter:
        """Set an option."""
        self.options[name.lower()] = value
        return self

    def format(self, _source: str) -> JvmWriter:
        """Set the format."""
        return self

    def queryName(self, name: str) -> JvmWriter:  # noqa: N802 - Spark's name
        """Set the name of the query, which is an option."""
        return self.option("queryName", name)

    def start(self) -> object:
        """Start a query."""
        self.started.append(dict(self.options))
        return object()


SCHEMA = StructType().add("value", "string")
SETTINGS = {"spark.sql.streaming.checkpointLocation": "/checkpoints", "spark.app.name": "app"}


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> tuple[DataStreamWriter, JvmWriter]:
    """A writer of Spark with the sink's hook, and its other half in the JVM."""

    class Writer(DataStreamWriter):
        pass

    kind = WRITERS[2]._replace(schema=lambda _: SCHEMA, look=check_options_and_columns_of_stream)
    take_notes(Writer, kind.notes or ())
    monkeypatch.setattr(Writer, "start", writers._hooked(Writer, kind, "pykafka"))
    monkeypatch.setattr(writers, "_enter_thread", lambda _: None)
    monkeypatch.setattr(writers, "explained", lambda _: nullcontext())
    jvm = JvmWriter()
    rows: Any = SimpleNamespace(
        sparkSession=SimpleNamespace(conf=SimpleNamespace(get=SETTINGS.get)),
        _jdf=SimpleNamespace(writeStream=lambda: jvm),
    )
    given = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
    return Writer(rows).format("pykafka").options(**given), jvm


def planned(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a stream as Spark's planning process gets them."""
    return KafkaDataSource(dict(options)).check_stream(SCHEMA)


def of_stream(options: Mapping[str, str]) -> ExactlyOnce:
    """Return the exactly-once options of a stream as Spark's planning process gets them."""
    found = planned(options).exactly_once
    assert found is not None
    return found


def test_the_checkpoint_of_a_query_moves_no_later_query_of_its_writer(
    stream: tuple[DataStreamWriter, JvmWriter],
) -> None:
    writer, jvm = stream
    writer.option("exactlyOnce", "true").queryName("a").start()
    writer.option("exactlyOnce", "false").queryName("b").start()
    writer.format("parquet").queryName("c").start()
    writer.format("pykafka").option("exactlyOnce", "true").queryName("d").start()
    assert not any("checkpointlocation" in each for each in jvm.started), "Spark finds it itself"
    first, off, _, last = jvm.started
    assert of_stream(first).checkpoint == "/checkpoints/a"
    assert planned(off).exactly_once is None
    assert of_stream(last).checkpoint == "/checkpoints/d"
    assert of_stream(first).app_id != of_stream(last).app_id


def test_a_query_without_a_checkpoint_of_its_own_does_not_get_that_of_an_earlier_one(
    stream: tuple[DataStreamWriter, JvmWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, jvm = stream
    writer.option("exactlyOnce", "true").queryName("a").start()
    monkeypatch.delitem(SETTINGS, "spark.sql.streaming.checkpointLocation")
    for _ in range(2):
        with pytest.raises(ConfigException, match="needs to know which stream this is"):
            writer.start()
    writer.option("txnAppId", "app")
    for _ in range(2):
        writer.start()
        assert of_stream(jvm.started[-1]).checkpoint == ""
    writer.option("checkpointLocation", "/own").start()
    monkeypatch.setitem(SETTINGS, "spark.sql.streaming.checkpointLocation", "/checkpoints")
    writer.start()
    for each in jvm.started[-2:]:
        assert (each["checkpointlocation"], of_stream(each).checkpoint) == ("/own", "/own")


def test_the_checkpoint_of_the_user_comes_before_that_of_an_earlier_query(
    stream: tuple[DataStreamWriter, JvmWriter],
) -> None:
    writer, jvm = stream
    writer.option("exactlyOnce", "true").queryName("a").start()
    writer.start(checkpointLocation="/own")
    assert of_stream(jvm.started[-1]).checkpoint == "/own"


def test_a_query_does_not_belong_to_the_span_in_which_an_earlier_one_was_started(
    stream: tuple[DataStreamWriter, JvmWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, jvm = stream
    first, second, own = (f"00-{digit * 32}-{digit * 16}-01" for digit in "123")
    spans = iter([first, None, None, second])
    monkeypatch.setattr(session_settings, "current_traceparent", lambda: next(spans))
    writer.option("openTelemetry", "true")
    for _ in range(4):
        writer.start()
    assert [planned(each).traceparent for each in jvm.started] == [first, "", "", second]
    writer.option("openTelemetry", "false").start()
    assert planned(jvm.started[-1]).traceparent is None
    writer.options(openTelemetry="true", traceparent=own)
    for _ in range(2):
        writer.start()
        assert planned(jvm.started[-1]).traceparent == own


class Attempts:
    """A lock that counts the threads that want it, or have returned without it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.changed = threading.Condition()
        self.count = 0

    def one_more(self) -> None:
        """Count a thread."""
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def __enter__(self) -> None:
        self.one_more()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_no_thread_that_registers_goes_on_before_the_hooks_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Writer:
        def option(self, *_: object) -> None: ...

        def save(self) -> None: ...

    module = ModuleType("writers_of_this_test")
    module.Writer = Writer  # type: ignore[attr-defined] # as in a module of Spark
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kind = WRITERS[0]._replace(module=module.__name__, name="Writer", notes=())
    threads, plain, attempts = 8, Writer.save, Attempts()
    together = threading.Barrier(threads)

    def wait_for_the_others(*_: object) -> None:
        with attempts.changed:
            assert attempts.changed.wait_for(lambda: attempts.count >= threads - 1, 20)

    def register(_: int) -> bool:
        together.wait(20)
        writers.hook_writers("pykafka", is_connect=False)
        is_hooked = Writer.save is not plain
        attempts.one_more()
        return is_hooked

    monkeypatch.setattr(writers, "WRITERS", (kind,))
    monkeypatch.setattr(writers, "take_notes", wait_for_the_others)
    monkeypatch.setattr(writers, "_hooking", attempts, raising=False)
    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(register, range(threads))) == [True] * threads
    assert getattr(Writer.save, "__wrapped__", None) is plain, "it was hooked twice"

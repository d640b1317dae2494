"""The table of Spark's writers fits Spark, and the arguments of the last call come last."""

from __future__ import annotations

import inspect
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.connect.plan import Range, WriteOperation

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.driver.hooks import writers
from spark_kafka_sink.spark.driver.hooks.notes import join_options
from spark_kafka_sink.spark.driver.hooks.writers import WRITERS, SparkWriter, Write

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

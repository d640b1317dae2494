"""After register, Spark's classes of streaming queries say why a query of the sink has failed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.committing import report_files
from spark_kafka_sink.spark.committing.report_files import newest_reports
from spark_kafka_sink.spark.driver.hooks import queries
from spark_kafka_sink.spark.driver.hooks.failed_writes import new_write_id
from spark_kafka_sink.spark.driver.hooks.queries import (
    MODULES,
    RAISING,
    hook_queries,
    remember_stream,
)
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.writer import KafkaStreamArrowWriter

RUN = "11111111-2222-3333-4444-555555555555"
QUERY = f"[STREAM_FAILED] Query [id = 0-0, runId = {RUN}] terminated with exception: Job aborted\n"
NO_TOPIC = "spark_kafka_sink.errors.TimeoutException: Topic t not present in metadata; create it"
OTHER_PYTHON = "Python in worker has different version: 3.12 than that in driver: 3.11, …\n"
JAVA = "\n\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:665)\n"


class Failure(Exception):
    """Spark's exception about a query."""


class Queries(ModuleType):
    """Stands for Spark's module: its queries have failed as a test says."""

    said = ""

    def __init__(self) -> None:
        super().__init__("queries_of_this_test")

        class StreamingQuery:
            runId = RUN  # noqa: N815 - Spark's name

            def awaitTermination(_, timeout: int | None = None) -> bool:  # noqa: N802, N805 - Spark's name, beside self
                if timeout == 0:
                    return False
                raise Failure(self.said)

            def processAllAvailable(_) -> None:  # noqa: N802, N805 - likewise
                raise Failure(self.said)

            def exception(_) -> Failure | None:  # noqa: N805 - likewise
                return Failure(self.said) if self.said else None

        class StreamingQueryManager:
            def awaitAnyTermination(_) -> bool:  # noqa: N802, N805 - likewise
                raise Failure(self.said)

        self.StreamingQuery, self.StreamingQueryManager = StreamingQuery, StreamingQueryManager


@pytest.fixture
def spark_queries(monkeypatch: pytest.MonkeyPatch) -> Queries:
    """Spark's module, with hooks."""
    module = Queries()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(queries, "MODULES", dict.fromkeys((False, True), module.__name__))
    session = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec="/opt/python"))
    monkeypatch.setattr(queries, "_classic_session", lambda: session)
    monkeypatch.setattr(queries, "_streams", {})
    hook_queries(is_connect=False)
    hook_queries(is_connect=False)
    return module


@pytest.mark.parametrize("is_connect", [False, True])
def test_spark_s_classes_have_what_is_hooked(*, is_connect: bool) -> None:
    module = import_module(MODULES[is_connect])
    assert {*RAISING, "exception"} <= vars(module.StreamingQuery).keys()
    assert "awaitAnyTermination" in vars(module.StreamingQueryManager)


# How a program may wait for a query to end.
WAITS: Final[tuple[Callable[[Queries], object], ...]] = (
    lambda module: module.StreamingQueryManager().awaitAnyTermination(),
    lambda module: module.StreamingQuery().awaitTermination(),
    lambda module: module.StreamingQuery().processAllAvailable(),
)


@pytest.mark.parametrize("wait", WAITS)
def test_the_sentence_of_the_sink_is_the_last_line_wherever_a_query_fails(
    spark_queries: Queries, wait: Callable[[Queries], object]
) -> None:
    spark_queries.said = f"{QUERY}Traceback (most recent call last):\n{NO_TOPIC}\n{JAVA}"
    with pytest.raises(Failure) as failed:
        wait(spark_queries)
    assert "".join(traceback.format_exception(failed.value)).splitlines()[-1] == NO_TOPIC
    spark_queries.said = f"{QUERY}ModuleNotFoundError: No module named 'spark_kafka_sink'\n{JAVA}"
    with pytest.raises(KafkaException, match="has no module named 'spark_kafka_sink': install"):
        wait(spark_queries)


def test_the_exception_that_a_query_returns_ends_with_the_sentence_of_the_sink(
    spark_queries: Queries,
) -> None:
    query = spark_queries.StreamingQuery()
    assert query.awaitTermination(timeout=0) is False
    assert query.exception() is None
    spark_queries.said = f"{QUERY}Traceback (most recent call last):\n{NO_TOPIC}\n{JAVA}"
    error = query.exception()
    assert error is not None
    assert error.__notes__ == [NO_TOPIC]


@pytest.mark.parametrize("wait", WAITS)
def test_a_stream_of_the_sink_says_what_is_wrong_with_the_python_of_its_workers(
    spark_queries: Queries, wait: Callable[[Queries], object]
) -> None:
    spark_queries.said = f"{QUERY}{OTHER_PYTHON}{JAVA}"
    with pytest.raises(Failure) as failed:
        wait(spark_queries)
    assert str(failed.value) == spark_queries.said, "it may be a query of another sink"
    remember_stream(spark_queries.StreamingQuery(), {})
    with pytest.raises(KafkaException, match="/opt/python, which Spark runs on an executor, is"):
        wait(spark_queries)


@pytest.mark.parametrize("said", ["ModuleNotFoundError: No module named 'numpy'", "broken"])
def test_a_failure_that_does_not_name_the_sink_is_left_as_it_is(
    spark_queries: Queries, said: str
) -> None:
    spark_queries.said = f"{QUERY}{said}{JAVA}"
    with pytest.raises(Failure) as failed:
        spark_queries.StreamingQueryManager().awaitAnyTermination()
    assert str(failed.value) == spark_queries.said
    assert not hasattr(failed.value, "__notes__")


def errors_of_reports(folder: Path) -> list[str | None]:
    """Return the error of each of the application's reports, None without one."""
    content = (folder / ".pykafka-reports.jsonl").read_bytes()
    return [report["error"] for report in newest_reports(content, 10)]


@pytest.fixture
def two_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The options of two streams, each of which has aborted a micro-batch."""
    monkeypatch.setattr(report_files, "driver_folder", lambda: tmp_path)
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "quiet": "true"}
    found = [{**given, **new_write_id()} for _ in range(2)]
    for options in found:
        KafkaStreamArrowWriter(sink_options(options)).abort([None], 7)
    return found


@pytest.mark.parametrize("wait", WAITS)
def test_the_error_of_a_stream_is_added_to_its_report(
    spark_queries: Queries,
    wait: Callable[[Queries], object],
    two_streams: list[dict[str, str]],
    tmp_path: Path,
) -> None:
    remember_stream(spark_queries.StreamingQuery(), two_streams[0])
    other: Any = SimpleNamespace(runId="0")
    remember_stream(other, two_streams[1])
    spark_queries.said = f"{QUERY}Traceback (most recent call last):\n{NO_TOPIC}\n{JAVA}"
    with pytest.raises(Failure):
        wait(spark_queries)
    assert errors_of_reports(tmp_path) == [NO_TOPIC, None]


def test_an_error_that_names_no_query_is_added_to_no_report(
    spark_queries: Queries, two_streams: list[dict[str, str]], tmp_path: Path
) -> None:
    remember_stream(spark_queries.StreamingQuery(), two_streams[0])
    spark_queries.said = f"broken{JAVA}"
    with pytest.raises(Failure):
        spark_queries.StreamingQueryManager().awaitAnyTermination()
    assert errors_of_reports(tmp_path) == [None, None]


def test_the_oldest_streams_are_forgotten(
    spark_queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_MOST_STREAMS", 1)
    remember_stream(spark_queries.StreamingQuery(), {})
    remember_stream(SimpleNamespace(runId="0"), {})
    assert list(queries._streams) == ["0"]

"""After register, Spark's classes of streaming queries say why a query of the sink has failed."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.committing import report_files
from spark_kafka_sink.spark.committing.report_files import newest_reports
from spark_kafka_sink.spark.driver.hooks import failed_writes, queries
from spark_kafka_sink.spark.driver.hooks.failed_writes import new_write_id, report_errors_of
from spark_kafka_sink.spark.driver.hooks.queries import MODULES, hook_queries
from spark_kafka_sink.spark.driver.hooks.worker_failures import RAISING
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.writer import KafkaStreamArrowWriter

RUN = "11111111-2222-3333-4444-555555555555"
QUERY = f"[STREAM_FAILED] Query [id = 0-0, runId = {RUN}] terminated with exception: Job aborted\n"
NO_TOPIC = "spark_kafka_sink.errors.TimeoutException: Topic t not present in metadata; create it"
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

            def exception(_) -> Failure:  # noqa: N805 - likewise
                return Failure(self.said)

        class StreamingQueryManager:
            def awaitAnyTermination(_, timeout: int | None = None) -> bool:  # noqa: N802, N805 - likewise
                return StreamingQuery().awaitTermination(timeout)

        self.StreamingQuery, self.StreamingQueryManager = StreamingQuery, StreamingQueryManager


@pytest.fixture
def spark_queries(monkeypatch: pytest.MonkeyPatch) -> Queries:
    """Spark's module, with hooks."""
    module = Queries()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(queries, "MODULES", dict.fromkeys((False, True), module.__name__))
    monkeypatch.setattr(queries, "_classic_session", lambda: None)
    monkeypatch.setattr(failed_writes, "_streams", {})
    hook_queries(is_connect=False)
    hook_queries(is_connect=False)
    return module


@pytest.mark.parametrize("is_connect", [False, True])
def test_spark_s_classes_have_what_is_hooked(*, is_connect: bool) -> None:
    module = import_module(MODULES[is_connect])
    assert {*RAISING, "exception"} <= vars(module.StreamingQuery).keys()
    assert "awaitAnyTermination" in vars(module.StreamingQueryManager)


def test_the_sentence_of_the_sink_is_the_last_line_wherever_a_query_fails(
    spark_queries: Queries,
) -> None:
    spark_queries.said = f"{QUERY}Traceback (most recent call last):\n{NO_TOPIC}\n{JAVA}"
    query, manager = spark_queries.StreamingQuery(), spark_queries.StreamingQueryManager()
    assert query.awaitTermination(timeout=0) is False
    for call in (manager.awaitAnyTermination, query.awaitTermination, query.processAllAvailable):
        with pytest.raises(Failure) as failed:
            call()
        assert "".join(traceback.format_exception(failed.value)).splitlines()[-1] == NO_TOPIC
    assert query.exception().__notes__ == [NO_TOPIC]
    spark_queries.said = f"{QUERY}ModuleNotFoundError: No module named 'spark_kafka_sink'\n{JAVA}"
    with pytest.raises(KafkaException, match="has no module named 'spark_kafka_sink': install"):
        manager.awaitAnyTermination()


@pytest.mark.parametrize("said", ["ModuleNotFoundError: No module named 'numpy'", "broken"])
def test_a_failure_that_does_not_name_the_sink_is_left_as_it_is(
    spark_queries: Queries, said: str
) -> None:
    spark_queries.said = f"{QUERY}{said}{JAVA}"
    with pytest.raises(Failure) as failed:
        spark_queries.StreamingQueryManager().awaitAnyTermination()
    assert str(failed.value) == spark_queries.said
    assert not hasattr(failed.value, "__notes__")


def test_the_error_that_ends_the_wait_for_any_query_is_added_to_the_report_of_its_stream(
    spark_queries: Queries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_files, "driver_folder", lambda: tmp_path)
    monkeypatch.setattr(failed_writes, "_MOST_STREAMS", 1)
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "quiet": "true"}
    manager = spark_queries.StreamingQueryManager()

    def errors() -> list[str | None]:
        content = (tmp_path / ".pykafka-reports.jsonl").read_bytes()
        return [report["error"] for report in newest_reports(content, 10)]

    first, second = ({**given, **new_write_id()} for _ in range(2))
    for options in (first, second):
        KafkaStreamArrowWriter(sink_options(options)).abort([None], 7)
    report_errors_of(spark_queries.StreamingQuery(), first)
    spark_queries.said = f"broken{JAVA}"
    with pytest.raises(Failure):
        manager.awaitAnyTermination()
    assert errors() == [None, None], "it is not known which query has failed"
    spark_queries.said = f"{QUERY}Traceback (most recent call last):\n{NO_TOPIC}\n{JAVA}"
    with pytest.raises(Failure):
        manager.awaitAnyTermination()
    assert errors() == [NO_TOPIC, None]
    other = spark_queries.StreamingQuery()
    other.runId = "0"
    report_errors_of(other, second)
    assert list(failed_writes._streams) == ["0"], "the oldest streams are forgotten"

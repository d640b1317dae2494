"""Spark's progress and our report become one record for each micro-batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)
from support.pure.partition_counts import counts_of

from spark_kafka_sink import FailedQueryRecord, KafkaStreamListener, MicroBatchRecord
from spark_kafka_sink.errors import IllegalArgumentException
from spark_kafka_sink.spark.committing import report_files
from spark_kafka_sink.spark.driver import listener_bus, stream_listener
from spark_kafka_sink.spark.driver.hooks import queries
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.report import (
    BadRowsReport,
    PartitionReport,
    SinkCommitMessage,
    TaskReport,
)
from spark_kafka_sink.spark.writer import KafkaStreamArrowWriter

FIRST, SECOND = (UUID(int=number) for number in (1, 2))
RUNS = {query: UUID(int=8 + query.int) for query in (FIRST, SECOND)}
NO_TOPIC = "spark_kafka_sink.errors.TimeoutException: Topic t not present in metadata"
# What Spark passes on: the stack trace of the exception, with the traceback of the worker.
FAILURE = f"""org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0
Traceback (most recent call last):
  File "worker.py", line 3, in write
{NO_TOPIC}

\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:665)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
{NO_TOPIC}
\t... 1 more
"""
# The exception of a query whose failure does not name this sink.
FOREIGN = "[BROKEN] one\n two\n\tat org.apache"
PYTHON_SINK = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver's folder."""
    for module in (report_files, stream_listener):
        monkeypatch.setattr(module, "driver_folder", lambda: tmp_path)
    return tmp_path


def message(query: UUID, rows: int, topic: str = "t") -> SinkCommitMessage:
    """Return what a task of a query reports."""
    partition = PartitionReport(
        topic=topic,
        partition=0,
        records=rows,
        bytes=10 * rows,
        batches=1,
        compressed_bytes=rows,
        retries=2,
        first_offset=0,
        last_offset=rows,
    )
    return SinkCommitMessage(
        report=TaskReport(task=0, attempt=0, host="h", rows=rows, seconds=1.0),
        started_at=time.time(),
        throttle_ms=0,
        bad_rows=BadRowsReport(on_error="fail"),
        expired_rows=[],
        partitions=counts_of(partition) if rows else counts_of(),
        dead_letters=counts_of(),
        query_id=str(query),
    )


def commit(query: UUID, batch_id: int, rows: int, topic: str = "t") -> None:
    """Commit a micro-batch as Spark does."""
    options = {"kafka.bootstrap.servers": "b:1", "topic": topic, "quiet": "true"}
    writer = KafkaStreamArrowWriter(sink_options(options))
    writer.commit([message(query, rows, topic)], batch_id)


def abort(query: UUID, batch_id: int) -> None:
    """Abort a micro-batch of which a task had ended, as Spark does."""
    options = {"kafka.bootstrap.servers": "b:1", "topic": "t", "quiet": "true"}
    KafkaStreamArrowWriter(sink_options(options)).abort([message(query, 3), None], batch_id)


def progress_of(
    query: UUID, batch_id: int, sink: str = PYTHON_SINK, rows: int = 5, later_s: float = -60
) -> QueryProgressEvent:
    """Return Spark's event about a micro-batch that began a minute ago."""
    at = datetime.fromtimestamp(time.time() + later_s, UTC)
    progress: dict[str, Any] = {
        "id": str(query),
        "runId": str(RUNS[query]),
        "name": "flights" if query == FIRST else None,
        "timestamp": f"{at.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z",
        "batchId": batch_id,
        "batchDuration": 1250,
        "stateOperators": [],
        "sources": [],
        "sink": {"description": f"{sink}@1b2c", "numOutputRows": rows},
        "numInputRows": rows,
        "processedRowsPerSecond": 4.0,
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(progress))


def started(query: UUID, name: str | None) -> QueryStartedEvent:
    """Return Spark's event about the start of a query."""
    event: dict[str, Any] = {
        "id": str(query),
        "runId": str(RUNS[query]),
        "name": name,
        "timestamp": "2026-01-31T12:00:00.000Z",
        "jobTags": [],
    }
    return QueryStartedEvent.fromJson(event)


def failed(query: UUID, exception: str | None = FAILURE) -> QueryTerminatedEvent:
    """Return Spark's event about the end of a query."""
    return QueryTerminatedEvent(query, RUNS[query], exception, None)


@pytest.mark.usefixtures("folder")
def test_the_reports_of_two_queries_are_told_apart() -> None:
    records: list[MicroBatchRecord] = []
    listener = KafkaStreamListener(records.append)
    commit(FIRST, 7, 5)
    commit(SECOND, 7, 6, topic="u")
    commit(FIRST, 8, 9)
    listener.onQueryProgress(progress_of(FIRST, 7))
    listener.onQueryProgress(progress_of(SECOND, 7))
    found = [
        (record.progress.id, record.progress.batchId, [each["rows"] for each in record.reports])
        for record in records
    ]
    assert found == [(FIRST, 7, [5]), (SECOND, 7, [6])]
    assert [record.where for record in records] == [None, None]


@pytest.mark.usefixtures("folder")
def test_all_reports_of_a_micro_batch_belong_to_its_record() -> None:
    records: list[MicroBatchRecord] = []
    commit(FIRST, 7, 5)
    commit(FIRST, 7, 6, topic="u")
    KafkaStreamListener(records.append).onQueryProgress(progress_of(FIRST, 7))
    (record,) = records
    assert [report["rows"] for report in record.reports] == [5, 6]


@pytest.mark.usefixtures("folder")
def test_micro_batches_without_rows_and_of_other_sinks_have_no_record() -> None:
    records: list[MicroBatchRecord] = []
    listener = KafkaStreamListener(records.append)
    commit(FIRST, 7, 0)
    listener.onQueryProgress(progress_of(FIRST, 7, rows=0))
    listener.onQueryProgress(progress_of(SECOND, 7, "FileSink"))
    assert records == []
    commit(FIRST, 8, 1)
    listener.onQueryProgress(progress_of(FIRST, 8, later_s=60))
    assert records == [], "the report is of an earlier run of the micro-batch"


@pytest.mark.usefixtures("folder")
def test_a_record_is_printed_as_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    listener = KafkaStreamListener()
    commit(FIRST, 7, 5)
    listener.onQueryProgress(progress_of(FIRST, 7))
    commit(SECOND, 8, 1)
    listener.onQueryProgress(progress_of(SECOND, 8, rows=1))
    named, unnamed = capsys.readouterr().err.splitlines()
    assert named == (
        "pykafka: query flights, micro-batch 7: 5 rows in, 1.25 s, 4 rows/s; wrote 5 rows (50 "
        "bytes) to t, 1 partition, 2 retries"
    )
    assert unnamed.startswith(f"pykafka: query {SECOND}, micro-batch 8: 1 row in, ")


@pytest.fixture(params=["a server elsewhere", "a server in this process"])
def over_connect(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[KafkaStreamListener], None]:
    """Adds a listener to a session of Spark Connect.

    With ``remote("local")``, the SparkContext of the server and its folder are in this process.
    """
    folder = tmp_path if request.param == "a server in this process" else None
    monkeypatch.setattr(stream_listener, "driver_folder", lambda: folder)
    monkeypatch.setattr(listener_bus, "patch_listener_bus", lambda _: None)
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()

    def add(listener: KafkaStreamListener) -> None:
        listener._set_spark_session(session)

    return add


def test_over_connect_a_record_says_where_the_report_is(
    over_connect: Callable[[KafkaStreamListener], None], capsys: pytest.CaptureFixture[str]
) -> None:
    listener = KafkaStreamListener()
    over_connect(listener)
    listener.onQueryProgress(progress_of(FIRST, 7))
    listener.onQueryProgress(progress_of(FIRST, 8, rows=0))
    listener.onQueryProgress(progress_of(FIRST, 8, "MemorySink"))
    listener.onQueryProgress(progress_of(FIRST, 9, "ForeachBatchSink"))
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(
        "micro-batch 7: 5 rows in, 1.25 s, 4 rows/s; with Spark Connect, reports are only "
        "available on the server: set the option reportPath of the stream to write them to a file "
        "there"
    )
    assert "micro-batch 9: " in second


def test_over_connect_a_record_names_the_file_of_a_stream_that_has_one(
    over_connect: Callable[[KafkaStreamListener], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries, "_streams", {})
    listener = KafkaStreamListener()
    over_connect(listener)
    given = {"reportpath": "/reports/flights.jsonl"}
    queries.remember_stream(SimpleNamespace(runId=str(RUNS[FIRST])), given)
    listener.onQueryProgress(progress_of(FIRST, 7))
    queries.remember_stream(SimpleNamespace(runId=str(RUNS[SECOND])), {})
    listener.onQueryProgress(progress_of(SECOND, 7))
    listener.onQueryTerminated(failed(FIRST))
    with_file, without, failure = capsys.readouterr().err.splitlines()
    where = "with Spark Connect, reports are only available on the server"
    assert with_file.endswith(f" rows/s; {where}, in the file /reports/flights.jsonl")
    assert without.endswith(
        f" rows/s; {where}: set the option reportPath of the stream to write them to a file there"
    )
    assert failure.endswith(f"{where}, in the file /reports/flights.jsonl; {NO_TOPIC}")


@pytest.mark.usefixtures("folder")
def test_a_query_that_fails_has_a_record_with_the_last_micro_batch_that_was_written() -> None:
    records: list[FailedQueryRecord] = []
    listener = KafkaStreamListener(on_failed_query=records.append)
    for query, name in ((FIRST, "flights"), (SECOND, None)):
        listener.onQueryStarted(started(query, name))
    commit(FIRST, 7, 5)
    commit(SECOND, 8, 6)
    commit(FIRST, 8, 0)
    abort(FIRST, 9)
    listener.onQueryTerminated(failed(FIRST))
    (record,) = records
    assert (record.id, record.run_id, record.name) == (FIRST, RUNS[FIRST], "flights")
    assert (record.error, record.batch_id, record.where) == (NO_TOPIC, 7, None)
    assert record.report is not None
    assert record.report["rows"] == 5


@pytest.mark.usefixtures("folder")
def test_a_query_that_ends_well_or_goes_elsewhere_has_no_record_of_its_end() -> None:
    records: list[FailedQueryRecord] = []
    listener = KafkaStreamListener(on_failed_query=records.append)
    commit(FIRST, 7, 5)
    listener.onQueryTerminated(failed(FIRST, None))
    listener.onQueryProgress(progress_of(SECOND, 7, "FileSink"))
    listener.onQueryTerminated(failed(SECOND))
    for sink in (PYTHON_SINK, "ForeachBatchSink"):
        listener.onQueryProgress(progress_of(SECOND, 7, sink))
        listener.onQueryTerminated(failed(SECOND, FOREIGN))
    assert records == []
    listener.onQueryTerminated(failed(SECOND))
    assert [record.id for record in records] == [SECOND], "nothing is known of this run"
    listener.onQueryProgress(progress_of(SECOND, 7))
    abort(SECOND, 8)
    listener.onQueryTerminated(failed(SECOND, FOREIGN))
    assert len(records) == 2, "the sink has a report of the query, though it wrote no micro-batch"


def push_out(folder: Path, query: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit micro-batches of a query until the file contains only reports of this query."""
    monkeypatch.setattr(report_files, "_FULL_BYTES", 2000)
    file = folder / ".pykafka-reports.jsonl"
    for batch_id in range(20):
        commit(query, batch_id, 1)
    assert all(str(query) in line for line in file.read_text().splitlines())


@pytest.mark.parametrize("error", [FOREIGN, FAILURE])
def test_a_query_that_fails_has_a_record_even_if_a_busy_one_has_pushed_out_its_reports(
    error: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[FailedQueryRecord] = []
    listener = KafkaStreamListener(lambda _: None, records.append)
    listener.onQueryStarted(started(FIRST, "flights"))
    commit(FIRST, 7, 5)
    listener.onQueryProgress(progress_of(FIRST, 7))
    commit(FIRST, 8, 0)
    listener.onQueryProgress(progress_of(FIRST, 8, rows=0))
    push_out(folder, SECOND, monkeypatch)
    listener.onQueryTerminated(failed(FIRST, error))
    (record,) = records
    assert (record.id, record.name, record.batch_id) == (FIRST, "flights", 7)
    assert record.report is not None
    assert record.report["rows"] == 5


def test_a_query_whose_error_names_the_sink_has_a_record_without_a_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[FailedQueryRecord] = []
    listener = KafkaStreamListener(lambda _: None, records.append)
    commit(FIRST, 7, 5)
    push_out(folder, SECOND, monkeypatch)
    listener.onQueryProgress(progress_of(FIRST, 7))
    listener.onQueryTerminated(failed(FIRST))
    assert [(each.batch_id, each.report, each.error) for each in records] == [(7, None, NO_TOPIC)]


@pytest.mark.usefixtures("folder")
def test_a_query_that_fails_is_printed_as_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    listener = KafkaStreamListener()
    listener.onQueryStarted(started(FIRST, "flights"))
    listener.onQueryTerminated(failed(FIRST))
    commit(SECOND, 8, 1)
    listener.onQueryTerminated(failed(SECOND, FOREIGN))
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        f"pykafka: query flights (id {FIRST}, run {RUNS[FIRST]}) failed before it wrote a "
        f"micro-batch in this program; {NO_TOPIC}"
    )
    assert second == (
        f"pykafka: query (id {SECOND}, run {RUNS[SECOND]}) failed after micro-batch 8, which wrote "
        "1 row (10 bytes) to t, 1 partition, 2 retries; [BROKEN] one two"
    )


def test_over_connect_the_record_of_a_failure_has_what_spark_tells(
    over_connect: Callable[[KafkaStreamListener], None], capsys: pytest.CaptureFixture[str]
) -> None:
    listener = KafkaStreamListener(on_micro_batch=lambda _: None)
    over_connect(listener)
    listener.onQueryProgress(progress_of(FIRST, 7))
    listener.onQueryProgress(progress_of(FIRST, 8, rows=0))
    listener.onQueryTerminated(failed(FIRST))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"pykafka: query flights (id {FIRST}, run {RUNS[FIRST]}) failed after micro-batch 7; with "
        "Spark Connect, reports are only available on the server: set the option reportPath of the "
        f"stream to write them to a file there; {NO_TOPIC}"
    )


@pytest.mark.parametrize("argument", ["on_micro_batch", "on_failed_query"])
def test_what_is_no_function_is_refused(argument: str) -> None:
    with pytest.raises(IllegalArgumentException, match=argument):
        KafkaStreamListener(**{argument: "print"})  # type: ignore[arg-type]  # which is the point

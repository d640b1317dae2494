"""The error of a failed job is in its report, if the user's process sees it."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread

import pytest

from spark_kafka_sink.spark.committing import report_files
from spark_kafka_sink.spark.committing.report_files import newest_reports
from spark_kafka_sink.spark.driver.hooks.failed_writes import (
    cause_of,
    new_write_id,
    reporting_error,
)
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.report import WRITE_ID_OPTION
from spark_kafka_sink.spark.writer import KafkaArrowWriter, KafkaStreamArrowWriter

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "quiet": "true"}
OF_A_WORKER = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
Traceback (most recent call last):
  File "task.py", line 3, in write
    raise KafkaException(message)
spark_kafka_sink.errors.RecordTooLargeException: row 3 of task 0 has 9 MB

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException
Caused by: Traceback (most recent call last):
ValueError: the same again
"""
OF_THE_JVM = """[USER_RAISED_EXCEPTION] broken SQLSTATE: P0001
\tat org.apache.spark.sql.errors.QueryExecutionErrors
"""
OF_FOREACH_BATCH = """py4j.Py4JException: An exception was raised by the Python Proxy. \
Return Message: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "program.py", line 9, in write
    raise RuntimeError("the table is locked")
RuntimeError: the table is locked

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""
OF_A_CHAIN = """py4j.Py4JException: An exception was raised by the Python Proxy. \
Return Message: Traceback (most recent call last):
  File "program.py", line 7, in write
    settings["region"]
KeyError: 'region'

{between}

Traceback (most recent call last):
  File "program.py", line 9, in write
    raise RuntimeError("the settings lack the key region") from error
RuntimeError: the settings lack the key region

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
Caused by: Traceback (most recent call last):
ValueError: the same again

{between}

Traceback (most recent call last):
ValueError: and again
"""
CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver's folder."""
    monkeypatch.setattr(report_files, "driver_folder", lambda: tmp_path)
    return tmp_path


def reports(folder: Path) -> list[tuple[str | None, str | None]]:
    """Return the id and the error of each of the application's reports."""
    content = (folder / ".pykafka-reports.jsonl").read_bytes()
    return [(each["write_id"], each["error"]) for each in newest_reports(content, 10)]


def fail(options: dict[str, str], *, aborts: bool = True) -> None:
    """Let a write fail as Spark does."""
    error = RuntimeError(OF_A_WORKER)

    def save() -> None:
        if aborts:
            KafkaArrowWriter(sink_options(options)).abort([None])
        raise error

    with pytest.raises(RuntimeError) as raised, reporting_error(options, has_lines=False):
        save()
    assert raised.value is error


def test_the_error_is_added_to_the_report_of_its_write(folder: Path) -> None:
    first, second = ({**GIVEN, **new_write_id()} for _ in range(2))
    path = folder / "report.json"
    KafkaArrowWriter(sink_options(first)).commit([])
    fail({**second, "reportpath": str(path)})
    KafkaArrowWriter(sink_options(GIVEN)).abort([None])
    said = "spark_kafka_sink.errors.RecordTooLargeException: row 3 of task 0 has 9 MB"
    of_second = (second[WRITE_ID_OPTION], said)
    assert reports(folder) == [(first[WRITE_ID_OPTION], None), of_second, (None, None)]
    assert json.loads(path.read_text())["error"] == said


def test_a_write_that_was_not_aborted_changes_no_report(folder: Path) -> None:
    other = {**GIVEN, **new_write_id(), "reportpath": str(folder / "report.json")}
    KafkaArrowWriter(sink_options(other)).commit([])
    before = sorted((file, file.read_bytes()) for file in folder.iterdir())
    fail({**other, **new_write_id()}, aborts=False)
    fail({**GIVEN}, aborts=False)
    assert sorted((file, file.read_bytes()) for file in folder.iterdir()) == before


def test_an_error_is_not_written_over_the_report_of_a_later_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "report.json"
    failed, later = ({**GIVEN, **new_write_id(), "reportpath": str(path)} for _ in range(2))
    committing = Thread(target=KafkaArrowWriter(sink_options(later)).commit, args=([],))
    monkeypatch.setattr(report_files, "_LOCK_S", 60.0)
    loads = json.loads

    def start(text: str | bytes) -> object:
        if isinstance(text, str) and not committing.ident:  # the file reportPath is read
            committing.start()
            committing.join(0.2)  # without the lock, it ends here
        return loads(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json, "loads", start)
        fail(failed)
    committing.join()
    assert json.loads(path.read_text())["write_id"] == later[WRITE_ID_OPTION]


def test_the_error_of_a_stream_is_added_to_its_last_report_if_that_failed(folder: Path) -> None:
    path = folder / "reports.jsonl"
    first, second = ({**GIVEN, **new_write_id(), "reportpath": str(path)} for _ in range(2))
    writer, other = (KafkaStreamArrowWriter(sink_options(each)) for each in (first, second))

    def fail_with(message: str) -> None:
        with pytest.raises(RuntimeError), reporting_error(first, has_lines=True):
            raise RuntimeError(message)

    writer.commit([], 0)
    fail_with(OF_THE_JVM)
    assert [error for _, error in reports(folder)] == [None], "it failed before the write"
    writer.abort([None], 1)
    other.abort([None], 1)
    fail_with(OF_THE_JVM)
    said = "[USER_RAISED_EXCEPTION] broken SQLSTATE: P0001"
    assert [error for _, error in reports(folder)] == [None, said, None]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["error"] for line in lines] == [None, said, None]


def test_the_essential_line_is_that_of_the_worker() -> None:
    said = "spark_kafka_sink.errors.RecordTooLargeException: row 3 of task 0 has 9 MB"
    assert cause_of(OF_A_WORKER) == said
    assert cause_of(OF_THE_JVM) == "[USER_RAISED_EXCEPTION] broken SQLSTATE: P0001"
    assert cause_of(OF_FOREACH_BATCH) == "RuntimeError: the table is locked"
    for between in CHAINED:
        said = cause_of(OF_A_CHAIN.format(between=between))
        assert said == "RuntimeError: the settings lack the key region"
    assert cause_of("one line") == "one line"
    assert len(cause_of("x" * 10_000)) == 2000

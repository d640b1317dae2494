"""The driver's half of a commit: every task must have reported, and the report adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.commit import (
    PartitionReport,
    SinkCommitMessage,
    commit_report,
    publish,
)
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.writer import KafkaArrowWriter, KafkaStreamArrowWriter

OPTIONS = sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})


def message(task: int, *partitions: PartitionReport) -> SinkCommitMessage:
    """Make what a task would send."""
    rows = sum(p.records for p in partitions)
    return SinkCommitMessage(
        task=task, attempt=0, rows=rows, seconds=float(task), partitions=list(partitions)
    )


def partition(number: int, records: int, first: int, *, retries: int = 0) -> PartitionReport:
    """Make what a task wrote to one partition."""
    return PartitionReport(
        topic="t",
        partition=number,
        records=records,
        bytes=10 * records,
        batches=1,
        batch_bytes=61 + 10 * records,
        retries=retries,
        first_offset=first,
        last_offset=first + records - 1,
    )


def test_a_task_that_did_not_report_fails_the_commit() -> None:
    messages = [message(0, partition(0, 1, 0)), None]
    with pytest.raises(KafkaException, match="1 of 2 tasks did not report"):
        KafkaStreamArrowWriter(OPTIONS).commit(messages, 7)
    with pytest.raises(KafkaException, match="1 of 2 tasks did not report"):
        KafkaArrowWriter(OPTIONS).commit(messages)


def test_the_report_adds_up_what_tasks_wrote() -> None:
    report = commit_report(
        [
            message(0, partition(0, 5, 100), partition(1, 2, 0)),
            message(1, partition(0, 3, 90, retries=2)),
            message(2),
        ]
    )
    assert (report.tasks, report.rows, report.bytes, report.retries) == (3, 10, 100, 2)
    assert report.seconds == 2.0
    first, second = report.partitions
    assert (first.records, first.first_offset, first.last_offset) == (8, 90, 104)
    assert (second.records, second.first_offset, second.last_offset) == (2, 0, 1)


def test_offsets_that_brokers_did_not_give_stay_unknown() -> None:
    unknown = partition(0, 5, 0)
    unknown.first_offset = unknown.last_offset = -1
    report = commit_report([message(0, unknown), message(1, partition(0, 2, 7))])
    assert (report.partitions[0].first_offset, report.partitions[0].last_offset) == (7, 8)


def test_the_report_is_one_line_on_stderr_and_json_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    path.write_text("an older report")
    publish(commit_report([message(0, partition(3, 4, 9))]), path)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "pykafka: wrote 4 rows (40 bytes) to t, 1 partitions, by 1 tasks; slowest task 0.00 s\n"
    )
    assert json.loads(path.read_text())["partitions"][0]["last_offset"] == 12
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_is_said_and_does_not_fail_the_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "no" / "such" / "folder.json"
    publish(commit_report([message(0)]), path)
    publish(commit_report([message(0)], 7), path)
    assert capsys.readouterr().err.count(f"could not be written to reportPath {path}: ") == 2


@pytest.mark.parametrize("batch_id", [None, 3])
def test_a_report_over_a_folder_leaves_nothing_behind(
    batch_id: int | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    publish(commit_report([message(0)], batch_id), folder)
    assert f"could not be written to reportPath {folder}: " in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [folder]


@pytest.mark.parametrize("path", [Path(), Path("a\0b"), Path("/")])
def test_no_path_however_odd_fails_the_job(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(commit_report([message(0)]), path)
    assert "could not be written to reportPath" in capsys.readouterr().err


def test_a_driver_without_stderr_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = (tmp_path / "stderr").open("w")
    closed.close()
    for stderr in (None, closed):
        monkeypatch.setattr("sys.stderr", stderr)
        publish(commit_report([message(0)]), tmp_path / "report.json")
        assert json.loads((tmp_path / "report.json").read_text())["tasks"] == 1


def test_abort_never_raises() -> None:
    KafkaArrowWriter(OPTIONS).abort([None])
    KafkaStreamArrowWriter(OPTIONS).abort([None], 3)

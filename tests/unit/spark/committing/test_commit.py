"""The driver's half of a commit: every task must have reported, and the report adds up."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from support.pure.partition_counts import counts_of

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.committing.job_commit import (
    add_error,
    commit_report,
    failure_report,
    publish,
)
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.report import (
    SAMPLES,
    BadRowSample,
    BadRowsReport,
    ExpiredRowsReport,
    PartitionReport,
    SinkCommitMessage,
    TaskReport,
)
from spark_kafka_sink.spark.writer import KafkaArrowWriter, KafkaStreamArrowWriter

OPTIONS = sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})


def message(
    task: int,
    *partitions: PartitionReport,
    bad_rows: BadRowsReport | None = None,
    dead_letters: Sequence[PartitionReport] = (),
    expired_rows: Sequence[ExpiredRowsReport] = (),
    throttle_ms: int = 0,
    ago_s: float = 0.0,
) -> SinkCommitMessage:
    """Make what a task would send."""
    rows = sum(p.records for p in partitions)
    return SinkCommitMessage(
        report=TaskReport(
            task=task, attempt=0, host=f"host-{task}", rows=rows, seconds=float(task)
        ),
        started_at=time.time() - ago_s,
        throttle_ms=throttle_ms,
        bad_rows=bad_rows or BadRowsReport(on_error="fail"),
        expired_rows=list(expired_rows),
        partitions=counts_of(*partitions),
        dead_letters=counts_of(*dead_letters),
    )


def partition(number: int, records: int, first: int, *, retries: int = 0) -> PartitionReport:
    """Make what a task wrote to one partition."""
    return PartitionReport(
        topic="t",
        partition=number,
        records=records,
        bytes=10 * records,
        batches=1,
        compressed_bytes=61 + 10 * records,
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
    assert report.compressed_bytes == 3 * 61 + 100
    assert report.slowest_task == TaskReport(task=2, attempt=0, host="host-2", rows=0, seconds=2.0)
    first, second = report.partitions
    assert (first.records, first.first_offset, first.last_offset) == (8, 90, 104)
    assert (second.records, second.first_offset, second.last_offset) == (2, 0, 1)


def test_the_report_spans_from_the_first_task_to_the_commit() -> None:
    report = commit_report([message(0, ago_s=100), message(1, ago_s=5000), message(2)])
    assert 5000 <= report.seconds < 5100
    assert commit_report([message(0, ago_s=-50)]).seconds == 0.0, "a clock that is ahead"
    assert commit_report([]).seconds == 0.0


def bad_rows(task: int, rows: int, reason: str) -> BadRowsReport:
    """Make what a task would say of bad rows."""
    samples = [
        BadRowSample(
            task=task,
            row=row,
            reason=reason,
            detail=None,
            topic="t",
            partition=None,
            key_bytes=None,
            value_bytes=1,
        )
        for row in range(rows)
    ]
    return BadRowsReport(
        on_error="deadLetter",
        rows=rows,
        reasons={reason: rows},
        dead_letters="d",
        samples=samples,
    )


def test_bad_rows_of_all_tasks_are_added_up_and_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parts = [bad_rows(0, 7, "too_large"), bad_rows(1, 6, "null_topic"), bad_rows(2, 1, "too_large")]
    report = commit_report(
        [
            message(i, bad_rows=part, dead_letters=[partition(0, part.rows, 10 * i)], throttle_ms=5)
            for i, part in enumerate(parts)
        ]
    )
    found = report.bad_rows
    assert found is not None
    assert (found.rows, found.reasons) == (14, {"null_topic": 6, "too_large": 8})
    assert [(p.records, p.first_offset, p.last_offset) for p in found.partitions] == [(14, 0, 20)]
    assert [(s.task, s.row) for s in found.samples] == [(0, n) for n in range(7)] + [
        (1, n) for n in range(SAMPLES - 7)
    ]
    publish(report, None)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("; throttled for 15 ms")
    assert second == (
        "pykafka: 14 bad rows went to d: 6 null_topic, 8 too_large; among them row 0 of task 0"
    )
    found.dead_letters = None
    assert "14 bad rows were skipped: " in found.summary()


def test_only_a_codec_is_said_to_compress(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for codec in ("none", "zstd"):
        given = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.compression.type": codec}
        options = sink_options(given | {"topic": "t"})
        KafkaArrowWriter(options).commit([message(0, partition(0, 1, 0))])
        said[codec] = capsys.readouterr().err
    assert "(10 bytes of records, 71 bytes sent)" in said["none"]
    assert "(10 bytes of records, 71 bytes sent, compressed by zstd)" in said["zstd"]


def test_what_is_one_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    expired = ExpiredRowsReport(topic="t", rows=1, oldest_timestamp_ms=0, retention_ms=1)
    parts = partition(0, 1, 0, retries=1)
    one = message(4, parts, bad_rows=bad_rows(4, 1, "too_large"), expired_rows=[expired])
    publish(commit_report([one]), None)
    written, bad, old = capsys.readouterr().err.splitlines()
    assert written.startswith("pykafka: wrote 1 row (10 bytes of records, 71 bytes sent) to t, 1 ")
    assert " 1 partition, by 1 task in " in written
    assert written.endswith("; 1 retry")
    assert bad == "pykafka: 1 bad row went to d: 1 too_large; it is row 0 of task 4"
    assert old.startswith("pykafka: 1 row is older than the retention.ms of its topic: 1 of t ")
    assert "; brokers may delete it at their next check; " in old
    found = bad_rows(4, 1, "too_large")
    found.dead_letters = None
    assert "pykafka: 1 bad row was skipped: " in found.summary()


def test_rows_older_than_the_retention_are_added_up_and_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ages = [(2, 1_000_000_500_000), (3, 1_000_000_000_250), (4, 1_000_000_900_000)]
    parts = [
        ExpiredRowsReport(
            topic="t", rows=rows, oldest_timestamp_ms=oldest, retention_ms=604_800_000
        )
        for rows, oldest in ages
    ]
    report = commit_report([message(9), *(message(0, expired_rows=[part]) for part in parts)])
    publish(report, None)
    _, line = capsys.readouterr().err.splitlines()
    assert line == (
        "pykafka: 9 rows are older than the retention.ms of their topic: 9 of t "
        "(retention.ms=604800000, the oldest is from 2001-09-09T01:46:40.250+00:00); brokers may "
        "delete them at their next check; raise retention.ms, or set message.timestamp.type to "
        "LogAppendTime"
    )


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
    report = commit_report([message(0, partition(3, 4, 9, retries=2))], 7)
    report.seconds = 1.5
    publish(report, path)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "pykafka: wrote 4 rows (40 bytes of records, 101 bytes sent) to t, 1 partition, "
        "by 1 task in 1.50 s in micro-batch 7; slowest task 0 on host-0, 0.00 s; 2 retries\n"
    )
    path.unlink()
    publish(commit_report([message(0, partition(3, 4, 9))]), path)
    assert json.loads(path.read_text())["partitions"][0]["last_offset"] == 12
    assert list(tmp_path.iterdir()) == [path]


def test_reports_of_jobs_that_end_at_the_same_time_stay_apart_also_without_locks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    names = [f"job-{number}" for number in range(4)]
    barrier = Barrier(len(names))

    def end_job(name: str) -> None:
        report = commit_report([], write_id=name)
        barrier.wait(60)
        publish(report, tmp_path / name, quiet=True)

    with ThreadPoolExecutor(len(names)) as threads:
        for _ in range(20):
            list(threads.map(end_job, names))
            found = {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()}
            assert {name: each["write_id"] for name, each in found.items()} == {
                name: name for name in names
            }
            for file in tmp_path.iterdir():
                file.unlink()
    assert capsys.readouterr().err == ""


def test_a_report_that_cannot_be_written_is_said_and_does_not_fail_the_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "no" / "such" / "folder.json"
    publish(commit_report([message(0)]), path)
    publish(commit_report([message(0)], 7), path)
    assert capsys.readouterr().err.count(f"could not be written to reportPath {path}: ") == 2


def test_a_path_that_has_credentials_is_not_said_whole(capsys: pytest.CaptureFixture[str]) -> None:
    publish(commit_report([message(0)]), Path("KEY:hunter2@bucket/report.json"))
    said = capsys.readouterr().err
    assert "to reportPath ***@bucket/report.json: No such file or directory" in said
    assert "hunter2" not in said


def test_a_line_of_a_stream_s_report_that_was_broken_off_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text('{"batch_id": 0, "ro')
    for batch_id in (1, 2):
        publish(commit_report([message(0)], batch_id), path)
    _, *complete = path.read_text().splitlines()
    assert [json.loads(line)["batch_id"] for line in complete] == [1, 2]


def test_a_report_takes_the_place_of_a_file_and_of_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_text(
        "an earlier report, which is longer than the one that will be in its place" * 20
    )
    link.symlink_to(file)
    publish(commit_report([message(0)]), link)
    assert link.is_symlink()
    assert json.loads(file.read_text())["tasks"] == 1
    os.mkfifo(pipe)
    publish(commit_report([message(0)]), pipe)
    assert f"could not be written to reportPath {pipe}: " in capsys.readouterr().err
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    publish(commit_report([message(0), message(1)]), pipe)
    assert json.loads(os.read(reader, 10_000))["tasks"] == 2
    os.close(reader)
    assert pipe.is_fifo()
    assert sorted(tmp_path.rglob("*")) == [file.parent, file, link, pipe]


def test_a_report_goes_where_the_driver_s_own_output_goes(tmp_path: Path) -> None:
    """/dev/stderr may be a container's pipe, or the log file of a background job."""
    log = tmp_path / "job.log"
    with log.open("w") as lines:
        lines.write("started\n")
        lines.flush()
        publish(commit_report([message(0)]), Path(f"/dev/fd/{lines.fileno()}"))
    first, _, report = log.read_text().partition("\n")
    assert (first, json.loads(report)["tasks"]) == ("started", 1)
    reader, writer = os.pipe()
    publish(commit_report([message(0)]), Path(f"/dev/fd/{writer}"))
    assert json.loads(os.read(reader, 10_000))["tasks"] == 1
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there are no files in memory")
def test_a_report_takes_the_place_of_a_file_in_memory() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "report.json")
        for tasks in (1, 2):
            publish(commit_report([message(task) for task in range(tasks)]), path)
            assert json.loads(path.read_text())["tasks"] == tasks
        publish(failure_report([None], write_id="w"), path)
        add_error("w", "boom", path, has_lines=False)
        assert json.loads(path.read_text())["error"] == "boom"


def test_a_report_s_name_may_be_as_long_as_names_are(tmp_path: Path) -> None:
    path = tmp_path / ("r" * 255)
    publish(commit_report([message(0)]), path)
    assert json.loads(path.read_text())["tasks"] == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_is_written_into_a_file_whose_folder_may_not_be_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of a test may be root, who may write anywhere."""
    file = tmp_path / "report.json"
    file.write_text("an earlier report" * 1000)
    before = file.stat().st_ino
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path)
    publish(commit_report([message(0)]), file)
    assert json.loads(file.read_text())["tasks"] == 1
    assert file.stat().st_ino == before


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


def writers(**options: str) -> tuple[KafkaArrowWriter, KafkaStreamArrowWriter]:
    """Return a writer of jobs and one of streams, with options besides the usual ones."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"} | options
    return KafkaArrowWriter(sink_options(given)), KafkaStreamArrowWriter(sink_options(given))


def test_a_job_that_fails_leaves_a_report_of_the_tasks_that_had_ended(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    job, _ = writers(reportPath=str(path))
    job.abort([message(0, partition(0, 5, 100)), None, message(2, partition(0, 1, 90)), None])
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        "pykafka: the write failed; 2 finished tasks wrote 6 rows (60 bytes of records, 182 "
        "bytes sent) to t, 1 partition; 2 tasks did not report and may have written more rows"
    )
    report = json.loads(path.read_text())
    assert (report["complete"], report["tasks"], report["unreported_tasks"]) == (False, 2, 2)
    (written,) = report["partitions"]
    assert [written[name] for name in ("records", "first_offset", "last_offset")] == [6, 90, 104]
    job.commit([message(0, partition(0, 5, 100))])
    report = json.loads(path.read_text())
    assert (report["complete"], report["unreported_tasks"]) == (True, 0)


def test_a_micro_batch_that_fails_adds_a_report_to_those_of_its_stream(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "reports.jsonl"
    _, stream = writers(reportPath=str(path))
    stream.commit([message(0, partition(0, 5, 100))], 3)
    capsys.readouterr()
    stream.abort([None], 4)
    stream.abort([message(0, partition(0, 1, 7))], 4)
    none, all_of_them = capsys.readouterr().err.splitlines()
    assert none == (
        "pykafka: micro-batch 4 failed; 1 task did not report and may have written rows"
    )
    assert all_of_them == (
        "pykafka: micro-batch 4 failed; 1 finished task wrote 1 row (10 bytes of records, 71 "
        "bytes sent) to t, 1 partition"
    )
    reports = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["batch_id"], r["complete"]) for r in reports] == [(3, True), (4, False), (4, False)]


def test_a_quiet_write_prints_at_most_a_warning_and_reports_as_any_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "reports.jsonl"
    job, stream = writers(quiet="true", reportPath=str(path))
    bad = message(0, partition(0, 5, 100), bad_rows=bad_rows(0, 1, "too_large"))
    job.commit([bad])
    job.abort([bad, None])
    assert not json.loads(path.read_text())["complete"]
    path.unlink()
    stream.commit([bad], 0)
    stream.abort([bad], 1)
    assert len(path.read_text().splitlines()) == 2
    assert capsys.readouterr() == ("", "")
    # Brokers may delete these rows. A failed write may have left none.
    expired = ExpiredRowsReport(topic="t", rows=1, oldest_timestamp_ms=0, retention_ms=1)
    old = message(0, partition(0, 5, 100), expired_rows=[expired])
    job.abort([old, None])
    assert capsys.readouterr() == ("", "")
    job.commit([old])
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("pykafka: 1 row is older than the retention.ms of its topic: 1 of t ")
    job, _ = writers(quiet="false")
    job.commit([bad])
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_micro_batch_without_rows_prints_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "reports.jsonl"
    job, stream = writers(reportPath=str(path))
    stream.commit([message(0), message(1)], 0)
    stream.commit([], 1)
    assert capsys.readouterr() == ("", "")
    assert [json.loads(line)["rows"] for line in path.read_text().splitlines()] == [0, 0]
    stream.commit([message(0, bad_rows=bad_rows(0, 1, "too_large"))], 2)
    assert len(capsys.readouterr().err.splitlines()) == 2, "its rows were bad"
    job.commit([message(0)])
    assert "wrote 0 rows" in capsys.readouterr().err, "a job is run once"

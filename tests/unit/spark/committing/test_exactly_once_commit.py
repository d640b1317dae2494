"""What the driver commits, compares and aborts with exactly once; the modes are not asked here."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run, WrittenPartition
from spark_kafka_sink.commit.log_record import CommitRecord, Place, RecordState, StreamMark
from spark_kafka_sink.commit.names import checked_owner
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.spark.committing import exactly_once_commit, single_commit, two_phase_commit
from spark_kafka_sink.spark.committing.exactly_once_commit import (
    abort_batch,
    abort_micro_batch,
    commit_batch,
    commit_micro_batch,
)
from spark_kafka_sink.spark.committing.job_commit import AbortResult
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.micro_batch import MicroBatch
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.report import (
    BadRowSample,
    BadRowsReport,
    PartitionCounts,
    SinkCommitMessage,
    SkippedMessage,
    TaskReport,
)
from spark_kafka_sink.spark.writer import ExactlyOnceMicroBatchWriter

PRODUCER = ProducerIdAndEpoch(9, 4)
OWNER = checked_owner("p", "app", "t")
RUN = Run(OWNER, "run", TopicPartition("log", 0), level=1, timeout_ms=1000)
BEFORE = CommitRecord(
    RecordState.DONE, "before", rows=2, written_at=0, streams=(StreamMark("q", 6, 2, "old run"),)
)
PLAN = Plan(RUN, PRODUCER, BEFORE)
MICRO_BATCH = MicroBatch("q", 7, "new run")
MODES = pytest.mark.parametrize("mode", [Mode.SINGLE, Mode.TWO_PHASE])


def options(mode: Mode = Mode.SINGLE, version: int | None = None) -> SinkOptions:
    """Return the options of a write."""
    plain = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
    return replace(plain, exactly_once=ExactlyOnce(mode, "p", app_id="app", version=version))


def message(rows: int, *, is_stream: bool = True) -> SinkCommitMessage:
    """Return what a task reports that wrote so many rows."""
    partition = WrittenPartition(TopicPartition("t", rows), rows, 0, rows - 1, rows - 1)
    return SinkCommitMessage(
        report=TaskReport(task=0, attempt=0, host="h", rows=rows, seconds=1.0),
        started_at=time.time(),
        throttle_ms=0,
        bad_rows=BadRowsReport(on_error="fail"),
        expired_rows=[],
        partitions=PartitionCounts(),
        dead_letters=PartitionCounts(),
        transaction=AttemptTransaction(None, PRODUCER, (partition,)) if rows else None,
        plan=PLAN if is_stream else None,
        micro_batch=MICRO_BATCH if is_stream else None,
    )


class Modes:
    """Both modes: they note what they are asked for."""

    def __init__(self) -> None:
        self.committed: list[tuple[str, CommitRecord, int]] = []
        self.aborted: list[tuple[str, Plan]] = []
        self.are_missing: list[bool | None] = []
        self.error: Exception | None = None
        self.still_open: str | None = None
        self.is_committed = False

    def commit(self, name: str, record: CommitRecord, attempts: Sequence[object]) -> None:
        """Note a commit."""
        self.committed.append((name, record, len(attempts)))

    def abort(self, name: str, plan: Plan, *, is_missing: bool | None = None) -> str:
        """Note an abort."""
        self.aborted.append((name, plan))
        self.are_missing.append(is_missing)
        if self.error is not None:
            raise self.error
        return "it was aborted"

    def end_unused(self, plan: Plan) -> str | None:
        """Note the end of a transaction without rows."""
        self.abort("single", plan)
        return self.still_open


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> Modes:
    """The modes that the test has in place of the cluster."""
    made = Modes()
    for name, module in (("single", single_commit), ("two-phase", two_phase_commit)):
        monkeypatch.setattr(
            module,
            "commit_record",
            lambda _, __, record, attempts, ___, name=name: made.commit(name, record, attempts),
        )
        if module is single_commit:
            monkeypatch.setattr(module, "end_unused", lambda _, plan: made.end_unused(plan))
        monkeypatch.setattr(
            module,
            "abort_run",
            lambda _, plan, *__, name=name, **more: AbortResult(
                made.abort(name, plan, **more), made.is_committed
            ),
        )
    monkeypatch.setattr(exactly_once_commit, "kept_plan", lambda _: PLAN)
    return made


@MODES
def test_a_version_is_added_to_the_record_of_its_owner(
    modes: Modes, mode: Mode, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [message(3, is_stream=False), message(0, is_stream=False)]
    commit_batch(options(mode, 7), PLAN, messages)
    ((name, record, attempts),) = modes.committed
    assert (name, attempts) == (mode.value, 1)
    assert record.versions.place(7) is Place.WRITTEN
    assert (record.run, record.rows, record.streams) == ("run", 3, BEFORE.streams)
    assert record.written_at > 0
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("pykafka: wrote 3 rows")
    how = f"committed version 7 of txnAppId 'app', exactlyOnce={mode.value}, 1 transaction"
    assert said.endswith(f"; {how}")


@MODES
def test_the_report_has_the_mode_the_application_and_the_transactions(
    modes: Modes, mode: Mode, tmp_path: Path
) -> None:
    given = replace(options(mode, 7), report_path=tmp_path / "report.json")
    commit_batch(given, PLAN, [message(rows, is_stream=False) for rows in (3, 0, 1)])
    assert modes.committed
    assert json.loads((tmp_path / "report.json").read_text())["exactly_once"] == {
        "mode": mode.value,
        "app_id": "app",
        "version": 7,
        "transactions": 1 if mode is Mode.SINGLE else 2,
        "skipped": None,
    }


def test_the_record_says_to_operators_who_writes(modes: Modes) -> None:
    named = replace(
        ExactlyOnce(Mode.SINGLE, "p", app_id="app"),
        application="flights",
        checkpoint="s3a://user:secret@bucket/checkpoints",
    )
    written = message(3)
    written.micro_batch = MICRO_BATCH._replace(query_name="arrivals")
    commit_micro_batch(replace(options(), exactly_once=named), [written], 7)
    ((_, record, _),) = modes.committed
    assert (record.application, record.query) == ("flights", "arrivals")
    assert record.checkpoint == "s3a://***@bucket/checkpoints"


def test_a_task_without_a_message_keeps_a_job_from_being_committed(modes: Modes) -> None:
    with pytest.raises(KafkaException, match="1 of 2 tasks did not report"):
        commit_batch(options(version=7), PLAN, [message(3), None])
    assert modes.committed == []


def test_a_version_that_is_written_is_said_to_be(
    modes: Modes, capsys: pytest.CaptureFixture[str]
) -> None:
    commit_batch(options(version=7), BEFORE, [SkippedMessage()])
    assert (modes.committed, modes.aborted) == ([], [])
    (said,) = capsys.readouterr().err.splitlines()
    written = "version 7 of txnAppId 'app' was written"
    assert said == f"pykafka: skipped: {written} before 1970-01-01T00:00:00.000+00:00"
    last = BEFORE.after_version(7)
    commit_batch(options(version=7), last, [SkippedMessage(rows=2), SkippedMessage(rows=3)])
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        f"pykafka: skipped: {written} at 1970-01-01T00:00:00.000+00:00, with 2 rows; it has 5 rows "
        "now, which were counted, but not written"
    )


def test_the_report_of_a_version_that_is_written_says_why_it_was_skipped(
    modes: Modes, tmp_path: Path
) -> None:
    given = replace(options(version=7), report_path=tmp_path / "report.json")
    commit_batch(given, BEFORE.after_version(7), [SkippedMessage()])
    assert modes.committed == []
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["rows"], found["tasks"], found["partitions"]) == (0, 1, [])
    assert found["exactly_once"]["skipped"].startswith("version 7 of txnAppId 'app' was written")


@MODES
def test_a_job_that_fails_although_its_version_is_written_has_a_report(
    modes: Modes, mode: Mode, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = replace(options(mode, 7), report_path=tmp_path / "report.json")
    abort_batch(given, BEFORE, [SkippedMessage(rows=2), None])
    assert (modes.committed, modes.aborted) == ([], [])
    why = "version 7 of txnAppId 'app' was written before 1970-01-01T00:00:00.000+00:00"
    said = f"pykafka: the write failed; it wrote no row, because {why}\n"
    assert capsys.readouterr().err == said
    report = json.loads((tmp_path / "report.json").read_text())
    counts = [report[name] for name in ("complete", "rows", "tasks", "unreported_tasks")]
    assert counts == [False, 0, 1, 1]
    assert report["exactly_once"]["skipped"] == why
    abort_batch(replace(given, quiet=True), BEFORE, [None])
    assert capsys.readouterr().err == ""


def test_a_micro_batch_that_is_a_batch_job_adds_a_line_to_the_report(
    modes: Modes, tmp_path: Path
) -> None:
    given = replace(options(version=7), report_path=tmp_path / "reports.jsonl")
    commit_batch(given, PLAN, [message(3, is_stream=False)], 7)
    commit_batch(given, BEFORE.after_version(7), [SkippedMessage()], 7)
    assert len(modes.committed) == 1
    lines = (tmp_path / "reports.jsonl").read_text().splitlines()
    assert [json.loads(line)["batch_id"] for line in lines] == [7, 7]


@MODES
def test_a_micro_batch_is_the_last_one_of_its_query_in_the_record(modes: Modes, mode: Mode) -> None:
    commit_micro_batch(options(mode), [message(3), message(2)], 7)
    ((name, record, attempts),) = modes.committed
    assert (name, attempts) == (mode.value, 2)
    assert record.last_batch("q") == StreamMark("q", 7, 5, "new run")


def test_a_micro_batch_without_rows_records_nothing_and_keeps_nothing_open(
    modes: Modes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit_micro_batch(options(), [message(0)], 7)
    commit_micro_batch(replace(options(), report_path=tmp_path / "lines"), [], 7)
    (line,) = (tmp_path / "lines").read_text().splitlines()
    report = json.loads(line)
    assert (report["batch_id"], report["rows"], report["complete"]) == (7, 0, True)
    assert capsys.readouterr().err == ""
    assert modes.committed == []
    assert modes.aborted == [("single", PLAN)] * 2
    commit_micro_batch(options(Mode.TWO_PHASE), [message(0)], 7)
    assert len(modes.aborted) == 2


def test_the_end_of_a_transaction_without_rows_is_told_if_it_fails(
    modes: Modes, capsys: pytest.CaptureFixture[str]
) -> None:
    commit_micro_batch(replace(options(), quiet=True), [message(0)], 7)
    assert capsys.readouterr().err == ""
    modes.still_open = "it may be open still"
    commit_micro_batch(replace(options(), quiet=True), [], 7)
    assert capsys.readouterr().err == "pykafka: it may be open still\n"
    modes.error = KafkaException("nobody answers")
    commit_micro_batch(replace(options(), quiet=True), skips(1, 1), 6)
    said = capsys.readouterr().err
    assert "could not be aborted now (nobody answers); the brokers abort it within 1000 ms" in said


def test_bad_rows_count_for_a_replay_which_reads_them_too(modes: Modes) -> None:
    sample = BadRowSample(
        task=0,
        row=0,
        reason="too_large",
        detail=None,
        topic="t",
        partition=None,
        key_bytes=None,
        value_bytes=1,
    )
    written, only_bad = message(3), message(0)
    for each, rows in ((written, 2), (only_bad, 1)):
        each.bad_rows = BadRowsReport(
            on_error="skip", rows=rows, reasons={"too_large": rows}, samples=[sample]
        )
    commit_micro_batch(options(), [written], 7)
    commit_micro_batch(options(), [only_bad], 7)
    marks = [record.last_batch("q") for _, record, _ in modes.committed]
    assert [mark and mark.rows for mark in marks] == [5, 1]


def test_a_stream_whose_rows_may_come_twice_is_warned_of(
    modes: Modes, capsys: pytest.CaptureFixture[str]
) -> None:
    def said_of(query: str, batch_id: int, record: CommitRecord | None) -> str:
        written = message(3)
        written.plan = replace(PLAN, record=record)
        written.micro_batch = MicroBatch(query, batch_id, "run")
        commit_micro_batch(options(), [written], batch_id)
        return capsys.readouterr().err

    assert "written twice" not in said_of("q", 7, BEFORE)
    assert "written twice" not in said_of("q", 0, None)
    said = said_of("new", 0, BEFORE)
    assert (
        "query new is written as a new stream of txnAppId 'app' (topic t, txnIdPrefix 'p');" in said
    )
    assert "query q wrote for it before, until micro-batch 6" in said
    said = said_of("q", 7, None)
    assert "micro-batch 7 of query q is not the first, but the commit log has no mi" in said
    assert "either all earlier micro-batches had no rows, or they were written without" in said
    assert "without exactlyOnce, by another sink or with Spark Connect, or txnAppId" in said
    versions = CommitRecord(RecordState.DONE, "run", 5, 1).after_version(6)
    assert said_of("q", 7, versions) == said, "with Spark Connect, versions are recorded"
    for changed in ("commitLogTopic", "cluster", "checkpointLocation"):
        assert changed in said
    assert len(modes.committed) == 5


def skips(*rows: int) -> list[SkippedMessage]:
    """Return what tasks of a replay report."""
    micro_batch = MICRO_BATCH._replace(batch_id=6)
    return [SkippedMessage(rows=each, plan=PLAN, micro_batch=micro_batch) for each in rows]


def test_a_replay_is_compared(modes: Modes, capsys: pytest.CaptureFixture[str]) -> None:
    commit_micro_batch(options(), skips(1, 0, 1), 6)
    assert modes.committed == []
    assert "skipped: micro-batch 6 of query q was written before" in capsys.readouterr().err
    with pytest.raises(KafkaException, match="has 3 rows now, and had 2 when"):
        commit_micro_batch(options(), skips(1, 2), 6)


def test_tasks_of_two_micro_batches_are_not_committed(modes: Modes) -> None:
    other = message(1)
    other.micro_batch = MICRO_BATCH._replace(batch_id=8)
    with pytest.raises(KafkaException, match="had 2 plans"):
        commit_micro_batch(options(), [message(1), other], 7)
    assert modes.committed == []


@MODES
def test_an_abort_says_what_came_of_it_and_raises_nothing(
    modes: Modes, mode: Mode, capsys: pytest.CaptureFixture[str]
) -> None:
    abort_batch(options(mode, 7), PLAN, [None])
    abort_micro_batch(options(mode), [None, message(1)], 7)
    abort_micro_batch(options(mode), [None], 7)
    assert modes.aborted == [(mode.value, PLAN)] * 3
    assert capsys.readouterr().err.count("pykafka: it was aborted") == 3
    abort_micro_batch(options(mode), [message(1), SkippedMessage(plan=PLAN)], 7)
    two_phase = [True, True, True, False]
    assert modes.are_missing == (two_phase if mode is Mode.TWO_PHASE else [None] * 4)
    modes.error = KafkaException("nobody answers")
    abort_batch(options(mode, 7), PLAN, [None])
    said = capsys.readouterr().err
    assert "could not be aborted now (nobody answers); the brokers abort it within 1000 ms" in said


@MODES
@pytest.mark.parametrize("has_messages", [True, False])
@pytest.mark.parametrize("level", [1, 2])
def test_the_abort_of_a_replay_does_not_say_that_its_rows_are_not_visible(
    modes: Modes,
    mode: Mode,
    level: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    *,
    has_messages: bool,
) -> None:
    plan = replace(PLAN, run=replace(PLAN.run, level=level))
    skipped = [replace(each, plan=plan) for each in skips(1, 2)]
    given = replace(options(mode), report_path=tmp_path / "reports.jsonl")
    if has_messages:
        abort_micro_batch(given, [*skipped, None], 6)
    else:
        ExactlyOnceMicroBatchWriter(
            given, plan, MICRO_BATCH._replace(batch_id=6), is_written=True
        ).abort([None])
    why = "micro-batch 6 of query q was written before"
    assert capsys.readouterr().err == (
        f"pykafka: micro-batch 6 failed; it wrote no row, because {why}\n"
    )
    report = json.loads((tmp_path / "reports.jsonl").read_text())
    assert (report["exactly_once"]["skipped"], report["query_id"]) == (why, "q")
    assert (report["complete"], report["unreported_tasks"]) == (False, 1)
    # At level 1, the plan of mode single has begun a transaction.
    is_open = mode is Mode.SINGLE and level == 1
    assert modes.aborted == [(mode.value, plan)] * is_open


@MODES
def test_an_abort_without_messages_does_not_know_whether_the_micro_batch_was_a_replay(
    modes: Modes, mode: Mode, capsys: pytest.CaptureFixture[str]
) -> None:
    abort_micro_batch(options(mode), [None, None], 6)
    assert capsys.readouterr().err == (
        "pykafka: it was aborted; if this run was a replay of micro-batch 6 of query q, the rows "
        "are visible, because an earlier run wrote them\n"
    )
    abort_micro_batch(options(mode), [None, None], 7)
    abort_micro_batch(options(mode), [None, message(1)], 6)
    assert capsys.readouterr().err == 2 * "pykafka: it was aborted\n"
    assert len(modes.aborted) == 3


@MODES
def test_an_abort_without_a_plan_says_until_when_a_transaction_may_be_open(
    modes: Modes, mode: Mode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactly_once_commit, "kept_plan", lambda _: None)
    abort_micro_batch(options(mode), [None], 6)
    assert modes.aborted == []
    said = capsys.readouterr().err
    assert "its plan is not in the folder of the driver" in said
    timeout_ms = options().producer.transaction_timeout_ms
    assert f"brokers abort it within {timeout_ms} ms, and read_committed consumers may" in said


@MODES
def test_a_failed_run_has_a_report_and_prints_its_abort_alone(
    modes: Modes, mode: Mode, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = replace(options(mode, 7), report_path=tmp_path / "report.json")
    abort_batch(given, PLAN, [message(3, is_stream=False), None])
    assert capsys.readouterr().err == "pykafka: it was aborted\n"
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["complete"], report["exactly_once"]["mode"]) == (False, mode.value)
    abort_micro_batch(options(mode), [message(1)], 8)
    assert "micro-batch 8 failed" not in capsys.readouterr().err
    abort_batch(replace(given, quiet=True), PLAN, [None])
    assert capsys.readouterr().err == "pykafka: it was aborted\n", "which is no report"


@MODES
@pytest.mark.parametrize("is_committed", [True, False])
def test_the_report_of_an_abort_says_whether_the_write_is_committed_all_the_same(
    modes: Modes, mode: Mode, tmp_path: Path, *, is_committed: bool
) -> None:
    modes.is_committed = is_committed
    given = replace(options(mode, 7), report_path=tmp_path / "reports.jsonl")
    abort_batch(given, PLAN, [message(3, is_stream=False)], 7)
    abort_micro_batch(given, [message(3)], 7)
    lines = (tmp_path / "reports.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    assert [(report["complete"], report["tasks"]) for report in reports] == [(is_committed, 1)] * 2
    assert len(modes.aborted) == 2

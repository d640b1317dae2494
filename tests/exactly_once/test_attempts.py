"""Attempts of tasks that fail, go on when they should not, or meet: each row once, or none.

The test plays Spark's part, so that it is certain which attempt is first. Rows of an attempt that
comes later are written while the input of an earlier one is being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from conftest import NewTopic
from pyspark.sql.datasource import WriterCommitMessage
from support.oracles.readers import read_with_confluent
from support.spark.single_job import SingleJob, batches, handed_over

from exactly_once.transactions import answer, open_transactions, wait_until
from spark_kafka_sink.commit.questions import DescribeProducers, ProducersDescribed
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.report import SinkCommitMessage
from spark_kafka_sink.spark.tasks.single_task import SingleTask
from spark_kafka_sink.spark.tasks.task_rows import TaskRows
from spark_kafka_sink.spark.tasks.two_phase_task import TwoPhaseTask

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

Batches = Iterator[pa.RecordBatch]
OTHERS = {1: ["b"], 3: ["c", "d"]}


@pytest.fixture
def job(job: SingleJob) -> SingleJob:
    """A job whose rows do not linger."""
    job.options["kafka.linger.ms"] = "5"
    return job


@pytest.fixture
def is_open(job: SingleJob, client: CommitClient) -> Callable[[int], bool]:
    """Whether a partition has rows of an open transaction."""

    def ask(partition: int) -> bool:
        found = answer(client, DescribeProducers(TopicPartition(job.topic, partition)))
        assert isinstance(found, ProducersDescribed)
        return any(each.transaction_start >= 0 for each in found.producers)

    return ask


@pytest.fixture
def sent(is_open: Callable[[int], bool]) -> Callable[[int], None]:
    """Waits until a partition has rows of a transaction."""
    return lambda partition: wait_until(lambda: is_open(partition), f"no rows in {partition}")


def others(job: SingleJob, writer: object) -> list[WriterCommitMessage | None]:
    """Run the tasks but the first."""
    return [
        job.attempt(writer, number, batches(number, OTHERS.get(number, ())))  # type: ignore[arg-type]
        for number in range(1, 4)
    ]


def fails_before_a_row() -> Batches:
    raise RuntimeError("the input fails")
    yield from ()


def fails_after_a_row() -> Batches:
    yield from batches(0, ["failed"])
    raise RuntimeError("the input fails")


@pytest.mark.parametrize("rows", [fails_before_a_row, fails_after_a_row])
def test_a_task_whose_input_fails_runs_again_in_both_modes(
    job: SingleJob, client: CommitClient, rows: Callable[[], Batches]
) -> None:
    writer = job.plan()
    with pytest.raises(RuntimeError, match="the input fails"):
        job.attempt(writer, 0, rows())
    again = job.attempt(writer, 0, batches(0, ["a"]), 1)
    handed_over(writer).commit([again, *others(job, writer)])
    assert job.committed == ["a", "b", "c", "d"]
    assert open_transactions(client, job.topic) == []


@pytest.mark.parametrize("when", ["rows are sent", "all is acknowledged", "it returns"])
def test_a_task_that_fails_once_rows_are_sent_runs_again_or_the_job_fails(
    job: SingleJob,
    mode: str,
    when: str,
    client: CommitClient,
    sent: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows() -> Batches:
        yield from batches(0, ["failed"])
        if when == "rows are sent":
            if mode == "two-phase":
                sent(0)
            raise RuntimeError("the task fails")

    task = SingleTask if mode == "single" else TwoPhaseTask
    owner, name = (task, "end") if when == "all is acknowledged" else (TaskRows, "finish")
    real = getattr(owner, name)

    def fail(*given: object) -> None:
        real(*given)
        raise RuntimeError("the task fails")

    writer = job.plan()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(RuntimeError, match="the task fails"):
            job.attempt(writer, 0, rows())
    if mode == "single" and when != "rows are sent":
        with pytest.raises(KafkaException, match="another attempt of this task has written to"):
            job.attempt(writer, 0, batches(0, ["a"]), 1)
        handed_over(writer).abort([None] * 4)
        writer = job.plan()
    again = job.attempt(writer, 0, batches(0, ["a"]), 1)
    handed_over(writer).commit([again, *others(job, writer)])
    assert job.committed == ["a", "b", "c", "d"]
    assert open_transactions(client, job.topic) == []


@pytest.mark.long(reason="the simulator has attempts of every kind in make test")
@pytest.mark.parametrize("when", ["before the commit", "after it"])
def test_an_attempt_that_goes_on_after_its_successor_has_written_changes_nothing(
    job: SingleJob,
    mode: str,
    when: str,
    client: CommitClient,
    is_open: Callable[[int], bool],
    sent: Callable[[int], None],
) -> None:
    writer = job.plan()
    messages: list[WriterCommitMessage | None] = []

    def rows() -> Batches:
        yield from batches(0, ["a"])
        if mode == "two-phase":
            sent(0)
        successor = job.attempt(writer, 0, batches(0, ["a"]), 1)
        messages.extend([successor, *others(job, writer)])
        if when == "after it":
            handed_over(writer).commit(messages)
            # Before the marker of the abort, brokers accept a late row, and abort it.
            wait_until(lambda: not is_open(0), "the transaction is open")
        yield from batches(0, ["late"])

    if mode == "single" or when == "after it":
        with pytest.raises(KafkaException):
            job.attempt(writer, 0, rows())
    else:
        job.attempt(writer, 0, rows())
    if when == "before the commit":
        handed_over(writer).commit(messages)
    assert job.committed == ["a", "b", "c", "d"]
    assert open_transactions(client, job.topic) == []


@pytest.mark.long(reason="the simulator has attempts of every kind in make test")
def test_two_attempts_with_one_number_take_two_ids_and_the_one_that_spark_takes_counts(
    job: SingleJob, mode: str, client: CommitClient
) -> None:
    if mode == "single":
        pytest.skip("all attempts have the id of the driver")
    writer = job.plan()
    first = job.attempt(writer, 0, batches(0, ["a"]))
    second = job.attempt(writer, 0, batches(0, ["a"]))
    assert [_slot_of(first), _slot_of(second)] == ["0.0", "0.1"]
    handed_over(writer).commit([first, *others(job, writer)])
    assert job.committed == ["a", "b", "c", "d"]
    assert open_transactions(client, job.topic) == []


def _slot_of(message: WriterCommitMessage) -> str:
    assert isinstance(message, SinkCommitMessage)
    assert message.transaction is not None
    return str(message.transaction.slot)


@pytest.mark.parametrize("second", [["x", "y"], ["x"], ["x", "y", "z"]], ids=len)
def test_two_writers_of_one_partition_never_lose_a_row_in_silence(
    job: SingleJob, mode: str, second: list[str]
) -> None:
    """Both have looked before either writes: only the answers of the broker can tell."""
    writer = job.plan()
    messages: list[WriterCommitMessage | None] = []

    def rows() -> Batches:
        yield from batches(0, ["a", "b"])
        messages.append(job.attempt(writer, 1, batches(0, second)))

    if mode == "two-phase":
        messages.append(job.attempt(writer, 0, rows()))
        handed_over(writer).commit(messages)
        assert job.committed == sorted(["a", "b", *second])
        return

    def run_both() -> None:
        messages.append(job.attempt(writer, 0, rows()))
        handed_over(writer).commit(messages)

    with pytest.raises(KafkaException, match=f"{job.topic}-0"):
        run_both()
    handed_over(writer).abort(messages)
    assert job.committed == []


@pytest.mark.long(reason="the simulator has attempts of every kind in make test")
def test_a_batch_that_vanished_after_its_response_is_missed_before_the_decision(
    job: SingleJob, client: CommitClient
) -> None:
    """The message says one row more than the partition has, as after a loss of the last batch."""
    writer = job.plan()
    first = job.attempt(writer, 0, batches(0, ["a"]))
    assert isinstance(first, SinkCommitMessage)
    assert first.transaction is not None
    (written,) = first.transaction.written
    more = written._replace(records=2, last_offset=written.last_offset + 1, last_sequence=1)
    first.transaction = replace(first.transaction, written=(more,))
    messages = [first, *others(job, writer)]
    with pytest.raises(KafkaException, match=f"{job.topic}-0 holds .* 2 records .* acknowledged"):
        handed_over(writer).commit(messages)
    handed_over(writer).abort(messages)
    assert job.committed == []
    assert open_transactions(client, job.topic) == []


def test_rows_of_an_attempt_that_are_in_no_message_fail_the_job_or_are_aborted(
    job: SingleJob, mode: str, client: CommitClient
) -> None:
    writer = job.plan()
    job.attempt(writer, 0, batches(2, ["unreported"]))
    messages = [job.attempt(writer, 0, batches(0, ["a"]), 1), *others(job, writer)]
    if mode == "two-phase":
        handed_over(writer).commit(messages)
        assert job.committed == ["a", "b", "c", "d"]
    else:
        with pytest.raises(KafkaException, match=f"{job.topic}-2"):
            handed_over(writer).commit(messages)
        handed_over(writer).abort(messages)
        assert job.committed == []
    assert open_transactions(client, job.topic) == []


@pytest.mark.long(reason="the simulator has attempts of every kind in make test")
def test_an_abort_frees_readers_while_another_task_still_writes(
    job: SingleJob, mode: str, client: CommitClient, sent: Callable[[int], None]
) -> None:
    writer = job.plan()

    def rows() -> Batches:
        yield from batches(0, ["a"])
        if mode == "two-phase":
            sent(0)
        handed_over(writer).abort([None] * 4)
        assert open_transactions(client, job.topic) == []
        assert job.committed == []
        yield from batches(0, ["late"])

    with pytest.raises(KafkaException) as raised:
        job.attempt(writer, 0, rows())
    if client.level(client.now() + 10) == 2:
        assert "the job failed or was cancelled" in str(raised.value)
    assert "superseded" not in str(raised.value)
    assert job.committed == []
    assert open_transactions(client, job.topic) == []
    messages = job.run({0: ["a"], **OTHERS})
    assert len(messages) == 4
    assert job.committed == ["a", "b", "c", "d"]


@pytest.mark.long(reason="the simulator has attempts of every kind in make test")
@pytest.mark.usefixtures("aborts_wait_for_long")
def test_an_abort_ends_what_a_task_opens_while_its_rows_linger(
    job: SingleJob, mode: str, client: CommitClient
) -> None:
    if mode == "single":
        pytest.skip("the driver's abort is the only one")
    job.options["kafka.linger.ms"] = "600"
    writer = job.plan()

    def rows() -> Batches:
        yield from batches(0, ["a"])
        handed_over(writer).abort([None] * 4)
        assert open_transactions(client, job.topic) == []
        yield from batches(0, ["late"])

    with pytest.raises(KafkaException):
        job.attempt(writer, 0, rows())
    assert job.committed == []
    assert open_transactions(client, job.topic) == []


@pytest.mark.long(reason="the simulator has attempts of every kind in make test")
@pytest.mark.parametrize("option", ["deadLetterTopic", "deadLetterPath"])
def test_dead_letters_are_there_once_in_two_phase_and_at_least_once_in_files(
    job: SingleJob, mode: str, option: str, new_topic: NewTopic, driver_folder: object
) -> None:
    if mode == "single" and option == "deadLetterTopic":
        pytest.skip("it is refused: every task would write to it")
    letters = new_topic(1)
    job.options["onError"] = "deadLetter"
    job.options[option] = letters if option == "deadLetterTopic" else f"{driver_folder}/letters"
    large = "x" * 1_500_000  # more than max.message.bytes of both topics

    failed = job.plan()
    job.write(failed, {0: ["a", large], **OTHERS})
    handed_over(failed).abort([None] * 4)
    if option == "deadLetterTopic":
        assert read_with_confluent(job.cluster.bootstrap, letters) == []
    messages = job.run({0: ["a", large], **OTHERS})
    assert job.committed == ["a", "b", "c", "d"]
    bad = [m.bad_rows.rows for m in messages if isinstance(m, SinkCommitMessage)]
    assert bad == [1, 0, 0, 0]
    if option == "deadLetterTopic":
        assert len(read_with_confluent(job.cluster.bootstrap, letters)) == 1


@pytest.mark.parametrize("on_error", ["skip", "deadLetter"])
def test_a_row_that_a_broker_refuses_fails_the_job_whatever_on_error_says(
    job: SingleJob, on_error: str, new_topic: NewTopic, driver_folder: object
) -> None:
    topic = new_topic(4, {"cleanup.policy": "compact"})  # it has no place for rows without key
    job.topic = job.options["topic"] = topic
    job.options["onError"] = on_error
    if on_error == "deadLetter":
        job.options["deadLetterPath"] = f"{driver_folder}/letters"
    with pytest.raises(KafkaException, match="INVALID_RECORD"):
        job.run({0: ["a"]})
    assert job.committed == []


def test_rows_of_partitions_that_do_not_exist_are_skipped(job: SingleJob) -> None:
    job.options["onError"] = "skip"
    writer = job.plan()
    rows = [*batches(4, ["bad"]), *batches(-1, ["bad"]), *batches(0, ["a"])]
    first = job.attempt(writer, 0, rows)
    handed_over(writer).commit([first, *others(job, writer)])
    assert job.committed == ["a", "b", "c", "d"]
    assert isinstance(first, SinkCommitMessage)
    assert first.bad_rows.rows == 2

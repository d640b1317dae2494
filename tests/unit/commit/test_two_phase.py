"""Mode two-phase: what a task and the driver ask, and what they say. The model has the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.pure.scripted_machine import kind_of, run

from spark_kafka_sink.commit import two_phase
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run, WrittenPartition
from spark_kafka_sink.commit.log_record import (
    CommitRecord,
    DecidedTransaction,
    LogReading,
    RecordState,
    VersionSet,
)
from spark_kafka_sink.commit.names import TaskSlot, checked_owner
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Claimed,
    Committed,
    Decided,
    Superseded,
    Torn,
    Undecided,
    Unfinished,
)
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    ActiveProducer,
    Added,
    AddPartitions,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    EndTxn,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
    LogRead,
    MarkerRead,
    OpenTransaction,
    ProducersDescribed,
    Question,
    ReadLog,
    ReadMarker,
    Reply,
    Unanswered,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit.steps import Failure, FailureKind
from spark_kafka_sink.errors import ProducerFencedException, TransactionAbortedException
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker

OWNER = checked_owner("pykafka", "flights", "t")
LOG = TopicPartition("__pykafka_commits", 0)
PARTITION = TopicPartition("t", 0)
PRODUCER, RAISED = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(7, 4)
WRITER, LOSER = ProducerIdAndEpoch(20, 1), ProducerIdAndEpoch(21, 2)
RUN = Run(OWNER, "run 1", LOG, level=2, timeout_ms=900_000)
PLAN = Plan(RUN, PRODUCER)
SLOT = TaskSlot(0, 0)
TASK, LEFT = OWNER.task_id(SLOT), OWNER.task_id(TaskSlot(0, 1))
ATTEMPT = AttemptTransaction(SLOT, WRITER, (WrittenPartition(PARTITION, 5, 20, 24, 4),))
RECORD = CommitRecord(RecordState.DONE, "run 1", 5, 1, versions=VersionSet().adding(7))
DECIDED = replace(
    RECORD,
    state=RecordState.DECIDED,
    transactions=(DecidedTransaction(SLOT, WRITER, PARTITION, 20),),
)
OPEN = Described(ONGOING, WRITER, 900_000, 1000, frozenset({PARTITION}))
DRIVERS = Described(ONGOING, PRODUCER, 900_000, 100_000, frozenset({LOG}))
FINE: dict[Any, list[Reply]] = {
    # C2, the driver's, C3.
    DescribeTransaction: [OPEN, DRIVERS, OPEN],
    DescribeProducers: [ProducersDescribed((ActiveProducer(WRITER, 4, 20),))],
    AddPartitions: [Added()],
    WriteRecord: [Written(3)],
    "commit": [Ended(RAISED)],
    "abort": [Ended()],
    ReadLog: [LogRead()],
    ListTransactions: [Listed()],
    ReadMarker: [MarkerRead(Marker.COMMIT)],
}


def commit(
    script: dict[Any, list[Reply]],
    attempts: tuple[AttemptTransaction, ...] = (ATTEMPT,),
    *,
    level: int = 2,
    deadline: float = 100.0,
) -> tuple[Any, list[Question]]:
    """Run a commit; script: what is other than fine."""
    begun = two_phase.begin_commit(PLAN, attempts, RECORD, level=level, deadline=deadline)
    machine, asked = run(begun, two_phase.step, FINE | script)
    return machine.outcome, asked


def abort(
    script: dict[Any, list[Reply]], *, level: int = 2, seconds: float = 1.0
) -> tuple[Any, list[Question]]:
    """Run an abort; script: what is other than fine."""
    begun = two_phase.begin_abort(PLAN, (ATTEMPT,), level=level, deadline=100.0)
    machine, asked = run(begun, two_phase.step_abort, FINE | script, seconds=seconds)
    return machine.outcome, asked


def kinds(asked: list[Question]) -> list[Any]:
    """Return what was asked."""
    return [kind_of(question.ask) for question in asked]


def writes(asked: list[Question]) -> list[WriteRecord]:
    """Return the records that were written."""
    return [each.ask for each in asked if isinstance(each.ask, WriteRecord)]


# -- the commit -----------------------------------------------------------------------------------


def test_a_commit_looks_decides_ends_and_writes_done() -> None:
    outcome, asked = commit({})
    assert outcome == Committed(RECORD)
    assert kinds(asked) == [
        DescribeTransaction, DescribeProducers, WriteRecord, DescribeTransaction,
        DescribeTransaction, "commit", "commit", ListTransactions, WriteRecord, "commit",
    ]  # fmt: skip
    decided, done = writes(asked)
    assert (decided.record, decided.producer, decided.sequence) == (DECIDED, PRODUCER, 0)
    assert (done.record, done.producer, done.sequence) == (RECORD, RAISED, 0)
    assert asked[6].ask == EndTxn(TASK, WRITER, commit=True, version=5)


def test_at_level_1_the_log_is_added_and_done_has_the_next_sequence_of_the_same_epoch() -> None:
    outcome, asked = commit({"commit": [Ended()]}, level=1)
    assert outcome == Committed(RECORD)
    assert kinds(asked).count(AddPartitions) == 2
    assert [(each.producer, each.sequence) for each in writes(asked)] == [
        (PRODUCER, 0), (PRODUCER, 1)
    ]  # fmt: skip
    assert {each.ask.version for each in asked if isinstance(each.ask, EndTxn)} == {4}


def test_what_other_attempts_left_is_aborted_once_done_is_committed() -> None:
    script: dict[Any, list[Reply]] = {
        ListTransactions: [Listed(frozenset({OpenTransaction(LEFT, 21)}))],
        DescribeTransaction: [OPEN, DRIVERS, OPEN, Described(ONGOING, LOSER)],
    }
    outcome, asked = commit(script)
    assert outcome == Committed(RECORD)
    assert asked[-1].ask == EndTxn(LEFT, LOSER, commit=False, version=5)
    # Without the proof that this run is still the newest, the list is worth nothing.
    outcome, asked = commit(script | {"commit": [Ended(RAISED), Ended(RAISED), Ended(error=90)]})
    assert outcome == Committed(RECORD)
    assert "abort" not in kinds(asked)


def test_zero_rows_are_a_decision_alone() -> None:
    outcome, asked = commit({}, (replace(ATTEMPT, written=()),))
    assert outcome == Committed(RECORD)
    assert kinds(asked) == [WriteRecord, "commit"]
    assert writes(asked)[0].record == RECORD


FAILURES: dict[str, tuple[dict[Any, list[Reply]], FailureKind, str]] = {
    "timed out before": (
        {DescribeTransaction: [Described(COMPLETE_ABORT, ProducerIdAndEpoch(20, 2))]},
        FailureKind.TIMED_OUT, f"the transaction of {TASK} is no longer open",
    ),
    "unknown": ({DescribeTransaction: [Described(error=105)]}, FailureKind.TIMED_OUT, "no longer"),
    "timed out meanwhile": (
        {DescribeTransaction: [OPEN, DRIVERS, Described(COMPLETE_ABORT, WRITER)]},
        FailureKind.TIMED_OUT, f"the transaction of {TASK} is no longer open",
    ),
    "a newer run": (
        {DescribeTransaction: [OPEN, Described(EMPTY, RAISED)]},
        FailureKind.SUPERSEDED, "superseded by a newer run of application 'flights'",
    ),
    "rows are missing": (
        {DescribeProducers: [ProducersDescribed((ActiveProducer(WRITER, 2, 20),))]},
        FailureKind.LOST, "t-0 holds records from offset 20 to sequence 2, though 5 records",
    ),
    "a topic that was deleted": (
        {DescribeProducers: [ProducersDescribed(error=3)]}, FailureKind.LOST, "t-0 was deleted",
    ),
    "a record that is too large": (
        {WriteRecord: [Written(error=10)]}, FailureKind.REFUSED, "MESSAGE_TOO_LARGE (10)",
    ),
    "too little time": (
        {DescribeTransaction: [OPEN, replace(DRIVERS, start_ms=841_001), OPEN]},
        FailureKind.TIMED_OUT,
        "the job took 840001 ms from its first row on, and its transactions end after 900000 ms: "
        "raise transaction.timeout.ms",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_what_is_not_as_it_should_be_fails_before_the_decision(name: str) -> None:
    script, kind, said = FAILURES[name]
    outcome, asked = commit(script)
    assert isinstance(outcome, Failure)
    assert outcome.kind is kind
    assert said in outcome.sentence
    assert "commit" not in kinds(asked)
    expected = ProducerFencedException if kind is FailureKind.SUPERSEDED else Exception
    assert isinstance(outcome.exception(), expected)
    if not outcome.error and kind is not FailureKind.SUPERSEDED:
        assert isinstance(outcome.exception(), TransactionAbortedException)


def test_the_last_moment_is_a_fifth_of_the_timeout_and_at_most_a_minute_before_it() -> None:
    just: dict[Any, list[Reply]] = {
        DescribeTransaction: [OPEN, replace(DRIVERS, start_ms=840_999), OPEN]
    }
    assert isinstance(commit(just)[0], Committed)


@pytest.mark.parametrize("error", [47, 48, 49, 90])
def test_a_refused_decision_counts_if_the_log_has_it(error: int) -> None:
    script: dict[Any, list[Reply]] = {
        "commit": [Ended(error=error), Ended(RAISED)],
        ReadLog: [LogRead(LogReading(DECIDED, 3))],
    }
    outcome, asked = commit(script)
    assert outcome == Committed(RECORD)
    assert kinds(asked)[5:8] == ["commit", ReadLog, "commit"]
    outcome, asked = commit({"commit": [Ended(error=error)]})
    assert isinstance(outcome, Failure)
    assert kinds(asked)[5:] == ["commit", ReadLog, "commit", ReadLog]
    assert (asked[7].pause_s, asked[7].looks_up) == (5.0, True)


def test_a_decision_without_an_answer_in_time_is_undecided() -> None:
    outcome, _ = commit({"commit": [Unanswered(13, "connection lost")]}, deadline=12.0)
    assert isinstance(outcome, Undecided)


def test_after_the_decision_a_loss_is_torn_and_a_missing_answer_is_unfinished() -> None:
    torn: dict[Any, list[Reply]] = {
        "commit": [Ended(RAISED), Ended(error=48)],
        ReadMarker: [MarkerRead(Marker.ABORT)],
    }
    outcome, asked = commit(torn)
    assert isinstance(outcome, Torn)
    assert [each.transaction for each in outcome.lost] == list(DECIDED.transactions)
    assert len(writes(asked)) == 1
    unfinished: dict[Any, list[Reply]] = {"commit": [Ended(RAISED), Ended(error=51)]}
    outcome, _ = commit(unfinished, deadline=15.0)
    assert isinstance(outcome, Unfinished)
    assert "CONCURRENT_TRANSACTIONS (51)" in outcome.failure.sentence


@pytest.mark.parametrize(
    "script",
    [
        {ListTransactions: [Listed(error=53)]},
        {WriteRecord: [Written(3), Written(error=47)]},
        {"commit": [Ended(RAISED), Ended(RAISED), Ended(error=48)]},
    ],
)
def test_rows_that_are_visible_are_a_success_without_done(script: dict[Any, list[Reply]]) -> None:
    assert commit(script)[0] == Committed(RECORD)


def test_a_decision_that_the_log_has_is_rolled_forward() -> None:
    begun = two_phase.begin_forward(PLAN, DECIDED, level=2, deadline=100.0)
    machine, asked = run(begun, two_phase.step, FINE)
    assert machine.outcome == Committed(RECORD)
    assert kinds(asked) == ["commit", ListTransactions, WriteRecord, "commit"]
    assert writes(asked)[0].producer == RAISED


# -- the abort ------------------------------------------------------------------------------------


def test_an_abort_proves_that_nothing_can_be_decided_and_ends_all_until_it_is_quiet() -> None:
    lists = [Listed(), Listed(frozenset({OpenTransaction(LEFT, 21)})), Listed(), Listed()]
    script: dict[Any, list[Reply]] = {
        ListTransactions: list(lists),
        DescribeTransaction: [Described(ONGOING, LOSER)],
        "abort": [Ended(RAISED), Ended(), Ended(RAISED), Ended()],
    }
    outcome, asked = abort(script, seconds=0.1)
    assert outcome == Aborted()
    ends = [each.ask for each in asked if isinstance(each.ask, EndTxn)]
    assert [(each.transactional_id, each.producer) for each in ends] == [
        (OWNER.driver_id, PRODUCER), (TASK, WRITER), (OWNER.driver_id, RAISED), (LEFT, LOSER)
    ]  # fmt: skip
    assert kinds(asked).count(ListTransactions) == 4


def test_an_abort_ends_after_five_seconds_and_says_that_tasks_may_go_on() -> None:
    script: dict[Any, list[Reply]] = {
        ListTransactions: [Listed(frozenset({OpenTransaction(LEFT, 21)}))],
        DescribeTransaction: [Described(ONGOING, LOSER)],
    }
    outcome, asked = abort(script)
    assert outcome == Aborted(may_be_open=True)
    assert len(asked) < 20


@pytest.mark.parametrize(("level", "error"), [(2, 90), (1, 90), (2, 47), (2, 49)])
def test_an_abort_of_a_run_that_was_overtaken_does_nothing_more(level: int, error: int) -> None:
    outcome, asked = abort({"abort": [Ended(error=error)]}, level=level)
    assert outcome == Superseded()
    assert kinds(asked) == [ListTransactions, "abort"]


@pytest.mark.parametrize("level", [1, 2])
def test_an_abort_after_the_decision_hands_it_over(level: int) -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48)],
        ReadLog: [LogRead(LogReading(DECIDED, 3))],
    }
    outcome, asked = abort(script, level=level)
    assert outcome == Decided(DECIDED)
    assert kinds(asked) == [ListTransactions, "abort", ReadLog]


def test_at_level_1_a_transaction_without_a_partition_was_not_decided() -> None:
    of_other = LogRead(LogReading(replace(DECIDED, run="run 0"), 3))
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48), Ended(), Ended(error=48)],
        ReadLog: [of_other],
    }
    outcome, asked = abort(script, level=1, seconds=0.1)
    assert outcome == Aborted()
    assert EndTxn(TASK, WRITER, commit=False, version=4) in [each.ask for each in asked]
    # At level 2 the same answer means that the decision is committed.
    outcome, asked = abort(script | {"abort": [Ended(error=48)]})
    assert isinstance(outcome, Failure)
    assert "nothing is aborted" in outcome.sentence
    assert kinds(asked) == [ListTransactions, "abort", ReadLog]


@pytest.mark.parametrize("level", [1, 2])
def test_an_abort_waits_for_the_marker_of_the_decision(level: int) -> None:
    pending = LogRead(LogReading(undecided=DECIDED))
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48)],
        ReadLog: [pending, pending, LogRead(LogReading(DECIDED, 3))],
    }
    outcome, asked = abort(script, level=level)
    assert outcome == Decided(DECIDED)
    assert kinds(asked) == [ListTransactions, "abort", ReadLog, ReadLog, ReadLog]
    outcome, _ = abort(script | {ReadLog: [pending]}, level=level)
    assert isinstance(outcome, Failure)


def test_an_abort_without_an_answer_in_time_is_a_failure() -> None:
    outcome, _ = abort({"abort": [Unanswered(13)]}, seconds=30.0)
    assert outcome.kind is FailureKind.NO_ANSWER


# -- a task ---------------------------------------------------------------------------------------


def claim(script: dict[Any, list[Reply]], *, deadline: float = 100.0) -> tuple[Any, list[Question]]:
    """Run a task until it may write."""
    begun = two_phase.begin_task(PLAN, 4, 1, deadline=deadline)
    machine, asked = run(begun, two_phase.step_task, script)
    return machine.outcome, asked


HIS = Described(EMPTY, PRODUCER)


def test_a_task_takes_the_first_free_slot_from_its_attempt_on() -> None:
    taken = [Described(state, WRITER) for state in (ONGOING, PREPARE_COMMIT, "PrepareEpochFence")]
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [HIS, *taken, Described(COMPLETE_COMMIT, WRITER)],
        InitProducerId: [Initialized(LOSER)],
    }
    outcome, asked = claim(script)
    assert outcome == Claimed(TaskSlot(4, 4), LOSER)
    assert kinds(asked) == [DescribeTransaction] * 5 + [InitProducerId]
    assert asked[-1].ask == InitProducerId(OWNER.task_id(TaskSlot(4, 4)), 900_000)


def test_an_id_that_brokers_do_not_know_is_free() -> None:
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [HIS, Described(error=105)],
        InitProducerId: [Initialized(LOSER)],
    }
    assert claim(script)[0] == Claimed(TaskSlot(4, 1), LOSER)


def test_a_task_whose_claim_has_to_wait_looks_again() -> None:
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [HIS, Described(error=105), Described(ONGOING, WRITER), Described()],
        InitProducerId: [Initialized(error=51), Initialized(LOSER)],
    }
    outcome, asked = claim(script)
    assert outcome == Claimed(TaskSlot(4, 2), LOSER)
    assert kinds(asked)[2:4] == [InitProducerId, DescribeTransaction]


@pytest.mark.parametrize("found", [Described(ONGOING, RAISED), Described(error=105)])
def test_a_task_of_an_older_run_is_superseded(found: Described) -> None:
    outcome, asked = claim({DescribeTransaction: [found]})
    assert outcome.kind is FailureKind.SUPERSEDED
    assert len(asked) == 1


@pytest.mark.parametrize("reply", [Initialized(error=51), Unanswered(13)])
def test_a_task_without_an_id_in_time_fails(reply: Reply) -> None:
    script: dict[Any, list[Reply]] = {DescribeTransaction: [HIS], InitProducerId: [reply]}
    outcome, _ = claim(script, deadline=9.0)
    assert outcome.kind is FailureKind.NO_ANSWER
    assert "no transactional id for partition 4 of application 'flights'" in outcome.sentence
    assert claim({DescribeTransaction: [Unanswered(13)]}, deadline=9.0)[0].error == 13
    script[InitProducerId] = [Initialized(error=53)]
    assert claim(script)[0].kind is FailureKind.REFUSED

"""The commit of mode two-phase: what the driver asks, and what it says. The model has the rest."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support.pure.planned_run import (
    ATTEMPT,
    DECIDED,
    DRIVERS,
    FINE,
    LEFT,
    LOG,
    LOSER,
    OPEN,
    OWNER,
    PARTITION,
    PLAN,
    PRODUCER,
    RAISED,
    READ_BACK,
    RECORD,
    TASK,
    WRITER,
)
from support.pure.scripted_machine import check_old_leaders_are_asked_again, kind_of, kinds, run

from spark_kafka_sink.commit import two_phase
from spark_kafka_sink.commit.attempts import AttemptTransaction, WrittenPartition
from spark_kafka_sink.commit.log_record import DecidedTransaction, LogReading
from spark_kafka_sink.commit.names import TaskSlot
from spark_kafka_sink.commit.outcomes import Committed, Torn, Undecided, Unfinished
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    EMPTY,
    ONGOING,
    ActiveProducer,
    AddPartitions,
    Answer,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    EndTxn,
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
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.records.batch import Marker


def commit(
    script: dict[Any, list[Reply]],
    attempts: tuple[AttemptTransaction, ...] = (ATTEMPT,),
    *,
    level: int = 2,
    deadline: float = 100.0,
    missing_until: float = 100.0,
    behind_until: float = 0.0,
) -> tuple[Any, list[Question]]:
    """Run a commit; script: what is other than fine."""
    begun = two_phase.begin(
        PLAN,
        attempts,
        RECORD,
        level=level,
        deadline=deadline,
        missing_until=missing_until,
        behind_until=behind_until,
    )
    fine = FINE | {ReadLog: [READ_BACK, LogRead(end=4)]}
    machine, asked = run(begun, two_phase.step, fine | script)
    return machine.outcome, asked


def writes(asked: list[Question]) -> list[WriteRecord]:
    """Return the records that were written."""
    return [each.ask for each in asked if isinstance(each.ask, WriteRecord)]


def test_a_commit_looks_decides_ends_and_writes_done() -> None:
    outcome, asked = commit({})
    assert outcome == Committed(RECORD)
    assert kinds(asked) == [
        DescribeTransaction, DescribeProducers, WriteRecord, ReadLog, DescribeTransaction,
        DescribeTransaction, "commit", "commit", ListTransactions, WriteRecord, "commit",
    ]  # fmt: skip
    decided, done = writes(asked)
    assert (decided.record, decided.producer, decided.sequence) == (DECIDED, PRODUCER, 0)
    assert (done.record, done.producer, done.sequence) == (RECORD, RAISED, 0)
    assert asked[7].ask == EndTxn(TASK, WRITER, commit=True, version=5)


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


@pytest.mark.parametrize("reply", [Unanswered(7, "node 3 did not answer"), Listed(error=53)])
def test_done_is_written_without_the_list_if_a_broker_does_not_give_it(reply: Reply) -> None:
    outcome, asked = commit({ListTransactions: [reply]})
    assert outcome == Committed(RECORD)
    assert kinds(asked)[-3:] == [ListTransactions, WriteRecord, "commit"]
    assert kinds(asked).count(ListTransactions) == 1
    assert writes(asked)[-1].record == RECORD


def test_a_silent_coordinator_of_another_attempt_delays_neither_done_nor_other_aborts() -> None:
    silent = Unanswered(7, "node 3 did not answer")
    other = OWNER.task_id(TaskSlot(0, 2))
    opened = frozenset({OpenTransaction(LEFT, 21), OpenTransaction(other, 22)})
    script: dict[Any, list[Reply]] = {
        ListTransactions: [Listed(opened)],
        DescribeTransaction: [OPEN, DRIVERS, OPEN, silent, Described(ONGOING, LOSER)],
    }
    for end in (Ended(), silent):
        outcome, asked = commit(script | {"abort": [end]})
        assert outcome == Committed(RECORD)
        assert kinds(asked)[-5:] == [
            *[DescribeTransaction] * 2, WriteRecord, "commit", "abort"
        ]  # fmt: skip
        assert asked[-1].ask == EndTxn(other, LOSER, commit=False, version=5)


def test_zero_rows_are_a_decision_alone() -> None:
    outcome, asked = commit({}, (replace(ATTEMPT, written=()),))
    assert outcome == Committed(RECORD)
    assert kinds(asked) == [WriteRecord, ReadLog, "commit"]
    assert writes(asked)[0].record == RECORD


FENCED = Described(COMPLETE_ABORT, ProducerIdAndEpoch(20, 2))
FAILURES: dict[str, tuple[dict[Any, list[Reply]], FailureKind, str]] = {
    "timed out before": (
        {DescribeTransaction: [FENCED, Described(EMPTY, PRODUCER)]},
        FailureKind.TIMED_OUT, f"the transaction of {TASK} is no longer open",
    ),
    "ended by a newer run": (
        {DescribeTransaction: [FENCED, Described(EMPTY, RAISED)]},
        FailureKind.SUPERSEDED, "superseded by a newer run of txnAppId 'flights'",
    ),
    "unknown": ({DescribeTransaction: [Described(error=105)]}, FailureKind.TIMED_OUT, "no longer"),
    "timed out meanwhile": (
        {DescribeTransaction: [OPEN, DRIVERS, Described(COMPLETE_ABORT, WRITER), DRIVERS]},
        FailureKind.TIMED_OUT, f"the transaction of {TASK} is no longer open",
    ),
    "a newer run": (
        {DescribeTransaction: [OPEN, Described(EMPTY, RAISED)]},
        FailureKind.SUPERSEDED, "superseded by a newer run of txnAppId 'flights'",
    ),
    "rows are missing": (
        {DescribeProducers: [ProducersDescribed((ActiveProducer(WRITER, 2, 20),))]},
        FailureKind.LOST, "t-0 holds records from offset 20 on, up to sequence number 2, though 5",
    ),
    "a topic that was deleted": (
        {DescribeProducers: [ProducersDescribed(error=3)]}, FailureKind.LOST, "t-0 was deleted",
    ),
    "a record that is too large": (
        {WriteRecord: [Written(error=10)]}, FailureKind.REFUSED, "MESSAGE_TOO_LARGE (10)",
    ),
    "too little time": (
        {DescribeTransaction: [OPEN, replace(DRIVERS, start_ms=837_001), OPEN]},
        FailureKind.TIMED_OUT,
        "the job took 840001 ms from its first row on, and its transactions time out after 900000 "
        "ms; 60000 ms of this time are for the commit",
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


def test_a_partition_that_a_broker_does_not_know_is_looked_up_again() -> None:
    unknown = ProducersDescribed(error=3)
    held = FINE[DescribeProducers]
    outcome, asked = commit({DescribeProducers: [unknown, *held]})
    assert outcome == Committed(RECORD)
    again = [each for each in asked if isinstance(each.ask, DescribeProducers)]
    assert [each.looks_up for each in again] == [False, True]
    outcome, asked = commit({DescribeProducers: [unknown]}, missing_until=10.0)
    assert "t-0 was deleted after rows were written to it" in outcome.sentence
    assert 8 <= kinds(asked).count(DescribeProducers) <= 10


def test_a_leader_that_lacks_acknowledged_records_is_asked_again_because_it_may_be_an_old_one() -> (
    None
):
    commits = partial(commit, behind_until=10.0)
    check_old_leaders_are_asked_again(commits, WRITER, FINE[DescribeProducers], Committed(RECORD))


def test_what_every_attempt_wrote_to_a_partition_is_checked() -> None:
    other = AttemptTransaction(TaskSlot(1, 0), LOSER, (WrittenPartition(PARTITION, 2, 30, 31, 1),))
    both = ProducersDescribed((ActiveProducer(WRITER, 4, 20), ActiveProducer(LOSER, 1, 30)))
    theirs = Described(ONGOING, LOSER, 900_000, 1000)
    script: dict[Any, list[Reply]] = {
        DescribeProducers: [both], DescribeTransaction: [OPEN, theirs, DRIVERS, OPEN, theirs]
    }  # fmt: skip
    decided = LogRead(end=4)
    outcome, _ = commit(script | {ReadLog: [decided]}, (ATTEMPT, other))
    assert "was aborted before its record was committed" in outcome.sentence, "not looked at"
    one = ProducersDescribed((ActiveProducer(WRITER, 4, 20), ActiveProducer(LOSER, 0, 30)))
    outcome, _ = commit(script | {DescribeProducers: [one]}, (ATTEMPT, other))
    assert "holds records from offset 30 on, up to sequence number 0, though 2" in outcome.sentence


def test_the_last_moment_is_a_fifth_of_the_timeout_and_at_most_a_minute_before_it() -> None:
    just: dict[Any, list[Reply]] = {
        DescribeTransaction: [OPEN, replace(DRIVERS, start_ms=837_000), OPEN]
    }
    assert isinstance(commit(just)[0], Committed)


@pytest.mark.parametrize(("tasks", "needed_ms"), [(1, 200), (20, 200), (30, 250)])
def test_the_last_moment_is_earlier_if_there_are_many_transactions_to_commit(
    tasks: int, needed_ms: int
) -> None:
    plan = replace(PLAN, run=replace(PLAN.run, timeout_ms=1000))
    attempts = tuple(replace(ATTEMPT, slot=TaskSlot(task, 0)) for task in range(tasks))
    opened = replace(OPEN, timeout_ms=1000, start_ms=5000)

    def outcome(left_ms: int) -> object:
        drivers = replace(DRIVERS, start_ms=6000 - left_ms)
        looks: dict[Any, list[Reply]] = {
            DescribeTransaction: [*[opened] * tasks, drivers, opened],
            ReadLog: [READ_BACK],
        }
        begun = two_phase.begin(plan, attempts, RECORD, level=2, deadline=1.0)
        return run(begun, two_phase.step, FINE | looks, seconds=0.0)[0].outcome

    assert outcome(needed_ms) == Committed(RECORD)
    late = outcome(needed_ms - 1)
    assert isinstance(late, Failure)
    assert late.sentence == (
        f"the job took {1001 - needed_ms} ms from its first row on, and its transactions time out "
        f"after 1000 ms; {needed_ms} ms of this time are for the commit"
    )


# Two minutes and a half before the first transaction times out; half a minute is for repetitions.
TIGHT: dict[Any, list[Reply]] = {
    DescribeTransaction: [OPEN, replace(DRIVERS, start_ms=751_000), OPEN]
}
JUST: dict[Any, list[Reply]] = {
    DescribeTransaction: [OPEN, replace(DRIVERS, start_ms=837_000), OPEN]
}


@pytest.mark.parametrize(
    "away",
    [
        {WriteRecord: [*[Unanswered(13)] * 100, Written(3)]},
        {ReadLog: [*[LogRead(end=3)] * 100, READ_BACK]},
    ],
    ids=["while the record is written", "while the record is read back"],
)
def test_time_in_which_the_leader_of_the_log_is_away_counts(away: dict[Any, list[Reply]]) -> None:
    outcome, asked = commit(TIGHT | away, deadline=1000.0)
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.TIMED_OUT
    assert "from its first row on, and its transactions time out after 900000" in outcome.sentence
    assert "commit" not in kinds(asked)


def test_a_decision_is_not_repeated_once_its_transactions_may_time_out() -> None:
    away: dict[Any, list[Reply]] = {"commit": [*[Unanswered(13)] * 29, Ended(RAISED)]}
    assert commit(JUST | away, deadline=1000.0)[0] == Committed(RECORD)
    away = {"commit": [*[Unanswered(13)] * 35, Ended(RAISED)]}
    outcome, asked = commit(JUST | away, deadline=1000.0)
    assert isinstance(outcome, Undecided)
    assert kinds(asked).count("commit") == 30


@pytest.mark.parametrize("away", [0, 10])
def test_the_decision_is_not_sent_while_its_transactions_may_time_out(away: int) -> None:
    lost: dict[Any, list[Reply]] = {"commit": [*[Unanswered(13)] * away, Ended(RAISED)]}
    _, asked = commit(JUST | lost, deadline=1000.0)
    ends = [each.ask for each in asked if isinstance(each.ask, EndTxn)]
    *decisions, task, done = [each.send_by for each in ends]
    # 63 s are left, of which half a minute is for the commits after the decision.
    assert len(decisions) == away + 1
    assert all(30.0 < each <= 33.0 + 10.0 for each in decisions)
    assert len({*decisions}) == 1
    assert (task, done) == (math.inf, math.inf)


def test_a_refused_decision_is_not_sent_again_once_its_transactions_may_time_out() -> None:
    refused: dict[Any, list[Reply]] = {
        "commit": [*[Unanswered(13)] * 25, Ended(error=48), Ended(RAISED)],
        ReadMarker: [MarkerRead(), MarkerRead(Marker.ABORT)],
    }
    outcome, asked = commit(JUST | refused, deadline=1000.0)
    assert isinstance(outcome, Failure)
    assert kinds(asked)[-4:] == ["commit", ReadLog, ReadMarker, ReadMarker]
    pending: dict[Any, list[Reply]] = {
        "commit": [*[Unanswered(13)] * 29, Ended(error=48)], ReadLog: [READ_BACK]
    }  # fmt: skip
    outcome, asked = commit(JUST | pending, deadline=1000.0)
    assert isinstance(outcome, Undecided)
    assert kinds(asked)[-2:] == ["commit", ReadLog]


def test_a_record_that_another_run_wrote_since_the_plan_is_no_decision() -> None:
    other = replace(RECORD, run="run 2")
    for attempts in ((ATTEMPT,), ()):
        script: dict[Any, list[Reply]] = {ReadLog: [LogRead(LogReading(other, 3, DECIDED), end=4)]}
        outcome, asked = commit(script, attempts)
        assert isinstance(outcome, Failure)
        assert outcome.kind is FailureKind.SUPERSEDED
        assert "this run was planned without that record" in outcome.sentence
        assert "commit" not in kinds(asked)


def test_a_leader_that_does_not_have_the_record_yet_is_looked_up_again() -> None:
    outcome, asked = commit({ReadLog: [LogRead(end=3), READ_BACK]})
    assert outcome == Committed(RECORD)
    again = [each for each in asked if kind_of(each.ask) is ReadLog][1]
    assert (again.looks_up, again.pause_s) == (True, 0.1)
    outcome, _ = commit({ReadLog: [LogRead(end=3)]}, deadline=20.0)
    assert isinstance(outcome, Failure)
    assert "the broker that was asked does not have it yet" in outcome.sentence


@pytest.mark.parametrize("error", [47, 48, 49, 90])
def test_a_refused_decision_counts_if_the_log_has_it(error: int) -> None:
    script: dict[Any, list[Reply]] = {
        "commit": [Ended(error=error), Ended(RAISED)],
        ReadLog: [READ_BACK, LogRead(LogReading(DECIDED, 3), end=4)],
    }
    outcome, asked = commit(script)
    assert outcome == Committed(RECORD)
    assert kinds(asked)[6:9] == ["commit", ReadLog, "commit"]
    aborted: dict[Any, list[Reply]] = {
        "commit": [Ended(error=error)], ReadMarker: [MarkerRead(), MarkerRead(Marker.ABORT)]
    }  # fmt: skip
    outcome, asked = commit(aborted)
    assert isinstance(outcome, Failure)
    assert kinds(asked)[6:] == ["commit", ReadLog, "commit", ReadLog, ReadMarker, ReadMarker]
    assert asked[-1].ask == ReadMarker(LOG, 3, PRODUCER)
    assert (asked[8].pause_s, asked[8].looks_up) == (5.0, True)


def test_a_decision_whose_marker_is_behind_a_damaged_batch_is_undecided_at_once() -> None:
    damaged: dict[Any, list[Reply]] = {
        "commit": [Ended(error=48)], ReadMarker: [MarkerRead(error=2)]
    }  # fmt: skip
    outcome, asked = commit(damaged)
    assert isinstance(outcome, Undecided)
    assert kinds(asked).count(ReadMarker) == 1


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
    assert "aborted 1 of its 1 transactions, so that rows are lost" in str(
        outcome.exception(PLAN.run)
    )
    unfinished: dict[Any, list[Reply]] = {"commit": [Ended(RAISED), Ended(error=51)]}
    outcome, _ = commit(unfinished, deadline=15.0)
    assert isinstance(outcome, Unfinished)
    assert "CONCURRENT_TRANSACTIONS (51)" in outcome.failure.sentence


def test_a_transaction_whose_end_is_unknown_does_not_count_as_committed() -> None:
    ids = [OWNER.task_id(TaskSlot(task, 0)) for task in range(3)]
    attempts = tuple(
        replace(ATTEMPT, slot=TaskSlot(task, 0), producer=ProducerIdAndEpoch(20 + task, 1))
        for task in range(3)
    )
    record = replace(
        DECIDED,
        transactions=tuple(
            DecidedTransaction(each.slot, each.producer, PARTITION, 20)
            for each in attempts
            if each.slot is not None
        ),
    )
    machine, questions = two_phase.begin_forward(PLAN, record, level=2, deadline=10.0)
    # The first one is committed, the second one aborted, and the coordinator of the third is away.
    answers: dict[Any, Reply] = {
        ids[0]: Ended(), ids[1]: Ended(error=48), ids[2]: Unanswered(13)
    }  # fmt: skip
    now, asked = 0.0, list(questions)
    while machine.outcome is None:
        ask = asked.pop(0).ask
        reply: Reply = MarkerRead(Marker.ABORT, 4)
        if isinstance(ask, EndTxn):
            reply = answers[ask.transactional_id]
        elif isinstance(ask, DescribeTransaction):
            reply = Described(COMPLETE_ABORT, attempts[1].producer)
        now += 1
        machine, more = two_phase.step(machine, Answer(ask, reply), now)
        asked += more
    assert isinstance(machine.outcome, Torn)
    error = machine.outcome.exception(PLAN.run)
    assert (error.committed, len(error.lost)) == (1, 1)
    assert "aborted 1 of its 3 transactions (the result of 1 more is not known)" in str(error)


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

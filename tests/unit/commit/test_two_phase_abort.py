"""The abort of mode two-phase: what the driver asks, and what it says. The model has the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.pure.planned_run import (
    ATTEMPT,
    DECIDED,
    FINE,
    LEFT,
    LOSER,
    OWNER,
    PLAN,
    PRODUCER,
    RAISED,
    TASK,
    WRITER,
)
from support.pure.scripted_machine import kind_of, kinds, run

from spark_kafka_sink.commit import two_phase_abort
from spark_kafka_sink.commit.log_record import CommitRecord, LogReading
from spark_kafka_sink.commit.outcomes import Aborted, Decided, Superseded
from spark_kafka_sink.commit.questions import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    Answer,
    Ask,
    Described,
    DescribeTransaction,
    Ended,
    EndTxn,
    Listed,
    ListTransactions,
    LogRead,
    OpenTransaction,
    Question,
    ReadLog,
    Reply,
    Unanswered,
)
from spark_kafka_sink.commit.steps import STALE_S, Failure, FailureKind


def abort(
    script: dict[Any, list[Reply]],
    *,
    level: int = 2,
    seconds: float = 1.0,
    is_missing: bool = False,
) -> tuple[Any, list[Question]]:
    """Run an abort; script: what is other than fine."""
    begun = two_phase_abort.begin(
        PLAN, (ATTEMPT,), level=level, deadline=100.0, is_missing=is_missing
    )
    machine, asked = run(begun, two_phase_abort.step, FINE | script, seconds=seconds)
    return machine.outcome, asked


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


@pytest.mark.parametrize("level", [1, 2])
def test_an_abort_ends_what_a_task_without_a_message_opens_after_two_empty_lists(
    level: int,
) -> None:
    late = Listed(frozenset({OpenTransaction(LEFT, 21)}))
    script: dict[Any, list[Reply]] = {
        ListTransactions: [Listed(), Listed(), Listed(), late, Listed()],
        DescribeTransaction: [Described(ONGOING, LOSER)],
    }
    outcome, asked = abort(script, level=level, seconds=0.2, is_missing=True)
    abort_of_late = EndTxn(LEFT, LOSER, commit=False, version=3 + level)
    assert abort_of_late in [each.ask for each in asked]
    # A task that has claimed its transactional id may open a transaction at any later time.
    assert outcome == Aborted(may_be_open=True)


@pytest.mark.parametrize(("level", "error"), [(2, 90), (1, 90), (2, 47), (2, 49)])
def test_an_abort_of_a_run_that_was_overtaken_does_nothing_more(level: int, error: int) -> None:
    outcome, asked = abort({"abort": [Ended(error=error)]}, level=level)
    assert outcome == Superseded()
    assert kinds(asked) == [ListTransactions, "abort", ReadLog]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("record", [DECIDED, DECIDED.done()])
def test_an_abort_that_is_fenced_by_its_own_commit_knows_that_the_run_is_committed(
    level: int, record: CommitRecord
) -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=90)],
        ReadLog: [LogRead(LogReading(undecided=record)), LogRead(LogReading(record, 3))],
    }
    outcome, asked = abort(script, level=level)
    assert outcome == Decided(record)
    assert kinds(asked) == [ListTransactions, "abort", ReadLog, ReadLog]


def test_an_abort_that_a_newer_run_fences_later_does_nothing_more() -> None:
    script: dict[Any, list[Reply]] = {
        ListTransactions: [Listed(), Listed(frozenset({OpenTransaction(LEFT, 21)}))],
        DescribeTransaction: [Described(ONGOING, LOSER)],
        "abort": [Ended(RAISED), Ended(), Ended(error=90)],
    }
    outcome, asked = abort(script, seconds=0.1)
    assert outcome == Superseded()
    assert kinds(asked)[-1] == "abort"


@pytest.mark.parametrize("level", [1, 2])
def test_an_abort_after_the_decision_hands_it_over(level: int) -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48)],
        ReadLog: [LogRead(LogReading(DECIDED, 3))],
    }
    outcome, asked = abort(script, level=level)
    assert outcome == Decided(DECIDED)
    assert [each for each in kinds(asked) if each is not DescribeTransaction] == [
        ListTransactions, "abort", ReadLog
    ]  # fmt: skip


def test_what_another_run_has_decided_is_not_aborted() -> None:
    of_other = LogRead(LogReading(replace(DECIDED, run="run 0"), 3))
    outcome, asked = abort({ReadLog: [of_other]}, seconds=0.1)
    assert outcome == Aborted()
    assert EndTxn(TASK, WRITER, commit=False, version=5) not in [each.ask for each in asked]


def test_at_level_1_a_transaction_without_a_partition_was_not_decided() -> None:
    of_other = LogRead(LogReading(replace(DECIDED.done(), run="run 0"), 3))
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48), Ended(error=48), Ended(), Ended(error=48)],
        DescribeTransaction: [Described(EMPTY, PRODUCER)],
        ReadLog: [of_other],
    }
    outcome, asked = abort(script, level=1, seconds=0.1)
    assert outcome == Aborted()
    assert EndTxn(TASK, WRITER, commit=False, version=4) in [each.ask for each in asked]
    # A task whose message is missing shows that commit() was not called.
    script["abort"] = [Ended(error=48), Ended(), Ended(error=48)]
    outcome, asked = abort(script, level=1, is_missing=True)
    assert outcome == Aborted(may_be_open=True)
    assert kinds(asked)[:4] == [ListTransactions, "abort", DescribeTransaction, ReadLog]
    # At level 2 the same answer means that the decision is committed.
    outcome, asked = abort(script | {"abort": [Ended(error=48)]})
    assert isinstance(outcome, Failure)
    assert "nothing is aborted" in outcome.sentence
    assert set(kinds(asked)) == {ListTransactions, "abort", ReadLog}


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("state", [PREPARE_COMMIT, COMPLETE_COMMIT])
def test_an_abort_of_a_decided_run_that_reads_an_old_end_of_the_log_reads_again(
    level: int, state: str
) -> None:
    old = LogRead(LogReading(replace(DECIDED.done(), run="run 0"), 3))
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48)],
        DescribeTransaction: [Described(state, PRODUCER)],
        ReadLog: [old, old, LogRead(LogReading(DECIDED, 4))],
    }
    outcome, asked = abort(script, level=level)
    assert outcome == Decided(DECIDED)
    assert kinds(asked).count("abort") == 1
    reads = [each for each in asked if isinstance(each.ask, ReadLog)]
    assert [each.looks_up for each in reads] == [False, True, True]


def test_a_coordinator_that_was_replaced_does_not_make_a_decided_run_undecided() -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48)],
        DescribeTransaction: [Described(EMPTY, PRODUCER), Described(COMPLETE_COMMIT, PRODUCER)],
        ReadLog: [LogRead(LogReading(DECIDED, 4))],
    }
    outcome, asked = abort(script, level=1)
    assert outcome == Decided(DECIDED)
    again = [each for each in asked if kind_of(each.ask) == "abort"]
    assert [(each.pause_s, each.looks_up) for each in again] == [(0.0, False), (STALE_S, True)]
    (read,) = [each for each in asked if isinstance(each.ask, ReadLog)]
    assert read.looks_up


def test_a_newer_run_between_the_abort_and_its_question_ends_what_is_open() -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48)],
        DescribeTransaction: [Described(EMPTY, RAISED)],
    }
    outcome, asked = abort(script, level=1)
    assert outcome == Superseded()
    assert kinds(asked) == [ListTransactions, "abort", DescribeTransaction, ReadLog]


@pytest.mark.parametrize("level", [1, 2])
def test_an_abort_waits_for_the_marker_of_the_decision(level: int) -> None:
    pending = LogRead(LogReading(undecided=DECIDED))
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48)],
        DescribeTransaction: [Described(PREPARE_COMMIT, PRODUCER)],
        ReadLog: [pending, pending, LogRead(LogReading(DECIDED, 3))],
    }
    outcome, asked = abort(script, level=level)
    assert outcome == Decided(DECIDED)
    assert kinds(asked).count(ReadLog) == 3
    outcome, _ = abort(script | {ReadLog: [pending]}, level=level)
    assert isinstance(outcome, Failure)


def test_an_abort_without_an_answer_in_time_is_a_failure() -> None:
    outcome, _ = abort({"abort": [Unanswered(13)]}, seconds=30.0)
    assert outcome.kind is FailureKind.NO_ANSWER


CANNOT_BE_FOUND = "the open transactions of the run's tasks cannot be found: "
LOADING = "got COORDINATOR_LOAD_IN_PROGRESS (14)"


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("silent", [Unanswered(13), Listed(error=14)])
def test_what_is_known_is_aborted_at_once_if_no_broker_answers_the_list(
    level: int, silent: Reply
) -> None:
    script: dict[Any, list[Reply]] = {
        ListTransactions: [
            silent, silent, silent, Listed(frozenset({OpenTransaction(LEFT, 21)})), Listed(),
        ],
        DescribeTransaction: [Described(ONGOING, LOSER)],
    }  # fmt: skip
    outcome, asked = abort(script, level=level, seconds=0.1)
    assert outcome == Aborted()
    ends = [each.ask for each in asked if isinstance(each.ask, EndTxn)]
    assert [each.transactional_id for each in ends[:2]] == [OWNER.driver_id, TASK]
    assert EndTxn(LEFT, LOSER, commit=False, version=3 + level) in ends
    # They are ended after the first question, and before the second.
    assert kinds(asked)[:5] == [ListTransactions, "abort", ReadLog, "abort", ListTransactions]


@pytest.mark.parametrize("silent", [Unanswered(13), Listed(error=14)])
def test_an_abort_lists_again_until_its_time_is_over_and_says_why_some_may_be_open(
    silent: Reply,
) -> None:
    outcome, asked = abort({ListTransactions: [silent]}, seconds=10.0)
    assert outcome.may_be_open
    assert outcome.missed.startswith(f"{CANNOT_BE_FOUND}ListTransactions got ")
    assert EndTxn(TASK, WRITER, commit=False, version=5) in [each.ask for each in asked]
    assert kinds(asked).count(ListTransactions) == 7


def test_an_abort_that_may_not_list_ends_what_it_knows_and_asks_once_more() -> None:
    outcome, asked = abort({ListTransactions: [Listed(error=31)]})
    assert outcome.may_be_open
    assert "CLUSTER_AUTHORIZATION_FAILED (31)" in outcome.missed
    assert kinds(asked) == [ListTransactions, "abort", ReadLog, "abort", ListTransactions]


@pytest.mark.parametrize(("error", "times"), [(14, 5), (53, 1)])
def test_what_is_known_is_aborted_though_a_coordinator_does_not_describe_its_transactions(
    error: int, times: int
) -> None:
    script: dict[Any, list[Reply]] = {
        ListTransactions: [Listed(frozenset({OpenTransaction(LEFT, 21)}))],
        DescribeTransaction: [Described(error=error)],
    }
    outcome, asked = abort(script, seconds=10.0)
    assert outcome.may_be_open
    assert outcome.missed.startswith(f"{CANNOT_BE_FOUND}DescribeTransactions got ")
    ends = [each.ask for each in asked if isinstance(each.ask, EndTxn)]
    assert EndTxn(TASK, WRITER, commit=False, version=5) in ends
    assert kinds(asked).count(DescribeTransaction) == times


@pytest.mark.parametrize(
    ("silent", "until"), [(Unanswered(13), 20.0), (Described(error=53), two_phase_abort.SETTLES_S)]
)
def test_an_abort_ends_the_transactions_of_other_coordinators_than_the_silent_one(
    silent: Reply, until: float
) -> None:
    is_open = {TASK, LEFT}

    def reply(ask: Ask) -> Reply:
        if isinstance(ask, ListTransactions):
            return Listed(frozenset(OpenTransaction(name, 1) for name in is_open))
        if getattr(ask, "transactional_id", None) == TASK:
            return silent
        if isinstance(ask, EndTxn):
            is_open.discard(ask.transactional_id)
        return Described(ONGOING, LOSER) if isinstance(ask, DescribeTransaction) else LogRead()

    now = 0.0
    left: list[Question] = []
    machine, questions = two_phase_abort.begin(PLAN, (), level=2, deadline=20.0)
    while machine.outcome is None:
        left += questions
        now += 0.5
        ask = left.pop(0).ask
        machine, questions = two_phase_abort.step(machine, Answer(ask, reply(ask)), now)
    assert is_open == {TASK}
    assert until <= now <= until + 5
    assert isinstance(machine.outcome, Aborted)
    assert machine.outcome.missed.startswith(CANNOT_BE_FOUND)


def test_an_abort_says_which_request_got_no_answer_if_a_known_transaction_stays_open() -> None:
    script: dict[Any, list[Reply]] = {"abort": [Ended(RAISED), Ended(error=14)]}
    outcome, _ = abort(script, seconds=10.0)
    assert outcome == Aborted(
        may_be_open=True,
        missed=f"a transaction of the run's tasks cannot be aborted: EndTxn (abort) {LOADING}",
    )

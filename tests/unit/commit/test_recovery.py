"""The recovery of owners: what it asks, what it never asks, and what it returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.pure.scripted_machine import kind_of, run

from spark_kafka_sink.commit import recovery, survey
from spark_kafka_sink.commit.log_record import (
    CommitRecord,
    DecidedTransaction,
    LogReading,
    RecordState,
)
from spark_kafka_sink.commit.names import TaskSlot, checked_owner
from spark_kafka_sink.commit.outcomes import LostTransaction
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    AllRecordsRead,
    Answer,
    Described,
    DescribeTransaction,
    Ended,
    EndTxn,
    Listed,
    ListTransactions,
    LogRead,
    MarkerRead,
    OpenTransaction,
    Question,
    ReadAllRecords,
    ReadLog,
    ReadMarker,
    Reply,
    Unanswered,
)
from spark_kafka_sink.commit.recovery import Fate, OpenSince, Recovered
from spark_kafka_sink.commit.steps import Failure, FailureKind, Step
from spark_kafka_sink.commit.survey import FoundOwner, Surveyed
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker

OWNER = checked_owner("pykafka", "flights", "t")
OTHER = checked_owner("pykafka", "flights", "u")
FOREIGN = checked_owner("pykafka.2", "flights", "t")
FIRST, SECOND = OWNER.task_id(TaskSlot(0, 0)), OWNER.task_id(TaskSlot(1, 0))
WRITER, OTHER_WRITER = ProducerIdAndEpoch(20, 1), ProducerIdAndEpoch(21, 5)
DONE = CommitRecord(RecordState.DONE, "run 1", 5, 1).after_version(7)
DECIDED = replace(
    DONE,
    state=RecordState.DECIDED,
    transactions=(DecidedTransaction(TaskSlot(0, 0), WRITER, TopicPartition("t", 3), 20),),
)
FOUND = FoundOwner(OWNER, LogReading(DECIDED, 3), ())
NOT_THERE = Described(error=105)
FINE: dict[Any, list[Reply]] = {
    DescribeTransaction: [NOT_THERE, Described(ONGOING, WRITER, 900_000, 5_000)],
    "commit": [Ended(ProducerIdAndEpoch(20, 2))],
    ReadMarker: [MarkerRead(Marker.COMMIT, 7)],
}


def recover(
    script: dict[Any, list[Reply]], found: FoundOwner = FOUND, *, commits: bool = True
) -> tuple[Any, list[Question]]:
    """Recover an owner; script: what is other than fine."""
    begun = recovery.begin(found, level=2, deadline=60.0, more_s=30.0, commits=commits)
    machine, asked = run(begun, recovery.step, FINE | script)
    return machine.outcome, asked


def kinds(asked: list[Question]) -> list[Any]:
    """Return what was asked."""
    return [kind_of(question.ask) for question in asked]


def test_what_is_decided_is_committed_and_nobody_is_fenced() -> None:
    outcome, asked = recover({})
    assert outcome == Recovered(FOUND, (Fate.COMMITTED,), (OpenSince(FIRST, 5_000, 900_000),))
    assert kinds(asked) == [DescribeTransaction, DescribeTransaction, "commit"]
    assert asked[-1].ask == EndTxn(FIRST, WRITER, commit=True, version=5)


def test_a_look_changes_nothing() -> None:
    outcome, asked = recover({}, commits=False)
    assert outcome.fates == (Fate.OPEN,)
    assert kinds(asked) == [DescribeTransaction, DescribeTransaction]


def test_what_no_decision_covers_is_shown_and_not_touched() -> None:
    found = FoundOwner(OWNER, LogReading(DONE, 3), (OWNER.driver_id, SECOND))
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [
            Described(ONGOING, OTHER_WRITER, 60_000, 1_000),
            Described(ONGOING, OTHER_WRITER, 900_000, 2_000),
        ]
    }
    for commits in (True, False):
        outcome, asked = recover(script, found, commits=commits)
        assert outcome == Recovered(
            found,
            undecided=(
                OpenSince(OWNER.driver_id, 1_000, 60_000),
                OpenSince(SECOND, 2_000, 900_000),
            ),
        )
        assert kinds(asked) == [DescribeTransaction, DescribeTransaction]


PENDING = LogReading(DONE, 3, undecided=DECIDED)


@pytest.mark.parametrize("state", [PREPARE_COMMIT, COMPLETE_COMMIT])
@pytest.mark.parametrize(("commits", "fate"), [(True, Fate.COMMITTED), (False, Fate.OPEN)])
def test_a_decision_whose_marker_is_not_written_yet_is_waited_for(
    state: str, fate: Fate, *, commits: bool
) -> None:
    driver = Described(state, ProducerIdAndEpoch(9, 5))
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [driver, Described(ONGOING, WRITER, 900_000, 5_000)],
        ReadLog: [LogRead(PENDING), LogRead(LogReading(DONE, 3)), LogRead(LogReading(DECIDED, 8))],
    }
    # The list may lack the task's transaction.
    for open_ids in ((), (FIRST,)):
        outcome, asked = recover(script, FoundOwner(OWNER, PENDING, open_ids), commits=commits)
        assert outcome.fates == (fate,)
        assert outcome.found.reading == LogReading(DECIDED, 8)
        assert outcome.was_open == (OpenSince(FIRST, 5_000, 900_000),)
        assert outcome.undecided == ()
        assert kinds(asked)[:5] == [DescribeTransaction] * 2 + [ReadLog] * 3
        assert kinds(asked)[5:] == ["commit"] * commits


def test_a_decision_that_the_log_does_not_return_in_time_is_a_failure() -> None:
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [Described(PREPARE_COMMIT, ProducerIdAndEpoch(9, 5)), NOT_THERE],
        ReadLog: [LogRead(PENDING)],
    }
    outcome, _ = recover(script, FoundOwner(OWNER, PENDING, ()))
    assert outcome == Failure(
        FailureKind.NO_ANSWER,
        f"the decision to commit the write of {OWNER} is recorded, but the leader of the commit "
        "log does not return it yet",
    )
    outcome, _ = recover(script | {ReadLog: [LogRead(error=29)]}, FoundOwner(OWNER, PENDING, ()))
    assert "the commit log record of txnAppId 'flights' (topic t) could not be" in outcome.sentence


@pytest.mark.parametrize("driver", [NOT_THERE, Described(ONGOING, ProducerIdAndEpoch(9, 4))])
def test_a_record_of_an_open_transaction_of_the_driver_is_no_decision(driver: Described) -> None:
    script: dict[Any, list[Reply]] = {DescribeTransaction: [driver, Described(ONGOING, WRITER)]}
    outcome, asked = recover(script, FoundOwner(OWNER, PENDING, (FIRST,)))
    assert outcome.fates == ()
    assert FIRST in [each.transactional_id for each in outcome.undecided]
    assert kinds(asked) == [DescribeTransaction, DescribeTransaction]


def test_a_newer_transaction_of_a_decided_id_is_not_taken_for_the_decided_one() -> None:
    newer = Described(ONGOING, ProducerIdAndEpoch(20, 2), 900_000, 5_000)
    script: dict[Any, list[Reply]] = {DescribeTransaction: [NOT_THERE, newer]}
    outcome, _ = recover(script, commits=False)
    assert outcome.fates == (Fate.COMMITTED,)
    assert outcome.was_open == ()
    assert [each.transactional_id for each in outcome.undecided] == [FIRST]


LOST = (LostTransaction(DECIDED.transactions[0], 7),)


@pytest.mark.parametrize("commits", [True, False])
def test_rows_are_lost_if_the_marker_says_so(*, commits: bool) -> None:
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [NOT_THERE, Described(COMPLETE_ABORT, ProducerIdAndEpoch(20, 2))],
        "commit": [Ended(error=48)],
        ReadMarker: [MarkerRead(Marker.ABORT, 7)],
    }
    outcome, asked = recover(script, commits=commits)
    assert outcome.fates == (Fate.LOST,)
    assert outcome.lost == LOST
    assert str(outcome.lost[0].rows) == "7 records of task 0 in t-3 from offset 20 on"
    assert ("commit" in kinds(asked)) == commits


@pytest.mark.parametrize("state", [COMPLETE_COMMIT, PREPARE_COMMIT])
def test_a_look_believes_a_coordinator_that_knows_the_commit(state: str) -> None:
    described = Described(state, ProducerIdAndEpoch(20, 2))
    script: dict[Any, list[Reply]] = {DescribeTransaction: [NOT_THERE, described]}
    outcome, asked = recover(script, commits=False)
    assert outcome.fates == (Fate.COMMITTED,)
    assert ReadMarker not in kinds(asked)


@pytest.mark.parametrize(
    ("reply", "fate", "said"),
    [
        (MarkerRead(is_gone=True), Fate.IN_DOUBT, "its records are no longer in the log"),
        (MarkerRead(), Fate.UNKNOWN, "it has no marker yet"),
        (MarkerRead(error=3), Fate.IN_DOUBT, "its topic no longer exists"),
        (MarkerRead(error=2), Fate.IN_DOUBT, "a batch of the partition is damaged"),
        (MarkerRead(error=29), Fate.UNKNOWN, "TOPIC_AUTHORIZATION_FAILED (29)"),
    ],
)
def test_a_look_says_what_it_could_not_find_out(reply: MarkerRead, fate: Fate, said: str) -> None:
    script: dict[Any, list[Reply]] = {DescribeTransaction: [NOT_THERE], ReadMarker: [reply]}
    outcome, _ = recover(script, commits=False)
    assert outcome.fates == (fate,)
    assert said in outcome.failures[0].sentence


@pytest.mark.parametrize(
    ("reply", "fate", "said"),
    [
        (MarkerRead(is_gone=True), Fate.IN_DOUBT, "its records are no longer in the log"),
        (MarkerRead(error=3), Fate.IN_DOUBT, "its topic no longer exists"),
        (MarkerRead(error=2), Fate.UNKNOWN, "a batch of the partition is damaged"),
        (MarkerRead(error=29), Fate.UNKNOWN, "TOPIC_AUTHORIZATION_FAILED (29)"),
    ],
)
def test_a_commit_says_what_it_could_not_find_out(reply: MarkerRead, fate: Fate, said: str) -> None:
    script: dict[Any, list[Reply]] = {"commit": [Ended(error=49)], ReadMarker: [reply]}
    outcome, _ = recover(script)
    assert outcome.fates == (fate,)
    assert said in outcome.failures[0].sentence


@pytest.mark.parametrize(("commits", "reads"), [(True, 2), (False, 1)])
def test_a_damaged_batch_is_read_once_more_before_a_commit_gives_up(
    reads: int, *, commits: bool
) -> None:
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [NOT_THERE],
        "commit": [Ended(error=49)],
        ReadMarker: [MarkerRead(error=2)],
    }
    outcome, asked = recover(script, commits=commits)
    assert outcome.fates == (Fate.IN_DOUBT,)
    assert [each.looks_up for each in asked if isinstance(each.ask, ReadMarker)] == (
        [commits] * reads
    )
    if commits:
        damaged_once: list[Reply] = [MarkerRead(error=2), MarkerRead(Marker.COMMIT, 7)]
        outcome, _ = recover(script | {ReadMarker: damaged_once})
        assert outcome.fates == (Fate.COMMITTED,)


def test_a_transaction_behind_a_damaged_batch_is_committed_while_it_is_open() -> None:
    script: dict[Any, list[Reply]] = {
        "commit": [*[Ended(error=48)] * 6, Ended()],
        ReadMarker: [MarkerRead(error=2)],
    }
    outcome, asked = recover(script)
    assert outcome.fates == (Fate.COMMITTED,)
    assert kinds(asked).count(ReadMarker) == 3


def test_a_commit_does_not_say_that_a_marker_never_comes_while_brokers_write_it() -> None:
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [Described(PREPARE_ABORT, ProducerIdAndEpoch(20, 2))],
        "commit": [Ended(error=48)],
        ReadMarker: [MarkerRead()],
    }
    outcome, _ = recover(script)
    assert outcome.fates == (Fate.UNKNOWN,)
    assert "it has no marker yet" in outcome.failures[0].sentence


def test_a_marker_is_read_from_the_leader_that_is_looked_up() -> None:
    # A former leader that is cut off has no marker. The new leader has it.
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [NOT_THERE],
        "commit": [Ended(error=48)],
        ReadMarker: [MarkerRead(), MarkerRead(Marker.COMMIT, 7)],
    }
    outcome, asked = recover(script)
    assert outcome.fates == (Fate.COMMITTED,)
    assert [each.looks_up for each in asked if isinstance(each.ask, ReadMarker)] == [True, True]


def test_an_id_that_may_not_be_described_is_a_failure_also_if_nothing_is_open() -> None:
    found = FoundOwner(OWNER, LogReading(DONE, 3), ())
    outcome, _ = recover({DescribeTransaction: [Described(error=53)]}, found)
    assert isinstance(outcome, Failure)
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)" in outcome.sentence


def test_what_gets_no_answer_is_asked_again_until_the_time_is_over() -> None:
    outcome, asked = recover({DescribeTransaction: [Unanswered(13, "connection lost")]})
    assert outcome.missed.kind is FailureKind.NO_ANSWER
    assert kinds(asked).count(DescribeTransaction) > 10


TWO = replace(
    DECIDED,
    transactions=(
        *DECIDED.transactions,
        DecidedTransaction(TaskSlot(1, 0), OTHER_WRITER, TopicPartition("t", 4), 9),
    ),
)


def recover_with_silent(silent: str, found: FoundOwner) -> tuple[Any, list[Question]]:
    """Commit what is decided. silent: the id whose coordinator does not answer."""

    def step(machine: recovery.Recovering, answer: Answer, now: float) -> Step[recovery.Recovering]:
        if getattr(answer.ask, "transactional_id", None) == silent:
            answer = Answer(answer.ask, Unanswered(7, "node 3 did not answer"))
        return recovery.step(machine, answer, now)

    begun = recovery.begin(found, level=2, deadline=60.0, more_s=30.0)
    script = FINE | {DescribeTransaction: [NOT_THERE], "commit": [Ended(error=14), Ended()]}
    machine, asked = run(begun, step, script)
    return machine.outcome, asked


@pytest.mark.parametrize("silent", [OWNER.driver_id, FIRST, SECOND])
@pytest.mark.parametrize("open_ids", [(), None])
def test_what_is_decided_is_committed_after_the_first_request_without_an_answer(
    silent: str, open_ids: tuple[str, ...] | None
) -> None:
    outcome, asked = recover_with_silent(silent, FoundOwner(OWNER, LogReading(TWO, 3), open_ids))
    assert outcome.fates.count(Fate.COMMITTED) >= 1
    until_then = asked[: kinds(asked).index("commit")]
    described = [] if open_ids is None else [OWNER.driver_id, FIRST, SECOND]
    assert until_then == [Question(DescribeTransaction(each)) for each in described]
    after = asked[len(until_then) + 2 :]
    assert Question(DescribeTransaction(silent)) in after, "it is described after that"


def test_an_early_commit_has_a_deadline_of_its_own() -> None:
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [Unanswered(7, "node 3 did not answer")],
        "commit": [Ended(error=14), Ended()],
    }
    begun = recovery.begin(FOUND, level=2, deadline=31.0, more_s=31.0)
    machine, asked = run(begun, recovery.step, script, now=29.0)
    assert machine.outcome.fates == (Fate.COMMITTED,)
    # The time to describe transactions is over then.
    assert kinds(asked) == [*[DescribeTransaction] * 2, *["commit"] * 2, *[DescribeTransaction] * 2]


def test_a_broker_that_answers_the_second_time_is_not_missed() -> None:
    lost = Unanswered(13, "connection lost")
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [lost, NOT_THERE, Described(COMPLETE_COMMIT, WRITER)]
    }
    outcome, asked = recover(script)
    assert outcome == Recovered(FOUND, (Fate.COMMITTED,))
    assert kinds(asked) == [*[DescribeTransaction] * 2, "commit", *[DescribeTransaction] * 2]


def test_a_decision_without_a_marker_is_committed_while_another_broker_is_silent() -> None:
    silent = Unanswered(7, "node 3 did not answer")
    driver = Described(PREPARE_COMMIT, ProducerIdAndEpoch(9, 5))
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [driver, silent],
        ReadLog: [LogRead(PENDING), LogRead(LogReading(DECIDED, 8))],
    }
    outcome, asked = recover(script, FoundOwner(OWNER, PENDING, ()))
    assert outcome.fates == (Fate.COMMITTED,)
    assert outcome.missed is not None
    first = kinds(asked)[:5]
    assert first == [DescribeTransaction, DescribeTransaction, ReadLog, ReadLog, "commit"]


def test_a_new_record_that_is_done_ends_the_recovery_after_the_rest_is_described() -> None:
    lost = Unanswered(13, "connection lost")
    driver = Described(COMPLETE_COMMIT, ProducerIdAndEpoch(9, 5))
    newer = replace(DECIDED, run="run 2")
    script: dict[Any, list[Reply]] = {
        DescribeTransaction: [driver, lost, Described(ONGOING, OTHER_WRITER, 900_000, 2_000)],
        ReadLog: [LogRead(LogReading(DONE, 9, undecided=newer))],
    }
    outcome, asked = recover(script, FoundOwner(OWNER, PENDING, ()))
    assert outcome.fates == ()
    assert outcome.undecided == (OpenSince(FIRST, 2_000, 900_000),)
    assert kinds(asked) == [*[DescribeTransaction] * 2, ReadLog, DescribeTransaction]


def test_an_early_end_knows_what_was_open_and_waits_for_no_description() -> None:
    found = FoundOwner(OWNER, LogReading(TWO, 3), None)
    begun = recovery.begin(found, level=2, deadline=60.0, more_s=30.0, ends_early=True)
    script = FINE | {DescribeTransaction: [Described(ONGOING, WRITER, 900_000, 5_000), NOT_THERE]}
    machine, asked = run(begun, recovery.step, script)
    assert kinds(asked) == [DescribeTransaction, "commit"] * 2
    opened = OpenSince(FIRST, 5_000, 900_000)
    assert machine.outcome == Recovered(found, (Fate.COMMITTED,) * 2, (opened,))
    machine, questions = begun
    for each in questions:
        if isinstance(each.ask, EndTxn):
            machine, _ = recovery.step(machine, Answer(each.ask, Ended()), 1.0)
    assert machine.outcome == Recovered(found, (Fate.COMMITTED,) * 2)


def test_two_recoveries_of_one_record_know_what_one_of_them_has_found() -> None:
    found = FoundOwner(OWNER, LogReading(TWO, 3), None)
    first, second = (OpenSince(each, 5_000, 900_000) for each in (FIRST, SECOND))
    lost = LostTransaction(TWO.transactions[1], 4)
    reasons = [Failure(FailureKind.NO_ANSWER, each) for each in ("one", "two")]
    unknown = (Fate.UNKNOWN, Fate.UNKNOWN)
    early = Recovered(found, (Fate.UNKNOWN, Fate.LOST), (first,), (), (lost,), (reasons[0],))
    later = Recovered(found, unknown, (second,), failures=(reasons[0], reasons[1]))
    assert recovery.merged(early, later) == Recovered(
        found, (Fate.UNKNOWN, Fate.LOST), (first, second), (), (lost,), (reasons[0],)
    )
    later = Recovered(found, (Fate.COMMITTED, Fate.LOST), lost=(lost,))
    assert recovery.merged(early, later) == replace(later, was_open=(first,))


def test_what_may_not_be_described_does_not_hide_what_was_committed_before() -> None:
    found = FOUND._replace(open_ids=None)
    outcome, _ = recover({DescribeTransaction: [Described(error=53)]}, found)
    assert outcome.fates == (Fate.COMMITTED,)
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)" in outcome.missed.sentence


def test_a_look_commits_nothing_while_a_broker_is_silent() -> None:
    silent: list[Reply] = [Unanswered(7, "node 3 did not answer")]
    outcome, asked = recover(
        {DescribeTransaction: silent}, FOUND._replace(open_ids=None), commits=False
    )
    assert outcome.fates == (Fate.COMMITTED,)
    assert "commit" not in kinds(asked)


def test_an_answer_that_was_not_asked_for_changes_nothing() -> None:
    machine, _ = recovery.begin(FOUND, level=2, deadline=9.0, more_s=9.0)
    stray = Answer(EndTxn(FIRST, WRITER, commit=True, version=5), Ended())
    assert recovery.step(machine, stray, 1.0) == (machine, ())
    surveying, _ = survey.begin("pykafka", deadline=9.0)
    assert survey.step(surveying, stray, 1.0) == (surveying, ())


# -- all owners -----------------------------------------------------------------------------------


def survey_with(
    script: dict[Any, list[Reply]], *, ends_early: bool = True
) -> tuple[Any, list[Question]]:
    """Look for owners; script: the replies."""
    begun = survey.begin("pykafka", deadline=60.0, ends_early=ends_early)
    machine, asked = run(begun, survey.step, script)
    return machine.outcome, asked


def test_owners_are_those_with_a_record_and_those_with_something_open() -> None:
    reading = LogReading(DONE, 3)
    listed = frozenset({
        OpenTransaction(SECOND, 21),
        OpenTransaction(OTHER.driver_id, 22),
        OpenTransaction(FOREIGN.driver_id, 23),
        OpenTransaction("pykafka/not an owner's", 24),
    })  # fmt: skip
    outcome, _ = survey_with(
        {
            ReadAllRecords: [AllRecordsRead(((OWNER.driver_id, reading), (FIRST, reading)))],
            ListTransactions: [Unanswered(13, "lost"), Listed(listed)],
        }
    )
    assert outcome == Surveyed(
        (
            FoundOwner(OWNER, reading, (SECOND,)),
            FoundOwner(OTHER, LogReading(), (OTHER.driver_id,)),
        )
    )


@pytest.mark.parametrize("reading", [LogReading(DECIDED, 3), PENDING])
def test_a_survey_that_finds_a_decision_waits_for_a_silent_broker_only_once(
    reading: LogReading,
) -> None:
    every = AllRecordsRead(((OWNER.driver_id, reading),))
    silent: list[Reply] = [Unanswered(7, "node 3 did not answer")]
    surveyed, asked = survey_with({ReadAllRecords: [every], ListTransactions: silent})
    assert [each.open_ids for each in surveyed.owners] == [None]
    assert surveyed.is_early
    assert "node 3 did not answer" in surveyed.missed.sentence
    assert kinds(asked) == [ReadAllRecords, ListTransactions]
    # The records may be read later than the first request for the list fails.
    late: dict[Any, list[Reply]] = {
        ReadAllRecords: [AllRecordsRead(error=6), every],
        ListTransactions: silent,
    }
    surveyed, asked = survey_with(late)
    assert [each.open_ids for each in surveyed.owners] == [None]
    assert kinds(asked).count(ListTransactions) == 2


@pytest.mark.parametrize(("record", "ends_early"), [(DONE, True), (DECIDED, False)])
def test_a_survey_that_has_nothing_to_commit_asks_again_for_the_list(
    record: CommitRecord, *, ends_early: bool
) -> None:
    every = AllRecordsRead(((OWNER.driver_id, LogReading(record, 3)),))
    silent = [Unanswered(7, "node 3 did not answer")] * 3
    script: dict[Any, list[Reply]] = {
        ReadAllRecords: [every], ListTransactions: [*silent, Listed()]
    }  # fmt: skip
    surveyed, _ = survey_with(script, ends_early=ends_early)
    assert surveyed == Surveyed((FoundOwner(OWNER, LogReading(record, 3), ()),))


def test_a_survey_that_brokers_refuse_is_a_failure() -> None:
    outcome, _ = survey_with(
        {ReadAllRecords: [AllRecordsRead(error=29)], ListTransactions: [Listed()]}
    )
    assert isinstance(outcome, Failure)
    assert (
        "the transactional ids that begin with 'pykafka/' could not be listed" in outcome.sentence
    )


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Unanswered(7, "node 3 did not answer"), FailureKind.NO_ANSWER),
        (Listed(error=31), FailureKind.REFUSED),
    ],
)
def test_what_is_decided_is_committed_also_without_the_list_of_open_transactions(
    reply: Reply, kind: FailureKind
) -> None:
    every = AllRecordsRead(((OWNER.driver_id, LogReading(DECIDED, 3)),))
    surveyed, _ = survey_with({ReadAllRecords: [every], ListTransactions: [reply]})
    assert surveyed.missed.kind is kind
    (found,) = surveyed.owners
    assert found == FoundOwner(OWNER, LogReading(DECIDED, 3), None)
    outcome, asked = recover({}, found)
    assert outcome.fates == (Fate.COMMITTED,)
    assert "commit" in kinds(asked)


@pytest.mark.parametrize(
    ("silent", "fates"),
    [
        (OWNER.driver_id, (Fate.COMMITTED, Fate.COMMITTED)),
        (FIRST, (Fate.UNKNOWN, Fate.COMMITTED)),
        (SECOND, (Fate.COMMITTED, Fate.UNKNOWN)),
    ],
)
def test_what_is_decided_is_committed_also_if_one_coordinator_is_silent(
    silent: str, fates: tuple[Fate, ...]
) -> None:
    outcome, _ = recover_with_silent(silent, FoundOwner(OWNER, LogReading(TWO, 3), None))
    assert outcome.fates == fates
    said = [each.sentence for each in (outcome.missed, *outcome.failures)]
    assert f"the transactions of {OWNER} could not be described" in said[0]
    assert all("node 3 did not answer" in each for each in said)
    assert len(said) == 1 + fates.count(Fate.UNKNOWN)


def test_a_survey_does_not_wait_for_a_log_that_does_not_exist() -> None:
    missing: dict[Any, list[Reply]] = {
        ReadAllRecords: [AllRecordsRead(error=3)],
        ListTransactions: [Listed()],
    }
    outcome, asked = survey_with(missing)
    assert isinstance(outcome, Failure)
    assert outcome.error == 3
    assert kinds(asked) == [ReadAllRecords, ListTransactions]

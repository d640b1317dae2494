"""Mode single: what the driver asks, and what it says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support.pure.planned_run import LOG, PARTITION, PLAN, PRODUCER, RAISED, READ_BACK, RECORD
from support.pure.scripted_machine import check_old_leaders_are_asked_again, kind_of, kinds, run

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import guards, single
from spark_kafka_sink.commit.attempts import AttemptTransaction, WrittenPartition
from spark_kafka_sink.commit.log_record import LogReading
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Committed,
    CommittedBefore,
    Superseded,
    Undecided,
)
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    ActiveProducer,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    Initialized,
    InitProducerId,
    LogRead,
    MarkerRead,
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
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker

OTHER_PARTITION = TopicPartition("t", 1)
PLAN_1 = replace(PLAN, run=replace(PLAN.run, level=1))
ATTEMPT = AttemptTransaction(None, PRODUCER, (WrittenPartition(PARTITION, 5, 20, 24, 4),))
HELD = ProducersDescribed((ActiveProducer(PRODUCER, 4, 20),))
OPEN = Described(ONGOING, PRODUCER, 900_000, 1, frozenset({PARTITION}))
FINE: dict[Any, list[Reply]] = {
    DescribeTransaction: [OPEN],
    DescribeProducers: [HELD],
    WriteRecord: [Written(3)],
    "commit": [Ended(RAISED)],
    "abort": [Ended(RAISED)],
    InitProducerId: [Initialized(RAISED)],
    ReadLog: [READ_BACK, LogRead(end=4)],
    ReadMarker: [MarkerRead(Marker.ABORT)],
}


def commit(
    script: dict[Any, list[Reply]],
    attempts: tuple[AttemptTransaction, ...] = (ATTEMPT,),
    *,
    level: int = 2,
    probes: bool = False,
    deadline: float = 60.0,
    missing_until: float = 60.0,
    behind_until: float = 0.0,
) -> tuple[Any, list[Question]]:
    """Run a commit; script: what is other than fine."""
    begun = single.begin_commit(
        PLAN if level == 2 else PLAN_1,
        attempts,
        RECORD,
        level=level,
        targets=(PARTITION, OTHER_PARTITION),
        probes=probes,
        deadline=deadline,
        missing_until=missing_until,
        behind_until=behind_until,
    )
    machine, asked = run(begun, single.step, FINE | script)
    return machine.outcome, asked


def test_rows_and_record_are_committed_by_one_end_txn() -> None:
    outcome, asked = commit({})
    assert outcome == Committed(RECORD)
    assert kinds(asked) == [
        DescribeTransaction, DescribeProducers, WriteRecord, ReadLog, "commit"
    ]  # fmt: skip
    end = asked[-1].ask
    assert (end.producer, end.version) == (PRODUCER, 5)  # type: ignore[union-attr]


def test_what_tasks_wrote_is_grouped_by_partition_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    group = guards.by_partition

    def counted(given: object) -> object:
        calls.append(given)
        return group(given)  # type: ignore[arg-type] # as the caller gives it

    monkeypatch.setattr(guards, "by_partition", counted)
    assert commit({}, behind_until=60.0)[0] == Committed(RECORD)
    assert len(calls) == 1


# What brokers of level 1 reply: the transaction has all partitions from its beginning on.
AT_LEVEL_1: dict[Any, list[Reply]] = {
    DescribeTransaction: [
        Described(ONGOING, PRODUCER, 1, 1, frozenset({PARTITION, OTHER_PARTITION, LOG}))
    ],
    DescribeProducers: [HELD, ProducersDescribed()],
    "commit": [Ended()],
}


def test_at_level_1_every_partition_is_looked_at_and_the_epoch_is_taken_away_afterwards() -> None:
    outcome, asked = commit(AT_LEVEL_1, level=1)
    assert outcome == Committed(RECORD)
    assert kinds(asked)[1:3] == [DescribeProducers] * 2
    assert kinds(asked)[-2:] == ["commit", InitProducerId]
    assert asked[-2].ask.version == 4  # type: ignore[union-attr]
    assert asked[-1].ask.producer == PRODUCER  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("replies", "times"),
    [
        ([Initialized(error=51), Initialized(error=51), Initialized(RAISED)], 3),
        ([Unanswered(13), Initialized(RAISED)], 1),
        ([Initialized(error=90)], 1),
    ],
    ids=["markers are being written", "no response", "a newer run"],
)
def test_a_committed_run_does_not_fence_a_newer_one_that_may_have_begun_meanwhile(
    replies: list[Reply], times: int
) -> None:
    outcome, asked = commit(AT_LEVEL_1 | {InitProducerId: replies}, level=1)
    assert outcome == Committed(RECORD)
    assert kinds(asked).count(InitProducerId) == times


def test_a_process_finds_out_first_whether_the_broker_flags_duplicates() -> None:
    outcome, asked = commit({WriteRecord: [Written(3), Written(3, is_duplicate=True)]}, probes=True)
    assert outcome == Committed(RECORD)
    assert [each.ask.again for each in asked if isinstance(each.ask, WriteRecord)] == [False, True]
    outcome, asked = commit({WriteRecord: [Written(3), Written(3)]}, probes=True)
    assert outcome.kind is FailureKind.NOT_FIT
    assert "use exactlyOnce=two-phase" in outcome.sentence
    assert kinds(asked)[-1] == "abort"


def test_a_record_that_was_sent_once_and_is_flagged_as_a_duplicate_is_aborted() -> None:
    flagged = Written(3, is_duplicate=True)
    for probes in (False, True):
        outcome, asked = commit({WriteRecord: [flagged]}, probes=probes)
        assert outcome.kind is FailureKind.NOT_FIT
        assert f"topic {LOG.topic} may have message.timestamp.type=" in outcome.sentence
        assert kinds(asked)[-2:] == [WriteRecord, "abort"]
    # A record that was sent again may be one.
    outcome, _ = commit({WriteRecord: [Written(error=codes.NETWORK_EXCEPTION), flagged]})
    assert outcome == Committed(RECORD)


@pytest.mark.parametrize("state", [EMPTY, PREPARE_COMMIT, COMPLETE_COMMIT])
def test_zero_rows_are_a_transaction_of_the_record_alone(state: str) -> None:
    # The plan may have committed the record DONE with the epoch before.
    outcome, asked = commit({DescribeTransaction: [Described(state, PRODUCER)]}, ())
    assert outcome == Committed(RECORD)
    assert kinds(asked) == [DescribeTransaction, WriteRecord, ReadLog, "commit"]


CONFLICTS: dict[str, tuple[dict[Any, list[Reply]], tuple[AttemptTransaction, ...], int, str]] = {
    "G1": ({}, (ATTEMPT, ATTEMPT), 2, "two tasks wrote to t-0 in one transaction"),
    "a task of another run": (
        {}, (replace(ATTEMPT, producer=RAISED),), 2, "wrote in the transaction of another run"
    ),
    "G2, a batch that vanished": (
        {DescribeProducers: [ProducersDescribed((ActiveProducer(PRODUCER, 3, 20),))]}, (ATTEMPT,),
        2, "t-0 holds records from offset 20 on, up to sequence number 3, though 5 records",
    ),
    "G2, another first record": (
        {DescribeProducers: [ProducersDescribed((ActiveProducer(PRODUCER, 4, 19),))]}, (ATTEMPT,),
        2, "t-0 holds records from offset 19",
    ),
    "G2, nothing": (
        {DescribeProducers: [ProducersDescribed()]}, (ATTEMPT,), 2, "t-0 holds nothing of this"
    ),
    "G2, a deleted topic": (
        {DescribeProducers: [ProducersDescribed(error=3)]}, (ATTEMPT,), 2, "t-0 was deleted after"
    ),
    "a zombie at level 2": (
        {DescribeTransaction: [replace(OPEN, partitions=frozenset({PARTITION, OTHER_PARTITION}))]},
        (ATTEMPT,), 2, "t-1 is in the transaction or in a task's report, but not in both",
    ),
    "a zombie at level 1": (
        {DescribeProducers: [HELD, ProducersDescribed((ActiveProducer(PRODUCER, 0, 9),))]},
        (ATTEMPT,), 1, "t-1 has records of this transaction that no task reports",
    ),
    "a timeout": (
        {DescribeTransaction: [Described(COMPLETE_ABORT, RAISED)]}, (ATTEMPT,), 2,
        "was aborted by the brokers after 900000 ms",
    ),
    "a timeout, which raises the epoch twice in Kafka 4.0": (
        {DescribeTransaction: [Described(COMPLETE_ABORT, ProducerIdAndEpoch(7, 5))]},
        (ATTEMPT,), 2, "was aborted by the brokers after 900000 ms",
    ),
    "a newer run": (
        {DescribeTransaction: [Described(ONGOING, ProducerIdAndEpoch(7, 5))]}, (ATTEMPT,), 2,
        "superseded by a newer run of txnAppId 'flights'",
    ),
    "a newer run, which has aborted it meanwhile": (
        {
            DescribeTransaction: [OPEN, Described(ONGOING, ProducerIdAndEpoch(7, 5))],
            DescribeProducers: [ProducersDescribed()],
        },
        (ATTEMPT,), 2, "superseded by a newer run of txnAppId 'flights'",
    ),
    "a record that is refused": (
        {WriteRecord: [Written(error=10)]}, (ATTEMPT,), 2,
        "could not be written: Produce got MESSAGE_TOO_LARGE (10)",
    ),
    "a record that is fenced": (
        {WriteRecord: [Written(error=47)]}, (ATTEMPT,), 2, "superseded by a newer run",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_is_not_as_it_should_be_is_aborted_and_said(name: str) -> None:
    script, attempts, level, said = CONFLICTS[name]
    outcome, asked = commit(script, attempts, level=level)
    assert isinstance(outcome, Failure)
    assert said in outcome.sentence
    assert kinds(asked)[-1] == "abort"
    assert "commit" not in kinds(asked)


def test_a_deleted_partition_that_no_task_wrote_to_does_not_stop_the_commit() -> None:
    gone = ProducersDescribed(error=codes.UNKNOWN_TOPIC_OR_PARTITION)
    outcome, _ = commit({DescribeProducers: [HELD, gone]}, level=1)
    assert outcome == Committed(RECORD)


def test_rows_in_a_transaction_that_has_ended_are_not_committed() -> None:
    outcome, asked = commit({DescribeTransaction: [Described(COMPLETE_COMMIT, PRODUCER)]})
    assert outcome.kind is FailureKind.TIMED_OUT
    assert kinds(asked)[-1] == "abort"


def test_a_partition_that_a_broker_does_not_know_is_looked_up_again() -> None:
    unknown = ProducersDescribed(error=codes.UNKNOWN_TOPIC_OR_PARTITION)
    outcome, asked = commit({DescribeProducers: [unknown, unknown, HELD]})
    assert outcome == Committed(RECORD)
    again = [each for each in asked if isinstance(each.ask, DescribeProducers)]
    assert [each.looks_up for each in again] == [False, True, True]
    outcome, asked = commit({DescribeProducers: [unknown]}, missing_until=10.0)
    assert "t-0 was deleted after rows were written to it" in outcome.sentence
    assert kinds(asked).count(DescribeProducers) == 9


def test_a_leader_that_lacks_acknowledged_records_is_asked_again_because_it_may_be_an_old_one() -> (
    None
):
    commits = partial(commit, behind_until=10.0)
    check_old_leaders_are_asked_again(commits, PRODUCER, FINE[DescribeProducers], Committed(RECORD))


def test_a_record_that_another_run_wrote_since_the_plan_aborts() -> None:
    other = replace(RECORD, run="run 2")
    outcome, asked = commit({ReadLog: [LogRead(LogReading(other, 3, RECORD), end=4)]})
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.SUPERSEDED
    assert kinds(asked)[-2:] == [ReadLog, "abort"]


@pytest.mark.parametrize("error", [47, 48, 49, 90])
def test_a_refused_end_txn_is_a_commit_if_the_log_has_the_record(error: int) -> None:
    outcome, asked = commit(
        {
            "commit": [Ended(error=error)],
            ReadLog: [READ_BACK, LogRead(LogReading(RECORD, 3), end=4)],
        }
    )
    assert outcome == Committed(RECORD)
    assert kinds(asked)[-1] is ReadLog


@pytest.mark.parametrize("error", [47, 48, 49, 90])
def test_a_refused_end_txn_is_asked_again_at_a_coordinator_that_is_looked_up(error: int) -> None:
    outcome, asked = commit({"commit": [Ended(error=error), Ended(RAISED)]})
    assert outcome == Committed(RECORD)
    assert (asked[-1].looks_up, asked[-1].pause_s) == (True, 5.0)


@pytest.mark.parametrize(
    ("error", "said"),
    [(90, "superseded by a newer run"), (48, "was aborted by the brokers after 900000 ms")],
)
def test_a_refused_end_txn_fails_if_the_log_does_not_have_the_record(error: int, said: str) -> None:
    of_other = LogRead(LogReading(replace(RECORD, run="run 2"), 9), end=10)
    outcome, asked = commit({"commit": [Ended(error=error)], ReadLog: [READ_BACK, of_other]})
    assert isinstance(outcome, Failure)
    assert said in outcome.sentence
    assert kinds(asked)[-5:] == ["commit", ReadLog, "commit", ReadLog, ReadMarker]
    assert asked[-1].ask == ReadMarker(LOG, 3, PRODUCER)
    # A newer run has written its record behind the one of this run, which is committed.
    outcome, _ = commit(
        {
            "commit": [Ended(error=error)],
            ReadLog: [READ_BACK, of_other],
            ReadMarker: [MarkerRead(), MarkerRead(Marker.COMMIT)],
        }
    )
    assert outcome == Committed(RECORD)
    damaged: dict[Any, list[Reply]] = {ReadMarker: [MarkerRead(error=2)]}
    outcome, asked = commit(
        {"commit": [Ended(error=error)], ReadLog: [READ_BACK, of_other], **damaged}
    )
    assert isinstance(outcome, Undecided)
    assert kinds(asked).count(ReadMarker) == 1


def test_a_lost_answer_is_asked_for_again_with_the_same_request() -> None:
    lost = Unanswered(13, "connection lost")
    outcome, asked = commit({"commit": [lost, Ended(error=51), Ended(RAISED)]})
    assert outcome == Committed(RECORD)
    assert len({each.ask for each in asked if kind_of(each.ask) == "commit"}) == 1
    assert [each.looks_up for each in asked[-2:]] == [True, False]


def test_a_commit_without_an_answer_in_time_is_undecided() -> None:
    outcome, _ = commit({"commit": [Unanswered(13, "connection lost")]}, deadline=10.0)
    assert isinstance(outcome, Undecided)
    assert outcome.failure.sentence.endswith(
        "EndTxn (commit) got NETWORK_EXCEPTION (13); connection lost"
    )


def test_a_check_without_an_answer_in_time_aborts() -> None:
    outcome, asked = commit({DescribeTransaction: [Unanswered(7)]}, deadline=10.0)
    assert outcome.kind is FailureKind.NO_ANSWER
    assert kinds(asked)[-1] == "abort"


@pytest.mark.parametrize(
    ("level", "error", "outcome"),
    [
        (2, 0, Aborted()), (1, 0, Aborted()), (2, 90, Superseded()), (1, 90, Superseded()),
        (2, 47, Superseded()), (2, 48, CommittedBefore()), (1, 48, CommittedBefore()),
    ],
)  # fmt: skip
def test_an_abort_says_what_became_of_the_transaction(
    level: int, error: int, outcome: object
) -> None:
    begun = single.begin_abort(PLAN, level=level, deadline=60.0)
    machine, asked = run(begun, single.step, {"abort": [Ended(error=error)]})
    assert machine.outcome == outcome
    assert len(asked) == 1


def test_an_abort_that_is_refused_is_a_failure() -> None:
    begun = single.begin_abort(PLAN, level=2, deadline=60.0)
    machine, _ = run(begun, single.step, {"abort": [Ended(error=53)]})
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)" in machine.outcome.sentence
    with pytest.raises(Exception, match="grant WRITE and DESCRIBE on the transactional id"):
        raise machine.outcome.exception()

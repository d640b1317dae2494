"""The plan of a run: what it asks, in which order, and what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.pure.planned_run import (
    DECIDED,
    LEFT,
    LOG,
    LOSER,
    OWNER,
    PRODUCER,
    RAISED,
    TASK,
    WRITER,
)
from support.pure.planned_run import RECORD as DONE
from support.pure.planned_run import RUN as EARLIER
from support.pure.scripted_machine import kind_of, kinds, run

from spark_kafka_sink.commit import plan as planning
from spark_kafka_sink.commit.attempts import Plan, Run
from spark_kafka_sink.commit.log_record import (
    CommitRecord,
    LogReading,
    RecordState,
    VersionSet,
)
from spark_kafka_sink.commit.names import TaskSlot, checked_owner
from spark_kafka_sink.commit.outcomes import LostTransaction, Planned, Skipped, Torn
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Added,
    AddPartitions,
    Answer,
    Described,
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
    Question,
    ReadLog,
    ReadMarker,
    Reply,
    Unanswered,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit.steps import Failure, FailureKind
from spark_kafka_sink.errors import (
    ConfigException,
    InvalidTxnTimeoutException,
    LostRows,
    ProducerFencedException,
    TransactionAbortedException,
)
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker

SIMILAR = checked_owner("pykafka", "flights", "t.0")
# An earlier run has the record.
RUN = replace(EARLIER, name="run 2")
FINE: dict[Any, list[Reply]] = {
    ListTransactions: [Listed()],
    DescribeTransaction: [Described(ONGOING, LOSER)],
    InitProducerId: [Initialized(PRODUCER)],
    ReadLog: [LogRead()],
    AddPartitions: [Added()],
    WriteRecord: [Written(3)],
    "commit": [Ended(RAISED)],
    "abort": [Ended()],
    ReadMarker: [MarkerRead(Marker.COMMIT)],
}


def plan(
    script: dict[Any, list[Reply]],
    run_: Run = RUN,
    *,
    deadline: float = 200.0,
    **given: Any,  # noqa: ANN401
) -> tuple[Any, list[Question]]:
    """Make a plan; script: what is other than fine."""
    begun = planning.begin(run_, deadline=deadline, **given)
    machine, asked = run(begun, planning.step, FINE | script)
    return machine.outcome, asked


def logged(record: CommitRecord) -> LogRead:
    """Return the reply that has a record."""
    return LogRead(LogReading(record, 3))


# The log with the record DONE that the plan has just written behind the one that it has read.
READ_BACK = LogRead(LogReading(DECIDED, 3, DONE), end=4)
# The log with the record DECIDED that the plan has just written behind the same record.
REPEATED = LogRead(LogReading(DECIDED, 3, DECIDED), end=4)
# A record that says nothing, and the log up to it.
NOTHING_YET = CommitRecord(RecordState.DONE, "", rows=0, written_at=0)
PROVED = LogRead(LogReading(undecided=NOTHING_YET), end=4)


@pytest.mark.parametrize("record", [None, DONE], ids=["the first", "a later"])
def test_a_plan_lists_then_fences_then_reads(record: CommitRecord | None) -> None:
    outcome, asked = plan({ReadLog: [LogRead() if record is None else logged(record)]})
    assert outcome == Planned(Plan(RUN, PRODUCER, record))
    assert kinds(asked) == [ListTransactions, InitProducerId, ReadLog]


def test_what_an_older_run_left_is_aborted_as_it_was_listed_and_nothing_of_others() -> None:
    listed = Listed(
        frozenset({
            OpenTransaction(LEFT, 21),
            OpenTransaction(OWNER.driver_id, 7),
            OpenTransaction(SIMILAR.task_id(TaskSlot(0, 0)), 30),
            OpenTransaction("another", 31),
        })
    )  # fmt: skip
    outcome, asked = plan({ListTransactions: [listed], ReadLog: [LogRead(), PROVED]})
    assert outcome == Planned(Plan(RUN, RAISED, NOTHING_YET))
    # Before that, a record proves that the log has no newer one that commits them.
    assert kinds(asked) == [
        ListTransactions, DescribeTransaction, InitProducerId, ReadLog,
        WriteRecord, ReadLog, "commit", "abort",
    ]  # fmt: skip
    assert asked[-1].ask == EndTxn(LEFT, LOSER, commit=False, version=5)


@pytest.mark.parametrize("error", [48, 90, 49])
def test_what_has_ended_meanwhile_is_left_alone(error: int) -> None:
    listed = Listed(frozenset({OpenTransaction(LEFT, 21)}))
    script: dict[Any, list[Reply]] = {
        ListTransactions: [listed], "abort": [Ended(error=error)], ReadLog: [LogRead(), PROVED]
    }  # fmt: skip
    outcome, _ = plan(script)
    assert isinstance(outcome, Planned)


def test_nothing_is_aborted_while_the_log_may_have_a_record_that_commits_it() -> None:
    listed = Listed(frozenset({OpenTransaction(LEFT, 21)}))
    decided = LogRead(LogReading(DECIDED, 3, NOTHING_YET), end=5)
    outcome, asked = plan({ListTransactions: [listed], ReadLog: [LogRead(), decided]})
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.SUPERSEDED
    assert kinds(asked)[-1] is ReadLog


def test_a_version_that_is_written_is_skipped_and_nothing_is_fenced() -> None:
    outcome, asked = plan({ReadLog: [logged(DONE)]}, version=7)
    assert outcome == Skipped(DONE)
    assert kinds(asked) == [ReadLog]


def test_a_version_that_is_decided_is_committed_and_recorded_as_done_before_it_is_skipped() -> None:
    # A later run cannot find out what became of transactions that brokers have forgotten.
    outcome, asked = plan({ReadLog: [logged(DECIDED), logged(DECIDED), READ_BACK]}, version=7)
    assert outcome == Skipped(DONE)
    assert kinds(asked) == [
        ReadLog, ListTransactions, InitProducerId, ReadLog,
        "commit", WriteRecord, ReadLog, "commit",
    ]  # fmt: skip
    assert asked[5].ask.record == DONE  # type: ignore[union-attr]


@pytest.mark.parametrize("version", [6, 8, -1])
def test_a_version_that_was_not_written_is_planned_also_a_lower_one(version: int) -> None:
    outcome, asked = plan({ReadLog: [logged(DONE)]}, version=version)
    assert outcome == Planned(Plan(RUN, PRODUCER, DONE))
    assert kinds(asked) == [ReadLog, ListTransactions, InitProducerId, ReadLog]


def test_a_version_that_another_run_wrote_meanwhile_is_skipped() -> None:
    outcome, _ = plan({ReadLog: [LogRead(), logged(DONE)]}, version=7)
    assert outcome == Skipped(DONE)


def test_a_version_below_the_floor_is_refused_with_both_numbers() -> None:
    old = replace(DONE, versions=VersionSet(((7, 7),), floor=5))
    outcome, asked = plan({ReadLog: [logged(old)]}, version=4)
    assert outcome.kind is FailureKind.BELOW_FLOOR
    assert isinstance(outcome.exception(), ConfigException)
    assert "version 4 is not written: expected version 5 or higher" in outcome.sentence
    assert kinds(asked) == [ReadLog]


def test_a_version_that_the_record_has_no_room_for_is_refused_and_not_written_and_forgotten() -> (
    None
):
    full = replace(DONE, versions=VersionSet(tuple((2 * n, 2 * n) for n in range(10, 10_010))))
    outcome, asked = plan({ReadLog: [logged(full)]}, version=7)
    assert outcome.kind is FailureKind.BELOW_FLOOR
    assert "version 7 is not written: expected version 19 or higher" in outcome.sentence
    assert kinds(asked) == [ReadLog]
    outcome, _ = plan({ReadLog: [logged(full)]}, version=19)
    assert isinstance(outcome, Planned)


def test_what_is_decided_is_committed_and_done_is_written_at_level_2() -> None:
    listed = Listed(frozenset({OpenTransaction(TASK, 20)}))
    script: dict[Any, list[Reply]] = {
        ListTransactions: [listed],
        DescribeTransaction: [Described(ONGOING, WRITER)],
        ReadLog: [logged(DECIDED), READ_BACK],
    }
    outcome, asked = plan(script)
    # The epoch that the end of DONE gave is the next one; the decided one is no leftover.
    assert outcome == Planned(Plan(RUN, RAISED, DONE))
    assert kinds(asked)[4:] == ["commit", WriteRecord, ReadLog, "commit"]
    assert asked[4].ask == EndTxn(TASK, WRITER, commit=True, version=5)
    assert asked[5].ask.record == DONE  # type: ignore[union-attr]


def test_at_level_1_another_epoch_follows_and_the_record_is_read_again() -> None:
    outcome, asked = plan(
        {
            ReadLog: [logged(DECIDED), READ_BACK, logged(DONE)],
            InitProducerId: [Initialized(PRODUCER), Initialized(RAISED)],
            "commit": [Ended()],
        },
        replace(RUN, level=1),
    )
    assert outcome == Planned(Plan(replace(RUN, level=1), RAISED, DONE))
    assert kinds(asked)[3:] == [
        "commit", AddPartitions, WriteRecord, ReadLog, "commit", InitProducerId, ReadLog
    ]  # fmt: skip
    assert {each.ask.version for each in asked if isinstance(each.ask, EndTxn)} == {4}


@pytest.mark.parametrize("count", [0, 2])
def test_at_level_1_mode_single_adds_all_partitions_and_the_log(count: int) -> None:
    # Rows with a topic column have no partition if there is no row.
    partitions = tuple(TopicPartition("t", number) for number in range(count))
    outcome, asked = plan({}, replace(RUN, level=1), partitions=partitions)
    assert isinstance(outcome, Planned)
    assert asked[-1].ask == AddPartitions(OWNER.driver_id, PRODUCER, (*partitions, LOG))
    _, asked = plan({}, partitions=partitions)
    assert AddPartitions not in kinds(asked)


def test_at_level_1_mode_two_phase_adds_nothing() -> None:
    _, asked = plan({}, replace(RUN, level=1))
    assert AddPartitions not in kinds(asked)


@pytest.mark.parametrize("level", [1, 2])
def test_a_decided_run_whose_rows_are_lost_is_torn_and_stays_decided(level: int) -> None:
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED), REPEATED, logged(DECIDED)],
        "commit": [Ended(error=48), Ended(error=48), Ended(RAISED), Ended(error=48)],
        DescribeTransaction: [Described(ONGOING, LOSER)],
        ReadMarker: [MarkerRead(Marker.ABORT, 4)],
        ListTransactions: [Listed(frozenset({OpenTransaction(LEFT, 21)}))],
    }
    lost = (LostTransaction(DECIDED.transactions[0], 4),)
    outcome, asked = plan(script, replace(RUN, level=level))
    assert outcome == Torn(DECIDED, lost)
    # The transactions that can be ended are ended, so that readers go on. Before that, the record
    # is written again, as the proof that it is the newest.
    assert kinds(asked)[-1] == "abort"
    assert [each.ask.record for each in asked if isinstance(each.ask, WriteRecord)] == [DECIDED]
    again = {**script, ReadLog: [logged(DECIDED), *script[ReadLog]]}
    outcome, _ = plan(again, replace(RUN, level=level), version=7)
    assert outcome == Torn(DECIDED, lost)
    error = outcome.exception(RUN)
    assert (error.written, error.committed) == ("version 7", 0)
    assert error.lost == (LostRows(0, "t", 0, 20, 4),)
    assert "4 records of task 0 in t-0 from offset 20 on" in str(error)
    assert "--accept-torn --app-id=flights --topic=t" in str(error)


def test_a_torn_plan_that_read_an_old_end_of_the_log_aborts_nothing() -> None:
    """A newer run is decided, and its transactions are not committed yet."""
    newer = replace(DECIDED, run="run 1b")
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED), LogRead(LogReading(newer, 4, DECIDED), end=6)],
        WriteRecord: [Written(5)],
        "commit": [Ended(error=48)],
        DescribeTransaction: [Described(ONGOING, LOSER)],
        ReadMarker: [MarkerRead(Marker.ABORT, 4)],
        ListTransactions: [Listed(frozenset({OpenTransaction(LEFT, 21)}))],
    }
    outcome, asked = plan(script)
    assert outcome.kind is FailureKind.SUPERSEDED
    assert "abort" not in kinds(asked)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    "marker", [MarkerRead(Marker.ABORT), MarkerRead(is_gone=True), MarkerRead(error=2)]
)
def test_a_torn_owner_goes_on_once_an_operator_accepts_it(marker: MarkerRead, level: int) -> None:
    refused = [Ended(error=48)] * (4 if marker.error else 2)
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED), READ_BACK, logged(DONE)],
        "commit": [*refused, Ended(RAISED if level == 2 else PRODUCER)],
        DescribeTransaction: [Described(error=105)],
        ReadMarker: [marker],
    }
    outcome, asked = plan(script, replace(RUN, level=level), accepts_torn=True)
    assert isinstance(outcome, Planned)
    assert outcome.plan.record == DONE
    assert [each.ask.record for each in asked if isinstance(each.ask, WriteRecord)] == [DONE]


@pytest.mark.parametrize(
    ("described", "is_accepted"),
    [
        (Described(PREPARE_ABORT, ProducerIdAndEpoch(20, 1)), False),
        (Described(PREPARE_ABORT, ProducerIdAndEpoch(20, 3)), False),
        (Described(PREPARE_COMMIT, ProducerIdAndEpoch(20, 2)), False),
        (Described(ONGOING, ProducerIdAndEpoch(20, 1)), False),
        (Unanswered(7, "timed out"), False),
        (Described(COMPLETE_ABORT, ProducerIdAndEpoch(20, 2)), True),
        (Described(PREPARE_ABORT, ProducerIdAndEpoch(20, 4)), True),
        (Described(ONGOING, ProducerIdAndEpoch(21, 0)), True),
        (Described(error=105), True),
    ],
)
def test_a_marker_that_may_still_come_is_waited_for_also_if_an_operator_accepts(
    described: Reply, *, is_accepted: bool
) -> None:
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED), READ_BACK],
        "commit": [Ended(error=48), Ended(error=48), Ended(RAISED)],
        DescribeTransaction: [described],
        ReadMarker: [MarkerRead()],
    }
    outcome, asked = plan(script, deadline=7.0, accepts_torn=True)
    assert isinstance(outcome, Planned) == is_accepted
    assert (WriteRecord in kinds(asked)) == is_accepted
    if not is_accepted:
        assert outcome.kind is FailureKind.NO_ANSWER
        assert "may be committed or aborted: it has no marker yet" in outcome.sentence


def test_what_is_only_not_known_now_is_not_accepted_as_torn() -> None:
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED)],
        "commit": [Ended(error=51)],
    }
    outcome, asked = plan(script, accepts_torn=True)
    assert isinstance(outcome, Failure)
    assert WriteRecord not in kinds(asked)


def test_a_refused_commit_is_no_loss_if_the_marker_is_a_commit() -> None:
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED), READ_BACK],
        "commit": [Ended(error=90), Ended(error=90), Ended(RAISED)],
        DescribeTransaction: [Described(error=105)],
    }
    outcome, asked = plan(script)
    assert isinstance(outcome, Planned)
    again = asked[4]
    assert (kind_of(again.ask), again.pause_s, again.looks_up) == ("commit", 5.0, True)
    assert kinds(asked)[5:7] == [DescribeTransaction, ReadMarker]


def test_a_coordinator_that_tells_the_commit_is_believed() -> None:
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED), READ_BACK],
        "commit": [Ended(error=48), Ended(error=48), Ended(RAISED)],
        DescribeTransaction: [Described(COMPLETE_COMMIT, ProducerIdAndEpoch(20, 2))],
    }
    outcome, asked = plan(script)
    assert isinstance(outcome, Planned)
    assert ReadMarker not in kinds(asked)


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        (MarkerRead(is_gone=True), "may be committed or aborted: its records are no longer in the"),
        (MarkerRead(), "may be committed or aborted: it has no marker yet"),
        (MarkerRead(error=2), "may be committed or aborted: a batch of the partition is damaged"),
        (MarkerRead(error=29), "not be committed: Fetch (marker) got TOPIC_AUTHORIZATION_FAILED"),
    ],
)
def test_what_nobody_can_tell_is_a_failure_and_no_loss(marker: MarkerRead, said: str) -> None:
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED)],
        "commit": [Ended(error=49)],
        DescribeTransaction: [Described(error=53)],
        ReadMarker: [marker],
    }
    outcome, _ = plan(script)
    assert isinstance(outcome, Failure)
    assert said in outcome.sentence
    assert not isinstance(outcome.exception(), TransactionAbortedException)


def test_a_commit_of_done_that_one_broker_refuses_is_sent_to_another() -> None:
    """A broker that is no longer the coordinator answers once with INVALID_TXN_STATE."""
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED), READ_BACK],
        "commit": [Ended(), Ended(error=48), Ended(RAISED)],
    }
    outcome, asked = plan(script)
    assert isinstance(outcome, Planned)
    assert [(each.pause_s, each.looks_up) for each in asked if kind_of(each.ask) == "commit"] == [
        (0.0, False),
        (0.0, False),
        (5.0, True),
    ]


@pytest.mark.parametrize(
    ("error", "kind"), [(48, FailureKind.REFUSED), (90, FailureKind.SUPERSEDED)]
)
def test_a_commit_of_done_that_is_refused_twice_fails_with_what_is_known(
    error: int, kind: FailureKind
) -> None:
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED), READ_BACK],
        "commit": [Ended(), Ended(error=error)],
    }
    outcome, _ = plan(script)
    assert outcome.kind is kind


def test_done_is_not_committed_behind_a_record_of_a_newer_format() -> None:
    newer = LogReading(offset=2, undecided=DONE, newer_format="format 2")
    script: dict[Any, list[Reply]] = {ReadLog: [logged(DECIDED), LogRead(newer, end=4)]}
    outcome, _ = plan(script)
    assert outcome.kind is FailureKind.SUPERSEDED
    first = replace(newer, undecided=NOTHING_YET)
    script = {
        ListTransactions: [Listed(frozenset({OpenTransaction(LEFT, 21)}))],
        ReadLog: [LogRead(), LogRead(first, end=4)],
    }
    outcome, _ = plan(script)
    assert outcome.kind is FailureKind.SUPERSEDED


def test_a_timeout_above_that_of_the_brokers_is_said_with_both_options() -> None:
    outcome, _ = plan({InitProducerId: [Initialized(error=50)]})
    with pytest.raises(InvalidTxnTimeoutException) as refused:
        raise outcome.exception()
    assert "lower transaction.timeout.ms, or raise the brokers' transaction.max" in str(
        refused.value
    )


def test_done_is_not_written_over_a_record_that_the_plan_did_not_see() -> None:
    newer = replace(DONE, run="run 3")
    script: dict[Any, list[Reply]] = {
        ReadLog: [logged(DECIDED), LogRead(LogReading(newer, 5, DONE), end=7)]
    }
    outcome, asked = plan(script)
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.SUPERSEDED
    assert kinds(asked)[-2:] == [WriteRecord, ReadLog]


@pytest.mark.parametrize("ask", [WriteRecord, "commit"])
def test_a_plan_that_is_overtaken_says_so(ask: Any) -> None:  # noqa: ANN401
    replies: dict[Any, list[Reply]] = {
        WriteRecord: [Written(error=47)],
        "commit": [Ended(RAISED), Ended(error=90)],
    }
    outcome, _ = plan({ReadLog: [logged(DECIDED), READ_BACK], ask: replies[ask]})
    with pytest.raises(ProducerFencedException, match="superseded by a newer run of txnAppId"):
        raise outcome.exception()


def test_a_record_of_a_newer_version_of_the_sink_is_refused() -> None:
    newer = LogRead(LogReading(None, 6, newer_format="it has format 2, this version knows 1"))
    for version in (None, 7):
        outcome, _ = plan({ReadLog: [newer]}, version=version)
        assert outcome.kind is FailureKind.NEWER_FORMAT
        error = outcome.exception()
        assert not isinstance(error, TransactionAbortedException)
        assert "at offset 6 of __pykafka_commits-0 cannot be read: it has format 2" in str(error)


@pytest.mark.parametrize("ask", [ListTransactions, InitProducerId, ReadLog])
def test_what_gets_no_answer_is_asked_again_until_the_time_is_over(ask: Any) -> None:  # noqa: ANN401
    outcome, asked = plan({ask: [Unanswered(13, "connection lost")]}, deadline=12.0)
    assert outcome.kind is FailureKind.NO_ANSWER
    assert "got NETWORK_EXCEPTION (13); connection lost" in outcome.sentence
    # After the first request without a response, the plan reads the log and then begins again.
    again = [each for each in asked if kind_of(each.ask) == ask][1 if ask is ReadLog else 2 :]
    assert len(again) > 5
    assert all(each.looks_up and each.pause_s > 0 for each in again)


def test_an_answer_that_was_not_asked_for_changes_nothing() -> None:
    machine, _ = planning.begin(RUN, deadline=9.0)
    ask = InitProducerId(OWNER.driver_id, 900_000)
    step = planning.step(machine, Answer(ask, Initialized(PRODUCER)), 1.0)
    assert step == (machine, ())

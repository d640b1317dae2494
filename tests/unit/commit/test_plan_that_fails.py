"""A plan whose list or fence fails: it commits what is decided, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.pure.planned_run import (
    DECIDED,
    LEFT,
    LOSER,
    OWNER,
    PRODUCER,
    RAISED,
    RECORD,
    RUN,
)
from support.pure.scripted_machine import kinds, run

from spark_kafka_sink.commit import plan as planning
from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.commit.log_record import CommitRecord, LogReading, RecordState
from spark_kafka_sink.commit.outcomes import Planned
from spark_kafka_sink.commit.questions import (
    ONGOING,
    Added,
    AddPartitions,
    Described,
    DescribeTransaction,
    Ended,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
    LogRead,
    MarkerRead,
    OpenTransaction,
    ReadLog,
    ReadMarker,
    Reply,
    Unanswered,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit.steps import Failure, FailureKind
from spark_kafka_sink.model import ProducerIdAndEpoch

# The record that a plan writes if the owner has none.
NOTHING_YET = CommitRecord(RecordState.DONE, "", rows=0, written_at=0)
SILENT = Unanswered(7, "node 3 did not answer")
OPEN = Listed(frozenset({OpenTransaction(LEFT, 21)}))
FAILS: dict[str, dict[Any, list[Reply]]] = {
    "the list": {ListTransactions: [SILENT]},
    "a description": {ListTransactions: [OPEN], DescribeTransaction: [SILENT]},
    "a refused description": {ListTransactions: [OPEN], DescribeTransaction: [Described(error=53)]},
    "the fence": {ListTransactions: [Listed()], InitProducerId: [SILENT]},
}


def plan(script: dict[Any, list[Reply]]) -> tuple[Any, list[Any]]:
    """Make a plan, and return its outcome and what it asked for."""
    begun = planning.begin(RUN, deadline=20.0)
    machine, asked = run(begun, planning.step, script)
    return machine.outcome, kinds(asked)


@pytest.mark.parametrize("name", FAILS)
def test_a_plan_that_fails_commits_what_is_decided_and_then_fails(name: str) -> None:
    committed = Ended(ProducerIdAndEpoch(20, 2))
    fails = FAILS[name]
    outcome, asked = plan(
        {**fails, ReadLog: [LogRead(LogReading(DECIDED, 3))], "commit": [committed]}
    )
    assert isinstance(outcome, Failure)
    assert outcome.sentence.startswith(f"the write of {OWNER} could not be planned: ")
    count = len(DECIDED.transactions)
    assert asked[-1 - count :] == [ReadLog, *["commit"] * count]
    assert "abort" not in asked


@pytest.mark.parametrize("name", FAILS)
@pytest.mark.parametrize("error", [14, 15, 16, 48, 51])
def test_a_plan_that_fails_commits_also_what_is_not_committed_at_once(
    name: str, error: int
) -> None:
    count = len(DECIDED.transactions)
    outcome, asked = plan(
        {
            **FAILS[name],
            ReadLog: [LogRead(error=6), LogRead(LogReading(DECIDED, 3))],
            "commit": [*[Ended(error=error)] * count, Ended(ProducerIdAndEpoch(20, 2))],
        }
    )
    assert isinstance(outcome, Failure)
    assert outcome.sentence.startswith(f"the write of {OWNER} could not be planned: ")
    first = asked.index(ReadLog)
    assert asked[first : first + 2 + 2 * count] == [ReadLog, ReadLog, *["commit"] * 2 * count]


SILENCES = [name for name in FAILS if "refused" not in name]


@pytest.mark.parametrize("name", SILENCES)
@pytest.mark.parametrize("reply", [SILENT, Unanswered(13, "connection lost"), Described(error=15)])
def test_what_is_decided_is_committed_after_the_first_request_without_an_answer(
    name: str, reply: Unanswered
) -> None:
    *before, (silent, _) = FAILS[name].items()
    outcome, asked = plan(
        {
            **dict(before),
            silent: [reply],
            ReadLog: [LogRead(LogReading(DECIDED, 3))],
            "commit": [Ended(ProducerIdAndEpoch(20, 2))],
        }
    )
    assert isinstance(outcome, Failure)
    until_then = asked[: asked.index(silent)]
    assert asked[len(until_then) :][:4] == [silent, ReadLog, "commit", ListTransactions]
    # It waits for the broker as long as before, and commits once more before it fails.
    assert asked.count(silent) > 5
    assert asked[-2:] == [ReadLog, "commit"]


@pytest.mark.parametrize("name", SILENCES)
@pytest.mark.parametrize(
    "readings",
    [
        [LogRead(LogReading(DECIDED, 3)), LogRead(LogReading(RECORD, 3))],
        [LogRead(LogReading(RECORD, 3))],
        [LogRead(error=29), LogRead(LogReading(RECORD, 3))],
    ],
    ids=["decided", "done", "an error"],
)
def test_a_plan_that_gets_an_answer_the_second_time_is_made(
    name: str, readings: list[Reply]
) -> None:
    script: dict[Any, list[Reply]] = {
        ListTransactions: [Listed()],
        DescribeTransaction: [Described(error=105)],
        InitProducerId: [Initialized(PRODUCER)],
    }
    silences = {kind: [*replies, *script[kind]] for kind, replies in FAILS[name].items()}
    committed = Ended(ProducerIdAndEpoch(20, 2))
    outcome, asked = plan({**script, **silences, ReadLog: readings, "commit": [committed]})
    assert outcome == Planned(Plan(RUN, PRODUCER, RECORD))
    assert asked[-3:] == [ListTransactions, InitProducerId, ReadLog]
    assert asked.count("commit") == (readings[0] == LogRead(LogReading(DECIDED, 3)))


def test_a_plan_waits_for_markers_without_reading_the_log_before() -> None:
    script: dict[Any, list[Reply]] = {
        ListTransactions: [Listed()],
        InitProducerId: [Initialized(error=51), Initialized(PRODUCER)],
        ReadLog: [LogRead(LogReading(RECORD, 3))],
    }
    _, asked = plan(script)
    assert asked == [ListTransactions, InitProducerId, InitProducerId, ReadLog]


def test_nothing_of_the_first_attempt_counts_if_a_plan_begins_again() -> None:
    # The second list is older than the second fence, but may be newer than the first proof.
    listed = Listed(frozenset({OpenTransaction(LEFT, 21)}))
    script: dict[Any, list[Reply]] = {
        ListTransactions: [listed],
        DescribeTransaction: [Described(ONGOING, LOSER)],
        InitProducerId: [Initialized(PRODUCER), SILENT, Initialized(RAISED)],
        AddPartitions: [Added()],
        ReadLog: [LogRead(), LogRead(LogReading(undecided=NOTHING_YET), end=4), LogRead()],
        WriteRecord: [Written(3)],
        "commit": [Ended()],
    }
    begun = planning.begin(replace(RUN, level=1), deadline=200.0)
    machine, asked = run(begun, planning.step, script | {"abort": [Ended()]})
    assert isinstance(machine.outcome, Failure), "the script proves only the first record"
    assert kinds(asked).count(ListTransactions) == 2
    assert kinds(asked).count(WriteRecord) == 2
    assert "abort" not in kinds(asked)


@pytest.mark.parametrize("name", FAILS)
@pytest.mark.parametrize("reply", [LogRead(LogReading(RECORD, 3)), LogRead(), LogRead(error=29)])
def test_a_plan_that_fails_changes_nothing_if_nothing_is_decided(name: str, reply: LogRead) -> None:
    outcome, asked = plan({**FAILS[name], ReadLog: [reply]})
    assert isinstance(outcome, Failure)
    assert "Fetch" not in outcome.sentence, "the first error is the one that is said"
    assert asked[-1] is ReadLog


LOST_ONCE: dict[Any, list[Reply]] = {
    ListTransactions: [Unanswered(13, "connection lost"), Listed()],
    InitProducerId: [Initialized(PRODUCER)],
}
NO_MARKER: dict[Any, list[Reply]] = {
    "commit": [Ended(error=48), Ended(error=48), Ended(RAISED)],
    DescribeTransaction: [Described(error=105)],
    ReadMarker: [MarkerRead()],
}


def test_a_lost_connection_does_not_hide_that_a_result_can_no_longer_be_found_out() -> None:
    decided = LogRead(LogReading(DECIDED, 3))
    never = NO_MARKER | {"commit": [Ended(error=48)]}
    outcome, _ = plan({**LOST_ONCE, **never, ReadLog: [decided]})
    assert outcome.kind is FailureKind.IN_DOUBT
    assert outcome.sentence.endswith("may be committed or aborted: it has no marker yet")
    begun = planning.begin(RUN, deadline=9.0, accepts_torn=True)
    done = LogRead(LogReading(DECIDED, 3, undecided=DECIDED.done()), end=5)
    script: dict[Any, list[Reply]] = {ReadLog: [decided, done], WriteRecord: [Written(4)]}
    script |= LOST_ONCE | NO_MARKER
    machine, asked = run(begun, planning.step, script)
    assert isinstance(machine.outcome, Planned)
    assert kinds(asked)[:2] == [ListTransactions, ListTransactions]


def test_a_plan_that_has_no_time_left_after_an_early_rescue_says_why_that_has_failed() -> None:
    loads = Initialized(error=14)
    outcome, _ = plan(
        {ListTransactions: [Listed()], InitProducerId: [loads], ReadLog: [LogRead(error=5)]}
    )
    assert "Fetch got LEADER_NOT_AVAILABLE (5)" in outcome.sentence


def test_an_early_rescue_does_not_give_the_plan_more_time() -> None:
    begun = planning.begin(RUN, deadline=1.0)
    script: dict[Any, list[Reply]] = {
        ListTransactions: [SILENT],
        ReadLog: [LogRead(LogReading(RECORD, 3))],
    }
    machine, asked = run(begun, planning.step, script, seconds=0.2)
    assert isinstance(machine.outcome, Failure)
    assert kinds(asked).count(ListTransactions) <= 5

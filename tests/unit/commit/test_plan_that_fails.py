"""A plan whose list or fence fails: it commits what is decided, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from support.pure.planned_run import DECIDED, LEFT, OWNER, RECORD, RUN
from support.pure.scripted_machine import kinds, run

from spark_kafka_sink.commit import plan as planning
from spark_kafka_sink.commit.log_record import LogReading
from spark_kafka_sink.commit.questions import (
    Described,
    DescribeTransaction,
    Ended,
    InitProducerId,
    Listed,
    ListTransactions,
    LogRead,
    OpenTransaction,
    ReadLog,
    Reply,
    Unanswered,
)
from spark_kafka_sink.commit.steps import Failure
from spark_kafka_sink.model import ProducerIdAndEpoch

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
    begun = planning.begin(RUN, deadline=9.0)
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
    assert asked[-2 - 2 * count :] == [ReadLog, ReadLog, *["commit"] * 2 * count]


@pytest.mark.parametrize("name", FAILS)
@pytest.mark.parametrize("reply", [LogRead(LogReading(RECORD, 3)), LogRead(), LogRead(error=29)])
def test_a_plan_that_fails_changes_nothing_if_nothing_is_decided(name: str, reply: LogRead) -> None:
    outcome, asked = plan({**FAILS[name], ReadLog: [reply]})
    assert isinstance(outcome, Failure)
    assert "Fetch" not in outcome.sentence, "the first error is the one that is said"
    assert asked[-1] is ReadLog

"""A task of mode two-phase that claims a transactional id: what it asks, and what it says."""

from __future__ import annotations

from typing import Any

import pytest
from support.pure.planned_run import LOSER, OWNER, PLAN, PRODUCER, RAISED, WRITER
from support.pure.scripted_machine import kinds, run

from spark_kafka_sink.commit import two_phase_claim
from spark_kafka_sink.commit.names import TaskSlot
from spark_kafka_sink.commit.outcomes import Claimed
from spark_kafka_sink.commit.questions import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    Described,
    DescribeTransaction,
    Initialized,
    InitProducerId,
    Question,
    Reply,
    Unanswered,
)
from spark_kafka_sink.commit.steps import FailureKind


def claim(script: dict[Any, list[Reply]], *, deadline: float = 100.0) -> tuple[Any, list[Question]]:
    """Run a task until it may write."""
    begun = two_phase_claim.begin(PLAN, 4, 1, deadline=deadline)
    machine, asked = run(begun, two_phase_claim.step, script)
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
    said = "no transactional id was claimed for Spark partition 4 of txnAppId 'flights'"
    assert said in outcome.sentence
    assert claim({DescribeTransaction: [Unanswered(13)]}, deadline=9.0)[0].error == 13
    script[InitProducerId] = [Initialized(error=53)]
    assert claim(script)[0].kind is FailureKind.REFUSED

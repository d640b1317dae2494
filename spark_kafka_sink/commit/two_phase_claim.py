"""A task of mode `two-phase` claims a transactional id before its first record.

The task first checks that no newer plan has fenced its own plan (T2). A slot is a number in a
transactional id of the task's Spark partition (`names.TaskSlot`). The task looks for a slot whose
transactional id has no open transaction. The first slot that it tries is its attempt number. Then
it asks for the next epoch of that id (T3). This fences the task that used the slot before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.commit.names import TaskSlot
from spark_kafka_sink.commit.outcomes import Claimed
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    Answer,
    Ask,
    Described,
    DescribeTransaction,
    Initialized,
    InitProducerId,
    Question,
)
from spark_kafka_sink.commit.states import TASK, TaskState, moved
from spark_kafka_sink.commit.steps import Failure, Received, Step, received, superseded
from spark_kafka_sink.commit.verdicts import Verdict

_FREE: Final = frozenset((EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT))
_S = TaskState


@dataclass(frozen=True, slots=True)
class Claiming:
    """The state of a task's claim of a transactional id.

    slot: the slot whose id the task tries to claim. asked: the request that has no reply yet.
    """

    state: TaskState
    plan: Plan
    slot: TaskSlot
    deadline: float
    asked: Ask | None
    outcome: Claimed | Failure | None = None


def begin(plan: Plan, partition: int, attempt_number: int, *, deadline: float) -> Step[Claiming]:
    """Return the state machine of a task's claim, and its first request to a broker."""
    ask = DescribeTransaction(plan.run.driver_id)
    slot = TaskSlot(partition, attempt_number)
    return Step(Claiming(_S.CHECKING, plan, slot, deadline, ask), (Question(ask),))


def step(machine: Claiming, answer: Answer, now: float) -> Step[Claiming]:
    """Return the state machine after a reply, with the next requests to send to brokers."""
    if answer.ask != machine.asked:
        return Step(machine)
    at = received(*answer, now)
    if now >= machine.deadline and at.found is not Verdict.DONE:
        return _fail(machine, at.failure(f"no transactional id was claimed for {_task(machine)}"))
    if at.asks_again and machine.state is not _S.CLAIMING:
        return Step(machine, (at.again(),))
    if at.found is Verdict.FATAL:
        return _fail(machine, at.failure(f"no transactional id was claimed for {_task(machine)}"))
    return _STEPS[machine.state](machine, at)


def _checked_plan(machine: Claiming, at: Received) -> Step[Claiming]:
    described = at.reply if isinstance(at.reply, Described) else Described()
    if described.producer != machine.plan.producer:
        return _fail(machine, superseded(machine.plan.run.owner))
    return _look(machine)


def _looked(machine: Claiming, at: Received) -> Step[Claiming]:
    described = at.reply if isinstance(at.reply, Described) else Described()
    if at.found is Verdict.DONE and described.state not in _FREE:
        slot = machine.slot
        return _look(replace(machine, slot=slot._replace(slot=slot.slot + 1)))
    # InitProducerId has to follow at once, because it would abort the transaction of another
    # attempt that claims the same id in between.
    run = machine.plan.run
    ask = InitProducerId(run.owner.task_id(machine.slot), run.timeout_ms)
    state = moved(TASK, machine.state, _S.CLAIMING)
    return Step(replace(machine, state=state, asked=ask), (Question(ask),))


def _claimed(machine: Claiming, at: Received) -> Step[Claiming]:
    if not isinstance(at.reply, Initialized) or at.found is not Verdict.DONE:
        return _look(machine, at.again().pause_s)
    state = moved(TASK, machine.state, _S.CLAIMED)
    outcome = Claimed(machine.slot, at.reply.producer)
    return Step(replace(machine, state=state, asked=None, outcome=outcome))


_STEPS: Final = {_S.CHECKING: _checked_plan, _S.LOOKING: _looked, _S.CLAIMING: _claimed}


def _look(machine: Claiming, pause_s: float = 0.0) -> Step[Claiming]:
    ask = DescribeTransaction(machine.plan.run.owner.task_id(machine.slot))
    is_next_slot = machine.state is _S.LOOKING
    state = machine.state if is_next_slot else moved(TASK, machine.state, _S.LOOKING)
    return Step(replace(machine, state=state, asked=ask), (Question(ask, pause_s),))


def _fail(machine: Claiming, failure: Failure) -> Step[Claiming]:
    state = moved(TASK, machine.state, _S.FAILED)
    return Step(replace(machine, state=state, asked=None, outcome=failure))


def _task(machine: Claiming) -> str:
    return f"Spark partition {machine.slot.partition} of {machine.plan.run.owner}"

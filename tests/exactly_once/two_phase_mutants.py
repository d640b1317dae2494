"""Rules of mode two-phase, each switched off in the real machines or in the model's brokers.

The model must find what goes wrong without each of them: that shows that it would find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from exactly_once.model import Model, Scenario
from spark_kafka_sink.commit import plan as planning
from spark_kafka_sink.commit import read_back, resolve, two_phase, two_phase_abort, two_phase_claim
from spark_kafka_sink.commit.log_record import LogReading
from spark_kafka_sink.commit.names import TaskSlot
from spark_kafka_sink.commit.questions import (
    InitProducerId,
    LogRead,
    Question,
    ReadLog,
)
from spark_kafka_sink.commit.states import (
    AbortState,
    CommitState,
    PlanState,
    ResolveState,
    TaskState,
)
from spark_kafka_sink.commit.steps import Received, Step, asking, received
from spark_kafka_sink.commit.verdicts import Verdict

Patch = Callable[[pytest.MonkeyPatch, Model], None]


@dataclass(frozen=True)
class Mutant:
    """A rule that is switched off, and a scenario in which that is found."""

    name: str
    scenario: Scenario
    patch: Patch


def _reads_to_last_stable_offset(patch: pytest.MonkeyPatch, model: Model) -> None:
    """Without reading back either, which never ends then."""
    model.brokers.reads_to_end = False
    _does_not_read_back(patch, model)


def _does_not_read_back(patch: pytest.MonkeyPatch, _: Model) -> None:
    patch.setattr(read_back, "again", lambda *_: ())
    patch.setattr(read_back, "check", lambda *_: None)


def _no_fence(_: pytest.MonkeyPatch, model: Model) -> None:
    model.brokers.fences = False


def _done_in_any_epoch(_: pytest.MonkeyPatch, model: Model) -> None:
    model.brokers.checks_done = False


def _sweep_by_init(patch: pytest.MonkeyPatch, _: Model) -> None:
    def clean(machine: planning.Planning) -> Step[planning.Planning]:
        names = sorted({name for name, _ in machine.leftovers})
        if not names:
            return planning._finish(machine)
        asks = [InitProducerId(name, 60_000) for name in names]
        return asking(planning._moved(machine, PlanState.CLEANING), *asks)

    patch.setattr(planning, "_clean", clean)


def _abort_by_init(patch: pytest.MonkeyPatch, _: Model) -> None:
    def aborts(leftovers: Any, level: int) -> list[InitProducerId]:  # noqa: ANN401
        return [InitProducerId(name, 60_000) for name in sorted({name for name, _ in leftovers})]

    patch.setattr(two_phase_abort, "aborts", aborts)


def _no_last_look(patch: pytest.MonkeyPatch, _: Model) -> None:
    def written(machine: two_phase.Committing, at: Received) -> Step[two_phase.Committing]:
        ask = ReadLog(machine.plan.run.driver_id)
        return asking(two_phase._moved(machine, CommitState.LOOKING), ask)

    patch.setitem(two_phase._STEPS, CommitState.WRITING, written)


def _no_first_look(patch: pytest.MonkeyPatch, model: Model) -> None:
    """Without the last look either, which alone would find the same."""
    _no_last_look(patch, model)
    patch.setattr(two_phase, "_check", lambda machine, at: None)


def _ends_before_deciding(patch: pytest.MonkeyPatch, _: Model) -> None:
    def written(machine: two_phase.Committing, at: Received) -> Step[two_phase.Committing]:
        return two_phase._forward(replace(machine, state=CommitState.DECIDING))

    patch.setitem(two_phase._STEPS, CommitState.WRITING, written)


def _no_roll_forward(patch: pytest.MonkeyPatch, _: Model) -> None:
    def read(machine: planning.Planning, at: Received) -> Step[planning.Planning]:
        assert isinstance(at.reply, LogRead)
        return planning._clean(replace(machine, record=at.reply.reading.record))

    patch.setitem(planning._STEPS, PlanState.READING, read)


def _aborts_unproved(patch: pytest.MonkeyPatch, _: Model) -> None:
    clean = planning._clean
    patch.setattr(planning, "_clean", lambda machine: clean(replace(machine, is_proved=True)))


def _reads_before_fencing(patch: pytest.MonkeyPatch, model: Model) -> None:
    """Without reading back either, which alone would find the same."""
    _does_not_read_back(patch, model)
    peeked, fenced = planning._peeked, planning._fenced

    def peek(machine: planning.Planning, at: Received) -> Step[planning.Planning]:
        assert isinstance(at.reply, LogRead)
        return peeked(replace(machine, record=at.reply.reading.record), at)

    def fence(machine: planning.Planning, at: Received) -> Step[planning.Planning]:
        after = fenced(machine, at).machine
        (ask,) = after.waiting
        reply = LogRead(LogReading(machine.record))
        return planning._read(after, received(ask, reply, at.now))

    patch.setitem(planning._STEPS, PlanState.PEEKING, peek)
    patch.setitem(planning._STEPS, PlanState.FENCING, fence)


def _reads_once_at_level_1(patch: pytest.MonkeyPatch, model: Model) -> None:
    """Without reading back either, which alone would find the same."""
    _does_not_read_back(patch, model)
    fenced = planning._fenced

    def fence(machine: planning.Planning, at: Received) -> Step[planning.Planning]:
        if machine.record is None:
            return fenced(machine, at)
        after = fenced(machine, at).machine
        return planning._clean(replace(after, record=machine.record.done()))

    patch.setitem(planning._STEPS, PlanState.FENCING, fence)


def _aborts_unread(patch: pytest.MonkeyPatch, _: Model) -> None:
    def proved(machine: two_phase_abort.Aborting, at: Received) -> Step[two_phase_abort.Aborting]:
        return two_phase_abort._abort_all(machine, at.now)

    patch.setitem(two_phase_abort._STEPS, AbortState.PROVING, proved)


def _does_not_wait_for_markers(patch: pytest.MonkeyPatch, _: Model) -> None:
    read = two_phase_abort._read

    def read_decision(
        machine: two_phase_abort.Aborting, at: Received
    ) -> Step[two_phase_abort.Aborting]:
        assert isinstance(at.reply, LogRead)
        reading = replace(at.reply.reading, undecided=None)
        machine = replace(machine, is_undecided=not machine.is_fenced)
        return read(machine, at._replace(reply=LogRead(reading)))

    patch.setitem(two_phase_abort._STEPS, AbortState.READING, read_decision)


def _torn_is_done(patch: pytest.MonkeyPatch, _: Model) -> None:
    patch.setattr(planning, "_lost", lambda machine: False)


def _no_look_at_slots(patch: pytest.MonkeyPatch, _: Model) -> None:
    def begin(plan: Any, partition: int, attempt: int, *, deadline: float) -> Step[Any]:  # noqa: ANN401
        slot = TaskSlot(partition, attempt)
        ask = InitProducerId(plan.run.owner.task_id(slot), 60_000)
        machine = two_phase_claim.Claiming(TaskState.CLAIMING, plan, slot, deadline, ask)
        return Step(machine, (Question(ask),))

    patch.setattr(two_phase_claim, "begin", begin)


def _fenced_is_committed(patch: pytest.MonkeyPatch, _: Model) -> None:
    def ended(machine: resolve.Resolving, at: Received) -> Step[resolve.Resolving]:
        return resolve._over(machine, ResolveState.COMMITTED)

    patch.setitem(resolve._STEPS, ResolveState.ENDING, ended)


def _fenced_is_aborted(patch: pytest.MonkeyPatch, _: Model) -> None:
    def ended(machine: resolve.Resolving, at: Received) -> Step[resolve.Resolving]:
        done = at.found is Verdict.DONE
        state = ResolveState.COMMITTED if done else ResolveState.ABORTED
        return Step(replace(machine, state=state, asked=None))

    patch.setitem(resolve._STEPS, ResolveState.ENDING, ended)


_TWO_RUNS: Final = Scenario(level=2)
# Not cancelled while tasks run, and with one partition: a hundredth of the states.
_UNCANCELLED: Final = replace(_TWO_RUNS, cancels=False, partitions=1)
# A commit() that is ended from outside, at any time.
_GIVES_UP: Final = Scenario(level=1, versions=(1,), slow=True, gives_up=True)
MUTANTS: Final = [
    Mutant("the log is read up to the last stable offset", _TWO_RUNS, _reads_to_last_stable_offset),
    Mutant(
        "the log is not read back",
        replace(_UNCANCELLED, versions=(1, 1), old_reads=2),
        _does_not_read_back,
    ),
    Mutant(
        "leftovers are aborted without proof that the log was read to its end",
        replace(_UNCANCELLED, versions=(1, 1), old_reads=2),
        _aborts_unproved,
    ),
    Mutant("no fence", _TWO_RUNS, _no_fence),
    Mutant("the log is read before the fence", _TWO_RUNS, _reads_before_fencing),
    Mutant(
        "leftovers are ended by InitProducerId",
        replace(_UNCANCELLED, versions=(1, 1, 1), stopped="written"),
        _sweep_by_init,
    ),
    Mutant("an abort ends by InitProducerId", _TWO_RUNS, _abort_by_init),
    Mutant("no last look", replace(_TWO_RUNS, versions=(1,), timeouts=1), _no_last_look),
    Mutant("no look at all", replace(_TWO_RUNS, versions=(1,), timeouts=1), _no_first_look),
    Mutant("EndTxn before the decision", _TWO_RUNS, _ends_before_deciding),
    Mutant("DONE in any epoch", replace(_TWO_RUNS, versions=(1, 2)), _done_in_any_epoch),
    Mutant("no roll-forward", _TWO_RUNS, _no_roll_forward),
    Mutant(
        "level 1 goes on with another epoch and the record as it was read before",
        replace(_UNCANCELLED, level=1, versions=(1, 2, 2), stopped="decided"),
        _reads_once_at_level_1,
    ),
    Mutant("an abort of the record DONE is believed", _GIVES_UP, _aborts_unread),
    Mutant("an abort does not wait for markers", _GIVES_UP, _does_not_wait_for_markers),
    Mutant("an abort does not read the log", replace(_TWO_RUNS, losses=1), _aborts_unread),
    Mutant(
        "torn is recorded as DONE", replace(_TWO_RUNS, versions=(1,), timeouts=1), _torn_is_done
    ),
    Mutant("no look at slots", replace(_TWO_RUNS, attempts=2), _no_look_at_slots),
    Mutant(
        "a claim apart from its look",
        replace(_TWO_RUNS, attempts=2, splits_claim=True),
        lambda *_: None,
    ),
    Mutant(
        "a refused EndTxn counts as committed",
        replace(_TWO_RUNS, versions=(1,), timeouts=1),
        _fenced_is_committed,
    ),
    Mutant(
        "a refused EndTxn counts as aborted", replace(_UNCANCELLED, losses=1), _fenced_is_aborted
    ),
]

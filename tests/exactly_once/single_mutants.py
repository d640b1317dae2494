"""Rules and guards of mode single, each switched off; the model must find what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from exactly_once.single_model import SingleModel, SingleScenario
from spark_kafka_sink.commit import guards, single
from spark_kafka_sink.commit.outcomes import Committed
from spark_kafka_sink.commit.questions import ONGOING, Described, EndTxn
from spark_kafka_sink.commit.states import SingleState
from spark_kafka_sink.commit.steps import Received, Step
from spark_kafka_sink.commit.verdicts import END_TXN_1, Verdict

Patch = Callable[[pytest.MonkeyPatch, SingleModel], None]


@dataclass(frozen=True)
class SingleMutant:
    """A rule that is switched off, and a scenario in which that is found."""

    name: str
    scenario: SingleScenario
    patch: Patch


def _no_g1_no_g4(patch: pytest.MonkeyPatch, _: SingleModel) -> None:
    patch.setattr(guards, "two_writers", lambda attempts: None)
    patch.setattr(guards, "check_ack", lambda ack: guards.AckCheck.TAKEN)


def _no_g2(patch: pytest.MonkeyPatch, _: SingleModel) -> None:
    patch.setattr(guards, "other_holdings", lambda *_: None)


def _g2_on_covered_partitions(_: pytest.MonkeyPatch, model: SingleModel) -> None:
    model.commit_targets = ()


def _partitions_are_not_compared(patch: pytest.MonkeyPatch, _: SingleModel) -> None:
    def check(machine: single.Single, described: Described, covered: Any) -> object:  # noqa: ANN401
        is_open = described.state == ONGOING and described.producer == machine.plan.producer
        return None if is_open else single._timed_out(machine.plan)

    patch.setattr(single, "_check_transaction", check)


def _tasks_add_partitions(_: pytest.MonkeyPatch, model: SingleModel) -> None:
    model.partitions.tasks_add = True


def _end_txn_4(patch: pytest.MonkeyPatch, _: SingleModel) -> None:
    def end_txn(name: str, producer: Any, level: int, *, commit: bool) -> EndTxn:  # noqa: ANN401
        return EndTxn(name, producer, commit, END_TXN_1)

    patch.setattr(single, "end_txn", end_txn)


def _refused_is_failed(patch: pytest.MonkeyPatch, _: SingleModel) -> None:
    decided = single._decided

    def decide(machine: single.Single, at: Received) -> Step[single.Single]:
        if at.found is not Verdict.RESOLVE:
            return decided(machine, at)
        failed = replace(machine, state=SingleState.READING)
        return single._over(failed, SingleState.FAILED, single._why_not(machine, at))

    patch.setitem(single._STEPS, SingleState.DECIDING, decide)


def _refused_is_committed(patch: pytest.MonkeyPatch, _: SingleModel) -> None:
    def decide(machine: single.Single, at: Received) -> Step[single.Single]:
        return single._over(machine, SingleState.DONE, Committed(machine.record))

    patch.setitem(single._STEPS, SingleState.DECIDING, decide)


_ONE: Final = SingleScenario(level=2, versions=(1,))
# The second attempt of the first task lays its rows out to another partition.
_ZOMBIE: Final = replace(_ONE, layout=((0, 2), (1,)), partitions=3)
SINGLE_MUTANTS: Final = [
    SingleMutant("no G1 and no G4", replace(_ONE, layout=((0,), (0,))), _no_g1_no_g4),
    SingleMutant("no G2", replace(_ONE, timeouts=1, vanishes=True), _no_g2),
    SingleMutant(
        "G2 on covered partitions only", replace(_ZOMBIE, level=1), _g2_on_covered_partitions
    ),
    SingleMutant("level 2 does not compare partitions", _ZOMBIE, _partitions_are_not_compared),
    SingleMutant(
        "at level 1 tasks add partitions",
        replace(_ZOMBIE, level=1, losses=1),
        _tasks_add_partitions,
    ),
    SingleMutant("EndTxn 4 at level 2", replace(_ZOMBIE, losses=1), _end_txn_4),
    SingleMutant(
        "a refused EndTxn counts as failed",
        replace(_ONE, versions=(1, 1), losses=1, cancels=False),
        _refused_is_failed,
    ),
    SingleMutant(
        "a refused EndTxn counts as committed", replace(_ONE, timeouts=1), _refused_is_committed
    ),
]

"""Mode single in every order of its steps: no row lost or doubled, and each guard is needed."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from exactly_once.model import Result
from exactly_once.single_model import SingleModel, SingleScenario
from exactly_once.single_mutants import SINGLE_MUTANTS, SingleMutant

pytestmark = pytest.mark.exactly_once

# Of the long scenarios, as many as are looked at in half a minute.
_LIMIT = int(os.environ.get("MODEL_STATES", "1000000"))
# More than there are in a scenario that is looked at as a whole.
_MOST = 3_000_000
_ONE = SingleScenario(level=2, versions=(1,))
_ONE_RUN = {
    "lost answers and a timeout": replace(_ONE, losses=2, timeouts=1),
    "a second attempt": replace(_ONE, losses=1, layout=((0, 0), (1,))),
    "a second attempt in another partition": replace(_ONE, layout=((0, 2), (1,)), partitions=3),
    "two tasks in one partition": replace(_ONE, losses=1, layout=((0,), (0,))),
    "a batch that vanishes": replace(_ONE, timeouts=1, vanishes=True),
}
_BOTH_LEVELS = pytest.mark.parametrize("level", [1, 2])


def check_up_to(limit: int, scenario: SingleScenario) -> Result:
    """Explore a scenario up to a number of states, and print how much of it was looked at."""
    result = SingleModel(scenario).explore(limit)
    bound = "all" if result.is_complete else f"bound {limit}"
    print(f"{scenario}: {result.states} states ({bound})")
    assert result.violation is None
    return result


def check_all(scenario: SingleScenario) -> None:
    """Explore every interleaving of a scenario."""
    assert check_up_to(_MOST, scenario).is_complete


@_BOTH_LEVELS
@pytest.mark.parametrize("name", _ONE_RUN)
def test_one_run_is_exactly_once(name: str, level: int) -> None:
    check_all(replace(_ONE_RUN[name], level=level))


@_BOTH_LEVELS
def test_two_drivers_are_exactly_once(level: int) -> None:
    check_up_to(30_000, SingleScenario(level=level, cancels=False, losses=1))
    ended = SingleScenario(level=level, cancels=False, losses=1, slow=True, gives_up=True)
    check_up_to(30_000, ended)


@_BOTH_LEVELS
def test_two_drivers_are_exactly_once_if_they_read_an_old_end_of_the_log(level: int) -> None:
    check_up_to(30_000, SingleScenario(level=level, cancels=False, old_reads=3))


@pytest.mark.parametrize("mutant", SINGLE_MUTANTS, ids=lambda mutant: mutant.name)
def test_without_a_guard_the_model_finds_what_goes_wrong(
    mutant: SingleMutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SingleModel(mutant.scenario)
    mutant.patch(monkeypatch, model)
    assert model.explore(300_000).violation is not None


@pytest.mark.long(reason="it looks at millions of states in all")
@_BOTH_LEVELS
@pytest.mark.parametrize(
    "scenario",
    [
        SingleScenario(level=2, losses=1),
        SingleScenario(level=2, losses=1, slow=True, gives_up=True),
        SingleScenario(level=2, timeouts=1),
        SingleScenario(level=2, versions=(1, 2), losses=1),
        SingleScenario(level=2, old_reads=3, losses=1),
        SingleScenario(level=2, cancels=False, layout=((0, 0), (1,)), losses=1),
    ],
    ids=repr,
)
def test_many_runs_are_exactly_once(scenario: SingleScenario, level: int) -> None:
    check_up_to(_LIMIT, replace(scenario, level=level))

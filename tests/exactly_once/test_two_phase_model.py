"""Mode two-phase in every order of its steps: no row lost or doubled, and each rule is needed."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from exactly_once.brokers import ABORT_MARKER, COMMIT_MARKER
from exactly_once.model import Model, Result, Scenario
from exactly_once.two_phase_mutants import MUTANTS, Mutant

pytestmark = pytest.mark.exactly_once

# Of the long scenarios, as many as are looked at in half a minute.
_LIMIT = int(os.environ.get("MODEL_STATES", "1000000"))
# More than there are in a scenario that is looked at as a whole.
_MOST = 3_000_000
_ONE_RUN = Scenario(level=2, versions=(1,))
_ENDED = replace(_ONE_RUN, slow=True, gives_up=True)
_BOTH_LEVELS = pytest.mark.parametrize("level", [1, 2])


def check_up_to(limit: int, scenario: Scenario) -> Result:
    """Explore a scenario up to a number of states, and print how much of it was looked at."""
    result = Model(scenario).explore(limit)
    bound = "all" if result.is_complete else f"bound {limit}"
    print(f"{scenario}: {result.states} states ({bound})")
    assert result.violation is None
    return result


def check_all(scenario: Scenario) -> None:
    """Explore every interleaving of a scenario."""
    assert check_up_to(_MOST, scenario).is_complete


def test_states_that_differ_in_one_number_are_never_taken_for_one() -> None:
    model = Model(_ONE_RUN)
    first = model.first()

    def with_number(number: int) -> list[int]:
        entry = (0, 1, number)
        log, data = (*first.world.log, entry), ((entry,), *first.world.data[1:])
        worlds = first.world._replace(log=log), first.world._replace(data=data)
        states = [first._replace(world=world) for world in worlds]
        states.append(first._replace(attempts=(entry, *first.attempts[1:])))
        states.append(first._replace(old_reads=number))
        return [model.key(state) for state in states]

    assert hash(-1) == hash(-2)
    assert hash((0, 1, COMMIT_MARKER)) != hash((0, 1, ABORT_MARKER))
    numbers = [*with_number(-1), *with_number(-2), *with_number(ABORT_MARKER - 1)]
    assert len(set(numbers)) == len(numbers)
    assert with_number(-1) == numbers[:4]


@_BOTH_LEVELS
def test_one_run_is_exactly_once_with_second_attempts_timeouts_and_lost_answers(
    level: int,
) -> None:
    often = replace(_ONE_RUN, level=level, losses=2, timeouts=2, any_order=True)
    check_all(often)
    check_up_to(60_000, replace(often, attempts=2))


@_BOTH_LEVELS
def test_one_run_is_exactly_once_if_its_commit_is_ended_and_markers_take_their_time(
    level: int,
) -> None:
    check_all(replace(_ENDED, level=level, losses=2, timeouts=1))
    check_up_to(40_000, replace(_ENDED, level=level, versions=(1, 1), cancels=False))


@pytest.mark.parametrize(
    "level",
    [pytest.param(1, marks=pytest.mark.long(reason="half a minute, for one more epoch a run")), 2],
)
def test_two_drivers_of_one_version_are_exactly_once_at_every_interleaving(level: int) -> None:
    check_all(Scenario(level=level, cancels=False))


@_BOTH_LEVELS
def test_two_drivers_are_exactly_once_if_they_read_an_old_end_of_the_log(level: int) -> None:
    check_up_to(60_000, Scenario(level=level, cancels=False, old_reads=3))


@_BOTH_LEVELS
def test_runs_are_exactly_once_if_brokers_do_not_respond_to_some_requests(level: int) -> None:
    check_all(replace(_ONE_RUN, level=level, losses=1, silences=2))
    stopped = Scenario(level=level, versions=(1, 2), cancels=False, stopped="decided", silences=2)
    check_all(stopped)
    check_up_to(60_000, replace(stopped, versions=(1, 2, 2)))


@_BOTH_LEVELS
def test_a_run_whose_abort_reads_an_old_end_of_the_log_is_exactly_once(level: int) -> None:
    check_all(replace(_ENDED, level=level, cancels=False, losses=1, old_reads=2))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_without_a_rule_the_model_finds_what_goes_wrong(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(mutant.scenario)
    mutant.patch(monkeypatch, model)
    assert model.explore(1_000_000).violation is not None


@pytest.mark.long(reason="it looks at millions of states in all")
@_BOTH_LEVELS
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(level=2),
        Scenario(level=2, versions=(1, 2)),
        Scenario(level=2, cancels=False, slow=True, gives_up=True),
        Scenario(level=2, cancels=False, losses=1),
        Scenario(level=2, cancels=False, timeouts=1),
        Scenario(level=2, cancels=False, attempts=2),
        Scenario(level=2, old_reads=3, losses=1),
        Scenario(level=2, cancels=False, versions=(1, 1, 1), stopped="written"),
        Scenario(level=2, cancels=False, versions=(1, 2, 2), stopped="decided"),
        Scenario(level=2, cancels=False, versions=(1, 2, 1), stopped="decided", timeouts=1),
    ],
    ids=repr,
)
def test_many_runs_are_exactly_once(scenario: Scenario, level: int) -> None:
    check_up_to(_LIMIT, replace(scenario, level=level))

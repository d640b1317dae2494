"""Jobs with exactly once in a simulated cluster: every row once, and what is broken is found.

A failing seed is replayed, with a log of all events, by the command in its failure message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from exactly_once.two_phase_mutants import MUTANTS

from simulation.exactly_once.__main__ import outcome, replay_command, text_of
from simulation.exactly_once.scenario import scenario
from simulation.exactly_once.simulation import Simulation

pytestmark = pytest.mark.exactly_once

SEEDS = 500
CHUNK = 100
SEEDS_TO_FIND = 40


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_row_is_written_once(first: int) -> None:
    figures: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        found, more = outcome(seed)
        assert found is None, f"seed {seed}: {found}\n{replay_command(seed)}"
        figures += more
    print(text_of(figures))
    check_that_much_happened(figures)


def check_that_much_happened(figures: Counter[str]) -> None:
    """Check that applications were killed, and that brokers and the network had faults."""
    assert figures["kills"] > 0
    assert sum(figures[name] for name in figures if name.startswith("fault: ")) > 0


@pytest.mark.long(reason="two jobs write 500 versions each, with faults all the time")
def test_every_row_of_a_thousand_batches_is_written_once() -> None:
    found, figures = outcome(0, versions=500)
    assert found is None, f"{found}\n{replay_command(0, versions=500)}"
    print(text_of(figures))
    check_that_much_happened(figures)
    assert figures["batches"] == 1000


@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_always_runs_alike(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    logs = []
    for _ in range(2):
        Simulation(scenario(seed), tracing=True).run()
        logs.append(capsys.readouterr().out)
    assert logs[0] == logs[1]
    assert "version 1: the version is written" in logs[0]


# -- each way to break it is found; the model of tests/exactly_once has more of them ---------------

PATCHES: dict[str, Callable[..., Any]] = {mutant.name: mutant.patch for mutant in MUTANTS}


@pytest.mark.parametrize(
    ("name", "first", "found"),
    [
        ("EndTxn before the decision", 0, "were not skipped|are doubled|was not committed"),
        ("the log is read before the fence", 0, "were not skipped|are doubled"),
        ("an abort does not read the log", 525, "has failed, and is visible|torn without a reason"),
        ("the log is not read back", 400, "were not skipped|are doubled"),
    ],
)
def test_what_is_broken_is_found(
    name: str, first: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PATCHES[name](monkeypatch, None)
    for seed in range(first, first + SEEDS_TO_FIND):
        sentence, _ = outcome(seed)
        if sentence is not None:
            print(f"found by seed {seed}: {sentence}")
            assert re.search(found, sentence)
            return
    pytest.fail(f"not found by {SEEDS_TO_FIND} seeds")

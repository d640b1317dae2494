"""Runs tests with a mutant in the code, and without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mutants.catalogue import ROOT, Mutant, MutantError, applied, places

# The time limit of a test that a mutant makes hang, and of a run.
_TEST_TIMEOUT_S: Final = 120
_RUN_TIMEOUT_S: Final = 900
# More tests that fail are beyond chance: they are not run once more.
_MANY: Final = 12
_SWITCHES: Final = (
    *("-m", "not long"),
    *("-p", "no:randomly"),
    *("-p", "no:cacheprovider"),
    *("--hypothesis-seed", "0"),
    *("--timeout", str(_TEST_TIMEOUT_S)),
    *("--dist", "loadfile", "--no-loadscope-reorder"),
    "--continue-on-collection-errors",
    "-q",
)
# What pytest ends with if tests ran, whether they passed or not, or files could not be imported.
_RAN: Final = (0, 1, 2)


@dataclass(slots=True)
class Outcome:
    """The end of one test, with what it took to set up and to tear down."""

    failed: bool = False
    seconds: float = 0.0


def outcomes(
    tests: Iterable[str], *, processes: int = 2, stops_at_first: bool = False
) -> dict[str, Outcome]:
    """Run tests and return their results. Raise MutantError if pytest could not run them.

    stops_at_first: whether the run ends when a test has failed.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        lines, said = Path(folder, "outcomes"), Path(folder, "said")
        stop = ["--maxfail", "1"] if stops_at_first else []
        arguments = [str(lines), *tests, *_SWITCHES, *stop, "-n", str(processes)]
        code = _run(arguments, Path(folder), said)
        found = _read(lines)
        if not found or code not in (None, *_RAN):
            message = f"pytest ended with code {code}: {said.read_text()[-2000:]}"
            raise MutantError(message)
    return found


def _run(arguments: list[str], folder: Path, said: Path) -> int | None:
    """Run pytest and return its exit code, None if it took too long."""
    # The tests search modules in the same places as without this tool.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {
        "TMPDIR": str(folder),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        "REQUIRE_KAFKA": "1",
    }
    recorder = Path(__file__).with_name("recorder.py")
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", str(recorder), *arguments],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(_RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(lines: Path) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for line in lines.read_text().splitlines() if lines.exists() else ():
        phase = json.loads(line)
        outcome = found.setdefault(phase["test"], Outcome())
        outcome.failed |= phase["failed"]
        outcome.seconds += phase["seconds"]
    return found


def first_killer(mutant: Mutant) -> str | None:
    """Return a test that fails with a mutant, twice, and passes without it; None if none does.

    The tests nearest to the mutant run first.
    """
    for tests in mutant.tests:
        with applied(mutant, places(mutant)):
            failed = sorted(_failed(outcomes([tests], stops_at_first=True)))[:1]
            if failed:
                failed = sorted(_failed(outcomes(failed, processes=1)))
        if failed and not _failed(outcomes(failed, processes=1)):
            return failed[0]
    return None


def killers(mutant: Mutant, unreliable: set[str]) -> list[str]:
    """Return the tests that fail with a mutant, in the order of their names.

    A few that fail run once more and have to fail again: chance kills no mutant. unreliable: tests
    that fail without it.
    """
    with applied(mutant, places(mutant)):
        failed = _failed(outcomes(mutant.tests)) - unreliable
        if 0 < len(failed) <= _MANY:
            failed &= _failed(outcomes(sorted(failed)))
    return sorted(failed)


def _failed(found: dict[str, Outcome]) -> set[str]:
    return {test for test, outcome in found.items() if outcome.failed}

"""Run mutants: `make mutants ARGS="--only NAME"`.

Print a test that finds each mutant. With --output or --tests, print all tests that do; this takes
several times as long.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from mutants.catalogue import Mutant, MutantError, check_installed, chosen
from mutants.results import Results, verdicts
from mutants.run import first_killer, killers, outcomes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a mutant survives or a candidate must stay."""
    given = _parser().parse_args(argv)
    try:
        if given.list:
            for mutant in chosen(given.only):
                print(f"{mutant.name}: {mutant.breaks}")
            return 0
        if given.output is given.tests is given.results is None:
            return int(not _all_found(given.only))
        results = _results(given)
        if given.tests is None:
            return int(not all(results.killers.values()))
        candidates = [line.strip() for line in given.tests.read_text().splitlines()]
        found = verdicts(results, [line for line in candidates if line])
        print("\n".join(line for _, line in found))
        return int(not all(may_go for may_go, _ in found))
    except (MutantError, OSError) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="show the mutants and run none")
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="a mutant; may be repeated"
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the results as JSON")
    parser.add_argument(
        "--tests",
        metavar="FILE",
        type=Path,
        help="tests that are to go, one in a line: say of each whether another kills its mutants",
    )
    parser.add_argument(
        "--results",
        metavar="FILE",
        type=Path,
        help="use what an earlier run wrote by --output, and run nothing",
    )
    return parser


def _results(given: argparse.Namespace) -> Results:
    if given.results is not None:
        return Results.read(given.results)
    _prepare()
    return run(chosen(given.only), given.output)


def _prepare() -> None:
    check_installed()
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGHUP, _exit)


def _all_found(names: list[str]) -> bool:
    """Run mutants, and print a killer of each. Return whether each has one."""
    _prepare()
    survivors, chosen_ones = [], chosen(names)
    for number, mutant in enumerate(chosen_ones, 1):
        killer = first_killer(mutant)
        survivors += [] if killer else [mutant.name]
        place = f"{number} of {len(chosen_ones)}"
        print(f"{place}: {mutant.name}: {killer or 'SURVIVED'}", flush=True)
    print(f"{len(survivors)} of {len(chosen_ones)} mutants survived {' '.join(survivors)}".strip())
    return not survivors


def run(mutants: Sequence[Mutant], output: Path | None) -> Results:
    """Run mutants one after the other; print the killers of each, and write them to `output`."""
    results = Results()
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    print(f"running the tests of {len(mutants)} mutants without a mutant …", flush=True)
    found = outcomes(tests)
    results.seconds = {test: outcome.seconds for test, outcome in found.items()}
    unreliable = {test for test, outcome in found.items() if outcome.failed}
    for test in sorted(unreliable):
        print(f"{test} fails without a mutant and does not count")
    for mutant in mutants:
        results.killers[mutant.name] = killers(mutant, unreliable)
        print(results.line(mutant.name), flush=True)
        if output is not None:
            results.write(output)
    return results


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

"""Run jobs with exactly once: `python -m simulation.exactly_once --seed 17` replays one seed.

`--seeds 20000` runs many on every core and prints figures. `--versions 500` lets each job write so
many versions, with faults all the time.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from multiprocessing import Pool, cpu_count

from simulation.exactly_once.scenario import scenario
from simulation.exactly_once.simulation import Simulation

_CHUNK = 20


def outcome(seed: int, versions: int | None = None) -> tuple[str | None, Counter[str]]:
    """Run one seed; return what was wrong, None if nothing was, and figures."""
    try:
        return None, Simulation(scenario(seed, versions=versions)).run()
    except Exception as error:  # noqa: BLE001 - whatever a run ends with is its result
        return f"{type(error).__name__}: {error}", Counter()


def replay_command(seed: int, versions: int | None = None) -> str:
    """Return the command that runs one seed again with a log of all events."""
    more = "" if versions is None else f" --versions {versions}"
    return f"PYTHONPATH=tests:jobs python -m simulation.exactly_once --seed {seed}{more}"


def replay(seed: int, versions: int | None) -> int:
    """Run one seed with a log of all events; return the exit code."""
    drawn = scenario(seed, versions=versions)
    print(drawn.configs, drawn.shape, drawn.mischief, *drawn.jobs, *drawn.faults, sep="\n")
    try:
        figures = Simulation(drawn, tracing=True).run()
    except Exception:  # noqa: BLE001 - printed
        traceback.print_exc(file=sys.stdout)
        return 1
    print(f"seed {seed}: every promise was kept\n{text_of(figures)}")
    return 0


def text_of(figures: Counter[str]) -> str:
    """Return figures as lines of text. A lost or doubled row ends a run, so both are 0."""
    faults = {name: count for name, count in sorted(figures.items()) if name.startswith("fault")}
    of_kinds = ", ".join(f"{name.split(': ')[1]} {count}" for name, count in faults.items())
    return (
        f"{figures['batches']} batches in {figures['runs']} runs of {figures['applications']} "
        f"applications, {figures['kills']} of them killed; "
        f"{figures['rows']} rows visible, lost 0, doubled 0; "
        f"torn and said so: {figures['torn']}\n"
        f"{sum(faults.values())} faults of brokers and network: {of_kinds}"
    )


def _run_chunk(job: tuple[range, int | None]) -> tuple[list[tuple[int, str]], Counter[str]]:
    seeds, versions = job
    failures, figures = [], Counter[str]()
    for seed in seeds:
        found, more = outcome(seed, versions)
        figures += more
        if found is not None:
            failures.append((seed, found))
    return failures, figures


def soak(first: int, count: int, versions: int | None, *, goes_on: bool) -> int:
    """Run many seeds on every core, up to the first failure; return the exit code."""
    began, done, figures, has_failed = time.monotonic(), 0, Counter[str](), False
    size = _CHUNK if versions is None else 1
    seeds = range(first, first + count)
    chunks = [seeds[start : start + size] for start in range(0, count, size)]
    with Pool(cpu_count()) as pool:
        jobs = [(chunk, versions) for chunk in chunks]
        for chunk, (failures, more) in zip(chunks, pool.imap(_run_chunk, jobs), strict=True):
            done += len(chunk)
            figures += more
            for seed, found in failures:
                has_failed = True
                print(f"seed {seed}: {found}\n{replay_command(seed, versions)}", flush=True)
            if has_failed and not goes_on:
                return 1
            if done % (50 * size) == 0:
                took = time.monotonic() - began
                print(f"{done} of {count} seeds, {1000 * took / done:.1f} ms each", flush=True)
    print(f"{done} seeds: {'some failed' if has_failed else 'every promise was kept'}")
    print(text_of(figures))
    return int(has_failed)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="simulation.exactly_once", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print everything that happens")
    parser.add_argument("--seeds", type=int, default=500, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--versions", type=int, help="of each job")
    parser.add_argument("--goes-on", action="store_true", help="after a failure, too")
    arguments = parser.parse_args()
    logging.getLogger("spark_kafka_sink").setLevel(logging.CRITICAL)
    if arguments.seed is not None:
        return replay(arguments.seed, arguments.versions)
    return soak(arguments.first, arguments.seeds, arguments.versions, goes_on=arguments.goes_on)


if __name__ == "__main__":
    sys.exit(main())

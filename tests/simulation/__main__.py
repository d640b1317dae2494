"""Run simulations: `python -m simulation --seed 17` replays one, `--seeds 200000` runs many."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from multiprocessing import Pool, cpu_count

from simulation.scenario import (
    Scenario,
    scenario,
    sessions_scenario,
    transactional_scenario,
)
from simulation.simulation import Simulation

_CHUNK = 50


def draw(
    seed: int,
    *,
    transactions: bool = False,
    sessions: bool = False,
    topic_bytes: int | None = None,
) -> Scenario:
    """Return the scenario of a seed, a plain one by default."""
    make = scenario
    if transactions or sessions:
        make = transactional_scenario if transactions else sessions_scenario
    return make(seed, topic_bytes=topic_bytes)


def failure(
    seed: int,
    *,
    as_bytes: bool = False,
    topic_bytes: int | None = None,
    transactions: bool = False,
    sessions: bool = False,
) -> str | None:
    """Run one seed and return what was wrong, None if nothing was."""
    drawn = draw(seed, transactions=transactions, sessions=sessions, topic_bytes=topic_bytes)
    try:
        Simulation(drawn, as_bytes=as_bytes).run()
    except Exception as error:  # noqa: BLE001 - whatever a run ends with is its result
        return f"{type(error).__name__}: {error}"
    return None


def replay_command(
    seed: int, *, as_bytes: bool = False, transactions: bool = False, sessions: bool = False
) -> str:
    """Return the command that runs one seed again with a log of all events."""
    chosen = {"transactions": transactions, "sessions": sessions, "bytes": as_bytes}
    switches = "".join(f" --{name}" for name, is_on in chosen.items() if is_on)
    return f"PYTHONPATH=tests:jobs python -m simulation --seed {seed}{switches}"


def replay(drawn: Scenario, *, as_bytes: bool) -> int:
    """Run one scenario with a log of all events; return the exit code."""
    print(drawn.configs, drawn.shape, *drawn.faults, sep="\n")
    try:
        Simulation(drawn, as_bytes=as_bytes, tracing=True).run()
    except Exception:  # noqa: BLE001 - printed
        traceback.print_exc(file=sys.stdout)
        return 1
    print(f"seed {drawn.seed}: every promise was kept")
    return 0


def _run_chunk(job: tuple[range, dict[str, bool]]) -> list[tuple[int, str]]:
    seeds, kind = job
    runs = ((seed, failure(seed, **kind)) for seed in seeds)
    return [(seed, found) for seed, found in runs if found is not None]


def soak(first: int, count: int, **kind: bool) -> int:
    """Run many seeds on every core, up to the first failure; return the exit code.

    kind: as in `failure`.
    """
    began, done = time.monotonic(), 0
    seeds = range(first, first + count)
    chunks = [seeds[start : start + _CHUNK] for start in range(0, count, _CHUNK)]
    with Pool(cpu_count()) as pool:
        for chunk, failures in zip(
            chunks,
            pool.imap(_run_chunk, [(chunk, kind) for chunk in chunks]),
            strict=True,
        ):
            done += len(chunk)
            if failures:
                seed, found = failures[0]
                print(f"seed {seed}: {found}\n{replay_command(seed, **kind)}")
                return 1
            if done % (20 * _CHUNK) == 0:
                took = time.monotonic() - began
                print(f"{done} of {count} seeds, {1000 * took / done:.1f} ms each", flush=True)
    print(f"{done} seeds: every promise was kept")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print everything that happens")
    parser.add_argument("--seeds", type=int, default=2000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--bytes", action="store_true", help="encode and decode every frame")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--transactions", action="store_true", help="scenarios of transactions")
    kinds.add_argument("--sessions", action="store_true", help="scenarios of logins that end")
    parser.add_argument("--topic-bytes", type=int, help="replay with this max.message.bytes")
    arguments = parser.parse_args()
    # The producers of thousands of seeds log warnings about every kind of fault.
    logging.getLogger("spark_kafka_sink").setLevel(logging.ERROR)
    kind = {"transactions": arguments.transactions, "sessions": arguments.sessions}
    if arguments.seed is not None:
        drawn = draw(arguments.seed, topic_bytes=arguments.topic_bytes, **kind)
        return replay(drawn, as_bytes=arguments.bytes)
    return soak(arguments.first, arguments.seeds, as_bytes=arguments.bytes, **kind)


if __name__ == "__main__":
    sys.exit(main())

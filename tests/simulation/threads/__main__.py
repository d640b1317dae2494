"""Run threads: `python -m simulation.threads --seed 17` replays one seed, `--seeds 20000` many."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pool, cpu_count

from simulation.threads.run import Run

_CHUNK = 50


def failure(seed: int, *, interrupts: bool = False) -> str | None:
    """Run one seed and return what was wrong, None if nothing was."""
    try:
        with _unlogged():
            Run(seed, interrupts=interrupts).run()
    except BaseException as error:  # noqa: BLE001 - any end of a run, also SystemExit
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def _unlogged() -> Iterator[None]:
    """Disable logging, because user code raises thousands of times."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        # Not by the attribute, because loggers cache the levels that they are not enabled for.
        logging.disable(before)


def replay_command(seed: int, *, interrupts: bool = False) -> str:
    """Return the command that runs one seed again with a log of all events."""
    more = " --interrupts" if interrupts else ""
    return f"PYTHONPATH=tests:jobs python -m simulation.threads --seed {seed}{more}"


def replay(seed: int, *, interrupts: bool) -> int:
    """Run one seed with a log of all events; return the exit code."""
    run = Run(seed, interrupts=interrupts, tracing=True)
    print(run.plan)
    if interrupts:
        # Logging and one-time initializations would shift the moment of the interrupt.
        failure(seed, interrupts=True)
        logging.disable()
    try:
        run.run()
    except BaseException:  # noqa: BLE001 - printed
        traceback.print_exc(file=sys.stdout)
        return 1
    print(f"seed {seed}: every promise was kept {run.world.digest:08x}")
    return 0


def _run_chunk(seeds: range, *, interrupts: bool) -> tuple[int, str] | None:
    """Run seeds up to the first failure, and return it with its seed."""
    for seed in seeds:
        found = failure(seed, interrupts=interrupts)
        if found is not None:
            return seed, found
    return None


def soak(first: int, count: int, *, interrupts: bool) -> int:
    """Run many seeds on every core, up to the first failure; return the exit code."""
    began, done = time.monotonic(), 0
    seeds = range(first, first + count)
    chunks = [seeds[start : start + _CHUNK] for start in range(0, count, _CHUNK)]
    run = partial(_run_chunk, interrupts=interrupts)
    with Pool(cpu_count()) as pool:
        for chunk, failed in zip(chunks, pool.imap(run, chunks), strict=True):
            done += len(chunk)
            if failed is not None:
                seed, found = failed
                print(f"seed {seed}: {found}\n{replay_command(seed, interrupts=interrupts)}")
                return 1
    took = time.monotonic() - began
    print(f"{done} seeds: every promise was kept, {1000 * took / max(done, 1):.1f} ms each")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="simulation.threads", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print everything that happens")
    parser.add_argument("--seeds", type=int, default=500, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--interrupts", action="store_true", help="interrupt a caller, as Ctrl-C")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return replay(arguments.seed, interrupts=arguments.interrupts)
    return soak(arguments.first, arguments.seeds, interrupts=arguments.interrupts)


if __name__ == "__main__":
    sys.exit(main())

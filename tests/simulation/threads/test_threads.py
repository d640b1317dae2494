"""The producer's threads keep its guarantees in any order of execution, and after Ctrl-C.

A failing seed is replayed, with a log of all events, by the command in its failure message.
tests/mutants has past faults of this layer, which these runs detect.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

import pytest
from support.pure.unreachable import NOBODY

from simulation.batches import Batch
from simulation.cluster import Cluster
from simulation.scheduler import Scheduler, SimulationError
from simulation.threads.__main__ import failure, replay, replay_command
from simulation.threads.ledger import Ledger
from simulation.threads.plan import draw
from simulation.threads.producer_log import ProducerLog
from simulation.threads.run import Run
from simulation.threads.world import SimulatedCondition, SimulatedLock, World
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import base_producer
from spark_kafka_sink.plugins.interceptors import ProducerInterceptor

SEEDS = 500
CHUNK = 100
INTERRUPTS = 100


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    for seed in range(first, first + CHUNK):
        found = failure(seed)
        assert found is None, f"seed {seed}: {found}\n{replay_command(seed)}"


def test_an_interrupted_call_can_be_repeated_and_the_producer_says_if_it_goes_on() -> None:
    for seed in range(INTERRUPTS):
        found = failure(seed, interrupts=True)
        assert found is None, f"seed {seed}: {found}\n{replay_command(seed, interrupts=True)}"


def test_interrupts_come_at_many_places() -> None:
    places, twice = set(), 0
    for seed in range(INTERRUPTS // 2):
        run = Run(seed, interrupts=True)
        run.run()
        places.add(run.interrupted_at)
        twice += bool(run.interrupted_again_at)
    assert len(places) > INTERRUPTS // 8
    assert twice > INTERRUPTS // 50


@pytest.mark.parametrize("interrupts", [False, True])
def test_a_seed_always_runs_alike_also_in_another_process(*, interrupts: bool) -> None:
    run = Run(7, interrupts=interrupts)
    run.run()
    tests = Path(__file__).parents[2]
    path = [str(tests), *sys.path]
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {path}; {_REPLAY}"]
    command += ["--seed", "7", *(["--interrupts"] if interrupts else [])]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.endswith(f"every promise was kept {run.world.digest:08x}\n")
    assert "main" in said


_REPLAY = "from simulation.threads.__main__ import main; sys.exit(main())"


def test_a_run_that_ends_by_what_is_no_exception_names_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end_at_once(_: Run) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(Run, "run", end_at_once)
    assert failure(7) == "SystemExit: 3"
    assert replay(7, interrupts=False) == 1
    assert "SystemExit: 3" in capsys.readouterr().out


# -- what the ledger finds ------------------------------------------------------------------------


def transaction_of_one_row(*, is_commit: bool) -> tuple[Ledger, Cluster]:
    """End a transaction with the first row of an append of two; return the rows and the logs."""
    plans = (draw(Random(seed), interrupts=True) for seed in count())
    plan = next(plan for plan in plans if plan.is_transactional)
    cluster, ledger = Cluster(plan.shape, Scheduler(), Random(1)), Ledger(plan)
    tp = plan.shape.partitions[0]
    ledger.give("caller", tp.topic, 2, is_append=True)
    log = cluster.final_log(tp)
    log.append(Batch(1, 0, 0, (0,), None, 100, is_transactional=True))
    log.mark(1, 0, is_commit=is_commit)
    return ledger, cluster


def test_a_part_of_an_append_may_be_in_a_transaction_that_was_aborted() -> None:
    ledger, cluster = transaction_of_one_row(is_commit=False)
    ledger.check_logs(cluster, set())


def test_a_part_of_an_append_in_a_committed_transaction_is_found() -> None:
    ledger, cluster = transaction_of_one_row(is_commit=True)
    with pytest.raises(SimulationError, match="append 1 was broken off in the middle"):
        ledger.check_logs(cluster, set())


def test_a_committed_row_that_is_only_in_an_aborted_transaction_is_found() -> None:
    ledger, cluster = transaction_of_one_row(is_commit=False)
    ledger.rows[0].is_committed = True
    with pytest.raises(SimulationError, match="was committed and is not there"):
        ledger.check_logs(cluster, set())


class ExitingInterceptor(ProducerInterceptor):
    """Its close raises SystemExit."""

    def close(self) -> None:
        """Raise SystemExit."""
        raise SystemExit


@pytest.mark.parametrize(
    ("logged", "found"),
    [
        (0, "is lost and nobody got an error"),
        (1, "2 rows are lost, but only 1 in the log"),
        (2, None),
    ],
)
def test_lost_rows_are_reported_if_an_interrupted_close_logs_their_number(
    logged: int, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = (draw(Random(seed), interrupts=False) for seed in count())
    plan = next(plan for plan in plans if not plan.is_transactional)
    cluster, ledger = Cluster(plan.shape, Scheduler(), Random(1)), Ledger(plan)
    topic = plan.shape.partitions[0].topic
    for number in ledger.give("caller", topic, 2, is_append=True):
        ledger.rows[number].is_taken = True
    monkeypatch.setattr(base_producer, "logger", ProducerLog(World(1), ledger))
    interceptors = {"interceptor.classes": [ExitingInterceptor()]}
    producer = KafkaProducer({"bootstrap.servers": NOBODY, **interceptors})
    monkeypatch.setattr(producer._thread, "lost", lambda: +Counter({topic: logged}))
    with pytest.raises(SystemExit):
        producer.close()
    if found is None:
        ledger.check_logs(cluster, set())
    else:
        with pytest.raises(SimulationError, match=found):
            ledger.check_logs(cluster, set())


# -- what the world itself finds ------------------------------------------------------------------


def test_threads_that_wait_for_each_other_are_found() -> None:
    world = World(1)
    first, second = (SimulatedLock(world, reentrant=False) for _ in range(2))

    def take(one: SimulatedLock, other: SimulatedLock) -> None:
        with one:
            world.sleep(1)
            with other:
                pass

    def main() -> None:
        world.spawn("other", lambda: take(second, first))
        take(first, second)

    with pytest.raises(SimulationError, match=r"deadlock at 1.* waits for a lock that .* had"):
        world.run(main)


def test_a_wait_that_nobody_ends_is_found() -> None:
    world = World(1)
    condition = SimulatedCondition(world)

    def main() -> None:
        with condition:
            condition.wait()

    with pytest.raises(SimulationError, match=r"deadlock .* main waits for a condition"):
        world.run(main)


def test_a_loop_without_end_is_found() -> None:
    world = World(1)

    def main() -> None:
        while True:
            world.step("again")

    with pytest.raises(SimulationError, match="busy loop"):
        world.run(main)

"""One run: jobs of a scenario in a simulated cluster, to the end, and what came of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Final
from unittest import mock

from simulation import network
from simulation.cluster import Cluster
from simulation.coordinator import State
from simulation.exactly_once.application import Application
from simulation.exactly_once.checker import check
from simulation.exactly_once.job import Job, Said
from simulation.exactly_once.process import Places
from simulation.exactly_once.scenario import Mischief, Scenario
from simulation.faults import Faults
from simulation.network import MessageConnection
from simulation.scheduler import Scheduler, SimulationError
from simulation.simulation import NO_THREADS
from spark_kafka_sink.client import assembly, io_thread
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.network import client, request_client
from spark_kafka_sink.network.selector import HostResolver

# Between two applications of a job, while there is something to write, and afterwards.
_NEXT_S: Final = 1.0
_AGAIN_S: Final = 6.0
_LOOK_S: Final = 0.5
# For an application without faults to write one version, after others have left what they have.
_PATIENCE_S: Final = 120.0


class Simulation:
    """Runs a scenario; `run` raises SimulationError if a promise is broken."""

    def __init__(self, scenario: Scenario, *, tracing: bool = False) -> None:
        self._scenario = scenario
        self._random = Random(scenario.seed + 1)
        self.scheduler = Scheduler(tracing=tracing)
        self.cluster = Cluster(scenario.shape, self.scheduler, self._random)
        self.places = Places(self.cluster, self.scheduler, self._random, scenario.delay_s)
        self._config = producer_config(scenario.configs)
        self._faults = Faults(
            scenario,
            self.cluster,
            self.places,
            self.scheduler,
            self._random,
            lambda _: False,
        )
        self._alive: Counter[int] = Counter()
        self._made = self._killed = 0
        self._unfinished = {job.number for job in scenario.jobs}

    def run(self) -> Counter[str]:
        """Run until every job has ended, check what is visible, and return figures."""
        with self._simulated():
            self._faults.plan()
            for job in self._scenario.jobs:
                self._start(job)
            while self._unfinished or not self._is_settled():
                limit = self._scenario.heal_at + _PATIENCE_S * (
                    1 + len(self._scenario.jobs[0].versions)
                )
                if self.scheduler.now > limit:
                    self._hangs()
                self.scheduler.run_next()
        coordinator = self.cluster.coordinator
        assert coordinator is not None
        losses = {
            ProducerIdAndEpoch(*loss)
            for each in coordinator.transactions.values()
            for loss in each.losses
        }
        figures = check(self._scenario.jobs, self.cluster, losses)
        figures.update(f"fault: {fault.kind}" for fault in self._scenario.faults)
        figures["applications"] = self._made
        figures["kills"] = self._killed
        return figures

    def _hangs(self) -> None:
        jobs = [job for job in self._scenario.jobs if job.number in self._unfinished]
        said = {str(job.owner): [(run.version, run.said.name) for run in job.runs] for job in jobs}
        message = f"at {self.scheduler.now:.1f} s jobs have not ended: {said}"
        raise SimulationError(message)

    def _is_settled(self) -> bool:
        coordinator = self.cluster.coordinator
        assert coordinator is not None
        return coordinator.is_settled and all(
            each.state is not State.ONGOING for each in coordinator.transactions.values()
        )

    # -- applications -----------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        """Start an application with what is not known to be written."""
        if self.scheduler.now >= self._scenario.heal_at:
            self._finish(job)
            return
        missing = [version for version in job.versions if not job.is_written(version)]
        if not missing or job.is_torn:
            # Until the faults end: it is written already.
            missing = [self._random.choice(job.versions)]
        elif self._random.random() < 0.1:
            self._random.shuffle(missing)
        mischief = self._scenario.mischief
        self._launch(job, missing, mischief, self._ended)
        if mischief.doubles:
            delay = self._random.expovariate(mischief.doubles)
            self.scheduler.after(delay, self._double, job)

    def _double(self, job: Job) -> None:
        if self._alive[job.number] == 1 and self.scheduler.now < self._scenario.heal_at:
            missing = [version for version in job.versions if not job.is_written(version)]
            if missing:
                self._launch(job, missing, self._scenario.mischief, self._ended)

    def _launch(
        self,
        job: Job,
        versions: list[int],
        mischief: Mischief,
        ended: Callable[[Application], None],
    ) -> None:
        self._made += 1
        self._alive[job.number] += 1
        application = Application(
            self._scenario,
            self.places,
            self._config,
            job,
            versions,
            ended,
            mischief=mischief,
            name=f"app{self._made}",
        )
        application.start()

    def _ended(self, application: Application) -> None:
        self._killed += application.was_killed
        job = application.job
        self._alive[job.number] -= 1
        if self._alive[job.number] == 0:
            is_written = all(map(job.is_written, job.versions))
            longest = _AGAIN_S if is_written or job.is_torn else _NEXT_S
            self.scheduler.after(self._random.uniform(0, longest), self._start_if_none, job)

    def _start_if_none(self, job: Job) -> None:
        if self._alive[job.number] == 0:
            self._start(job)

    # -- the end ----------------------------------------------------------------------------------

    def _finish(self, job: Job) -> None:
        """Write what is missing without faults, and run every version once more."""
        missing = [version for version in job.versions if not job.is_written(version)]
        self._launch(job, missing, Mischief(), self._finished)

    def _finished(self, application: Application) -> None:
        job = application.job
        self._alive[job.number] -= 1
        if job.is_torn:
            self._unfinished.discard(job.number)
            return
        self._launch(job, list(job.versions), Mischief(), self._finished_again)

    def _finished_again(self, application: Application) -> None:
        job = application.job
        self._alive[job.number] -= 1
        said = [run.said for run in job.runs if run.said in (Said.SUCCESS, Said.SKIPPED)]
        last = said[-len(job.versions) :]
        if last != [Said.SKIPPED] * len(job.versions):
            message = f"{job.owner}: versions that are written were not skipped: {last}"
            raise SimulationError(message)
        self._unfinished.discard(job.number)

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        clock = SimpleNamespace(monotonic=lambda: self.scheduler.now)

        def selector(**_: object) -> object:
            return self.places.current_selector()

        with (
            mock.patch.multiple(
                assembly, Selector=selector, Random=lambda: self._random, time=clock
            ),
            mock.patch.object(io_thread, "threading", NO_THREADS),
            mock.patch.object(request_client, "Selector", selector),
            mock.patch.object(
                sys.modules[CommitClient.__module__], "Random", return_value=self._random
            ),
            mock.patch.multiple(
                client,
                Connection=MessageConnection,
                HostResolver=partial(HostResolver, resolve=network.resolve),
            ),
        ):
            yield

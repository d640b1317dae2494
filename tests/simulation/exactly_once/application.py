"""A Spark application that writes versions of a job: its driver, its executors, its end.

Spark calls the sink in three processes: one plans, executors run tasks, and another one commits or
aborts. A version that is not known to be written is run again, by this application or by the
next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation.exactly_once.asker import LOG, Asker
from simulation.exactly_once.attempt import Attempt, Errand, Executor
from simulation.exactly_once.job import Job, RunRecord, Said
from simulation.exactly_once.process import Places
from simulation.exactly_once.scenario import TOPIC, Mischief, Scenario
from spark_kafka_sink.commit import plan as planning
from spark_kafka_sink.commit import single, two_phase, two_phase_abort
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Committed,
    Decided,
    Planned,
    Skipped,
    Torn,
)
from spark_kafka_sink.commit.steps import Failure
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.model import TopicPartition

_EXECUTORS = 2
_MOST_FAILURES = 3
_AGAIN_S = 0.3
_LONGEST_LIFE_S = 3.0
_LONG_TIMEOUT_MS = 60_000


class Application:
    """One application; ended: is called when it has nothing more to do, or was killed.

    was_killed: whether that was its end.
    """

    def __init__(
        self,
        scenario: Scenario,
        places: Places,
        config: ProducerConfig,
        job: Job,
        versions: list[int],
        ended: Callable[[Application], None],
        *,
        mischief: Mischief,
        name: str,
    ) -> None:
        self.scenario = scenario
        self.places = places
        self.job = job
        self.mischief = mischief
        self.name = name
        self.is_alive = True
        self.was_killed = False
        self._config = config
        self._versions = versions
        self._ended = ended
        self._random = places.random
        self._scheduler = places.scheduler
        self._planner = Asker(places, f"{name} plan", config)
        self._committer: Asker | None = None
        self._executors: list[Executor] = []
        self._made = 0
        self._run: JobRun | None = None
        self.runs = 0

    def start(self) -> None:
        """Begin with the first version."""
        if self.mischief.kills:
            self._scheduler.after(self._random.expovariate(self.mischief.kills), self.kill)
        self._next()

    def kill(self) -> None:
        """Kill the driver; the executors live on for a while."""
        if not self.is_alive:
            return
        self._scheduler.trace(self.name, "is killed")
        self.was_killed = True
        self._end()

    def _end(self) -> None:
        self.is_alive = False
        if self._run is not None:
            self._run.is_over = True
        self._planner.kill()
        if self._committer is not None:
            self._committer.kill()
        for each in self._executors:
            each.drop()
            lives_s = self._random.choice([0.0, self._random.uniform(0, _LONGEST_LIFE_S)])
            self._scheduler.after(lives_s, each.kill)
        self._ended(self)

    def _next(self) -> None:
        if not self.is_alive:
            return
        is_time = self.mischief != Mischief() and self._scheduler.now >= self.scenario.heal_at
        if is_time or not self._versions or self.job.is_torn:
            self._end()
            return
        self.runs += 1
        self._run = JobRun(self, self._versions[0], self._planner, f"{self.name}.{self.runs}")
        self._run.start()

    def run_over(self, said: Said) -> None:
        """Go on with the next version, or with the same one."""
        if said in (Said.SUCCESS, Said.SKIPPED):
            self._versions.pop(0)
        self._scheduler.after(self._random.uniform(0, _AGAIN_S), self._next)

    def executor(self) -> Executor:
        """Return an executor that is alive, each in turn."""
        self._executors = [each for each in self._executors if each.is_alive]
        if len(self._executors) < _EXECUTORS:
            self._made += 1
            name = f"{self.name} exec{self._made}"
            self._executors.append(Executor(self.places, name, self._config))
            return self._executors[-1]
        return self._random.choice(self._executors)

    def lose(self, executor: Executor) -> None:
        """Take an executor for lost; it goes on for a while."""
        self._executors.remove(executor)
        executor.drop()
        lives_s = self._random.uniform(0, _LONGEST_LIFE_S)
        self._scheduler.trace(executor.name, "is taken for lost, and lives {:.2f} s", lives_s)
        self._scheduler.after(lives_s, executor.kill)

    def is_executor(self, executor: Executor) -> bool:
        """Whether an executor is one of this application."""
        return executor in self._executors and executor.is_alive

    def committer(self, *, is_new: bool = False) -> Asker:
        """Return the process that commits; is_new: another one than before, which is ended."""
        if self._committer is not None and is_new:
            self._committer.kill()
            self._committer = None
        if self._committer is None:
            self._committer = Asker(self.places, f"{self.name} commit", self._config)
        return self._committer


class JobRun:
    """One run of a version: plan, tasks, commit or abort."""

    def __init__(self, application: Application, version: int, planner: Asker, name: str) -> None:
        self._application = application
        self._planner = planner
        self._job = application.job
        self._scheduler = application.places.scheduler
        self._random = application.places.random
        self._mischief = application.mischief
        self._name = name
        self.is_over = False
        self._is_ending = self._is_committing = False
        self._record = RunRecord(version)
        self._job.runs.append(self._record)
        self._plan: Plan
        tasks = range(self._job.tasks)
        self._messages: dict[int, AttemptTransaction | None] = {}
        self._failures = dict.fromkeys(tasks, 0)
        self._numbers = dict.fromkeys(tasks, 0)
        self._attempts: dict[Attempt, Executor] = {}
        self._level = application.scenario.level

    def _deadline(self, option: str) -> float:
        seconds: float = self._application.scenario.configs[option] / 1000
        return self._scheduler.now + seconds

    def start(self) -> None:
        """Plan."""
        run = Run(self._job.owner, self._name, LOG, self._level, self._timeout_ms)
        begun = planning.begin(
            run,
            deadline=self._deadline("max.block.ms"),
            version=self._record.version,
            partitions=self._targets if self._job.is_single else None,
        )
        self._planner.ask(begun, planning.step, self._planned)

    @property
    def _timeout_ms(self) -> int:
        """The timeout of transactions; once all faults have ended, it is long enough."""
        scenario = self._application.scenario
        is_well = self._scheduler.now >= scenario.heal_at
        return _LONG_TIMEOUT_MS if is_well else scenario.timeout_ms

    @property
    def _targets(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(TOPIC, number) for number in range(self._job.partitions))

    def _planned(self, outcome: object) -> None:
        if isinstance(outcome, Planned):
            self._plan = outcome.plan
            for task in range(self._job.tasks):
                self._start(task)
            if self._random.random() < self._mischief.cancels:
                delay = self._random.uniform(0, 3 * self._application.scenario.task_s)
                self._scheduler.after(delay, self._cancel)
        elif isinstance(outcome, Skipped):
            self._say(Said.SKIPPED)
        elif isinstance(outcome, Torn):
            self._say_torn(outcome)
        else:
            self._say(Said.FAILED)

    def _say_torn(self, torn: Torn) -> None:
        self._record.lost = {each.transaction.producer for each in torn.lost}
        self._say(Said.TORN)

    def _say(self, said: Said) -> None:
        self._scheduler.trace(self._name, "version {}: {}", self._record.version, said.value)
        self._record.said = said
        self.is_over = True
        self._application.run_over(said)

    # -- tasks ------------------------------------------------------------------------------------

    def _start(self, task: int) -> None:
        number = self._numbers[task]
        if not number or self._random.random() >= self._mischief.repeats_number:
            self._numbers[task] += 1
        errand = Errand(self._job, self._plan, self._record, task, max(0, self._numbers[task] - 1))
        application = self._application
        attempt = Attempt(application.scenario, application.places, errand, self)
        executor = application.executor()
        self._attempts[attempt] = executor
        executor.submit(attempt)
        delay = self._random.uniform(0, 4 * application.scenario.task_s)
        if self._random.random() < self._mischief.is_lost:
            self._scheduler.after(delay, self._lose, attempt)
        if not number and self._random.random() < self._mischief.is_copied:
            self._scheduler.after(delay, self._copy, task)

    def _lose(self, attempt: Attempt) -> None:
        executor = self._attempts.get(attempt)
        if self.is_over or self._is_ending or executor is None:
            return
        if self._application.is_executor(executor):
            self._application.lose(executor)
        # All of its attempts are lost, and started again.
        lost = [each for each, where in self._attempts.items() if where is executor]
        for each in lost:
            self._gone(each, counts=False)

    def _copy(self, task: int) -> None:
        if not (self.is_over or self._is_ending) and task not in self._messages:
            self._start(task)

    def returned(self, attempt: Attempt, message: AttemptTransaction | None) -> None:
        """Take the first message of a task."""
        task = attempt.errand.task
        is_known = self._attempts.pop(attempt, None) is not None
        if self.is_over or self._is_ending or not is_known or task in self._messages:
            return
        self._messages[task] = message
        if len(self._messages) == self._job.tasks:
            self._commit()

    def failed(self, attempt: Attempt, *, has_sent: bool) -> None:
        """Start the task again, or fail the job."""
        self._gone(attempt, counts=True)

    def _gone(self, attempt: Attempt, *, counts: bool) -> None:
        task = attempt.errand.task
        is_known = self._attempts.pop(attempt, None) is not None
        if self.is_over or self._is_ending or not is_known or task in self._messages:
            return
        self._failures[task] += counts
        if self._failures[task] >= _MOST_FAILURES:
            self._cancel()
        elif all(each.errand.task != task for each in self._attempts):
            self._start(task)

    def _cancel(self) -> None:
        """Fail the job: Spark calls abort, and kills no task at once."""
        if not (self.is_over or self._is_ending):
            self._is_ending = True
            self._abort()

    # -- the end ----------------------------------------------------------------------------------

    def _commit(self) -> None:
        self._is_ending = self._is_committing = True
        written = tuple(each for each in self._messages.values() if each is not None)
        self._record.accepted = {each.producer for each in written if each.written}
        rows = sum(one.records for each in written for one in each.written)
        nothing = CommitRecord(RecordState.DONE, self._name, rows=0, written_at=0)
        record = replace(
            (self._plan.record or nothing).done(),
            run=self._name,
            rows=rows,
            written_at=round(self._scheduler.now * 1000),
        ).after_version(self._record.version)
        deadline = self._deadline("delivery.timeout.ms")
        committer = self._application.committer()
        if self._random.random() < self._mischief.is_cut:
            longest = self._random.choice([0.01, 0.05, 0.3])
            self._scheduler.after(self._random.uniform(0, longest), self._cut)
        if self._job.is_single:
            self._record.producers.add(self._plan.producer)
            begun: Any = single.begin_commit(
                self._plan,
                written,
                record,
                level=self._level,
                targets=self._targets,
                probes=self._random.random() < 0.3,
                deadline=deadline,
            )
            committer.ask(begun, single.step, self._committed)
        else:
            begun = two_phase.begin(
                self._plan, written, record, level=self._level, deadline=deadline
            )
            committer.ask(begun, two_phase.step, self._committed)

    def _cut(self) -> None:
        """End commit() from outside; Spark calls abort in another process."""
        if self._is_committing and not self.is_over:
            self._is_committing = False
            self._scheduler.trace(self._name, "the process that commits is killed")
            self._application.committer(is_new=True)
            self._abort()

    def _committed(self, outcome: object) -> None:
        self._is_committing = False
        if isinstance(outcome, Committed):
            self._say(Said.SUCCESS)
            return
        # commit() raises, and Spark calls abort().
        if isinstance(outcome, Torn):
            self._record.lost = {each.transaction.producer for each in outcome.lost}
            self._abort(Said.TORN)
        else:
            self._abort(Said.FAILED if isinstance(outcome, Failure) else Said.UNKNOWN)

    def _abort(self, said: Said = Said.UNKNOWN) -> None:
        committer = self._application.committer()
        deadline = self._deadline("max.block.ms")
        if self._job.is_single:
            begun: Any = single.begin_abort(self._plan, level=self._level, deadline=deadline)
            committer.ask(begun, single.step, lambda outcome: self._aborted(said, outcome))
            return
        known = tuple(each for each in self._messages.values() if each is not None)
        begun = two_phase_abort.begin(
            self._plan,
            known,
            level=self._level,
            deadline=deadline,
            is_missing=len(self._messages) < self._job.tasks,
        )
        committer.ask(begun, two_phase_abort.step, lambda outcome: self._aborted(said, outcome))

    def _aborted(self, said: Said, outcome: object) -> None:
        if isinstance(outcome, Decided):
            begun = two_phase.begin_forward(
                self._plan,
                outcome.record,
                level=self._level,
                deadline=self._scheduler.now + self._plan.run.timeout_ms / 1000,
            )
            self._application.committer().ask(
                begun, two_phase.step, lambda found: self._forwarded(said, found)
            )
            return
        self._say(Said.FAILED if isinstance(outcome, Aborted) else said)

    def _forwarded(self, said: Said, outcome: object) -> None:
        if isinstance(outcome, Committed):
            # Unless commit() has said that it is not decided.
            self._say(Said.FAILED if said is Said.FAILED else Said.SUCCESS)
        elif isinstance(outcome, Torn):
            self._say_torn(outcome)
        else:
            self._say(said)

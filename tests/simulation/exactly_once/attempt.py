"""An attempt of a task on an executor, as `SingleTask` and `TwoPhaseTask` make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from simulation.cluster import Cluster
from simulation.exactly_once.asker import Asker
from simulation.exactly_once.job import Job, RunRecord
from simulation.exactly_once.process import Places
from simulation.exactly_once.scenario import TOPIC, Scenario
from simulation.exactly_once.writer import Writer
from spark_kafka_sink.commit import guards, single_check, two_phase_claim
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, WrittenPartition
from spark_kafka_sink.commit.names import TaskSlot
from spark_kafka_sink.commit.outcomes import Claimed
from spark_kafka_sink.commit.steps import Failure, end_txn
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.transactions.joined import DuplicateBatch, JoinedPartition

_CHUNKS: Final = 3


class Executor:
    """A process that runs one attempt at a time; its clients stay for the next one."""

    def __init__(self, places: Places, name: str, config: ProducerConfig) -> None:
        self._places = places
        self._config = config
        self.name = name
        self.asker = Asker(places, name, config)
        self._writer: Writer | None = None
        self._waiting: list[Attempt] = []
        self._running: Attempt | None = None
        self.is_alive = True

    @property
    def writer(self) -> Writer:
        """The producer; another one is made after a failed task."""
        if self._writer is None:
            self._writer = Writer(self._places, self.name, self._config)
        return self._writer

    def submit(self, attempt: Attempt) -> None:
        """Run an attempt after those before."""
        self._waiting.append(attempt)
        self._start_next()

    def finish(self, *, has_failed: bool) -> None:
        """Go on with the next attempt."""
        if has_failed and self._writer is not None:
            self._writer.kill()
            self._writer = None
        self._running = None
        self._start_next()

    def drop(self) -> None:
        """Start no more attempts: nobody waits for them."""
        self._waiting.clear()

    def kill(self) -> None:
        """End at once."""
        self.is_alive = False
        self._waiting.clear()
        self.asker.kill()
        if self._writer is not None:
            self._writer.kill()

    def _start_next(self) -> None:
        if self.is_alive and self._running is None and self._waiting:
            self._running = self._waiting.pop(0)
            self._running.start(self)


class Driver(Protocol):
    """Who waits for an attempt."""

    def returned(self, attempt: Attempt, message: AttemptTransaction | None) -> None:
        """Take a message; None if there were no rows."""

    def failed(self, attempt: Attempt, *, has_sent: bool) -> None:
        """Note that an attempt has failed. has_sent: whether it may have sent rows."""


@dataclass(slots=True)
class Errand:
    """What an attempt is to do."""

    job: Job
    plan: Plan
    record: RunRecord
    task: int
    number: int


class Attempt:
    """One attempt, step by step."""

    def __init__(self, scenario: Scenario, places: Places, errand: Errand, driver: Driver) -> None:
        self._scenario = scenario
        self._random: Random = places.random
        self._scheduler = places.scheduler
        self._cluster: Cluster = places.cluster
        self._driver = driver
        self._executor: Executor
        job, task = errand.job, errand.task
        self.errand = errand
        self._left = job.laid_out(errand.record.version, task, self._random)
        self._partition = TopicPartition(TOPIC, task)
        self._slot: TaskSlot | None = None
        self._producer: ProducerIdAndEpoch | None = None
        self._log_end = 0
        # Before which of its steps it fails, of the first, appends, flush and return.
        fails = self._random.random() < scenario.mischief.fails
        self._fails_before = self._random.randint(0, _CHUNKS + 2) if fails else -1
        self._steps = 0

    # -- before the first row ---------------------------------------------------------------------

    def start(self, executor: Executor) -> None:
        """Begin on an executor."""
        self._executor = executor
        self._after(self._begin)

    def _begin(self) -> None:
        plan, errand = self.errand.plan, self.errand
        if self._step_fails():
            return
        if not self._left:
            self._end(None)
            return
        deadline = self._scheduler.now + self._scenario.configs["max.block.ms"] / 1000
        if errand.job.is_single:
            self._join(plan.run.driver_id, plan.producer)
            begun = single_check.begin(plan, (self._partition,), deadline=deadline)
            self._executor.asker.ask(begun, single_check.step, self._looked)
        else:
            claim = two_phase_claim.begin(plan, errand.task, errand.number, deadline=deadline)
            self._executor.asker.ask(claim, two_phase_claim.step, self._claimed)

    def _looked(self, outcome: object) -> None:
        if isinstance(outcome, Failure):
            self._fail(outcome.sentence)
            return
        leader = self._cluster.brokers.get(self._cluster.truth[self._partition].leader)
        if leader is not None:
            self._log_end = self._cluster.high_watermark(leader, self._partition)
        self._append()

    def _claimed(self, outcome: object) -> None:
        if not isinstance(outcome, Claimed):
            assert isinstance(outcome, Failure)
            self._fail(outcome.sentence)
            return
        self._slot = outcome.slot
        self._join(self.errand.plan.run.owner.task_id(outcome.slot), outcome.producer)
        self._append()

    def _join(self, transactional_id: str, producer: ProducerIdAndEpoch) -> None:
        self._producer = producer
        self.errand.record.producers.add(producer)
        is_single = self.errand.job.is_single
        self._executor.writer.join(
            transactional_id,
            producer,
            self.errand.plan.run.level,
            adds_partitions=not is_single,
            withholds=is_single,
            checks_duplicates=is_single,
        )

    # -- rows -------------------------------------------------------------------------------------

    def _append(self) -> None:
        if self._step_fails():
            return
        if not self._left:
            self._executor.writer.flush(self._flushed)
            return
        size = max(1, -(-len(self._left) // self._random.randint(1, _CHUNKS)))
        rows, self._left = self._left[:size], self._left[size:]
        try:
            self._executor.writer.append(TOPIC, rows)
        except KafkaException as error:
            self._fail(str(error))
            return
        self._after(self._append)

    def _flushed(self, error: KafkaException | None) -> None:
        if error is not None:
            self._fail(str(error))
            return
        if self._step_fails():
            return
        assert self._producer is not None
        written = self._executor.writer.detach()
        if self.errand.job.is_single:
            for partition, found in written.items():
                wrong = self._check(partition, found)
                if wrong is not None:
                    self._fail(wrong)
                    return
        self._end(
            AttemptTransaction(
                slot=self._slot,
                producer=self._producer,
                written=tuple(
                    WrittenPartition(
                        partition,
                        found.records,
                        found.first_offset,
                        found.last_offset,
                        found.last_sequence,
                    )
                    for partition, found in sorted(written.items())
                ),
            )
        )

    def _check(self, partition: TopicPartition, found: JoinedPartition) -> str | None:
        """Return what is wrong with the responses (G3, G4), as `SingleTask` checks them."""
        base, last = found.went_back or (found.first_offset, -1)
        acknowledged = [
            guards.Acknowledged(
                partition, base, self._log_end, last, is_duplicate=False, was_resent=False
            ),
            *(
                guards.Acknowledged(
                    partition,
                    each.base_offset,
                    self._log_end,
                    previous_last_offset=-1,
                    is_duplicate=True,
                    was_resent=each.attempts > 0,
                )
                for each in found.duplicates
            ),
        ]
        for each in acknowledged:
            check = guards.check_ack(each)
            if isinstance(check, Failure):
                return check.sentence
            if check is guards.AckCheck.READ_BACK and not all(
                self._is_ours(partition, duplicate) for duplicate in found.duplicates
            ):
                return "the log has another batch"
        return None

    def _is_ours(self, partition: TopicPartition, duplicate: DuplicateBatch) -> bool:
        log = self._cluster.brokers[max(self._cluster.truth[partition].leader, 1)].logs[partition]
        return any(
            entry.base_offset == duplicate.base_offset
            and bool(entry.batch.data)
            and duplicate.is_in(entry.batch.data)
            for entry in log.entries
        )

    # -- the end ----------------------------------------------------------------------------------

    def _end(self, message: AttemptTransaction | None) -> None:
        self._executor.finish(has_failed=False)
        self._after(lambda: self._driver.returned(self, message))

    def _step_fails(self) -> bool:
        """Fail if it is to fail before this step."""
        self._steps += 1
        if self._steps - 1 != self._fails_before:
            return False
        self._fail("it raises an error")
        return True

    def _fail(self, reason: str) -> None:
        self._scheduler.trace(self._executor.name, "task {} fails: {}", self.errand.task, reason)
        if self._slot is None or self._producer is None:
            self._failed()
            return
        run = self.errand.plan.run
        ask = end_txn(run.owner.task_id(self._slot), self._producer, run.level, commit=False)
        self._executor.asker.ask_once(ask, lambda _: self._failed())

    def _failed(self) -> None:
        self._executor.finish(has_failed=True)
        has_sent = self._producer is not None
        self._after(lambda: self._driver.failed(self, has_sent=has_sent))

    def _after(self, call: Callable[[], None]) -> None:
        """Go on after a while, if the executor is alive then."""
        delay = self._random.uniform(0, self._scenario.task_s)
        self._scheduler.after(delay, self._go_on, call)

    def _go_on(self, call: Callable[[], None]) -> None:
        asker = self._executor.asker
        if not self._executor.is_alive:
            return
        if asker.paused_until > self._scheduler.now:
            self._scheduler.at(asker.paused_until, self._go_on, call)
            return
        call()

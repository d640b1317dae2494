"""Transactions of a simulated application: what it does, and what may be seen of it afterwards.

The application calls what `ProducerTransactions` calls, one step after another. After an error that
only a new producer helps against, and now and then for no reason, it goes away without a word and
its successor begins with init_transactions, while requests of the first may still arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from simulation.application import Application
from simulation.batches import Batch
from simulation.checker import Checker, Ledger
from simulation.cluster import Cluster
from simulation.replica import Replica
from simulation.scenario import Append, Scenario
from simulation.scheduler import Scheduler, SimulationError
from spark_kafka_sink.errors import ApiException, KafkaException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.error_actions import Action, Call, ProducerKind, error_action
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.transaction_requests import TransactionalResult
from spark_kafka_sink.producer.transactions import TransactionManager
from spark_kafka_sink.producer_thread import ProducerThread
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import EncodedRecords
from spark_kafka_sink.records.layout import Cut

_LOOK_S = 0.01
_LONGEST_RECOVERY_S = 200.0


@dataclass(slots=True)
class Written:
    """What became of a transaction, as the application knows it.

    numbers: the records that were appended. may_be_committed: whether a commit was asked for.
    """

    numbers: list[int] = field(default_factory=list)
    may_be_committed: bool = False
    is_committed: bool = False
    is_aborted: bool = False


class TransactionalApplication(Application):
    """One transaction after another, each of some appends.

    needs_producer: whether a new producer is to take the place of the present one.
    """

    def __init__(
        self,
        scenario: Scenario,
        thread: ProducerThread,
        scheduler: Scheduler,
        random: Random,
        ledger: Ledger,
        checker: Checker,
    ) -> None:
        super().__init__(scenario, thread, scheduler, random, ledger, checker)
        self._plan = list(scenario.transactions)
        self._is_to_commit = self._is_open = False
        self._crashes = sorted(scenario.crashes)
        self._began_at = self._well_since = float("-inf")
        self.needs_producer = False
        self.written: list[Written] = []

    @property
    def _manager(self) -> TransactionManager:
        manager = self._thread.transactions
        assert manager is not None
        return manager

    def start(self) -> None:
        """Begin with the first producer."""
        self.use(self._thread)

    def use(self, thread: ProducerThread) -> None:
        """Begin, or go on, with a new producer."""
        self._thread = thread
        self.needs_producer = self._is_open = False
        self._well_since = float("-inf")
        for tp in self._scenario.shape.partitions:
            thread.metadata.track(tp.topic, self._scheduler.now)
        self._scheduler.after(self._moment(), self._call, self._manager.initialize, self._ready)

    def _change_producer(self) -> None:
        self._scheduler.trace("producer", "goes away")
        self.last_step_at = self._scheduler.now
        self.needs_producer = True
        self._thread._stopping = True
        self._thread.wake()

    def _crashes_now(self) -> bool:
        if not self._crashes or self._crashes[0] > self._scheduler.now:
            return False
        self._crashes.pop(0)
        self._change_producer()
        return True

    # -- calls ------------------------------------------------------------------------------------

    def _call(
        self,
        start: Callable[[], TransactionalResult],
        then: Callable[[KafkaException | None], None],
    ) -> None:
        """Make a transactional call, and go on with what it came to."""
        self.last_step_at = self._scheduler.now
        try:
            result = start()
        except KafkaException as error:
            then(error)
            return
        self._thread.wake()
        self._wait(result, start, then)

    def _wait(
        self,
        result: TransactionalResult,
        start: Callable[[], TransactionalResult],
        then: Callable[[KafkaException | None], None],
    ) -> None:
        if result.is_done:
            result.is_acknowledged = True
            self._scheduler.trace("producer", "{} ends: {}", result.operation, result.error)
            then(result.error)
        elif not self._crashes_now():
            if self._random.random() < 0.02 and start() is not result:
                message = f"{result.operation} began anew when it was called again"
                raise SimulationError(message)
            self._scheduler.after(_LOOK_S, self._wait, result, start, then)

    def _ready(self, error: KafkaException | None) -> None:
        if error is not None:
            self._failed(error)
            return
        self._well_since = self._scheduler.now
        self.last_step_at = max(self._scheduler.now, self._plan[0].at if self._plan else 0.0)
        self._scheduler.at(self.last_step_at, self._begin)

    def _begin(self) -> None:
        if not self._plan:
            self.is_done = True
            return
        if self._crashes_now():
            return
        planned = self._plan.pop(0)
        self._left, self._is_to_commit = list(planned.appends), planned.is_to_commit
        self._began_at = self.last_step_at = self._scheduler.now
        try:
            self._manager.begin()
        except KafkaException as error:  # a fatal one came since
            self._failed(error)
            return
        self.written.append(Written())
        self._is_open = True
        self._next()

    def _next(self) -> None:
        """Append what is next; after the last, end the transaction."""
        if self._left:
            super()._next()
        elif self._is_to_commit:
            self._call(self._begin_commit, self._committed)
        else:
            self._call(self._manager.begin_abort, self._aborted)

    def _begin_commit(self) -> TransactionalResult:
        result = self._manager.begin_commit()
        self.written[-1].may_be_committed = True
        return result

    def _committed(self, error: KafkaException | None) -> None:
        if error is not None:
            self._failed(error)
            return
        self.written[-1].is_committed = True
        self._is_open = False
        self._ready(None)

    def _aborted(self, error: KafkaException | None) -> None:
        self._is_open = False
        if error is not None:
            self._failed(error)
            return
        self.written[-1].is_aborted = True
        self._ready(None)

    def _failed(self, error: KafkaException) -> None:
        """Go on after an error: abort, or let a new producer go on."""
        self._scheduler.trace("producer", "fails: {}", error)
        self._check_reason(error)
        self._check_fatal(self._manager.fatal_error)
        self._left = []
        if not self._plan:
            self._plan = self._scenario.transactions[-1:]
        if self._manager.fatal_error is None and self._is_open:
            self._call(self._manager.begin_abort, self._aborted)
        else:
            self._change_producer()

    def _check_reason(self, error: KafkaException) -> None:
        """Check that something was wrong where a transaction failed."""
        now = self._scheduler.now
        if now > self._scenario.heal_at + _LONGEST_RECOVERY_S:
            message = f"no transaction succeeds: {type(error).__name__}: {error}"
            raise SimulationError(message)
        # With few retries, markers of the transaction before may take longer than all of them.
        is_excused = bool(self._checker.poisoned) or self._scenario.gives_up_early
        if is_excused or now > self._began_at + self._scenario.transaction_timeout_s:
            return
        well_at = self._scenario.heal_at + self._checker.recovery_s
        if self._well_since > well_at:
            message = (
                f"a transaction failed at {now:.1f} s though all was well since "
                f"{well_at:.1f} s: {type(error).__name__}: {error}"
            )
            raise SimulationError(message)

    def _check_fatal(self, error: KafkaException | None) -> None:
        """Check that a producer that is over was told something that no abort helps against."""
        if error is not None and not _is_fatal(error):
            message = f"a producer is over for {type(error).__name__}: {error}"
            raise SimulationError(message)

    # -- appends ----------------------------------------------------------------------------------

    def _reserve(
        self, columns: RecordColumns, append: Append, numbers: list[int], since: float
    ) -> None:
        if self._may_append() and not self._crashes_now():
            super()._reserve(columns, append, numbers, since)

    def _append(
        self,
        targets: list[TopicPartition],
        cuts: list[Cut],
        encoded: EncodedRecords,
        reserved: int,
        numbers: list[int],
    ) -> None:
        if self._may_append():
            self.written[-1].numbers += numbers
            super()._append(targets, cuts, encoded, reserved, numbers)
        else:
            self._thread.accumulator.let_go(targets)
            self._thread.accumulator.give_back(reserved)

    def _may_append(self) -> bool:
        """Whether the transaction takes more; if not, its end is begun."""
        try:
            self._manager.check_in_transaction("append")
        except KafkaException as error:
            self._thread.accumulator.waiters = 0
            self._failed(error)
            return False
        return True


def _is_fatal(error: KafkaException) -> bool:
    """Whether an error ends a producer whose brokers raise epochs, by the table of errors."""
    if not isinstance(error, ApiException) or error.api is None:
        return False
    action = error_action(error.code, Call(error.api), ProducerKind.TRANSACTIONAL)
    return action in (Action.FATAL, Action.FENCED)


class TransactionChecker(Checker):
    """What is promised of transactions, on top of what is promised of every record."""

    def _failed(self, batch: ProducerBatch, numbers: list[int], now: float) -> None:
        """Take a batch that failed: with its transaction, for whatever reason that has."""
        self._require(isinstance(batch.error, KafkaException), f"{batch!r} failed without a reason")

    def check_transactions(self, written: list[Written], cluster: Cluster) -> None:
        """Check who of the records is seen by who reads what is committed."""
        seen: list[int] = []
        for tp in self._scenario.shape.partitions:
            read = read_committed(cluster.final_log(tp))
            self._require(not read.open, f"{tp}: records {read.open} hang in no transaction")
            seen += read.numbers
        self._require(len(seen) == len(set(seen)), "a record is seen twice")
        for number, transaction in enumerate(written):
            found = set(seen).intersection(transaction.numbers)
            whole = len(found) == len(transaction.numbers)
            if transaction.is_committed:
                self._require(whole, f"transaction {number} was committed and lacks records")
            elif transaction.is_aborted or not transaction.may_be_committed:
                self._require(not found, f"transaction {number} was not committed and is seen")
            else:
                self._require(whole or not found, f"transaction {number} is seen in part")


class Read(NamedTuple):
    """Records by number: what is committed, and what no marker has ended."""

    numbers: list[int]
    open: list[int]


def read_committed(log: Replica) -> Read:
    """Read a log as a consumer with isolation.level=read_committed does."""
    numbers: list[int] = []
    under_way: dict[int, list[int]] = {}
    for entry in log.entries:
        batch: Batch = entry.batch
        if batch.is_commit is None:
            under_way.setdefault(batch.producer_id, []).extend(batch.numbers)
        else:
            ended = under_way.pop(batch.producer_id, [])
            numbers += ended if batch.is_commit else []
    return Read(numbers, [number for rest in under_way.values() for number in rest])

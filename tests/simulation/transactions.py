"""Transactions of a simulated application, and its knowledge of them afterwards.

The application calls what `ProducerTransactions` calls, step by step. After an error that requires
a new producer, and sometimes without a reason, it disappears, and its successor begins with
init_transactions, while requests of the first may still arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from simulation.application import Application
from simulation.batches import GroupOffset
from simulation.checker import Checker, Ledger
from simulation.scenario import Append, PlannedOffsets, Scenario
from simulation.scheduler import Scheduler, SimulationError
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.errors import ApiException, KafkaException, TimeoutException
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.error_actions import Action, Call, ProducerKind, error_action
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.requests import TransactionalResult
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import EncodedRecords
from spark_kafka_sink.records.layout import Cut

_LOOK_S = 0.01
_LONGEST_RECOVERY_S = 200.0


@dataclass(slots=True)
class Written:
    """The result of a transaction in the application's view.

    numbers: the appended records. offsets: the offsets that were sent, in order, even if their call
    failed: no commit can succeed without all of them. may_be_committed: whether a commit was
    requested.
    """

    numbers: list[int] = field(default_factory=list)
    offsets: list[GroupOffset] = field(default_factory=list)
    may_be_committed: bool = False
    is_committed: bool = False
    is_aborted: bool = False


class TransactionalApplication(Application):
    """Runs one transaction after another, each with some appends.

    needs_producer: whether a new producer has to replace the current one.
    """

    def __init__(
        self,
        scenario: Scenario,
        state: ProducerState,
        scheduler: Scheduler,
        random: Random,
        ledger: Ledger,
        checker: Checker,
    ) -> None:
        super().__init__(scenario, state, scheduler, random, ledger, checker)
        self._plan = list(scenario.transactions)
        self._is_to_commit = self._is_open = False
        self._appends = 0
        self._offsets: list[PlannedOffsets] = []
        self._last_offset = 0
        self._crashes = sorted(scenario.crashes)
        self._began_at = self._well_since = float("-inf")
        self.needs_producer = False
        self.written: list[Written] = []

    @property
    def _manager(self) -> TransactionManager:
        manager = self._state.transactions
        assert manager is not None
        return manager

    def start(self) -> None:
        """Begin with the first producer."""
        self.use(self._state)

    def use(self, state: ProducerState) -> None:
        """Begin, or go on, with a new producer."""
        self._state = state
        self.needs_producer = self._is_open = False
        self._well_since = float("-inf")
        for tp in self._scenario.shape.partitions:
            state.metadata.track(tp.topic, self._scheduler.now)
        self._scheduler.after(self._moment(), self._call, self._manager.initialize, self._ready)

    def _change_producer(self) -> None:
        self._scheduler.trace("producer", "goes away")
        self.last_step_at = self._scheduler.now
        self.needs_producer = True
        self._state.stop()

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
        """Make a transactional call, and continue with its result."""
        self.last_step_at = self._scheduler.now
        try:
            result = start()
        except KafkaException as error:
            then(error)
            return
        self._state.wake()
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
                message = f"{result.operation} began again when it was called twice"
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
        self._offsets, self._appends = list(planned.offsets), len(planned.appends)
        self._began_at = self.last_step_at = self._scheduler.now
        try:
            self._manager.begin()
        except KafkaException as error:  # a fatal error occurred meanwhile
            self._failed(error)
            return
        self.written.append(Written())
        self._is_open = True
        self._next()

    def _next(self) -> None:
        """Append the next rows, or send offsets; after the last, end the transaction."""
        if self._offsets and self._offsets[0].after <= self._appends - len(self._left):
            self._send_offsets(self._offsets.pop(0))
        elif self._left:
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
        """Handle an error: abort, or continue with a new producer."""
        self._scheduler.trace("producer", "fails: {}", error)
        self._check_reason(error)
        self._check_fatal(self._manager.fatal_error)
        self._left, self._offsets = [], []
        if not self._plan:
            self._plan = self._scenario.transactions[-1:]
        if self._manager.fatal_error is None and self._is_open:
            self._call(self._manager.begin_abort, self._aborted)
        else:
            self._change_producer()

    def _check_reason(self, error: KafkaException) -> None:
        """Check that there was a fault if a transaction failed."""
        now = self._scheduler.now
        if now > self._scenario.heal_at + _LONGEST_RECOVERY_S:
            message = f"no transaction succeeds: {type(error).__name__}: {error}"
            raise SimulationError(message)
        # With few retries, the previous transaction's markers may take longer than all of them.
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
        """Check that a producer with a fatal error got one that an abort cannot resolve."""
        if error is not None and not _is_fatal(error):
            message = f"a producer is over for {type(error).__name__}: {error}"
            raise SimulationError(message)

    # -- offsets ----------------------------------------------------------------------------------

    def _send_offsets(self, planned: PlannedOffsets) -> None:
        """Send offsets that no call has sent before, and wait at most max.block.ms."""
        began = self.last_step_at = self._scheduler.now
        self._last_offset += 1
        partitions = [TopicPartition("read", number) for number in planned.partitions]
        offsets = {tp: OffsetAndMetadata(self._last_offset) for tp in partitions}
        try:
            group = ConsumerGroupMetadata(planned.group)
            result = self._manager.send_offsets(offsets, group)
        except KafkaException as error:
            self._failed(error)
            return
        self.written[-1].offsets += [
            GroupOffset(planned.group, tp, self._last_offset) for tp in partitions
        ]
        self._scheduler.trace("producer", "sends offsets {} of {}", self._last_offset, planned)
        self._state.wake()
        self._wait_for_offsets(result, planned, began)

    def _wait_for_offsets(
        self, result: TransactionalResult, planned: PlannedOffsets, began: float
    ) -> None:
        limit_s = self._scenario.max_block_s
        self._checker.check_call(result.operation, began, limit_s)
        if result.is_done:
            self._scheduler.trace("producer", "{} ends: {}", result.operation, result.error)
            if result.error is None:
                self._next()
            else:
                self._failed(result.error)
        elif self._scheduler.now >= began + limit_s:
            error = TimeoutException(f"{result.operation} was not done within {limit_s} s")
            if planned.goes_on:
                self._scheduler.trace("producer", "goes on after {}", error)
                self._check_reason(error)
                self._next()
            else:
                self._failed(error)
        elif not self._crashes_now():
            self._scheduler.after(_LOOK_S, self._wait_for_offsets, result, planned, began)

    # -- appends ----------------------------------------------------------------------------------

    def _reserve(
        self,
        columns: RecordColumns,
        append: Append,
        numbers: list[int],
        since: float,
        reservation: PendingAppend,
    ) -> None:
        if self._may_append(reservation) and not self._crashes_now():
            super()._reserve(columns, append, numbers, since, reservation)

    def _append(
        self,
        targets: list[TopicPartition],
        cuts: list[Cut],
        encoded: EncodedRecords,
        reservation: PendingAppend,
        numbers: list[int],
    ) -> None:
        if self._may_append(reservation):
            self.written[-1].numbers += numbers
            super()._append(targets, cuts, encoded, reservation, numbers)
        else:
            self._state.accumulator.let_go(targets)
            self._state.accumulator.pool.give_back(reservation)

    def _may_append(self, reservation: PendingAppend) -> bool:
        """Whether the transaction accepts more rows; if not, begin its end."""
        try:
            self._manager.check_in_transaction("append")
        except KafkaException as error:
            self._state.accumulator.pool.stop_waiting(reservation)
            self._failed(error)
            return False
        return True


def _is_fatal(error: KafkaException) -> bool:
    """Whether an error ends a producer whose brokers bump epochs, by the table of errors."""
    if not isinstance(error, ApiException) or error.api is None:
        return False
    action = error_action(error.code, Call(error.api), ProducerKind.TRANSACTIONAL)
    return action in (Action.FATAL, Action.FENCED)

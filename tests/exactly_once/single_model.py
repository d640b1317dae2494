"""An explicit-state model of mode single, with sequences: it runs the real machines and guards.

The drivers are those of the other model. Their tasks write with the driver's producer id, each two
batches from sequence 0 on, to the partition that the layout gives to the attempt. A partition takes
a range of sequences that it has for a resend: it answers with success, and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from exactly_once.brokers import (
    IS_ONGOING,
    LOG,
    LOG_NUMBER,
    OWNER,
    Brokers,
    World,
    first_world,
    partition_of,
    visible,
)
from exactly_once.model import (
    ABORTING,
    CLAIMED,
    CLAIMING,
    COMMITTING,
    FAILED,
    GONE,
    IDLE,
    NEW,
    OPEN,
    OVER,
    PLANNING,
    SKIPPED,
    SUCCESS,
    UNKNOWN,
    WRITTEN,
    Driver,
    Model,
    Scenario,
    State,
    Violation,
)
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import guards, single, single_check
from spark_kafka_sink.commit import plan as planning
from spark_kafka_sink.commit.attempts import AttemptTransaction, Run, WrittenPartition
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState
from spark_kafka_sink.commit.outcomes import Aborted, Clear, Committed, Planned, Skipped, Undecided
from spark_kafka_sink.commit.steps import Step

_NEVER: Final = 1e12
ROWS: Final = 2


@dataclass(frozen=True)
class SingleScenario(Scenario):
    """What may happen.

    layout: the partition of each attempt, by task. losses: of answers to EndTxn and to Produce.
    vanishes: in place of timeouts, the last batch of a partition may vanish while tasks run.
    opens_window: whether a task may write to a partition of no message after its driver has looked
    there, and before the decision.
    """

    layout: tuple[tuple[int, ...], ...] = ((0,), (1,))
    vanishes: bool = False
    opens_window: bool = False


class SingleBrokers(Brokers):
    """Brokers that check sequences. tasks_add: at level 1, each Produce adds its partition."""

    tasks_add = False

    def produce(
        self, world: World, number: int, epoch: int, partition: int, what: int
    ) -> tuple[int, int, World]:
        """Append a batch, or take it for a resend."""
        if partition == LOG_NUMBER:
            return super().produce(world, number, epoch, partition, what)
        found = world.ids[number]
        if found is not None and found[0] == epoch:
            if self.tasks_add:
                _, world = self._add(world, number, epoch, (partition,))
            held = [
                (offset, each[2])
                for offset, each in enumerate(world.data[partition])
                if each[1] == epoch and each[2] >= 0
            ]
            for offset, other in held:
                if other % ROWS == what % ROWS:
                    return codes.DUPLICATE_SEQUENCE_NUMBER, offset, world
            if what % ROWS != len(held):
                return codes.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, world
        return super().produce(world, number, epoch, partition, what)


class SingleModel(Model):
    """Explores the states of a scenario of mode single."""

    def __init__(self, scenario: SingleScenario) -> None:
        self.setting = scenario
        self.partitions = SingleBrokers(scenario.level, slow=scenario.slow)
        super().__init__(scenario, self.partitions)
        # All partitions, for the commit.
        self.commit_targets = self._targets()
        self._attempts = [
            (driver, task, partition, at)
            for driver in range(len(scenario.versions))
            for task, partitions in enumerate(scenario.layout)
            for at, partition in enumerate(partitions)
        ]

    def first(self) -> State:
        """Return the state before anything has happened."""
        setting = self.setting
        driver = Driver(NEW, 0, 0, (None,) * len(setting.layout))
        return State(
            first_world(setting.partitions),
            (driver,) * len(setting.versions),
            ((IDLE,),) * len(self._attempts),
            setting.losses,
            setting.timeouts,
            late=False,
            old_reads=setting.old_reads,
        )

    def _attempts_of(self, number: int) -> range:
        count = len(self._attempts) // len(self.scenario.versions)
        return range(number * count, (number + 1) * count)

    def _targets(self) -> tuple[Any, ...]:
        return tuple(map(partition_of, range(self.scenario.partitions)))

    # -- drivers ------------------------------------------------------------------------------

    def _begin(self, number: int) -> Step[planning.Planning]:
        run = Run(OWNER, f"run {number}", LOG, self.scenario.level, 60_000)
        version = self.scenario.versions[number]
        return planning.begin(run, deadline=_NEVER, version=version, partitions=self._targets())

    def _next_phase(self, number: int, driver: Driver, outcome: object) -> Driver:
        if isinstance(outcome, Planned):
            plan = self._plan_number(outcome.plan)
            return driver._replace(phase=OPEN, machine=0, plan=plan)
        said = UNKNOWN
        if isinstance(outcome, Skipped):
            said = SKIPPED
        elif isinstance(outcome, Committed):
            said = SUCCESS
        elif driver.phase in (PLANNING, COMMITTING) or isinstance(outcome, Aborted):
            is_undecided = isinstance(outcome, Undecided)
            said = UNKNOWN if is_undecided else FAILED
        return driver._replace(phase=OVER, machine=said)

    def _begin_commit(self, number: int, driver: Driver) -> Step[Any]:
        plan, version = self._plans[driver.plan], self.scenario.versions[number]
        empty = CommitRecord(RecordState.DONE, "", rows=0, written_at=0)
        record = replace(plan.record or empty, run=plan.run.name).after_version(version)
        messages = tuple(
            AttemptTransaction(
                None,
                plan.producer,
                (WrittenPartition(partition_of(partition), ROWS, first, last, ROWS - 1),),
            )
            for partition, first, last in filter(None, driver.messages)
        )
        return single.begin_commit(
            plan,
            messages,
            record,
            level=self.scenario.level,
            targets=self.commit_targets,
            probes=False,
            deadline=_NEVER,
        )

    def _begin_abort(self, number: int, driver: Driver) -> Driver:
        plan, level = self._plans[driver.plan], self.scenario.level
        machine = self.machines.begun(
            ("abort", driver.plan), lambda: single.begin_abort(plan, level=level, deadline=_NEVER)
        )
        return driver._replace(phase=ABORTING, machine=machine)

    # -- tasks --------------------------------------------------------------------------------

    def _of_attempt(self, state: State, at: int) -> Iterator[State]:
        number, task, partition, _ = self._attempts[at]
        attempt, driver = state.attempts[at], state.drivers[number]
        if attempt[0] == IDLE:
            if driver.phase == OPEN and driver.messages[task] is None:
                yield self._begin_look(state, at, driver.plan, partition)
        elif attempt[0] == CLAIMING:
            ((_, operation),) = self.machines.pending(attempt[1])
            raw, _ = self.brokers.apply(state.world, operation)
            outcome = self.machines.values[self.machines.step(attempt[1], 0, raw)].outcome
            after = (CLAIMED, 0, -1, -1, 0, attempt[2])
            yield self._set(state, at, after if outcome == Clear() else (GONE,))
        elif attempt[0] == CLAIMED and not self._is_in_window(state, at):
            yield from self._produce(state, at)

    def _begin_look(self, state: State, at: int, plan: int, partition: int) -> State:
        machine = self.machines.begun(
            ("look", plan, partition),
            lambda: single_check.begin(
                self._plans[plan], (partition_of(partition),), deadline=_NEVER
            ),
        )
        return self._set(state, at, (CLAIMING, machine, len(state.world.data[partition])))

    def _is_in_window(self, state: State, at: int) -> bool:
        number, _, partition, _ = self._attempts[at]
        driver = state.drivers[number]
        if self.setting.opens_window or driver.phase != COMMITTING:
            return False
        owned = {message[0] for message in driver.messages if message is not None}
        epoch = self._plans[driver.plan].producer.epoch
        found = state.world.ids[0]
        is_open = found is not None and found[:2] == (epoch, IS_ONGOING)
        return partition not in owned and is_open

    def _produce(self, state: State, at: int) -> Iterator[State]:
        number, _, partition, _ = self._attempts[at]
        _, row, first, last, resent, log_end = state.attempts[at]
        epoch = self._plans[state.drivers[number].plan].producer.epoch
        what = at * ROWS + row
        error, offset, world = self.brokers.produce(state.world, 0, epoch, partition, what)
        state = state._replace(world=world)
        if error not in (codes.NONE, codes.DUPLICATE_SEQUENCE_NUMBER):
            yield self._set(state, at, (GONE,))
            return
        if state.losses:
            lost = (CLAIMED, row, first, last, 1, log_end)
            yield self._set(state._replace(losses=state.losses - 1), at, lost)
        ack = guards.Acknowledged(
            partition_of(partition),
            base_offset=offset,
            log_end=log_end,
            previous_last_offset=last,
            is_duplicate=error != codes.NONE,
            was_resent=bool(resent),
        )
        checked = guards.check_ack(ack)
        is_ours = world.data[partition][offset][2] == what
        is_taken = checked is guards.AckCheck.TAKEN or (
            checked is guards.AckCheck.READ_BACK and is_ours
        )
        if not is_taken:
            yield self._set(state, at, (GONE,))
            return
        first = offset if row == 0 else first
        if row + 1 < ROWS:
            yield self._set(state, at, (CLAIMED, row + 1, first, offset, 0, log_end))
        else:
            yield self._return_message(self._set(state, at, (WRITTEN,)), at, first, offset)

    def _return_message(self, state: State, at: int, first: int, last: int) -> State:
        number, task, partition, _ = self._attempts[at]
        driver = state.drivers[number]
        if driver.phase != OPEN or driver.messages[task] is not None:
            return state
        message = (partition, first, last)
        messages = (*driver.messages[:task], message, *driver.messages[task + 1 :])
        return self._with(state, number, driver._replace(messages=messages))

    def _set(self, state: State, at: int, attempt: tuple[int, ...]) -> State:
        return state._replace(attempts=(*state.attempts[:at], attempt, *state.attempts[at + 1 :]))

    def _time_out(self, state: State) -> Iterator[State]:
        if not self.setting.vanishes:
            yield from super()._time_out(state)
        elif any(driver.phase == OPEN for driver in state.drivers):
            for partition, log in enumerate(state.world.data):
                if log and log[-1][2] >= 0:
                    data = list(state.world.data)
                    data[partition] = log[:-1]
                    world = state.world._replace(data=tuple(data))
                    yield state._replace(world=world, timeouts=state.timeouts - 1)

    # -- the promises -------------------------------------------------------------------------

    def _rows(self, world: World, drivers: list[int]) -> Counter[tuple[int, int]]:
        """Return how often readers see each row of each task."""
        found: Counter[tuple[int, int]] = Counter()
        for log in world.data:
            for what in visible(log):
                at, row = divmod(what, ROWS)
                number, task, *_ = self._attempts[at]
                if number in drivers:
                    found[task, row] += 1
        return found

    def _once(self) -> Counter[tuple[int, int]]:
        tasks = range(len(self.setting.layout))
        return Counter((task, row) for task in tasks for row in range(ROWS))

    def _check_driver(self, state: State, number: int, said: int) -> None:
        rows = self._rows(state.world, [number])
        if said == SUCCESS and rows != self._once():
            raise Violation(f"driver {number} said success, and its rows are {dict(rows)}")
        if said == FAILED and rows:
            raise Violation(f"driver {number} said failure, and its rows are {dict(rows)}")

    def _recover(self, world: World, version: int) -> tuple[str, bool]:
        outcome, world = self._run_recovery(world, version)
        drivers = [at for at, each in enumerate(self.scenario.versions) if each == version]
        rows = self._rows(world, drivers)
        if isinstance(outcome, Skipped):
            wrong = rows != self._once()
            return (f"recorded, and its rows are {dict(rows)}" if wrong else "", False)
        if isinstance(outcome, Planned):
            return (f"not recorded, and its rows are {dict(rows)}" if rows else "", False)
        return f"recovery ends with {outcome}", False

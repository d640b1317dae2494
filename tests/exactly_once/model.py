"""An explicit-state model of the two modes that runs the real machines; here is mode two-phase.

Two drivers of one owner plan, run their task attempts, commit and abort, at any interleaving of
their questions. A crash is a process that never moves again, so every state is also that of a
crash. An attempt goes on after its driver has ended. Any answer to EndTxn may be lost, and a
transaction may time out, as often as the scenario says.

Every state is judged by what a recovery run leaves: the rows of each version once, or not at all.
A torn version is right only if a transaction timed out after the last look of the commit (C3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from exactly_once.brokers import (
    IS_ABORTED,
    IS_ABORTING,
    IS_ONGOING,
    LOG,
    OWNER,
    Brokers,
    Operation,
    World,
    first_world,
    number_of,
    partition_of,
    producer_of,
    slot_of,
    visible,
)
from spark_kafka_sink.commit import plan as planning
from spark_kafka_sink.commit import (
    recovery,
    single,
    single_check,
    two_phase,
    two_phase_abort,
    two_phase_claim,
)
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run, WrittenPartition
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Claimed,
    Committed,
    Decided,
    Planned,
    Skipped,
    Torn,
    Unfinished,
)
from spark_kafka_sink.commit.questions import (
    Answer,
    Ask,
    DescribeTransaction,
    EndTxn,
    InitProducerId,
    ListTransactions,
    ReadLog,
)
from spark_kafka_sink.commit.states import CommitState, TaskState
from spark_kafka_sink.commit.steps import Step

_NEVER: Final = 1e12

_MAY_BE_SILENT: Final = (ListTransactions, DescribeTransaction, InitProducerId, ReadLog)

# Phases of a driver.
NEW, PLANNING, OPEN, COMMITTING, ABORTING, FORWARD, OVER = range(7)
# What a driver says at the end.
SUCCESS, SKIPPED, TORN, FAILED, UNKNOWN = range(5)
# Phases of an attempt.
IDLE, CLAIMING, CLAIMED, ADDED, WRITTEN, GONE = range(6)


class Driver(NamedTuple):
    """A driver: its phase, its machine (or what it said), its plan, and the messages it has."""

    phase: int
    machine: int
    plan: int
    messages: tuple[tuple[int, int, int] | None, ...]


class State(NamedTuple):
    """A state of everything. late: whether a transaction timed out after the last look."""

    world: World
    drivers: tuple[Driver, ...]
    attempts: tuple[tuple[int, ...], ...]
    losses: int
    timeouts: int
    late: bool
    old_reads: int = 0
    silences: int = 0


@dataclass(frozen=True)
class Scenario:
    """What may happen.

    versions: of the drivers. attempts: for each partition, all with the same number. losses: of
    answers to EndTxn. cancels: whether a driver may abort while tasks run. splits_claim: whether
    time may pass between a task's look at a slot and its claim. any_order: whether reads of one
    machine come in any order. stopped: the first driver has stopped for ever, when all of its
    attempts had written, or once it had decided; "" for no such driver. slow: whether markers are
    written in a step of their own. gives_up: whether commit() may raise at any time. old_reads: how
    often the log is read at a leader that was replaced and has an old end of it. silences: how many
    requests that change no record and end no transaction get no response.
    """

    level: int
    versions: tuple[int, ...] = (1, 1)
    partitions: int = 2
    attempts: int = 1
    losses: int = 0
    timeouts: int = 0
    cancels: bool = True
    splits_claim: bool = False
    any_order: bool = False
    stopped: str = ""
    slow: bool = False
    gives_up: bool = False
    old_reads: int = 0
    silences: int = 0


class Violation(Exception):
    """A state that breaks a promise."""


@dataclass(frozen=True)
class Result:
    """What an exploration found."""

    states: int
    is_complete: bool
    violation: str | None = None


class Machines:
    """The real machines, each state with a number, and their steps, each taken once."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._numbers: dict[Any, int] = {}
        self.values: list[Any] = []
        self._pending: list[tuple[tuple[Ask, Operation], ...]] = []
        self._steps: dict[tuple[Any, ...], int] = {}
        self._cache: dict[Any, int] = {}

    def number(self, machine: object) -> int:
        """Return the number of a state of a machine."""
        found = self._numbers.get(machine)
        if found is None:
            found = self._numbers[machine] = len(self.values)
            self.values.append(machine)
            asks = _asks(machine)
            self._pending.append(tuple((ask, self._brokers.compiled(ask)) for ask in asks))
        return found

    def pending(self, number: int) -> tuple[tuple[Ask, Operation], ...]:
        """Return the questions of a machine without an answer, and their operations."""
        return self._pending[number]

    def begun(self, key: tuple[Any, ...], begin: Any) -> int:  # noqa: ANN401 - any begin
        """Return the number of a new machine; key: what it depends on."""
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self.number(begin().machine)
        return found

    def step(self, number: int, at: int, raw: tuple[Any, ...] | None) -> int:
        """Return the number of the machine after the answer to its question `at`."""
        key = (number, at, raw)
        found = self._steps.get(key)
        if found is None:
            machine = self.values[number]
            ask, operation = self._pending[number][at]
            answer = Answer(ask, self._brokers.reply_of(operation, raw))
            stepped: Step[Any] = _STEPS[type(machine)](machine, answer, 0.0)
            found = self._steps[key] = self.number(stepped.machine)
        return found


_STEPS: Final[dict[type, Any]] = {
    planning.Planning: planning.step,
    recovery.Recovering: recovery.step,
    single.Single: single.step,
    single_check.Checking: single_check.step,
    two_phase.Committing: two_phase.step,
    two_phase_abort.Aborting: two_phase_abort.step,
    two_phase_claim.Claiming: two_phase_claim.step,
}


def _asks(machine: Any) -> list[Ask]:  # noqa: ANN401 - any machine
    if isinstance(machine, two_phase_claim.Claiming):
        return [] if machine.asked is None else [machine.asked]
    return [] if machine.outcome is not None else sorted(machine.waiting, key=repr)


class Model:
    """Explores the states of a scenario."""

    def __init__(self, scenario: Scenario, brokers: Brokers | None = None) -> None:
        self.scenario = scenario
        self.brokers = brokers or Brokers(scenario.level, slow=scenario.slow)
        self.machines = Machines(self.brokers)
        self._plans: list[Plan] = []
        self._plan_numbers: dict[Plan, int] = {}
        self._recoveries: dict[tuple[World, int], tuple[str, bool]] = {}
        self._worlds: dict[World, int] = {}
        self._drivers: dict[tuple[Driver, ...], int] = {}
        self._attempts_of_all: dict[tuple[tuple[int, ...], ...], int] = {}
        self._budgets: dict[tuple[Any, ...], int] = {}

    def first(self) -> State:
        """Return the state before anything has happened."""
        setting = self.scenario
        driver = Driver(NEW, 0, 0, (None,) * setting.partitions)
        count = len(setting.versions)
        attempts = ((IDLE,),) * (count * setting.partitions * setting.attempts)
        world = first_world(setting.partitions)
        state = State(world, (driver,) * count, attempts, losses=0, timeouts=0, late=False)
        if setting.stopped:
            state = self._stopped(state)
        return state._replace(
            losses=setting.losses,
            timeouts=setting.timeouts,
            old_reads=setting.old_reads,
            silences=setting.silences,
        )

    def _stopped(self, state: State) -> State:
        """Let the first driver go as far as the scenario says, and no further."""
        while True:
            driver = state.drivers[0]
            if self.scenario.stopped == "written" and driver.phase == COMMITTING:
                break
            if driver.phase == COMMITTING and self._decided(state.world):
                break
            # Only the first driver moves: it and its attempts come first.
            state = next(
                after for after in self.successors(state) if after.drivers[0].phase != ABORTING
            )
        count = len(self._attempts_of(0))
        attempts = ((GONE,),) * count + state.attempts[count:]
        over = state.drivers[0]._replace(phase=OVER, machine=UNKNOWN)
        drivers = (over, *state.drivers[1:])
        return state._replace(drivers=drivers, attempts=attempts)

    def explore(self, limit: int) -> Result:
        """Look at every state that can be reached, up to a limit of states."""
        first = self.first()
        seen = {self.key(first)}
        stack = [first]
        try:
            while stack:
                state = stack.pop()
                self.check(state)
                for after in self.successors(state):
                    key = self.key(after)
                    if key not in seen:
                        if len(seen) >= limit:
                            return Result(len(seen), is_complete=False)
                        seen.add(key)
                        stack.append(after)
        except Violation as violation:
            return Result(len(seen), is_complete=False, violation=str(violation))
        return Result(len(seen), is_complete=True)

    def key(self, state: State) -> int:
        """Return the number of a state, which no other state has.

        A hash is not enough: in CPython -1 and -2 have the same one, and so have tuples that differ
        only there.
        """
        key = self._worlds.setdefault(state.world, len(self._worlds))
        key = key << 32 | self._drivers.setdefault(state.drivers, len(self._drivers))
        attempts = self._attempts_of_all.setdefault(state.attempts, len(self._attempts_of_all))
        return (key << 32 | attempts) << 32 | self._budgets.setdefault(
            state[3:], len(self._budgets)
        )

    # -- what may happen next -----------------------------------------------------------------

    def successors(self, state: State) -> Iterator[State]:
        """Yield the states that may follow; those of the first application come first."""
        for number, driver in enumerate(state.drivers):
            yield from self._of_driver(state, number, driver)
            for at in self._attempts_of(number):
                yield from self._of_attempt(state, at)
        for number in self.brokers.ending(state.world) if self.scenario.slow else ():
            yield state._replace(world=self.brokers.complete(state.world, number))
        if state.timeouts:
            yield from self._time_out(state)

    def _of_driver(self, state: State, number: int, driver: Driver) -> Iterator[State]:
        if driver.phase == NEW:
            machine = self.machines.begun(("plan", number), lambda: self._begin(number))
            yield self._with(state, number, driver._replace(phase=PLANNING, machine=machine))
        elif driver.phase == OPEN:
            yield from self._open(state, number, driver)
        elif driver.phase != OVER:
            yield from self._drive(state, number, driver)
        if driver.phase == COMMITTING and self.scenario.gives_up:
            yield self._with(state, number, self._begin_abort(number, driver))

    def _begin(self, number: int) -> Step[planning.Planning]:
        run = Run(OWNER, f"run {number}", LOG, self.scenario.level, 60_000)
        version = self.scenario.versions[number]
        return planning.begin(run, deadline=_NEVER, version=version)

    def _with(self, state: State, number: int, driver: Driver, **changes: Any) -> State:  # noqa: ANN401
        drivers = (*state.drivers[:number], driver, *state.drivers[number + 1 :])
        return state._replace(drivers=drivers, **changes)

    def _drive(self, state: State, number: int, driver: Driver) -> Iterator[State]:
        """Deliver each question of a driver's machine."""
        has_read = False
        for at, (ask, operation) in enumerate(self.machines.pending(driver.machine)):
            is_end = isinstance(ask, EndTxn)
            if not is_end and has_read and not self.scenario.any_order:
                continue
            has_read = has_read or not is_end
            raw, world = self.brokers.apply(state.world, operation)
            yield self._answered(state, number, driver, at, raw, world)
            if state.old_reads and isinstance(ask, ReadLog):
                yield from self._read_before(state, number, driver, at, raw)
            if state.silences and isinstance(ask, _MAY_BE_SILENT):
                fewer = state._replace(silences=state.silences - 1)
                yield self._answered(fewer, number, driver, at, None, world)
            if is_end and state.losses:
                fewer = state._replace(losses=state.losses - 1)
                yield self._answered(fewer, number, driver, at, None, world)

    def _read_before(
        self, state: State, number: int, driver: Driver, at: int, raw: tuple[Any, ...]
    ) -> Iterator[State]:
        """Let a driver read an old end of the log."""
        if driver.phase == ABORTING and self._may_have_aborted_done(state):
            return
        fewer = state._replace(old_reads=state.old_reads - 1)
        for end in range(len(raw)):
            yield self._answered(fewer, number, driver, at, raw[:end], state.world)

    def _may_have_aborted_done(self, state: State) -> bool:
        """Whether the EndTxn(abort) of a driver may have hit the transaction of DONE.

        Then all rows are visible already, and a driver that reads an old end says otherwise.
        """
        found = state.world.ids[0]
        is_aborted = found is not None and found[1] in (IS_ABORTED, IS_ABORTING)
        return self.scenario.level < 2 and is_aborted

    def _answered(
        self,
        state: State,
        number: int,
        driver: Driver,
        at: int,
        raw: tuple[Any, ...] | None,
        world: World,
    ) -> State:
        machine = self.machines.step(driver.machine, at, raw)
        outcome = self.machines.values[machine].outcome
        after = driver._replace(machine=machine)
        if outcome is not None:
            after = self._next_phase(number, after, outcome)
        return self._with(state, number, after, world=world)

    def _next_phase(self, number: int, driver: Driver, outcome: object) -> Driver:
        if isinstance(outcome, Planned):
            plan = self._plan_number(outcome.plan)
            return driver._replace(phase=OPEN, machine=0, plan=plan)
        if isinstance(outcome, Decided):
            return self._begin_forward(driver, outcome.record)
        can_abort = not isinstance(outcome, (Committed, Torn, Unfinished))
        if driver.phase == COMMITTING and can_abort:  # commit() raises, and Spark calls abort()
            return self._begin_abort(number, driver)
        return driver._replace(phase=OVER, machine=_said(driver, outcome))

    def _begin_forward(self, driver: Driver, record: CommitRecord) -> Driver:
        plan, level = self._plans[driver.plan], self.scenario.level
        machine = self.machines.begun(
            ("forward", driver.plan, record),
            lambda: two_phase.begin_forward(plan, record, level=level, deadline=_NEVER),
        )
        return driver._replace(phase=FORWARD, machine=machine)

    def _plan_number(self, plan: Plan) -> int:
        if plan not in self._plan_numbers:
            self._plan_numbers[plan] = len(self._plans)
            self._plans.append(plan)
        return self._plan_numbers[plan]

    def _open(self, state: State, number: int, driver: Driver) -> Iterator[State]:
        """Let Spark call commit once it has all messages, or abort."""
        if None not in driver.messages:
            key = ("commit", number, driver.plan, driver.messages)
            machine = self.machines.begun(key, lambda: self._begin_commit(number, driver))
            yield self._with(state, number, driver._replace(phase=COMMITTING, machine=machine))
            return
        has_failed = any(state.attempts[at] == (GONE,) for at in self._attempts_of(number))
        if self.scenario.cancels or has_failed:
            yield self._with(state, number, self._begin_abort(number, driver))

    def _begin_commit(self, number: int, driver: Driver) -> Step[Any]:
        plan, version = self._plans[driver.plan], self.scenario.versions[number]
        empty = CommitRecord(RecordState.DONE, "", rows=0, written_at=0)
        record = replace(plan.record or empty, run=plan.run.name).after_version(version)
        return two_phase.begin(
            plan, self._messages(driver), record, level=self.scenario.level, deadline=_NEVER
        )

    def _begin_abort(self, number: int, driver: Driver) -> Driver:
        key = ("abort", number, driver.plan, driver.messages)
        plan, level = self._plans[driver.plan], self.scenario.level
        machine = self.machines.begun(
            key,
            lambda: two_phase_abort.begin(
                plan, self._messages(driver), level=level, deadline=_NEVER
            ),
        )
        return driver._replace(phase=ABORTING, machine=machine)

    def _messages(self, driver: Driver) -> tuple[AttemptTransaction, ...]:
        messages = []
        for partition, message in enumerate(driver.messages):
            if message is not None:
                name, epoch, offset = message
                written = WrittenPartition(partition_of(partition), 1, offset, offset, 0)
                producer = producer_of(name, epoch)
                messages.append(AttemptTransaction(slot_of(name), producer, (written,)))
        return tuple(messages)

    # -- tasks --------------------------------------------------------------------------------

    def _attempts_of(self, number: int) -> range:
        count = self.scenario.partitions * self.scenario.attempts
        return range(number * count, (number + 1) * count)

    def _of_attempt(self, state: State, at: int) -> Iterator[State]:
        attempt = state.attempts[at]
        number, rest = divmod(at, self.scenario.partitions * self.scenario.attempts)
        partition = rest // self.scenario.attempts
        driver = state.drivers[number]
        phase = attempt[0]
        if phase == IDLE:
            # A task starts while the job runs; a zombie only goes on.
            if driver.phase == OPEN and driver.messages[partition] is None:
                yield self._claim(state, at, driver.plan, partition)
        elif phase == CLAIMING:
            yield self._look(state, at, attempt[1])
        elif phase in (CLAIMED, ADDED):
            yield self._write(state, at, number, partition)

    def _claim(self, state: State, at: int, plan: int, partition: int) -> State:
        key = ("task", plan, partition)
        machine = self.machines.begun(
            key,
            lambda: two_phase_claim.begin(self._plans[plan], partition, 0, deadline=_NEVER),
        )
        return _with_attempt(state, at, (CLAIMING, machine))

    def _look(self, state: State, at: int, machine: int) -> State:
        world = state.world
        while True:
            ((_, operation),) = self.machines.pending(machine)
            raw, world = self.brokers.apply(world, operation)
            machine = self.machines.step(machine, 0, raw)
            value = self.machines.values[machine]
            claims = value.state is TaskState.CLAIMING and isinstance(value.asked, InitProducerId)
            if not claims or self.scenario.splits_claim:
                break
        attempt: tuple[int, ...] = (CLAIMING, machine)
        if isinstance(value.outcome, Claimed):
            attempt = (CLAIMED, number_of(value.outcome.slot), value.outcome.producer.epoch)
        elif value.outcome is not None:
            attempt = (GONE,)
        return _with_attempt(state, at, attempt)._replace(world=world)

    def _write(self, state: State, at: int, number: int, partition: int) -> State:
        phase, name, epoch = state.attempts[at]
        if self.scenario.level < 2 and phase == CLAIMED:
            (error,), world = self.brokers.apply(state.world, ("add", name, epoch, (partition,)))
            attempt: tuple[int, ...] = (GONE,) if error else (ADDED, name, epoch)
            return _with_attempt(state, at, attempt)._replace(world=world)
        error, offset, world = self.brokers.produce(state.world, name, epoch, partition, number)
        if error:
            return _with_attempt(state, at, (GONE,))
        state = _with_attempt(state, at, (WRITTEN,))._replace(world=world)
        driver = state.drivers[number]
        if driver.phase != OPEN or driver.messages[partition] is not None:
            return state
        messages = (
            *driver.messages[:partition],
            (name, epoch, offset),
            *driver.messages[partition + 1 :],
        )
        return self._with(state, number, driver._replace(messages=messages))

    def _time_out(self, state: State) -> Iterator[State]:
        for name, found in enumerate(state.world.ids):
            if found is not None and found[1] == IS_ONGOING:
                yield state._replace(
                    world=self.brokers.time_out(state.world, name),
                    timeouts=state.timeouts - 1,
                    late=state.late or self._is_late(state, name),
                )

    def _is_late(self, state: State, name: int) -> bool:
        """Whether a driver has looked at an id for the last time, or has decided."""
        return any(
            driver.phase == COMMITTING and self._has_looked(driver.machine, name)
            for driver in state.drivers
        ) or self._decided(self.brokers.settled(state.world))

    def _has_looked(self, machine: int, name: int) -> bool:
        value = self.machines.values[machine]
        if value.state is CommitState.LOOKING:
            looks = {operation for _, operation in self.machines.pending(machine)}
            return ("describe", name) not in looks
        before = (CommitState.CHECKING, CommitState.ADDING, CommitState.WRITING)
        return value.state not in before

    def _decided(self, world: World) -> bool:
        reading = self.brokers.reply_of(("log",), world.log).reading  # type: ignore[union-attr]
        record = reading.record
        return record is not None and record.state is RecordState.DECIDED

    # -- the promises -------------------------------------------------------------------------

    def check(self, state: State) -> None:
        """Raise Violation if a state breaks a promise, once all markers are written."""
        state = state._replace(world=self.brokers.settled(state.world))
        for version in dict.fromkeys(self.scenario.versions):
            found, is_torn = self._recovered(state.world, version)
            if found:
                raise Violation(f"version {version}: {found}")
            if is_torn and not state.late:
                raise Violation(f"version {version}: torn without a late timeout")
        for number, driver in enumerate(state.drivers):
            if driver.phase == OVER:
                self._check_driver(state, number, driver.machine)

    def _check_driver(self, state: State, number: int, said: int) -> None:
        rows = [visible(log).count(number) for log in state.world.data]
        if said == SUCCESS and any(count != 1 for count in rows):
            raise Violation(f"driver {number} said success, and its rows are there {rows} times")
        if said == FAILED and any(rows):
            raise Violation(f"driver {number} said failure, and its rows are there {rows} times")
        if said == TORN and not state.late:
            raise Violation(f"driver {number} said torn without a late timeout")

    def _recovered(self, world: World, version: int) -> tuple[str, bool]:
        """Return what is wrong after a recovery run, and whether it finds the owner torn."""
        key = (world, version)
        if key not in self._recoveries:
            self._recoveries[key] = self._recover(world, version)
        return self._recoveries[key]

    def _run_recovery(self, world: World, version: int) -> tuple[object, World]:
        """Plan a version once more, in a world where nobody else moves."""
        run = Run(OWNER, "recovery", LOG, self.scenario.level, 60_000)
        machine = self.machines.begun(
            ("recovery", version),
            lambda: planning.begin(run, deadline=_NEVER, version=version),
        )
        while (outcome := self.machines.values[machine].outcome) is None:
            _, operation = self.machines.pending(machine)[0]
            raw, world = self.brokers.apply(world, operation)
            world = self.brokers.settled(world)
            machine = self.machines.step(machine, 0, raw)
        return outcome, world

    def _recover(self, world: World, version: int) -> tuple[str, bool]:
        outcome, world = self._run_recovery(world, version)
        if isinstance(outcome, Torn):
            return "", True
        runs = [at for at, each in enumerate(self.scenario.versions) if each == version]
        rows = [sum(visible(log).count(at) for at in runs) for log in world.data]
        if isinstance(outcome, Skipped):
            wrong = any(count != 1 for count in rows)
            return (f"recorded, and its rows are there {rows} times" if wrong else "", False)
        if isinstance(outcome, Planned):
            wrong = any(rows)
            return (f"not recorded, and its rows are there {rows} times" if wrong else "", False)
        return f"recovery ends with {outcome}", False


def _said(driver: Driver, outcome: object) -> int:
    """Return what a driver says when its machine is over."""
    if isinstance(outcome, Skipped):
        return SKIPPED
    if isinstance(outcome, Torn):
        return TORN
    if isinstance(outcome, Committed):
        return SUCCESS if driver.phase == COMMITTING else UNKNOWN
    if driver.phase == PLANNING or isinstance(outcome, Aborted):
        return FAILED
    return UNKNOWN


def _with_attempt(state: State, at: int, attempt: tuple[int, ...]) -> State:
    return state._replace(attempts=(*state.attempts[:at], attempt, *state.attempts[at + 1 :]))

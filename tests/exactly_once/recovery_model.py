"""The model of mode two-phase with an operator, who runs `recover` at any moment, once."""

from __future__ import annotations

from collections.abc import Iterator

from exactly_once.brokers import OWNER
from exactly_once.model import (
    NEW,
    OVER,
    PLANNING,
    TORN,
    UNKNOWN,
    Driver,
    Model,
    State,
)
from spark_kafka_sink.commit import recovery
from spark_kafka_sink.commit.log_record import LogReading
from spark_kafka_sink.commit.questions import LogRead
from spark_kafka_sink.commit.recovery import Fate, Recovered
from spark_kafka_sink.commit.steps import Step
from spark_kafka_sink.commit.survey import FoundOwner

_NEVER = 1e12


class RecoveryModel(Model):
    """The operator is one more driver, without tasks. It reads the log in one step."""

    def first(self) -> State:
        """Return the state before anything has happened."""
        state = super().first()
        operator = Driver(NEW, 0, 0, ())
        return state._replace(drivers=(*state.drivers, operator))

    def decided(self, reading: LogReading) -> LogReading:
        """Return what the operator takes for decided."""
        return reading

    def begin(self, found: FoundOwner) -> Step[recovery.Recovering]:
        """Return the operator's machine."""
        return recovery.begin(found, level=self.scenario.level, deadline=_NEVER, more_s=1.0)

    def _attempts_of(self, number: int) -> range:
        return range(0) if self._is_operator(number) else super()._attempts_of(number)

    def _is_operator(self, number: int) -> bool:
        return number == len(self.scenario.versions)

    def _of_driver(self, state: State, number: int, driver: Driver) -> Iterator[State]:
        if not self._is_operator(number) or driver.phase != NEW:
            yield from super()._of_driver(state, number, driver)
            return
        read = self.brokers.reply_of(("log",), state.world.log)
        assert isinstance(read, LogRead)
        found = FoundOwner(OWNER, self.decided(read.reading), ())
        machine = self.machines.begun(("operator", found), lambda: self.begin(found))
        yield self._with(state, number, driver._replace(phase=PLANNING, machine=machine))

    def _next_phase(self, number: int, driver: Driver, outcome: object) -> Driver:
        if not self._is_operator(number):
            return super()._next_phase(number, driver, outcome)
        is_torn = isinstance(outcome, Recovered) and Fate.LOST in outcome.fates
        return driver._replace(phase=OVER, machine=TORN if is_torn else UNKNOWN)

"""Simulated processes that wait for the network: each goes on in turns, and time passes between.

A poll of the network client of a process raises `Waits` where a real one would block. The process
leaves its turn, and calls the poll again when there is an event, or when its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from simulation.cluster import Cluster
from simulation.network import Channel, SimulatedSelector
from simulation.scheduler import Scheduler, SimulationError
from spark_kafka_sink.network.selector import SelectorEvent

_MOST_RUNS_AT_ONE_TIME: Final = 1000


class Waits(BaseException):
    """A process has nothing to do before a time, or before an event."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until


class ProcessSelector(SimulatedSelector):
    """The connections of one client. wake: called when there is an event for it."""

    def __init__(self, places: Places, wake: Callable[[], None]) -> None:
        super().__init__(
            places.cluster,
            places.scheduler,
            places.random,
            as_bytes=False,
            delay_s=places.delay_s,
        )
        self.unreachable = places.unreachable
        self._wake = wake
        self.goes_on = False

    def poll(self, timeout_s: float) -> list[SelectorEvent]:
        """Return the events. Raise Waits if there is none, unless the process has waited before."""
        if not (self._pending or self._is_woken or self.goes_on):
            raise Waits(self._scheduler.now + max(0.0, timeout_s))
        self.goes_on = self._is_woken = False
        pending, self._pending = self._pending, []
        return pending

    def wakeup(self) -> None:
        """End the current poll."""
        super().wakeup()
        self._wake()

    def _occur(self, event: SelectorEvent) -> None:
        super()._occur(event)
        self._wake()


class Process:
    """A process with one client, or one thread of it."""

    def __init__(self, places: Places, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.paused_until = 0.0
        self._scheduler = places.scheduler
        self._number = 0
        self._due: float | None = None
        self._runs_now = 0
        self._last_run = -1.0
        self.selector = ProcessSelector(places, self.wake)
        places.take(self)

    def run(self) -> None:
        """Go on until there is nothing to do, or raise Waits."""
        raise NotImplementedError

    def wake(self) -> None:
        """Run now."""
        self._run_at(self._scheduler.now)

    def kill(self) -> None:
        """End at once; requests that were sent may still arrive."""
        self.is_alive = False
        self.selector.close_all()

    def _run_at(self, at: float) -> None:
        if self._due is not None and self._due <= at:
            return
        self._number += 1
        self._due = at
        self._scheduler.at(at, self._run_due, self._number)

    def _run_due(self, number: int) -> None:
        if number != self._number or not self.is_alive:
            return
        self._due = None
        now = self._scheduler.now
        if self.paused_until > now:
            self._run_at(self.paused_until)
            return
        self._runs_now = self._runs_now + 1 if now == self._last_run else 0
        self._last_run = now
        if self._runs_now > _MOST_RUNS_AT_ONE_TIME:
            message = f"{self.name} is in a busy loop at {now:.4f} s"
            raise SimulationError(message)
        self.selector.goes_on = True
        try:
            self.run()
        except Waits as waits:
            self._run_at(waits.until)


class Places:
    """All processes of a simulation; faults of the network are those of all their connections."""

    def __init__(
        self, cluster: Cluster, scheduler: Scheduler, random: Random, delay_s: float
    ) -> None:
        self.cluster = cluster
        self.scheduler = scheduler
        self.random = random
        self._delay_s = delay_s
        self.unreachable: set[int] = set()
        self._processes: list[Process] = []
        self._selector: ProcessSelector | None = None

    @contextmanager
    def selecting(self, selector: ProcessSelector) -> Iterator[None]:
        """Let the client that is made have a selector."""
        self._selector = selector
        yield
        self._selector = None

    def current_selector(self) -> ProcessSelector:
        """Return the selector for the client that is made."""
        assert self._selector is not None
        return self._selector

    @property
    def delay_s(self) -> float:
        """The longest delay of a message."""
        return self._delay_s

    @delay_s.setter
    def delay_s(self, delay_s: float) -> None:
        self._delay_s = delay_s
        for each in self.processes:
            each.selector.delay_s = delay_s

    @property
    def processes(self) -> list[Process]:
        """The processes that are alive."""
        self._processes = [each for each in self._processes if each.is_alive]
        return self._processes

    @property
    def channels(self) -> dict[tuple[int, int], Channel]:
        """All connections."""
        return {
            (number, channel.id): channel
            for number, each in enumerate(self.processes)
            for channel in each.selector.channels.values()
        }

    def take(self, process: Process) -> None:
        """Take a new process."""
        self._processes.append(process)

    def break_channel(self, channel: Channel, *, notifies_client: bool) -> None:
        """Break a connection."""
        for each in self.processes:
            each.selector.break_channel(channel, notifies_client=notifies_client)

    def broker_died(self, broker_id: int, *, notifies_client: bool) -> None:
        """Break every connection of a broker that was killed."""
        for each in self.processes:
            each.selector.broker_died(broker_id, notifies_client=notifies_client)

    def pause_producer(self, lasts_s: float) -> None:
        """Stop one of the processes for a while."""
        if self.processes:
            process = self.random.choice(self.processes)
            self.scheduler.trace(process.name, "stands still for {:.3f} s", lasts_s)
            process.paused_until = self.scheduler.now + lasts_s

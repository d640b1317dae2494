"""One run of a seed, with checks of the producer's guarantees."""

from __future__ import annotations

import gc
from unittest import mock

from simulation.cluster import Cluster
from simulation.threads.handed_in import handed_in
from simulation.threads.interrupts import Interrupt
from simulation.threads.plan import Plan, draw
from simulation.threads.producer_log import ProducerLog
from simulation.threads.program import Program
from simulation.threads.sockets import Network
from simulation.threads.world import World
from spark_kafka_sink.client import base_producer, io_thread

# Requests in flight when a producer is closed have arrived by then.
_SETTLED_S = 100.0


class Run:
    """The run of a seed; interrupts: whether a caller is interrupted, as by Ctrl-C."""

    def __init__(self, seed: int, *, interrupts: bool = False, tracing: bool = False) -> None:
        self.world = World(f"interrupts {seed}" if interrupts else seed, tracing=tracing)
        self.plan: Plan = draw(self.world.random, interrupts=interrupts)
        self._cluster = Cluster(self.plan.shape, self.world.events, self.world.random)
        self._network = Network(self.world, self._cluster, self.plan.weather)
        pauses = self.plan.callers > 1
        self._interrupt = Interrupt(self.world, pauses=pauses) if interrupts else None
        self._program = Program(self.plan, self.world, self._interrupt)

    @property
    def interrupted_at(self) -> str:
        """The place of the interrupt, if there was one."""
        return "" if self._interrupt is None else self._interrupt.where

    @property
    def interrupted_again_at(self) -> str:
        """The place of the second interrupt, if there was one."""
        return "" if self._interrupt is None else self._interrupt.again

    def run(self) -> None:
        """Run it. Raise SimulationError if a guarantee is broken."""
        # Finalizers would run in any thread that makes garbage, at moments that no seed determines.
        gc.disable()
        log = ProducerLog(self.world, self._program.ledger)
        try:
            with (
                handed_in(self.world, self._network),
                mock.patch.object(base_producer, "logger", log),
                mock.patch.object(io_thread, "logger", log),
            ):
                self.world.run(self._program.main)
        finally:
            gc.enable()
        self.world.events.run_until(self.world.now + _SETTLED_S)
        self._program.ledger.check_ends()
        self._program.ledger.check_logs(self._cluster, self._network.arrived)

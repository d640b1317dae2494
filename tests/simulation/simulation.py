"""One run: the real producer thread's loop, accumulator, sender and network client.

`ProducerState` and `ProducerThread` are used as they are; only their clock, their chance, the
thread itself and its sockets are exchanged for simulated ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from simulation import network
from simulation.application import Application
from simulation.checker import Checker, Ledger
from simulation.cluster import Cluster
from simulation.faults import Faults
from simulation.network import MessageConnection, SimulatedSelector
from simulation.scenario import Scenario
from simulation.scheduler import Scheduler, SimulationError
from simulation.transaction_checker import TransactionChecker
from simulation.transactions import TransactionalApplication
from spark_kafka_sink.client import assembly, io_thread
from spark_kafka_sink.client.assembly import assemble
from spark_kafka_sink.client.transaction_calls import transaction_manager
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.network import client, security
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.selector import HostResolver
from spark_kafka_sink.producer.sequences import Sequences

_WATCH_S = 0.25


class _NoThread:
    """Replaces the I/O thread, because the simulation runs its loop."""

    def __init__(self, **_: object) -> None: ...

    def start(self) -> None: ...


# Replaces `threading` where an I/O thread is made.
NO_THREADS = SimpleNamespace(Thread=_NoThread)


class Simulation:
    """Runs a scenario; `run` raises SimulationError if a guarantee is broken."""

    def __init__(
        self, scenario: Scenario, *, as_bytes: bool = False, tracing: bool = False
    ) -> None:
        self._scenario = scenario
        # Logins are part of the real connection.
        as_bytes = as_bytes or scenario.shape.session_s is not None
        self._as_bytes = as_bytes
        self._random = Random(scenario.seed + 1)
        self.scheduler = Scheduler(tracing=tracing)
        self.cluster = Cluster(scenario.shape, self.scheduler, self._random)
        self.network = SimulatedSelector(
            self.cluster, self.scheduler, self._random, as_bytes=as_bytes, delay_s=scenario.delay_s
        )
        ledger = Ledger()
        is_transactional = bool(scenario.transactions)
        make_checker = TransactionChecker if is_transactional else Checker
        make_application = TransactionalApplication if is_transactional else Application
        self.checker = make_checker(scenario, self.cluster, self.network, self.scheduler, ledger)
        self._make_thread()
        if self.sequences is not None and scenario.first_sequence:
            self._begin_at(self.sequences, scenario.first_sequence)
        self.faults = Faults(
            scenario, self.cluster, self.network, self.scheduler, self._random, self._has_in_flight
        )
        self.application = make_application(
            scenario, self.state, self.scheduler, self._random, ledger, self.checker
        )

    def _make_thread(self) -> None:
        with self._simulated():
            config, initial_brokers = (
                producer_config(self._scenario.configs),
                self._scenario.initial_brokers,
            )
            make_transactions = None
            if config.transactional_id is not None:
                make_transactions = partial(transaction_manager, config)
            self.state, self.thread = assemble(
                config, "simulated", initial_brokers, make_transactions=make_transactions
            )
        self.state.deliveries = self.checker
        self.sequences: Sequences | None = self.state._sender.sequences

    def run(self) -> None:
        """Run until all appended rows have ended, then check their results."""
        self.faults.plan()
        self.application.start()
        self.scheduler.after(_WATCH_S, self._watch)
        self._run_thread()
        self.checker.check_end()
        application, checker = self.application, self.checker
        if isinstance(application, TransactionalApplication):
            assert isinstance(checker, TransactionChecker)
            checker.check_transactions(application.written, self.cluster)

    def _run_thread(self) -> None:
        """Run the loop of the I/O thread, and those of the producers that replace it."""
        with self._simulated():
            self.thread._loop()
        application = self.application
        while isinstance(application, TransactionalApplication) and application.needs_producer:
            self.thread._end()
            self.thread._client.close()
            self._make_thread()
            application.use(self.state)
            with self._simulated():
                self.thread._loop()

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        clock = SimpleNamespace(monotonic=lambda: self.scheduler.now)
        with (
            mock.patch.multiple(
                assembly,
                Selector=lambda **_: self.network,
                Random=lambda: self._random,
                time=clock,
            ),
            mock.patch.object(io_thread, "threading", NO_THREADS),
            mock.patch.object(security, "Selector", return_value=self.network),
            mock.patch.multiple(
                client,
                Connection=Connection if self._as_bytes else MessageConnection,
                HostResolver=partial(HostResolver, resolve=network.resolve),
            ),
        ):
            yield

    def _watch(self) -> None:
        """End the run when all is done; find it hanging when nothing ends in due time."""
        accumulator, application = self.state.accumulator, self.application
        is_free = accumulator.pool.available_bytes == accumulator.pool.total_bytes
        healed = self.scheduler.now > self._scenario.heal_at + 1.0
        coordinator = self.cluster.coordinator
        is_settled = coordinator is None or coordinator.is_settled
        is_idle = is_free and is_settled and not accumulator.has_incomplete
        if application.is_done and is_idle and healed:
            self.state.stop()
            self.thread._client.wakeup()
            return
        configs = self._scenario.configs
        patience = 5.0 + (configs["delivery.timeout.ms"] + configs["request.timeout.ms"]) / 1000
        since = max(application.last_step_at, self._scenario.heal_at)
        if self.scheduler.now > since + patience + self.network.producer_paused_s:
            taken = accumulator.pool.total_bytes - accumulator.pool.available_bytes
            message = (
                f"at {self.scheduler.now:.1f} s the producer has not ended: {taken} bytes of "
                f"memory are taken, incomplete are {accumulator.incomplete}"
            )
            raise SimulationError(message)
        self.scheduler.after(_WATCH_S, self._watch)

    def _has_in_flight(self, tp: TopicPartition) -> bool:
        if self.sequences is None:
            return False
        known = self.sequences._partitions.get(tp)
        return known is not None and bool(known.in_flight)

    def _begin_at(self, sequences: Sequences, first_sequence: int) -> None:
        """Let the first producer id begin with a sequence other than 0, near the wrap."""
        adopt = sequences.adopt

        def adopt_first(producer: ProducerIdAndEpoch) -> None:
            adopt(producer)
            for tp in self._scenario.shape.partitions:
                known = sequences._partitions.get(tp) or sequences._add(tp)
                if known.producer == producer:
                    known.next_sequence = first_sequence

        patched: Any = sequences
        patched.adopt = adopt_first

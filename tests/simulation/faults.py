"""Inject the faults of a scenario, and end all of them at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Protocol

from simulation.cluster import Cluster
from simulation.controller import Broker, ClusterShape
from simulation.coordinator_log import transaction_logs
from simulation.network import Channel
from simulation.scenario import TRANSIENT_ERRORS, Fault
from simulation.scheduler import Scheduler
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.model import TopicPartition

# After a longer stop, all requests have timed out, which tests nothing new.
_LONGEST_PAUSE_S = 3.0


class Plan(Protocol):
    """The faults of a scenario, and what they depend on."""

    @property
    def shape(self) -> ClusterShape:
        """The cluster."""

    @property
    def faults(self) -> list[Fault]:
        """The faults."""

    @property
    def heal_at(self) -> float:
        """When all of them end."""

    @property
    def in_flight(self) -> int:
        """The limit of requests in flight per connection."""


class Network(Protocol):
    """The connections of a simulation."""

    delay_s: float
    unreachable: set[int]

    @property
    def channels(self) -> Mapping[Any, Channel]:
        """The connections."""

    def break_channel(self, channel: Channel, *, notifies_client: bool) -> None:
        """Break one of them."""

    def broker_died(self, broker_id: int, *, notifies_client: bool) -> None:
        """Break those of a broker."""

    def pause_producer(self, lasts_s: float) -> None:
        """Stop a process of a client for a while."""


class Faults:
    """One row per kind of fault; each starts the fault and schedules its end."""

    def __init__(
        self,
        scenario: Plan,
        cluster: Cluster,
        network: Network,
        scheduler: Scheduler,
        random: Random,
        has_in_flight: Callable[[TopicPartition], bool],
    ) -> None:
        self._scenario = scenario
        self._cluster = cluster
        self._network = network
        self._scheduler = scheduler
        self._random = random
        self._has_in_flight = has_in_flight
        self._delay_s = network.delay_s
        self._kinds: dict[str, Callable[[Fault, Broker], None]] = {
            "break": self._break,
            "silence": self._silence,
            "stall": self._stall,
            "mute": self._mute,
            "repeat": self._repeat,
            "kill": self._kill,
            "power off": self._power_off,
            "unreachable": self._unreachable,
            "move": self._move,
            "pause broker": self._pause_broker,
            "slow broker": self._slow_broker,
            "slow follower": self._slow_follower,
            "shrink": self._shrink,
            "pause producer": self._pause_producer,
            "throttle": self._throttle,
            "lag": self._lag,
            "isolate": self._isolate,
            "transient error": self._transient_error,
            "forget": self._forget,
            "move coordinator": self._move_coordinator,
            "move group coordinator": self._move_group_coordinator,
            "lose offsets": self._lose_offsets,
            "unknown partition": self._unknown_partition,
            "rival": self._rival,
            "rebootstrap": self._rebootstrap,
        }

    def plan(self) -> None:
        """Schedule every fault of the scenario, and the end of all."""
        for fault in self._scenario.faults:
            self._scheduler.after(fault.at, self._begin, fault)
        self._scheduler.after(self._scenario.heal_at, self._heal)

    def _begin(self, fault: Fault) -> None:
        broker = self._cluster.brokers[1 + fault.number % self._scenario.shape.brokers]
        self._scheduler.trace(
            "fault", "{} for {:.3f} s, broker {}", fault.kind, fault.lasts, broker.id
        )
        self._kinds[fault.kind](fault, broker)

    def _heal(self) -> None:
        self._scheduler.trace("fault", "all is well again")
        self._network.unreachable.clear()
        self._network.delay_s = min(self._delay_s, 0.005)
        for channel in self._network.channels.values():
            channel.stalled_until = channel.mute_until = 0.0
        self._cluster.ambush.armed.clear()
        self._cluster.heal()

    def _partition(self, fault: Fault) -> TopicPartition:
        partitions = self._scenario.shape.partitions
        return partitions[fault.number % len(partitions)]

    def _until(self, fault: Fault) -> float:
        """Return when a fault ends, at most the time at which the cluster heals."""
        return min(self._scheduler.now + fault.lasts, self._scenario.heal_at)

    def _later(self, fault: Fault, call: Callable[..., None], *args: object) -> None:
        self._scheduler.after(self._until(fault) - self._scheduler.now, call, *args)

    # -- connections ------------------------------------------------------------------------------

    def _break(self, fault: Fault, broker: Broker) -> None:
        for channel in list(self._network.channels.values()):
            if channel.session.broker is broker or fault.number % 4 == 0:
                self._network.break_channel(channel, notifies_client=True)

    def _silence(self, fault: Fault, broker: Broker) -> None:
        for channel in list(self._network.channels.values()):
            if channel.session.broker is broker:
                self._network.break_channel(channel, notifies_client=False)

    def _stall(self, fault: Fault, broker: Broker) -> None:
        for channel in self._network.channels.values():
            if channel.session.broker is broker:
                channel.stalled_until = self._until(fault)

    def _mute(self, fault: Fault, broker: Broker) -> None:
        for channel in self._network.channels.values():
            if channel.session.broker is broker:
                channel.mute_until = self._until(fault)

    def _repeat(self, fault: Fault, broker: Broker) -> None:
        """Repeat a broker's next responses; the producer must not count a response twice."""
        for channel in self._network.channels.values():
            channel.repeats = channel.repeats or channel.session.broker is broker

    def _unreachable(self, fault: Fault, broker: Broker) -> None:
        self._network.unreachable.add(broker.id)
        self._silence(fault, broker)
        self._later(fault, self._network.unreachable.discard, broker.id)

    # -- brokers ----------------------------------------------------------------------------------

    def _kill(self, fault: Fault, broker: Broker) -> None:
        self._end(fault, broker, notifies_client=True)

    def _power_off(self, fault: Fault, broker: Broker) -> None:
        self._end(fault, broker, notifies_client=False)

    def _end(self, fault: Fault, broker: Broker, *, notifies_client: bool) -> None:
        if broker.is_alive:
            self._cluster.kill(broker)
            self._network.broker_died(broker.id, notifies_client=notifies_client)
            self._later(fault, self._cluster.start, broker)

    def _pause_broker(self, fault: Fault, broker: Broker) -> None:
        broker.paused_until = self._until(fault)

    def _slow_broker(self, fault: Fault, broker: Broker) -> None:
        broker.slow_s = fault.lasts / 10
        self._later(fault, setattr, broker, "slow_s", 0.0)

    def _slow_follower(self, fault: Fault, broker: Broker) -> None:
        broker.fetches_slowly_s = fault.lasts / 4
        self._later(fault, setattr, broker, "fetches_slowly_s", 0.0)

    def _throttle(self, fault: Fault, broker: Broker) -> None:
        broker.throttle_ms = 1 + int(fault.lasts * 100)
        self._later(fault, setattr, broker, "throttle_ms", 0)

    def _lag(self, fault: Fault, broker: Broker) -> None:
        broker.lags_until = self._until(fault)
        self._later(fault, self._cluster.notify_all)

    def _isolate(self, fault: Fault, broker: Broker) -> None:
        """Let a broker lose its controller and the other brokers, but not its clients.

        Others lead its partitions and go on without it, and it does not know.
        """
        broker.lags_until = self._until(fault)
        self._cluster.fence(broker)
        self._later(fault, self._cluster.notify_all)

    def _transient_error(self, fault: Fault, broker: Broker) -> None:
        broker.transient_error = TRANSIENT_ERRORS[fault.number % len(TRANSIENT_ERRORS)]
        self._later(fault, setattr, broker, "transient_error", codes.NONE)

    def _rebootstrap(self, fault: Fault, broker: Broker) -> None:
        """Make brokers answer REBOOTSTRAP_REQUIRED (KIP-1102)."""
        for each in self._cluster.brokers.values():
            each.knows_nothing_until = self._until(fault)
            self._break(fault, each)

    # -- partitions -------------------------------------------------------------------------------

    def _move(self, fault: Fault, broker: Broker) -> None:
        for tp in self._scenario.shape.partitions if fault.number % 2 else [self._partition(fault)]:
            self._cluster.elect(tp, broker.id)

    def _shrink(self, fault: Fault, broker: Broker) -> None:
        for tp in self._scenario.shape.partitions:
            self._cluster.shrink(tp)

    def _forget(self, fault: Fault, broker: Broker) -> None:
        """Delete a producer's state by retention.

        A broker since 2.5 accepts any sequence from an unknown producer. If it rejects the first of
        several batches in flight then, it accepts the second, and no client can keep the order.
        Therefore this does not happen here.
        """
        tp = self._partition(fault)
        in_order = self._scenario.in_flight == 1 and not self._has_in_flight(tp)
        if self._scenario.shape.rules.old or in_order:
            self._cluster.forget(tp)

    # -- transactions -----------------------------------------------------------------------------

    def _move_coordinator(self, fault: Fault, broker: Broker) -> None:
        logs = transaction_logs(self._scenario.shape.transaction_logs)
        self._cluster.elect(logs[fault.number % len(logs)], broker.id)

    def _move_group_coordinator(self, fault: Fault, broker: Broker) -> None:
        self._cluster.ambush.armed.append("move")

    def _lose_offsets(self, fault: Fault, broker: Broker) -> None:
        self._cluster.ambush.armed.append("lose")

    def _unknown_partition(self, fault: Fault, broker: Broker) -> None:
        broker.transient_error = codes.UNKNOWN_TOPIC_OR_PARTITION
        self._later(fault, setattr, broker, "transient_error", codes.NONE)

    def _rival(self, fault: Fault, broker: Broker) -> None:
        if self._cluster.coordinator is not None:
            self._cluster.coordinator.let_rival_in()

    # -- the producer's process -------------------------------------------------------------------

    def _pause_producer(self, fault: Fault, broker: Broker) -> None:
        self._network.pause_producer(min(fault.lasts, _LONGEST_PAUSE_S))

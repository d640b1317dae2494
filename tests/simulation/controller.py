"""The brokers' logs and the controller: leaders, replication, broker failures and restarts.

The controller knows the leaders. Each broker learns of a change a little later and acts on its old
knowledge until then: an old leader still accepts batches that its followers no longer fetch.
Records that every in-sync replica has are committed (high watermark) and survive every clean
election.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from simulation.logins import LoginState
from simulation.replica import Replica, Rules
from simulation.scheduler import Scheduler, SimulationError
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.wire.messages import PartitionProduceResponse, ProduceRequest

NO_LEADER: Final = -1

Reply = Callable[[Any], None]


class Leadership(NamedTuple):
    """The leader of a partition, its epoch, and the in-sync replicas."""

    leader: int
    epoch: int
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """The constants of a cluster: brokers 1 to `brokers`, topics by name, the brokers' behaviour.

    first_epoch: the first epoch of a producer id. topic_bytes: max.message.bytes, None for no
    limit; limited_from: when it is set. transaction_version: 0 without transactions. has_groups:
    whether transactions commit offsets of groups. session_s: how long a login lasts, None without
    logins. transaction_logs: in how many logs transactions are kept. has_many_writers: whether
    several producers may write with one producer id, so that sequences prove nothing.
    """

    brokers: int
    partitions: list[TopicPartition]
    topic_ids: dict[str, UUID]
    replication: int
    min_in_sync: int
    first_epoch: int
    rules: Rules
    hints: bool
    topic_bytes: int | None = None
    limited_from: float = 0.0
    transaction_version: int = 0
    has_groups: bool = False
    session_s: float | None = None
    transaction_logs: int = 1
    has_many_writers: bool = False


@dataclass(slots=True, eq=False)
class Waiting:
    """A Produce request that waits for replication (DelayedProduce)."""

    request: ProduceRequest
    needs: dict[TopicPartition, int]
    answers: dict[TopicPartition, PartitionProduceResponse]
    reply: Reply


@dataclass(slots=True, eq=False)
class Session:
    """A broker's end of a connection; requests wait here until the previous one is answered."""

    broker: Broker
    reply: Callable[[Any, Any], None]
    hang_up: Callable[[], None]
    requests: deque[Any] = field(default_factory=deque)
    is_busy: bool = False
    is_open: bool = True
    login: LoginState = field(default_factory=LoginState)


class Broker:
    """One broker: its knowledge, its logs, and its waiting requests."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.host = f"b{number}"
        self.is_alive = True
        self.paused_until = 0.0
        self.known: dict[TopicPartition, Leadership] = {}
        self.known_alive: frozenset[int] = frozenset()
        self.lags_until = 0.0
        self.logs: dict[TopicPartition, Replica] = {}
        self.fetched: dict[TopicPartition, dict[int, int]] = {}
        # Where the log ended when the broker became its leader.
        self.led_from: dict[TopicPartition, int] = {}
        self.waiting: list[Waiting] = []
        self.closed: list[Session] = []
        self.slow_s = 0.0
        self.throttle_ms = 0
        self.transient_error = codes.NONE
        self.fetches_slowly_s = 0.0
        self.knows_nothing_until = 0.0

    def leads(self, tp: TopicPartition) -> bool:
        """Whether this broker considers itself the leader of a partition."""
        known = self.known.get(tp)
        return known is not None and known.leader == self.id


class Controller:
    """All brokers and their true state."""

    def __init__(self, shape: ClusterShape, scheduler: Scheduler, random: Random) -> None:
        self.shape = shape
        self.scheduler = scheduler
        self.random = random
        # The version of the request that is being processed.
        self.version = 0
        self.brokers = {n: Broker(n) for n in range(1, shape.brokers + 1)}
        self.truth: dict[TopicPartition, Leadership] = {}
        self.replicas: dict[TopicPartition, list[int]] = {}
        for number, tp in enumerate(shape.partitions):
            self._create(tp, number)

    def _create(self, tp: TopicPartition, number: int) -> None:
        brokers = list(self.brokers)
        replicas = [brokers[(number + i) % len(brokers)] for i in range(self.shape.replication)]
        self.replicas[tp] = replicas
        self.truth[tp] = Leadership(replicas[0], 0, frozenset(replicas))
        for broker in self.brokers.values():
            if broker.id in replicas:
                broker.logs[tp] = Replica(self.shape.rules)
                broker.fetched[tp] = {}
            broker.known[tp] = self.truth[tp]
            broker.known_alive = frozenset(brokers)

    def complete_waiting(self, broker: Broker) -> None:
        """Answer the requests that waited for a replication that just completed at a broker."""
        raise NotImplementedError

    # -- replication ------------------------------------------------------------------------------

    def in_sync(self, broker: Broker, tp: TopicPartition) -> frozenset[int]:
        """Return the in-sync replicas in a leader's view: the controller's if it still leads."""
        truth, known = self.truth[tp], broker.known[tp]
        return truth.in_sync if truth.epoch == known.epoch else known.in_sync

    def high_watermark(self, broker: Broker, tp: TopicPartition) -> int:
        """Return the offset up to which every in-sync replica has a leader's log."""
        fetched = broker.fetched[tp]
        ends = [fetched.get(n, 0) for n in self.in_sync(broker, tp) if n != broker.id]
        return min([broker.logs[tp].end_offset, *ends])

    def schedule_fetches(self, leader: Broker, tp: TopicPartition) -> None:
        """Schedule the fetches of the followers from a leader, each with its own delay."""
        for number in self.replicas[tp]:
            if number != leader.id:
                delay = self.random.uniform(0.0002, 0.003)
                delay += self.brokers[number].fetches_slowly_s
                self.scheduler.after(delay, self._fetch, leader, number, tp)

    def _fetch(self, leader: Broker, number: int, tp: TopicPartition) -> None:
        """Fetch as a follower, if both sides agree on the leader's epoch."""
        follower = self.brokers[number]
        if not (leader.is_alive and follower.is_alive and leader.leads(tp)):
            return
        if leader.known[tp].epoch != follower.known[tp].epoch:
            return
        if max(leader.paused_until, follower.paused_until) > self.scheduler.now:
            self.scheduler.after(0.05, self._fetch, leader, number, tp)
            return
        follower.logs[tp].copy_from(leader.logs[tp])
        leader.fetched[tp][number] = leader.logs[tp].end_offset
        truth = self.truth[tp]
        if number not in truth.in_sync and truth.epoch == leader.known[tp].epoch:
            self._alter(tp, truth.in_sync | {number})
        self.complete_waiting(leader)

    # -- the controller ---------------------------------------------------------------------------

    def elect(self, tp: TopicPartition, preferred: int | None = None) -> None:
        """Elect a leader among the live in-sync replicas, `wanted` if it is one."""
        truth = self.truth[tp]
        able = [n for n in self.replicas[tp] if n in truth.in_sync and self.brokers[n].is_alive]
        leader = preferred if preferred in able else next(iter(able), NO_LEADER)
        in_sync = frozenset(able) or truth.in_sync
        self.truth[tp] = Leadership(leader, truth.epoch + 1, in_sync)
        self.scheduler.trace(
            "controller", "{} led by {} in epoch {}, in sync {}",
            tp, leader, truth.epoch + 1, sorted(in_sync),
        )  # fmt: skip
        self.notify_all()

    def shrink(self, tp: TopicPartition) -> None:
        """Remove lagging followers from the in-sync replicas, as their leader may request."""
        truth = self.truth[tp]
        leader = self.brokers.get(truth.leader)
        if leader is None or leader.known[tp].epoch != truth.epoch:
            return
        end = leader.logs[tp].end_offset
        fetched = leader.fetched[tp]
        in_sync = {n for n in truth.in_sync if n == leader.id or fetched.get(n, 0) >= end}
        self._alter(tp, frozenset(in_sync))
        self.complete_waiting(leader)

    def _alter(self, tp: TopicPartition, in_sync: frozenset[int]) -> None:
        """Change the in-sync replicas; a leader of this epoch learns it now (AlterPartition)."""
        self.truth[tp] = truth = self.truth[tp]._replace(in_sync=in_sync)
        self.scheduler.trace("controller", "{} in sync {}", tp, sorted(in_sync))
        leader = self.brokers.get(truth.leader)
        if leader is not None and leader.known[tp].epoch == truth.epoch:
            leader.known[tp] = truth

    def notify_all(self) -> None:
        """Update every broker's knowledge, each with its own delay."""
        for broker in self.brokers.values():
            delay = self.random.uniform(0.0005, 0.03)
            lag = max(0.0, broker.lags_until - self.scheduler.now)
            self.scheduler.after(delay + lag, self._learn, broker)

    def _learn(self, broker: Broker) -> None:
        if not broker.is_alive or broker.lags_until > self.scheduler.now:
            return
        broker.known_alive = frozenset(n for n, b in self.brokers.items() if b.is_alive)
        for tp, truth in self.truth.items():
            before = broker.known[tp]
            broker.known[tp] = truth
            if truth.leader == broker.id:
                if truth.epoch != before.epoch:
                    broker.logs[tp].take_over()
                    broker.led_from[tp] = broker.logs[tp].end_offset
                    broker.fetched[tp] = {}
                self.schedule_fetches(broker, tp)
            elif broker.id in self.replicas[tp] and truth.leader != NO_LEADER:
                delay = self.random.uniform(0.0002, 0.003) + broker.fetches_slowly_s
                leader = self.brokers[truth.leader]
                self.scheduler.after(delay, self._fetch, leader, broker.id, tp)
        self.complete_waiting(broker)

    # -- life and death ---------------------------------------------------------------------------

    def kill(self, broker: Broker) -> None:
        """Kill a broker's process; the controller notices after a while."""
        self.scheduler.trace(f"broker {broker.id}", "dies")
        broker.is_alive = False
        broker.waiting.clear()
        broker.closed.clear()
        self.scheduler.after(self.random.uniform(0.01, 0.5), self._noticed_dead, broker)

    def _noticed_dead(self, broker: Broker) -> None:
        if broker.is_alive:
            return
        for tp, truth in self.truth.items():
            if truth.leader == broker.id:
                self.elect(tp)
            elif broker.id in truth.in_sync and len(truth.in_sync) > 1:
                self._alter(tp, truth.in_sync - {broker.id})
                leader = self.brokers.get(truth.leader)
                if leader is not None and leader.is_alive:
                    self.complete_waiting(leader)
        self.notify_all()

    def fence(self, broker: Broker) -> None:
        """Let others lead what a broker leads that lives, and go on without it where they can."""
        for tp, truth in self.truth.items():
            others = frozenset(n for n in truth.in_sync - {broker.id} if self.brokers[n].is_alive)
            if not others:
                continue
            if truth.leader == broker.id:
                self.truth[tp] = truth._replace(in_sync=others)
                self.elect(tp)
            elif broker.id in truth.in_sync and truth.leader != NO_LEADER:
                self._alter(tp, others)
                self.complete_waiting(self.brokers[truth.leader])
        self.notify_all()

    def start(self, broker: Broker) -> None:
        """Start a broker again with its logs."""
        if broker.is_alive:
            return
        self.scheduler.trace(f"broker {broker.id}", "starts")
        broker.is_alive = True
        for tp, truth in self.truth.items():
            if truth.leader == broker.id:
                # It restarted before the controller noticed: the epoch increases all the same.
                self.elect(tp, broker.id)
            elif truth.leader == NO_LEADER and broker.id in truth.in_sync:
                self.elect(tp, broker.id)
        self.notify_all()

    def forget(self, tp: TopicPartition) -> None:
        """Delete a partition's records by retention, and with them its producer states."""
        leader = self.brokers.get(self.truth[tp].leader)
        if leader is None or not leader.leads(tp) or not leader.is_alive:
            return
        if self.high_watermark(leader, tp) < leader.logs[tp].end_offset:
            return
        self.scheduler.trace("controller", "{} loses its records to retention", tp)
        for number in self.replicas[tp]:
            if self.brokers[number].logs[tp].end_offset == leader.logs[tp].end_offset:
                self.brokers[number].logs[tp].forget()

    def heal(self) -> None:
        """End every fault of brokers."""
        for broker in self.brokers.values():
            broker.paused_until = broker.lags_until = broker.knows_nothing_until = 0.0
            broker.slow_s = broker.fetches_slowly_s = 0.0
            broker.throttle_ms, broker.transient_error = 0, codes.NONE
            self.start(broker)
        self.notify_all()

    def final_log(self, tp: TopicPartition) -> Replica:
        """Return the leader's log after the cluster has healed."""
        leader = self.brokers.get(self.truth[tp].leader)
        if leader is None:
            message = f"the simulated cluster did not heal: {tp} has no leader"
            raise SimulationError(message)
        return leader.logs[tp]

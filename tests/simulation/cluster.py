"""Brokers, their controller and their logs: what a Kafka cluster promises a producer, and no more.

The controller knows who leads; each broker knows it a little later, and until then acts on what it
knew: an old leader goes on taking batches that its followers no longer fetch. acks=all is answered
when every in-sync replica has the batch (the high watermark), so it survives every clean election.

A broker takes one request of a connection at a time (SocketServer mutes the channel). What had
arrived on a connection that broke may still be processed, in order, and always before anything that
comes on a later connection.

`handlers` has one row per request type: a transaction coordinator would add its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from simulation.batches import Batch, read_batch
from simulation.replica import Replica, Rules
from simulation.scheduler import Scheduler, SimulationError
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.wire.messages import (
    APIS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    LeaderIdAndEpoch,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID, Records

FIRST_PORT: Final = 9000
NOT_ENOUGH_REPLICAS: Final = 19
_NO_LEADER: Final = -1

Reply = Callable[[Any], None]


class Leadership(NamedTuple):
    """Who leads a partition since which epoch, and which replicas are in sync."""

    leader: int
    epoch: int
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """What does not change: brokers 1 to `brokers`, topics by name, and how brokers behave.

    first_epoch: of the producer ids given out. topic_bytes: max.message.bytes, None for no limit.
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


@dataclass(slots=True)
class Waiting:
    """A Produce request that waits for its batches to be replicated (DelayedProduce)."""

    request: ProduceRequest
    needs: dict[TopicPartition, int]
    answers: dict[TopicPartition, PartitionProduceResponse]
    reply: Reply


@dataclass(slots=True, eq=False)
class Session:
    """A broker's end of a connection: requests wait here until the one before is answered."""

    broker: Broker
    reply: Callable[[Any, Any], None]
    hang_up: Callable[[], None]
    requests: deque[Any] = field(default_factory=deque)
    is_busy: bool = False
    is_open: bool = True


class Broker:
    """One broker: what it knows, its logs, and what waits at it."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.is_alive = True
        self.paused_until = 0.0
        self.known: dict[TopicPartition, Leadership] = {}
        self.known_alive: frozenset[int] = frozenset()
        self.lags_until = 0.0
        self.logs: dict[TopicPartition, Replica] = {}
        self.fetched: dict[TopicPartition, dict[int, int]] = {}
        self.waiting: list[Waiting] = []
        self.closed: list[Session] = []
        self.slow_s = 0.0
        self.throttle_ms = 0
        self.transient_error = codes.NONE
        self.fetches_slowly_s = 0.0

    def leads(self, tp: TopicPartition) -> bool:
        """Whether this broker believes to lead a partition."""
        known = self.known.get(tp)
        return known is not None and known.leader == self.id


class Cluster:
    """All brokers and the controller's truth."""

    def __init__(self, shape: ClusterShape, scheduler: Scheduler, random: Random) -> None:
        self.shape = shape
        self.scheduler = scheduler
        self.random = random
        self.brokers = {n: Broker(n) for n in range(1, shape.brokers + 1)}
        self.truth: dict[TopicPartition, Leadership] = {}
        self.replicas: dict[TopicPartition, list[int]] = {}
        self.written: dict[TopicPartition, set[tuple[int, int]]] = {}
        self.handlers: dict[type, Callable[[Broker, Any, Reply], None]] = {
            ApiVersionsRequest: self._api_versions,
            MetadataRequest: self._metadata,
            InitProducerIdRequest: self._init_producer_id,
            ProduceRequest: self._produce,
        }
        self._next_producer_id = 4000
        for number, tp in enumerate(shape.partitions):
            self._create(tp, number)
        self._names = {topic_id: name for name, topic_id in shape.topic_ids.items()}

    def _create(self, tp: TopicPartition, number: int) -> None:
        brokers = list(self.brokers)
        replicas = [brokers[(number + i) % len(brokers)] for i in range(self.shape.replication)]
        self.replicas[tp] = replicas
        self.truth[tp] = Leadership(replicas[0], 0, frozenset(replicas))
        self.written[tp] = set()
        for broker in self.brokers.values():
            if broker.id in replicas:
                broker.logs[tp] = Replica(self.shape.rules)
                broker.fetched[tp] = {}
            broker.known[tp] = self.truth[tp]
            broker.known_alive = frozenset(brokers)

    # -- connections ------------------------------------------------------------------------------

    def receive(self, session: Session, request: Any) -> None:  # noqa: ANN401 - any request type
        """Take a request that arrived on a connection."""
        session.requests.append(request)
        self._begin_next(session)

    def closed(self, session: Session, survivors: list[Any]) -> None:
        """Note that a connection is gone; `survivors` are requests that arrived nevertheless."""
        session.is_open = False
        kept = [*session.requests, *survivors]
        session.requests = deque(kept[: self.random.randint(0, len(kept))])
        if session.requests:
            session.broker.closed.append(session)
            self.scheduler.after(0.001, self._finish_closed, session.broker)

    def _finish_closed(self, broker: Broker) -> None:
        """Process what had arrived on connections that are gone."""
        if not broker.is_alive or broker.paused_until > self.scheduler.now:
            return
        sessions, broker.closed = broker.closed, []
        for session in sessions:
            for request in session.requests:
                self.scheduler.trace(f"broker {broker.id}", "late: {}", type(request[1]).__name__)
                self.handlers[type(request[1])](broker, request[1], _nobody)
            session.requests.clear()

    def _begin_next(self, session: Session) -> None:
        if session.is_busy or not session.requests or not session.is_open:
            return
        session.is_busy = True
        broker = session.broker
        wait = max(0.0, broker.paused_until - self.scheduler.now)
        delay = wait + broker.slow_s + self.random.uniform(0, 0.002)
        self.scheduler.after(delay, self._process, session)

    def _process(self, session: Session) -> None:
        broker = session.broker
        if not broker.is_alive or not session.is_open or not session.requests:
            return
        if broker.paused_until > self.scheduler.now:
            wait = broker.paused_until - self.scheduler.now
            self.scheduler.after(wait, self._process, session)
            return
        self._finish_closed(broker)
        asked, request = session.requests.popleft()

        def reply(response: Any) -> None:  # noqa: ANN401 - any response type
            session.is_busy = False
            if session.is_open and broker.is_alive:
                if response is not None:
                    session.reply(asked, response)
                self._begin_next(session)

        if isinstance(request, ProduceRequest) and request.acks == 0:
            self._produce_unanswered(session, request, reply)
        else:
            self.handlers[type(request)](broker, request, reply)

    # -- requests ---------------------------------------------------------------------------------

    def _api_versions(self, broker: Broker, request: ApiVersionsRequest, reply: Reply) -> None:
        reply(
            ApiVersionsResponse(
                error_code=codes.NONE,
                api_keys=[
                    ApiVersion(api_key=api.key, min_version=0, max_version=api.max_version)
                    for api in APIS.values()
                ],
            )
        )

    def _metadata(self, broker: Broker, request: MetadataRequest, reply: Reply) -> None:
        asked = {topic.name for topic in request.topics or []}
        topics: dict[str, MetadataResponseTopic] = {}
        for tp in self.shape.partitions:
            if tp.topic not in asked:
                continue
            topic = topics.setdefault(
                tp.topic,
                MetadataResponseTopic(
                    error_code=codes.NONE,
                    name=tp.topic,
                    topic_id=self.shape.topic_ids.get(tp.topic, ZERO_UUID),
                    partitions=[],
                ),
            )
            known = broker.known[tp]
            has_leader = known.leader != _NO_LEADER
            topic.partitions.append(
                MetadataResponsePartition(
                    error_code=codes.NONE if has_leader else codes.LEADER_NOT_AVAILABLE,
                    partition_index=tp.partition,
                    leader_id=known.leader,
                    leader_epoch=known.epoch,
                    replica_nodes=self.replicas[tp],
                    isr_nodes=sorted(known.in_sync),
                )
            )
        brokers = [
            MetadataResponseBroker(node_id=n, host=f"b{n}", port=FIRST_PORT + n)
            for n in sorted(broker.known_alive)
        ]
        reply(
            MetadataResponse(
                brokers=brokers, topics=list(topics.values()), throttle_time_ms=broker.throttle_ms
            )
        )

    def _init_producer_id(
        self, broker: Broker, request: InitProducerIdRequest, reply: Reply
    ) -> None:
        if broker.transient_error != codes.NONE:
            reply(InitProducerIdResponse(error_code=15))
            return
        self._next_producer_id += 1
        first = self._next_producer_id == 4001
        reply(
            InitProducerIdResponse(
                error_code=codes.NONE,
                producer_id=self._next_producer_id,
                producer_epoch=self.shape.first_epoch if first else 0,
                throttle_time_ms=broker.throttle_ms,
            )
        )

    def _produce_unanswered(self, session: Session, request: ProduceRequest, reply: Reply) -> None:
        answers: list[ProduceResponse] = []
        self._produce(session.broker, request, answers.append)
        failed = any(p.error_code for t in answers[0].responses for p in t.partition_responses)
        reply(None)
        if failed:
            # Without answers, a broker can only hang up to say that something is wrong.
            session.hang_up()

    def _produce(self, broker: Broker, request: ProduceRequest, reply: Reply) -> None:
        waiting = Waiting(request, {}, {}, reply)
        for topic in request.topic_data:
            name = topic.name or self._names[topic.topic_id]
            for data in topic.partition_data:
                tp = TopicPartition(name, data.index)
                batch = _batch_of(data)
                answer = self._append(broker, tp, batch, request.acks)
                self.scheduler.trace(
                    f"broker {broker.id}", "{} pid {} epoch {} seq {}: records {} -> {} at {}",
                    tp, batch.producer_id, batch.epoch, batch.base_sequence,
                    _span(batch.numbers), codes.error_code(answer.error_code).name,
                    answer.base_offset,
                )  # fmt: skip
                waiting.answers[tp] = answer
                if answer.error_code == codes.NONE:
                    waiting.needs[tp] = answer.base_offset + len(batch.numbers)
        if request.acks != -1 or self._is_replicated(broker, waiting):
            self._answer(broker, waiting)
            return
        broker.waiting.append(waiting)
        self.scheduler.after(request.timeout_ms / 1000, self._give_up_waiting, broker, waiting)

    def _append(
        self, broker: Broker, tp: TopicPartition, batch: Batch, acks: int
    ) -> PartitionProduceResponse:
        if not broker.leads(tp):
            return self._not_leader(broker, tp)
        if broker.transient_error != codes.NONE and self.random.random() < 0.5:
            return PartitionProduceResponse(index=tp.partition, error_code=broker.transient_error)
        if acks == -1 and len(self._in_sync(broker, tp)) < self.shape.min_in_sync:
            return PartitionProduceResponse(index=tp.partition, error_code=NOT_ENOUGH_REPLICAS)
        if self.shape.topic_bytes is not None and batch.size_bytes > self.shape.topic_bytes:
            return PartitionProduceResponse(index=tp.partition, error_code=codes.MESSAGE_TOO_LARGE)
        log = broker.logs[tp]
        appended = log.append(batch)
        if appended.code == codes.NONE:
            self.written[tp].update(
                (number, appended.base_offset + i) for i, number in enumerate(batch.numbers)
            )
            self._schedule_fetches(broker, tp)
        return PartitionProduceResponse(
            index=tp.partition,
            error_code=appended.code,
            base_offset=appended.base_offset,
            log_start_offset=log.log_start_offset,
        )

    def _not_leader(self, broker: Broker, tp: TopicPartition) -> PartitionProduceResponse:
        known = broker.known[tp]
        hint = LeaderIdAndEpoch(leader_id=known.leader, leader_epoch=known.epoch)
        return PartitionProduceResponse(
            index=tp.partition,
            error_code=codes.NOT_LEADER_OR_FOLLOWER,
            current_leader=hint if self.shape.hints else None,
        )

    def _answer(self, broker: Broker, waiting: Waiting) -> None:
        by_topic: dict[str, TopicProduceResponse] = {}
        for topic in waiting.request.topic_data:
            name = topic.name or self._names[topic.topic_id]
            by_topic[name] = TopicProduceResponse(
                name=name, topic_id=topic.topic_id, partition_responses=[]
            )
        for tp, answer in waiting.answers.items():
            by_topic[tp.topic].partition_responses.append(answer)
        hinted = {a.current_leader.leader_id for a in waiting.answers.values() if a.current_leader}
        waiting.reply(
            ProduceResponse(
                responses=list(by_topic.values()),
                throttle_time_ms=broker.throttle_ms,
                node_endpoints=[
                    NodeEndpoint(node_id=n, host=f"b{n}", port=FIRST_PORT + n)
                    for n in sorted(hinted - {_NO_LEADER})
                ],
            )
        )

    # -- replication ------------------------------------------------------------------------------

    def _in_sync(self, broker: Broker, tp: TopicPartition) -> frozenset[int]:
        """Give the in-sync replicas a leader counts with: the controller's, if it still leads."""
        truth, known = self.truth[tp], broker.known[tp]
        return truth.in_sync if truth.epoch == known.epoch else known.in_sync

    def _high_watermark(self, broker: Broker, tp: TopicPartition) -> int:
        fetched = broker.fetched[tp]
        ends = [fetched.get(n, 0) for n in self._in_sync(broker, tp) if n != broker.id]
        return min([broker.logs[tp].end_offset, *ends])

    def _is_replicated(self, broker: Broker, waiting: Waiting) -> bool:
        """Tell whether a request can be answered; partitions that are lost get their error."""
        done = True
        for tp, end in waiting.needs.items():
            if waiting.answers[tp].error_code != codes.NONE:
                continue
            if not broker.leads(tp):
                waiting.answers[tp] = self._not_leader(broker, tp)
            elif self._high_watermark(broker, tp) < end:
                done = False
        return done

    def _give_up_waiting(self, broker: Broker, waiting: Waiting) -> None:
        if waiting not in broker.waiting or not broker.is_alive:
            return
        broker.waiting.remove(waiting)
        for tp, end in waiting.needs.items():
            if self._high_watermark(broker, tp) < end:
                waiting.answers[tp] = PartitionProduceResponse(
                    index=tp.partition, error_code=codes.REQUEST_TIMED_OUT
                )
        self._answer(broker, waiting)

    def _complete_waiting(self, broker: Broker) -> None:
        for waiting in [w for w in broker.waiting if self._is_replicated(broker, w)]:
            broker.waiting.remove(waiting)
            self._answer(broker, waiting)

    def _schedule_fetches(self, leader: Broker, tp: TopicPartition) -> None:
        for number in self.replicas[tp]:
            if number != leader.id:
                delay = self.random.uniform(0.0002, 0.003)
                delay += self.brokers[number].fetches_slowly_s
                self.scheduler.after(delay, self._fetch, leader, number, tp)

    def _fetch(self, leader: Broker, number: int, tp: TopicPartition) -> None:
        """Let a follower fetch, where both sides agree on the leader's epoch."""
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
        self._complete_waiting(leader)

    # -- the controller ---------------------------------------------------------------------------

    def elect(self, tp: TopicPartition, wanted: int | None = None) -> None:
        """Choose a leader among the replicas that are in sync and alive, `wanted` if it is."""
        truth = self.truth[tp]
        able = [n for n in self.replicas[tp] if n in truth.in_sync and self.brokers[n].is_alive]
        leader = wanted if wanted in able else next(iter(able), _NO_LEADER)
        in_sync = frozenset(able) or truth.in_sync
        self.truth[tp] = Leadership(leader, truth.epoch + 1, in_sync)
        self.scheduler.trace(
            "controller", "{} led by {} in epoch {}, in sync {}",
            tp, leader, truth.epoch + 1, sorted(in_sync),
        )  # fmt: skip
        self.tell_all()

    def shrink(self, tp: TopicPartition) -> None:
        """Take the followers that are behind out of sync, as their leader may ask."""
        truth = self.truth[tp]
        leader = self.brokers.get(truth.leader)
        if leader is None or leader.known[tp].epoch != truth.epoch:
            return
        end = leader.logs[tp].end_offset
        fetched = leader.fetched[tp]
        in_sync = {n for n in truth.in_sync if n == leader.id or fetched.get(n, 0) >= end}
        self._alter(tp, frozenset(in_sync))
        self._complete_waiting(leader)

    def _alter(self, tp: TopicPartition, in_sync: frozenset[int]) -> None:
        """Change who is in sync; a leader of this epoch learns it at once (AlterPartition)."""
        self.truth[tp] = truth = self.truth[tp]._replace(in_sync=in_sync)
        self.scheduler.trace("controller", "{} in sync {}", tp, sorted(in_sync))
        leader = self.brokers.get(truth.leader)
        if leader is not None and leader.known[tp].epoch == truth.epoch:
            leader.known[tp] = truth

    def tell_all(self) -> None:
        """Let every broker know the truth, each in its own time."""
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
                    broker.fetched[tp] = {}
                self._schedule_fetches(broker, tp)
            elif broker.id in self.replicas[tp] and truth.leader != _NO_LEADER:
                delay = self.random.uniform(0.0002, 0.003) + broker.fetches_slowly_s
                leader = self.brokers[truth.leader]
                self.scheduler.after(delay, self._fetch, leader, broker.id, tp)
        self._complete_waiting(broker)

    # -- life and death ---------------------------------------------------------------------------

    def kill(self, broker: Broker) -> None:
        """End a broker's process; the controller notices after a while."""
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
                    self._complete_waiting(leader)
        self.tell_all()

    def start(self, broker: Broker) -> None:
        """Start a broker again, with the logs it had."""
        if broker.is_alive:
            return
        self.scheduler.trace(f"broker {broker.id}", "starts")
        broker.is_alive = True
        for tp, truth in self.truth.items():
            if truth.leader == broker.id:
                # It was back before the controller noticed: a new epoch all the same.
                self.elect(tp, broker.id)
            elif truth.leader == _NO_LEADER and broker.id in truth.in_sync:
                self.elect(tp, broker.id)
        self.tell_all()

    def forget(self, tp: TopicPartition) -> None:
        """Let retention delete a partition's records and what is known of its producers."""
        leader = self.brokers.get(self.truth[tp].leader)
        if leader is None or not leader.leads(tp) or not leader.is_alive:
            return
        if self._high_watermark(leader, tp) < leader.logs[tp].end_offset:
            return
        self.scheduler.trace("controller", "{} loses its records to retention", tp)
        for number in self.replicas[tp]:
            if self.brokers[number].logs[tp].end_offset == leader.logs[tp].end_offset:
                self.brokers[number].logs[tp].forget()

    def heal(self) -> None:
        """End every fault of brokers."""
        for broker in self.brokers.values():
            broker.paused_until = broker.lags_until = 0.0
            broker.slow_s = broker.fetches_slowly_s = 0.0
            broker.throttle_ms, broker.transient_error = 0, codes.NONE
            self.start(broker)
        self.tell_all()

    def final_log(self, tp: TopicPartition) -> Replica:
        """Give the leader's log of a healed cluster."""
        leader = self.brokers.get(self.truth[tp].leader)
        if leader is None:
            message = f"the simulated cluster did not heal: {tp} has no leader"
            raise SimulationError(message)
        return leader.logs[tp]


def _batch_of(data: PartitionProduceData) -> Batch:
    if data.records is None:
        message = f"partition {data.index} of a Produce request has no records"
        raise SimulationError(message)
    records = data.records
    if isinstance(records, Records):
        return read_batch(b"".join(bytes(buffer) for buffer in records.buffers))
    return read_batch(bytes(records))


def _span(numbers: tuple[int, ...]) -> str:
    return f"{numbers[0]}..{numbers[-1]}" if numbers else "none"


def _nobody(response: Any) -> None:  # noqa: ANN401 - any response type
    """Take the answer to a request whose connection is gone."""

"""Brokers that answer requests, with exactly the guarantees of a Kafka cluster.

A broker processes one request of a connection at a time (SocketServer mutes the channel). Requests
that arrived on a broken connection may still be processed, in order, and always before those of a
later connection. acks=all is answered when the batch is committed.

`handlers` has one row per request type. Those of transactions belong to `TransactionCoordinator`,
that of offsets to `GroupCoordinator`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from simulation.ambush import Ambush
from simulation.batches import Batch, read_batch
from simulation.controller import (
    NO_LEADER,
    Broker,
    ClusterShape,
    Controller,
    Reply,
    Session,
    Waiting,
)
from simulation.coordinator import TransactionCoordinator
from simulation.coordinator_log import OFFSETS_LOG, transaction_logs
from simulation.group_coordinator import GroupCoordinator
from simulation.log_reads import LogReads
from simulation.logins import Logins
from simulation.replica import Replica
from simulation.scheduler import Scheduler, SimulationError
from simulation.transaction_descriptions import TransactionDescriptions
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import error_code
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.wire.messages import (
    APIS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
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
# An address without a broker.
REFUSING_PORT: Final = 10_000
DROPPING_PORT: Final = 10_001
NOT_ENOUGH_REPLICAS: Final = 19
_STORED_MS: Final = 1000


class Cluster(Controller):
    """All brokers, with their connections and requests."""

    def __init__(self, shape: ClusterShape, scheduler: Scheduler, random: Random) -> None:
        super().__init__(shape, scheduler, random)
        self.written: dict[TopicPartition, set[tuple[int, int]]] = {
            tp: set() for tp in shape.partitions
        }
        self.handlers: dict[type, Callable[[Broker, Any, Reply], None]] = {
            ApiVersionsRequest: self._api_versions,
            MetadataRequest: self._metadata,
            InitProducerIdRequest: self._init_producer_id,
            ProduceRequest: self._produce,
            **LogReads(self).handlers,
        }
        self._seen: dict[tuple[TopicPartition, int, int, int], tuple[int, ...]] = {}
        self._next_producer_id = 4000
        self._names = {topic_id: name for name, topic_id in shape.topic_ids.items()}
        self.ambush = Ambush(self)
        self.coordinator: TransactionCoordinator | None = None
        if shape.transaction_version:
            for number, tp in enumerate(transaction_logs(shape.transaction_logs)):
                self._create(tp, len(shape.partitions) + number)
            self.coordinator = TransactionCoordinator(self, self._next_producer_id)
            self.handlers |= self.coordinator.handlers
            self.handlers |= TransactionDescriptions(self.coordinator).handlers
        self.logins = None if shape.session_s is None else Logins(shape.session_s, scheduler)
        if shape.has_groups and self.coordinator is not None:
            self._create(OFFSETS_LOG, len(shape.partitions) + 1)
            self.handlers |= GroupCoordinator(self, self.coordinator).handlers

    # -- connections ------------------------------------------------------------------------------

    def receive(self, session: Session, request: Any) -> None:  # noqa: ANN401 - any request type
        """Process a request that arrived on a connection."""
        session.requests.append(request)
        self._begin_next(session)

    def closed(self, session: Session, survivors: list[Any]) -> None:
        """Record that a connection closed; `survivors` are requests that arrived nevertheless."""
        session.is_open = False
        kept = [*session.requests, *survivors]
        session.requests = deque(kept[: self.random.randint(0, len(kept))])
        if session.requests:
            session.broker.closed.append(session)
            # Requests of a closed producer may arrive after its successor has started.
            delay = 0.001 if self.coordinator is None else self.random.uniform(0.001, 0.3)
            self.scheduler.after(delay, self._finish_closed, session.broker)

    def _finish_closed(self, broker: Broker) -> None:
        """Process the requests that had arrived on closed connections."""
        if not broker.is_alive or broker.paused_until > self.scheduler.now:
            return
        sessions, broker.closed = broker.closed, []
        for session in sessions:
            for request in session.requests:
                logins = self.logins
                if logins is not None and not logins.takes_late(session.login, request[1]):
                    continue
                self.scheduler.trace(f"broker {broker.id}", "late: {}", type(request[1]).__name__)
                self.version = request[0].version
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
        self.version = asked.version

        def reply(response: Any) -> None:  # noqa: ANN401 - any response type
            session.is_busy = False
            if session.is_open and broker.is_alive:
                if response is not None:
                    session.reply(asked, response)
                self._begin_next(session)

        if self.logins is not None and not self.logins.take(
            session.login, request, reply, session.hang_up
        ):
            return
        if isinstance(request, ProduceRequest) and request.acks == 0:
            self._produce_unanswered(session, request, reply)
        elif self.ambush.awaits(request):
            handle = partial(self.handlers[type(request)], broker, request)
            self.ambush.strike(session, handle, reply, type(request).__name__)
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
                finalized_features_epoch=1,
                finalized_features=[
                    FinalizedFeatureKey(
                        name="transaction.version",
                        max_version_level=self.shape.transaction_version,
                        min_version_level=0,
                    )
                ],
            )
        )

    def _metadata(self, broker: Broker, request: MetadataRequest, reply: Reply) -> None:
        if broker.knows_nothing_until > self.scheduler.now:
            reply(MetadataResponse(error_code=codes.REBOOTSTRAP_REQUIRED, brokers=[], topics=[]))
            return
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
            has_leader = known.leader != NO_LEADER
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
            MetadataResponseBroker(node_id=n, host=self.brokers[n].host, port=FIRST_PORT + n)
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
            # Without responses, a broker can only close the connection to signal an error.
            session.hang_up()

    def _produce(self, broker: Broker, request: ProduceRequest, reply: Reply) -> None:
        waiting = Waiting(request, {}, {}, reply)
        for topic in request.topic_data:
            name = topic.name or self._names[topic.topic_id]
            for data in topic.partition_data:
                tp = TopicPartition(name, data.index)
                batch = _batch_of(data)
                answer = self._append(broker, tp, batch, request)
                self.scheduler.trace(
                    f"broker {broker.id}", "{} pid {} epoch {} seq {}: records {} -> {} at {}",
                    tp, batch.producer_id, batch.epoch, batch.base_sequence,
                    _span(batch.numbers), error_code(answer.error_code).name,
                    answer.base_offset,
                )  # fmt: skip
                waiting.answers[tp] = answer
                if answer.error_code == codes.NONE:
                    self._check_identity(tp, batch)
                    waiting.needs[tp] = answer.base_offset + len(batch.numbers)
        if request.acks != -1 or self._is_replicated(broker, waiting):
            self._answer(broker, waiting)
            return
        broker.waiting.append(waiting)
        self.scheduler.after(request.timeout_ms / 1000, self._give_up_waiting, broker, waiting)

    def _check_identity(self, tp: TopicPartition, batch: Batch) -> None:
        """Check that a sequence that was accepted once always has the same records."""
        if batch.producer_id < 0 or self.shape.has_many_writers:
            return
        key = tp, batch.producer_id, batch.epoch, batch.base_sequence
        before = self._seen.setdefault(key, batch.numbers)
        if before != batch.numbers:
            message = (
                f"{tp}: epoch {batch.epoch}, sequence {batch.base_sequence} stood for records "
                f"{_span(before)} and now for {_span(batch.numbers)}"
            )
            raise SimulationError(message)

    def _append(
        self, broker: Broker, tp: TopicPartition, batch: Batch, request: ProduceRequest
    ) -> PartitionProduceResponse:
        if not broker.leads(tp):
            return self._not_leader(broker, tp)
        if broker.transient_error != codes.NONE and self.random.random() < 0.5:
            return PartitionProduceResponse(index=tp.partition, error_code=broker.transient_error)
        if request.acks == -1 and len(self.in_sync(broker, tp)) < self.shape.min_in_sync:
            return PartitionProduceResponse(index=tp.partition, error_code=NOT_ENOUGH_REPLICAS)
        if self._is_too_large(batch):
            return PartitionProduceResponse(index=tp.partition, error_code=codes.MESSAGE_TOO_LARGE)
        log = broker.logs[tp]
        code = self._refusal_of_transaction(tp, batch, log, request.transactional_id or "")
        if code != codes.NONE:
            return PartitionProduceResponse(index=tp.partition, error_code=code)
        end = log.end_offset
        appended = log.append(batch)
        if appended.code == codes.NONE:
            self.written[tp].update(
                (number, appended.base_offset + i) for i, number in enumerate(batch.numbers)
            )
            self.schedule_fetches(broker, tp)
        return PartitionProduceResponse(
            index=tp.partition,
            error_code=appended.code,
            base_offset=appended.base_offset,
            # A broker answers for a batch that it has with the timestamp of the stored one.
            log_append_time_ms=_STORED_MS if -1 < appended.base_offset < end else -1,
            log_start_offset=log.log_start_offset,
        )

    def _is_too_large(self, batch: Batch) -> bool:
        limit = self.shape.topic_bytes
        if limit is None or self.scheduler.now < self.shape.limited_from:
            return False
        return batch.size_bytes > limit

    def _refusal_of_transaction(
        self, tp: TopicPartition, batch: Batch, log: Replica, name: str
    ) -> int:
        """Return the coordinator's error code for a batch of a transaction, NONE if it is valid."""
        if self.coordinator is None:
            return codes.NONE
        if not batch.is_transactional:
            message = f"{tp}: {_span(batch.numbers)} came outside a transaction"
            raise SimulationError(message)
        if log.is_in_transaction(batch.producer_id, batch.epoch):
            return codes.NONE
        return self.coordinator.verify(tp, name, batch.producer_id, batch.epoch)

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
                    NodeEndpoint(node_id=n, host=self.brokers[n].host, port=FIRST_PORT + n)
                    for n in sorted(hinted - {NO_LEADER})
                ],
            )
        )

    def _is_replicated(self, broker: Broker, waiting: Waiting) -> bool:
        """Return whether a request can be answered; partitions without a leader get their error."""
        done = True
        for tp, end in waiting.needs.items():
            if waiting.answers[tp].error_code != codes.NONE:
                continue
            if not broker.leads(tp):
                waiting.answers[tp] = self._not_leader(broker, tp)
            elif self.high_watermark(broker, tp) < end:
                done = False
        return done

    def _give_up_waiting(self, broker: Broker, waiting: Waiting) -> None:
        if waiting not in broker.waiting or not broker.is_alive:
            return
        broker.waiting.remove(waiting)
        for tp, end in waiting.needs.items():
            if self.high_watermark(broker, tp) < end:
                waiting.answers[tp] = PartitionProduceResponse(
                    index=tp.partition, error_code=codes.REQUEST_TIMED_OUT
                )
        self._answer(broker, waiting)

    def complete_waiting(self, broker: Broker) -> None:
        """Answer the requests that waited for a replication that just completed at a broker."""
        for waiting in [w for w in broker.waiting if self._is_replicated(broker, w)]:
            broker.waiting.remove(waiting)
            self._answer(broker, waiting)


def _batch_of(data: PartitionProduceData) -> Batch:
    if data.records is None:
        message = f"partition {data.index} of a Produce request has no records"
        raise SimulationError(message)
    # Records from a frame are one view; those of a message are the buffers to send.
    records: Any = data.records
    buffers = records.buffers if isinstance(records, Records) else [records]
    return read_batch(b"".join(bytes(buffer) for buffer in buffers))


def _span(numbers: tuple[int, ...]) -> str:
    return f"{numbers[0]}..{numbers[-1]}" if numbers else "none"


def _nobody(response: Any) -> None:  # noqa: ANN401 - any response type
    """Drop the response to a request whose connection is closed."""

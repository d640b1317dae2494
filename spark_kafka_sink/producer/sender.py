"""Sender: determines the requests that are due, and handles the responses. A pure state machine.

`poll` returns the due requests, `handle` takes network events. The caller passes the time to both.
Neither sends, waits or takes a lock. The sender knows which nodes are ready, and the number of
Produce requests in flight to each. Other modules manage the queues (accumulator), the leaders
(metadata), the sequences (`Sequences`), the transactions (`TransactionManager`), the form of
Produce requests (`ProduceRequests`), and the result of a batch (`BatchCompletion`).

A Produce request goes to one node. Its batches total at most max.request.size bytes; a larger batch
is sent alone. It contains at most one batch per partition, so that a retry never changes the order.
`build` makes the request outside the producer's lock, because it compresses batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import TYPE_CHECKING

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import (
    IllegalStateException,
    KafkaException,
    TransactionAbortedException,
    api_exception,
)
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.completion import BatchCompletion, Deliveries
from spark_kafka_sink.producer.delivery_progress import DeliveryProgress, delivery_progress
from spark_kafka_sink.producer.metadata import (
    NO_LEADER_EPOCH,
    RELIABLE_EPOCHS_SINCE,
    ClusterMetadata,
)
from spark_kafka_sink.producer.partitioner import NodeLatencies
from spark_kafka_sink.producer.produce_requests import (
    DrainedBatches,
    ProduceRequests,
    SentBatches,
)
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sequences import ProducerIdRequests, Sequences
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    Event,
    NodeDown,
    NodeReady,
    NodeThrottled,
    RequestFailed,
)
from spark_kafka_sink.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.joined import JoinedTransaction
    from spark_kafka_sink.producer.transactions.manager import TransactionManager


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    """The options of the sender; acks is the value in the request, -1 for all."""

    acks: int
    max_in_flight: int
    max_request_size_bytes: int
    request_timeout_ms: int
    retry_backoff: ExponentialBackoff
    acls: Acls | None = None


@dataclass(slots=True)
class SenderPoll:
    """What is due: complete requests, drained batches for `build`, and nodes to connect to.

    has_news: whether an awaited transactional call may have ended. warnings: messages to log.
    """

    requests: list[ClientRequest] = field(default_factory=list)
    drained: list[DrainedBatches] = field(default_factory=list)
    connect: set[int] = field(default_factory=set)
    next_poll_at: float = float("inf")
    has_news: bool = False
    warnings: list[str] = field(default_factory=list)


class Sender:
    """Drains the accumulator into requests. Times are seconds of the producer's clock."""

    def __init__(
        self,
        config: SenderConfig,
        *,
        accumulator: RecordAccumulator,
        metadata: ClusterMetadata,
        completion: BatchCompletion,
        sequences: Sequences | None,
        latencies: NodeLatencies,
        random: Random,
        transactions: TransactionManager | JoinedTransaction | None = None,
    ) -> None:
        self._transactions = transactions
        self._config = config
        self.latencies = latencies
        self.accumulator = accumulator
        self.metadata = metadata
        self.completion = completion
        self.sequences = sequences
        self._produce = ProduceRequests(
            metadata,
            completion,
            transactions,
            acks=config.acks,
            timeout_ms=config.request_timeout_ms,
        )
        self._producer_id: ProducerIdRequests | None = None
        if sequences is not None and transactions is None:
            self._producer_id = ProducerIdRequests(
                sequences, config.retry_backoff, random, config.acls
            )
        # The sequences that the producer uses again after a joined transaction.
        self._own_sequences, self._has_joined, self._rebootstraps = sequences, False, 0
        self._ready: set[int] = set()
        self._in_flight: dict[int, int] = {}
        self._throttled_until: dict[int, float] = {}
        self._muted: set[TopicPartition] = set()
        self.fatal_error: KafkaException | None = None

    def progress(
        self, deliveries: Deliveries, topic_waits: Iterable[Collection[str]], now: float
    ) -> DeliveryProgress:
        """Return the progress. deliveries, topic_waits: as in `delivery_progress`."""
        throttles = self._throttled_until.items()
        return delivery_progress(
            self.accumulator,
            self.metadata,
            deliveries,
            topic_waits=topic_waits,
            prerequisite=self._prerequisite,
            throttled={node_id: until - now for node_id, until in throttles if until > now},
            troubles=self.completion.node_troubles,
            has_connection=bool(self._ready),
        )

    def last_error(self) -> KafkaException | None:
        """Return the last error of a request or batch that is retried, None if there is none."""
        requests = self._producer_id if self._transactions is None else self._transactions.queue
        error = None if requests is None else requests.last_error
        of_batches = (batch.last_error for batch in self.accumulator.incomplete)
        return error or next(filter(None, of_batches), None)

    def _prerequisite(self, topic_partition: TopicPartition) -> tuple[str, KafkaException | None]:
        """Return what a partition's batches wait for ("" for nothing), and the last error."""
        if self._transactions is not None:
            queue = self._transactions.queue
            waits = not self._transactions.has(topic_partition) and (queue.is_busy or queue.waiting)
            return ("the transaction coordinator", queue.last_error) if waits else ("", None)
        if self._producer_id is None or not self._producer_id.is_needed:
            return "", None
        return "a producer id", self._producer_id.last_error

    # -- a joined transaction ---------------------------------------------------------------------

    def join(self, joined: JoinedTransaction) -> None:
        """From now on, send batches in a transaction that another process has begun.

        Raise IllegalStateException if batches are unfinished, or if the producer has a
        transactional.id.
        """
        self._check_idle("join")
        if self._transactions is not None:
            raise IllegalStateException(
                "a producer in a transaction cannot join another transaction"
            )
        self._has_joined = True
        self._follow(joined.sequences, joined)

    def end_joined(self) -> None:
        """Leave the joined transaction: send batches without it again, as before `join`.

        Raise IllegalStateException if batches are unfinished, or if no transaction was joined.
        """
        self._check_idle("leave")
        if not self._has_joined:
            raise IllegalStateException("the producer has joined no transaction")
        self._has_joined = False
        self._follow(self._own_sequences, None)

    def _check_idle(self, what: str) -> None:
        if self._has_incomplete():
            raise IllegalStateException(
                f"the producer cannot {what} a transaction while batches are pending: call flush "
                "first"
            )

    def _follow(self, sequences: Sequences | None, joined: JoinedTransaction | None) -> None:
        self.sequences, self._transactions = sequences, joined
        self.completion.follow(sequences, joined)
        self._produce.transactions = joined

    # -- requests ---------------------------------------------------------------------------------

    def poll(self, now: float) -> SenderPoll:
        """Return what is due at `now`; the batches in the result count as sent from now on."""
        for batch in self.accumulator.expired(now):
            self.completion.expired(batch, now, self._prerequisite(batch.topic_partition)[1])
        if self._transactions is not None:
            self._follow_transaction(self._transactions)
        if self._is_over():
            return SenderPoll(has_news=True, warnings=self.completion.take_warnings())
        requests = self._requests_of_its_own(now)
        drained, connect = self._drain(now)
        has_news = False
        if self._transactions is not None:
            request, coordinator = self._transactional_request(self._transactions, now)
            if request is not None:
                requests.append(request)
            if coordinator is not None:
                connect.add(coordinator)
            has_news = self._transactions.take_news()
        return SenderPoll(
            requests=requests,
            drained=drained,
            connect=connect,
            # Poll again at once: a partition may have a further batch to send.
            next_poll_at=now if drained else self._next_poll_at(now),
            has_news=has_news,
            warnings=self.completion.take_warnings(),
        )

    def _requests_of_its_own(self, now: float) -> list[ClientRequest]:
        """Return the requests that any broker can answer: Metadata, and InitProducerId."""
        requests: list[ClientRequest] = []
        if metadata := self.metadata.request(now):
            requests.append(ClientRequest(node_id=None, message=metadata))
        if self.sequences is not None:
            self.sequences.bump_epoch_if_needed()
        own_id = None if self._has_joined else self._producer_id
        if own_id is not None and self.accumulator.has_undrained and (init := own_id.due(now)):
            requests.append(ClientRequest(node_id=None, message=init))
        return requests

    def _next_poll_at(self, now: float) -> float:
        due = [
            self.metadata.next_update_at(),
            self.accumulator.next_sendable_at(now),
            self.accumulator.next_expiry_at(now),
            *(at for at in self._throttled_until.values() if at > now),
        ]
        if self._producer_id is not None and self._producer_id.next_due_at() > now:
            due.append(self._producer_id.next_due_at())
        if self._transactions is not None and self._transactions.queue.next_due_at() > now:
            due.append(self._transactions.queue.next_due_at())
        return max(now, min(due))

    def _is_over(self) -> bool:
        """Return whether the producer cannot continue. The first time, fail every batch."""
        transactional = None if self._transactions is None else self._transactions.fatal_error
        error = self.completion.fatal_error or transactional
        if self.fatal_error is None and error is not None:
            self.fail_all(error)
        return self.fatal_error is not None

    def _follow_transaction(self, transactions: TransactionManager | JoinedTransaction) -> None:
        """Forget coordinators after a rebootstrap, and fail unsent batches after an abort.

        These batches fail with a TransactionAbortedException (KIP-654).
        """
        if self._rebootstraps != self.metadata.rebootstraps:
            self._rebootstraps = self.metadata.rebootstraps
            transactions.queue.coordinators.forget_all()
        if not transactions.gives_up:
            return
        for batch in self.accumulator.unsent():
            message = (
                f"{batch.topic_partition}: {batch.record_count} record(s) were not sent: their "
                "transaction was aborted"
            )
            error = TransactionAbortedException(
                message,
                topic=batch.topic_partition.topic,
                partition=batch.topic_partition.partition,
            )
            error.__cause__ = transactions.error
            self.completion.abandon(batch, error)

    def _transactional_request(
        self, transactions: TransactionManager | JoinedTransaction, now: float
    ) -> tuple[ClientRequest | None, int | None]:
        """Return the transactional request to send, or the node to connect to before it is sent.

        At most one of the two is set. The node is set if a request is due, but its node has no
        connection.
        """
        has_incomplete = transactions.is_completing and self._has_incomplete()
        request = transactions.due(now, has_incomplete=has_incomplete)
        if request is None:
            return None, None
        node_id = transactions.queue.node_id(request)
        if node_id is not None and node_id not in self._ready:
            return None, node_id
        if node_id is not None and self._throttled_until.get(node_id, 0.0) > now:
            return None, None
        transactions.queue.sent()
        client_request = ClientRequest(
            node_id=node_id,
            message=request.message,
            max_version=request.max_version,
            min_version=request.min_version,
            context=request,
        )
        return client_request, None

    def _has_incomplete(self) -> bool:
        """Return whether a batch is unfinished, or has failed but may still get a response."""
        in_flight = self.sequences is not None and self.sequences.has_in_flight
        return in_flight or self.accumulator.has_incomplete

    def _drain(self, now: float) -> tuple[list[DrainedBatches], set[int]]:
        """Put one batch of each partition into requests to the nodes that accept requests now.

        Return the drained batches, and the nodes for which batches wait but no connection exists.
        """
        drained: list[DrainedBatches] = []
        open_requests: dict[int, DrainedBatches] = {}
        busy: set[int] = set()
        is_completing = self._transactions is not None and self._transactions.is_completing
        due = self.accumulator.sendable(now, completes_transaction=is_completing)
        for first in chain(due, self.accumulator.sendable_for_room(due)):
            batch = first if self.sequences is None else self.sequences.first_to_send(first, now)
            if batch is None:
                continue
            leader = self.metadata.leader(batch.topic_partition)
            if leader is None:
                self.metadata.track(batch.topic_partition.topic, now)
                self.metadata.request_update()
                continue
            if leader.id in busy:
                continue
            request, size = open_requests.get(leader.id), batch.size_bytes
            if request and request.size_bytes + size > self._config.max_request_size_bytes:
                request = None
            if request is None and not self._can_send_to(leader.id, now):
                busy.add(leader.id)
                continue
            if not self._may_send(batch, leader.id):
                continue
            if request is None:
                request = open_requests[leader.id] = DrainedBatches(leader.id)
                self._in_flight[leader.id] = self._in_flight.get(leader.id, 0) + 1
                drained.append(request)
            self._take(batch, request, size, now)
        if self.latencies.has_slow:
            leaders = map(self.metadata.leader, self.accumulator.waiting_partitions)
            self.latencies.keep({leader.id for leader in leaders if leader is not None})
        return drained, busy - self._ready

    def _can_send_to(self, node_id: int, now: float) -> bool:
        """Return whether a node for which batches are waiting accepts a request now."""
        can_send = (
            node_id in self._ready
            and self._in_flight.get(node_id, 0) < self._config.max_in_flight
            and self._throttled_until.get(node_id, 0.0) <= now
        )
        self.latencies.update(node_id, now, can_send=can_send)
        return can_send

    def _may_send(self, batch: ProducerBatch, node_id: int) -> bool:
        transactions = self._transactions
        if transactions is not None and not transactions.may_send(batch.topic_partition):
            return False
        if self.sequences is not None:
            return self.sequences.may_send(batch, node_id)
        return batch.topic_partition not in self._muted

    def _take(self, batch: ProducerBatch, drained: DrainedBatches, size: int, now: float) -> None:
        self.accumulator.take(batch)
        if self.sequences is not None:
            self.sequences.assign(batch, now)
        elif self._config.max_in_flight == 1:
            self._muted.add(batch.topic_partition)
        batch.sent(drained.node_id, self.metadata.leader_epoch(batch.topic_partition))
        drained.batches.append(batch)
        drained.size_bytes += size

    def build(self, drained: DrainedBatches) -> ClientRequest:
        """Return the Produce request; batches that are not compressed yet are compressed here.

        This needs no lock: the batches are in flight, so only the I/O thread uses them.
        """
        return self._produce.build(drained)

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The brokers to keep connections to: the brokers of the metadata, and the coordinators."""
        # The I/O thread calls this without the lock, while a caller may join a transaction.
        known, transactions = self.metadata.nodes, self._transactions
        if transactions is None:
            return known
        return {**transactions.queue.coordinators.nodes, **known}

    # -- responses --------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Process one network event."""
        if isinstance(event, Answered):
            self._answered(event, now)
        elif isinstance(event, RequestFailed):
            self._request_failed(event, now)
        elif isinstance(event, NodeReady):
            self._ready.add(event.node_id)
            self.completion.node_ready(event.node_id)
            self._produce.node_ready(event.node_id, event.versions)
            if self._transactions is not None:
                self._transactions.queue.coordinators.node_ready(event.node_id, event.versions)
        elif isinstance(event, NodeDown):
            self._ready.discard(event.node_id)
            self.completion.node_down(event.node_id, event.reason, event.error)
            if self._transactions is not None:
                self._transactions.queue.coordinators.node_down(event.node_id)
            if self.accumulator.has_incomplete:  # else the next rows request it
                self.metadata.request_update()
        elif isinstance(event, NodeThrottled):
            self._throttled_until[event.node_id] = event.until
            self.completion.node_throttled(event.node_id, event.until, now)

    def _answered(self, event: Answered, now: float) -> None:
        response, context = event.response, event.request.context
        transactions = self._transactions
        if transactions is not None and transactions.queue.has_sent(context):
            transactions.answered(context, response, event.node_id, now)
        elif isinstance(event.request.message, ProduceRequest):
            if self._produce.answered(event, self._back(event.request), now):
                self._retry_at_new_leaders(now)
        elif isinstance(response, InitProducerIdResponse) and self._producer_id is not None:
            self._refused(self._producer_id.answered(response, event.node_id, now))
        elif isinstance(response, MetadataResponse):
            reliable = event.version is None or event.version >= RELIABLE_EPOCHS_SINCE
            self.metadata.update(response, now, reliable_epochs=reliable)
            if self.sequences is not None:
                self.sequences.follow_topics(response.topics)
            if transactions is not None:
                transactions.queue.coordinators.drop_unlisted(self.metadata.nodes)
            self._retry_at_new_leaders(now)

    def _retry_at_new_leaders(self, now: float) -> None:
        """End the back-off of batches whose partition has a new leader since their attempt."""
        for batch in self.accumulator.incomplete:
            if batch.retry_at > now and batch.state is BatchState.SEALED:
                epoch = self.metadata.leader_epoch(batch.topic_partition)
                if epoch not in (NO_LEADER_EPOCH, batch.leader_epoch):
                    batch.end_backoff(now)

    def _request_failed(self, event: RequestFailed, now: float) -> None:
        message, context = event.request.message, event.request.context
        if event.error is not None:
            self.fail_all(event.error)
        elif self._transactions is not None and self._transactions.queue.has_sent(context):
            self._transactions.request_failed(context, event.code, event.reason, now)
        elif isinstance(message, MetadataRequest):
            fatal = event.code == codes.UNSUPPORTED_VERSION
            error = api_exception(event.code, event.reason, node_id=event.node_id, api="Metadata")
            self.metadata.failed(now, error if fatal else None)
        elif isinstance(message, InitProducerIdRequest) and self._producer_id is not None:
            self._refused(self._producer_id.failed(event.code, event.reason, event.node_id, now))
        elif isinstance(message, ProduceRequest):
            self._produce.failed(event, self._back(event.request), now)

    def _refused(self, refusal: KafkaException | None) -> None:
        """Fail every batch if there is a refusal, unless a joined transaction needs no id."""
        if refusal is not None and not self._has_joined:
            self.fail_all(refusal)

    def _back(self, request: ClientRequest) -> SentBatches:
        """Record that a Produce request is no longer in flight. Return its batches."""
        if not isinstance(request.context, SentBatches) or request.node_id is None:
            message = f"{request!r} is not a Produce request of this sender"
            raise TypeError(message)
        self._in_flight[request.node_id] -= 1
        self._muted.difference_update(request.context.batches)
        return request.context

    def fail_all(self, error: KafkaException) -> None:
        """Fail every batch, and accept no more, because nothing can be delivered any longer."""
        self.fatal_error = error
        if self._transactions is not None:
            self._transactions.give_up(error)
        for batch in self.accumulator.incomplete:
            self.completion.abandon(batch, error)

"""A group coordinator: offsets committed by transactions, which are pending until their markers.

It handles TxnOffsetCommit as GroupCoordinatorService of Kafka 4.3 does. The offsets are a batch of
the producer in the group's log. That log has to be part of the transaction (KIP-890) when the batch
is written, and gets markers like any partition. The response is sent when every in-sync replica has
the batch. If the response is lost and the request is repeated, the offsets are written again, which
is harmless: the last ones before a marker count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from simulation.batches import Batch, GroupOffset
from simulation.controller import Broker, Controller, Reply
from simulation.coordinator import TransactionCoordinator
from simulation.coordinator_log import OFFSETS_LOG, CoordinatorLog
from simulation.replica import Replica
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import error_code
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.wire.transaction_messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_COMMIT_TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 0.004
_NOT_ENOUGH_REPLICAS: Final = 19


class GroupCoordinator:
    """The coordinator of every group of a simulation."""

    def __init__(self, cluster: Controller, transactions: TransactionCoordinator) -> None:
        self._cluster = cluster
        self._transactions = transactions
        self._log = CoordinatorLog(cluster, OFFSETS_LOG)
        self.handlers: dict[type, Callable[[Broker, Any, Reply], None]] = {
            TxnOffsetCommitRequest: self._commit
        }

    def _commit(self, broker: Broker, request: TxnOffsetCommitRequest, reply: Reply) -> None:
        unknown = self._unknown(broker, request)
        offsets = tuple(one for one in _offsets(request) if one.partition not in unknown)

        def answer(code: int) -> None:
            self._cluster.scheduler.trace(
                f"broker {broker.id}", "pid {} epoch {} offsets {} -> {}", request.producer_id,
                request.producer_epoch, _text(offsets), error_code(code).name,
            )  # fmt: skip
            reply(_response(request, unknown, code, broker.throttle_ms))

        if not offsets:
            answer(codes.NONE)
            return
        producer = request.producer_id, request.producer_epoch
        code = self._log.refusal(broker) or self._refusal(
            broker, request.transactional_id, *producer
        )
        if code != codes.NONE:
            answer(code)
            return
        batch = Batch(*producer, -1, (), None, 0, is_transactional=True, offsets=offsets)
        log = broker.logs[OFFSETS_LOG]
        appended = log.append_offsets(batch)
        if appended.code != codes.NONE:
            answer(appended.code)
            return
        self._cluster.schedule_fetches(broker, OFFSETS_LOG)
        epoch, until = broker.known[OFFSETS_LOG].epoch, self._cluster.scheduler.now
        self._wait(broker, epoch, log.end_offset, until + _COMMIT_TIMEOUT_S, answer)

    def _unknown(self, broker: Broker, request: TxnOffsetCommitRequest) -> set[TopicPartition]:
        """Return the partitions that a broker does not know; the others' offsets are committed."""
        if broker.transient_error != codes.UNKNOWN_TOPIC_OR_PARTITION:
            return set()
        random = self._cluster.random
        return {one.partition for one in _offsets(request) if random.random() < 0.5}

    def _refusal(self, broker: Broker, name: str, producer_id: int, epoch: int) -> int:
        """Return why offsets cannot be part of their transaction, NONE if they can."""
        if len(self._cluster.in_sync(broker, OFFSETS_LOG)) < self._cluster.shape.min_in_sync:
            return codes.COORDINATOR_NOT_AVAILABLE
        if broker.logs[OFFSETS_LOG].is_in_transaction(producer_id, epoch):
            return codes.NONE
        code = self._transactions.verify(OFFSETS_LOG, name, producer_id, epoch)
        return codes.COORDINATOR_NOT_AVAILABLE if code == _NOT_ENOUGH_REPLICAS else code

    def _wait(
        self, broker: Broker, epoch: int, end: int, until: float, answer: Callable[[int], None]
    ) -> None:
        """Respond when every in-sync replica has the written batch."""
        if not broker.is_alive:
            return
        if not broker.leads(OFFSETS_LOG) or broker.known[OFFSETS_LOG].epoch != epoch:
            answer(codes.NOT_COORDINATOR)
        elif self._cluster.high_watermark(broker, OFFSETS_LOG) >= end:
            answer(codes.NONE)
        elif self._cluster.scheduler.now >= until:
            answer(codes.COORDINATOR_NOT_AVAILABLE)
        else:
            self._cluster.scheduler.after(_LOOK_S, self._wait, broker, epoch, end, until, answer)


class Committed(NamedTuple):
    """The effect of markers on a log of offsets, in order.

    commits: the offsets that each commit made visible. open: those without a marker.
    """

    commits: list[set[GroupOffset]]
    open: list[GroupOffset]


def committed_offsets(log: Replica) -> Committed:
    """Read a log of offsets as a group coordinator does: pending per producer id until a marker."""
    commits: list[set[GroupOffset]] = []
    pending: dict[int, dict[tuple[str, TopicPartition], GroupOffset]] = {}
    for entry in log.entries:
        batch = entry.batch
        if batch.is_commit is None:
            latest = pending.setdefault(batch.producer_id, {})
            latest.update({(one.group, one.partition): one for one in batch.offsets})
        else:
            ended = pending.pop(batch.producer_id, {})
            if batch.is_commit:
                commits.append(set(ended.values()))
    return Committed(commits, [one for rest in pending.values() for one in rest.values()])


def _offsets(request: TxnOffsetCommitRequest) -> list[GroupOffset]:
    return [
        GroupOffset(
            request.group_id,
            TopicPartition(topic.name, partition.partition_index),
            partition.committed_offset,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]


def _response(
    request: TxnOffsetCommitRequest, unknown: Collection[TopicPartition], code: int, throttle: int
) -> TxnOffsetCommitResponse:
    def code_of(tp: TopicPartition) -> int:
        return codes.UNKNOWN_TOPIC_OR_PARTITION if tp in unknown else code

    return TxnOffsetCommitResponse(
        throttle_time_ms=throttle,
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index,
                        error_code=code_of(TopicPartition(topic.name, one.partition_index)),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _text(offsets: tuple[GroupOffset, ...]) -> str:
    return ", ".join(f"{one.group}:{one.partition}@{one.offset}" for one in offsets) or "none"

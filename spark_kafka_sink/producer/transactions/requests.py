"""The requests of transactions: their contents, their coordinators, and their results.

This module makes the messages. It limits their versions for transaction.version 1, because EndTxn 5
and TxnOffsetCommit 5 imply transaction.version 2 (KIP-890). `TransactionManager` and
`TransactionQueue` determine when a request is made, sent or repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from spark_kafka_sink.errors import IllegalStateException, KafkaException
from spark_kafka_sink.model import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.producer.error_actions import Call
from spark_kafka_sink.wire.messages import (
    InitProducerIdRequest,
    Request,
)
from spark_kafka_sink.wire.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    FindCoordinatorRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP: Final = 0
TRANSACTION: Final = 1

_LAST_END_TXN_V1: Final = 4
_LAST_TXN_OFFSET_COMMIT_V1: Final = 4
# Earlier versions contain no member id, so the group's coordinator could not reject offsets of a
# member that was replaced (KIP-447).
_FIRST_WITH_MEMBERS: Final = 3


class Priority(IntEnum):
    """The priority of waiting requests; the request with the lowest number is sent first."""

    FIND_COORDINATOR = 0
    INIT_PRODUCER_ID = 1
    ADD_PARTITIONS_OR_OFFSETS = 2
    END_TXN = 3
    EPOCH_BUMP = 4


class CoordinatorKey(NamedTuple):
    """The key of a coordinator: GROUP or TRANSACTION, and the group id or transactional.id."""

    key_type: int
    key: str


class TransactionalResult:
    """The result of a call; its caller waits for `is_done` and then acknowledges the result.

    Until the result is acknowledged, the same call returns the same result again. So if a wait
    times out, the caller can repeat the call, and gets the result of the first call.
    """

    __slots__ = ("error", "is_acknowledged", "is_done", "operation")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.is_done = False
        self.is_acknowledged = False
        self.error: KafkaException | None = None

    def finish(self, error: KafkaException | None = None) -> None:
        """Set the result, unless it is set already."""
        if not self.is_done:
            self.is_done, self.error = True, error


class TransactionalCalls:
    """The calls that users wait for. Only one is in progress at a time. last: the latest call."""

    def __init__(self) -> None:
        self.last: TransactionalResult | None = None

    @property
    def unacknowledged(self) -> TransactionalResult | None:
        """The latest call if its caller has not received the result yet, otherwise None."""
        return None if self.last is None or self.last.is_acknowledged else self.last

    def raise_unfinished(self, operation: str) -> None:
        """Raise IllegalStateException if an earlier call must end first."""
        call = self.unacknowledged
        if call is not None:
            message = (
                f"{operation} is not possible: {call.operation} is under way; if it has timed out, "
                f"call {call.operation} again first"
            )
            raise IllegalStateException(message)

    def start_or_resume(
        self, operation: str, start: Callable[[TransactionalResult], None]
    ) -> TransactionalResult:
        """Start a call. If the same call has an unacknowledged result, return that instead."""
        unfinished = self.unacknowledged
        if unfinished is not None and unfinished.operation == operation:
            return unfinished
        self.raise_unfinished(operation)
        result = TransactionalResult(operation)
        start(result)
        self.last = result
        return result


@dataclass(slots=True, eq=False, kw_only=True)
class TransactionalRequest:
    """A request that waits or is in flight.

    coordinator: the key of the coordinator that gets the request, None for any broker. looks_up:
    the key that FindCoordinator looks up, None for other requests. is_sent: whether it was sent at
    least once. is_unanswered: whether it was sent and the response was lost. A broker may then have
    processed it. order: its place among requests of the same priority; -1 until it is queued. A
    retry keeps this place. last_error: the last error that a broker returned for it.
    """

    call: Call
    priority: Priority
    message: Request
    result: TransactionalResult
    coordinator: CoordinatorKey | None = None
    looks_up: CoordinatorKey | None = None
    is_sent: bool = False
    is_unanswered: bool = False
    max_version: int | None = None
    min_version: int = 0
    order: int = -1
    attempts: int = 0
    retry_at: float = 0.0
    last_error: KafkaException | None = None


def find_coordinator(key: CoordinatorKey) -> TransactionalRequest:
    """Return a FindCoordinator request for `key`, with the fields of all versions."""
    return TransactionalRequest(
        call=Call.FIND_COORDINATOR,
        priority=Priority.FIND_COORDINATOR,
        message=FindCoordinatorRequest(
            key=key.key, key_type=key.key_type, coordinator_keys=[key.key]
        ),
        result=TransactionalResult(f"look-up of the coordinator of {key.key}"),
        looks_up=key,
    )


@dataclass(frozen=True, slots=True)
class TransactionalRequests:
    """Makes the requests of one transactional producer."""

    transactional_id: str
    transaction_timeout_ms: int

    @property
    def coordinator(self) -> CoordinatorKey:
        """The key of the transaction's coordinator."""
        return CoordinatorKey(TRANSACTION, self.transactional_id)

    def init_producer_id(
        self, producer: ProducerIdAndEpoch, priority: Priority, result: TransactionalResult
    ) -> TransactionalRequest:
        """Return a request for a producer id, or for the next epoch of `producer`."""
        return TransactionalRequest(
            call=Call.INIT_PRODUCER_ID,
            priority=priority,
            message=InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self.transaction_timeout_ms,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
            ),
            result=result,
            coordinator=self.coordinator,
        )

    def add_partitions(
        self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> TransactionalRequest:
        """Return a request that adds partitions to the transaction."""
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(partitions):
            topics.setdefault(topic, []).append(partition)
        return TransactionalRequest(
            call=Call.ADD_PARTITIONS_TO_TXN,
            priority=Priority.ADD_PARTITIONS_OR_OFFSETS,
            message=AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=name, partitions=numbers)
                    for name, numbers in topics.items()
                ],
            ),
            result=TransactionalResult("adding partitions to the transaction"),
            coordinator=self.coordinator,
        )

    def add_offsets(
        self, producer: ProducerIdAndEpoch, group_id: str, result: TransactionalResult
    ) -> TransactionalRequest:
        """Return a request that adds a consumer group's offsets to the transaction."""
        return TransactionalRequest(
            call=Call.ADD_OFFSETS_TO_TXN,
            priority=Priority.ADD_PARTITIONS_OR_OFFSETS,
            message=AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id=group_id,
            ),
            result=result,
            coordinator=self.coordinator,
        )

    def commit_offsets(
        self,
        producer: ProducerIdAndEpoch,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        result: TransactionalResult,
        *,
        is_v2: bool,
    ) -> TransactionalRequest:
        """Return a request to commit a consumer group's offsets when the transaction commits."""
        return TransactionalRequest(
            call=Call.TXN_OFFSET_COMMIT,
            priority=Priority.ADD_PARTITIONS_OR_OFFSETS,
            message=TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=group.group_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                generation_id=group.generation_id,
                member_id=group.member_id,
                group_instance_id=group.group_instance_id,
                topics=_offsets_by_topic(offsets),
            ),
            result=result,
            coordinator=CoordinatorKey(GROUP, group.group_id),
            max_version=None if is_v2 else _LAST_TXN_OFFSET_COMMIT_V1,
            min_version=_FIRST_WITH_MEMBERS if group.member_id or group.generation_id >= 0 else 0,
        )

    def end_txn(
        self, producer: ProducerIdAndEpoch, call: Call, result: TransactionalResult, *, is_v2: bool
    ) -> TransactionalRequest:
        """Return a request that commits or aborts the transaction, depending on `call`."""
        return TransactionalRequest(
            call=call,
            priority=Priority.END_TXN,
            message=EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=call is Call.COMMIT,
            ),
            result=result,
            coordinator=self.coordinator,
            max_version=None if is_v2 else _LAST_END_TXN_V1,
        )


def _offsets_by_topic(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> list[TxnOffsetCommitRequestTopic]:
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in sorted(offsets.items(), key=lambda item: item[0]):
        topics.setdefault(topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return [
        TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
        for name, partitions in topics.items()
    ]

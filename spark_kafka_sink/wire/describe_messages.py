"""The messages that describe transactions, and the producers of partitions (KIP-664).

The classes are declared in the same way as in `messages`. DescribeTransactions is sent to the
coordinator of the transactional ids, DescribeProducers to the leaders of the partitions.
ListTransactions, which is sent to every broker, is in `transaction_messages`, because Kafka's
schemas have two structs with the name TransactionState.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from spark_kafka_sink.wire.message_codecs import Int16, Int32, Int64, Nullable


@dataclass(slots=True, kw_only=True)
class DescribeTransactionsRequest:
    """The request for the transactions of transactional ids, sent to their coordinator."""

    transactional_ids: list[str]


@dataclass(slots=True, kw_only=True)
class TopicData:
    """The partitions of one topic that are in the transaction."""

    topic: str
    partitions: list[Int32]


@dataclass(slots=True, kw_only=True)
class TransactionState:
    """The transaction of one transactional id, or an error code.

    transaction_start_time_ms: when the first partition was added, by the coordinator's clock; -1 in
    state Empty. topics: the partitions to which no marker was written yet; empty when the
    transaction is complete.
    """

    error_code: Int16
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: list[TopicData]


@dataclass(slots=True, kw_only=True)
class DescribeTransactionsResponse:
    """The transactions, one per transactional id."""

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState]


@dataclass(slots=True, kw_only=True)
class TopicRequest:
    """The partitions of one topic for which to describe the producers."""

    name: str
    partition_indexes: list[Int32]


@dataclass(slots=True, kw_only=True)
class DescribeProducersRequest:
    """The request for the producers of partitions, sent to the leader of these partitions."""

    topics: list[TopicRequest]


@dataclass(slots=True, kw_only=True)
class ProducerState:
    """The state of one producer, as the leader of a partition knows it.

    last_sequence: -1 if the leader knows no batch of this epoch. current_txn_start_offset: -1 if
    the producer has no open transaction in the partition.
    """

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


@dataclass(slots=True, kw_only=True)
class PartitionResponse:
    """The producers of one partition, or an error code."""

    partition_index: Int32
    error_code: Int16
    error_message: Annotated[str | None, Nullable(0)] = None
    active_producers: list[ProducerState]


@dataclass(slots=True, kw_only=True)
class TopicResponse:
    """The producers of one topic's partitions."""

    name: str
    partitions: list[PartitionResponse]


@dataclass(slots=True, kw_only=True)
class DescribeProducersResponse:
    """The producers, by partition."""

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse]

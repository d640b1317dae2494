"""Machines: the state machines of one producer, made from its configuration.

Owns which option goes to which machine. What is made here has no lock, no thread and no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.client.producer_metrics import ProducerMetrics
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.completion import BatchCompletion
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.partitioner import NodeLatencies
from spark_kafka_sink.producer.sender import Sender, SenderConfig
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.records.compression import codec

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.manager import TransactionManager

# Makes the machine of transactions, of a producer that has a transactional.id.
MakeTransactions: TypeAlias = (
    "Callable[[Sequences, ExponentialBackoff, Random, Acls], TransactionManager]"
)


@dataclass(frozen=True, slots=True)
class Machines:
    """The state machines; is_adaptive: whether queue lengths influence the spreading of rows."""

    accumulator: RecordAccumulator
    metadata: ClusterMetadata
    metrics: ProducerMetrics
    latencies: NodeLatencies
    sequences: Sequences | None
    transactions: TransactionManager | None
    completion: BatchCompletion
    sender: Sender
    is_adaptive: bool


def make_accumulator(config: ProducerConfig) -> RecordAccumulator:
    """Return the accumulator."""
    return RecordAccumulator(
        batch_size_bytes=config.batch_size,
        linger_s=config.linger_ms / 1000,
        buffer_memory_bytes=config.buffer_memory,
        delivery_timeout_s=config.delivery_timeout_ms / 1000,
        codec=codec(config.compression_type, config.compression_level),
    )


def make_metadata(
    config: ProducerConfig, random: Random, acls: Acls, *, allow_auto_create_topics: bool
) -> ClusterMetadata:
    """Return what is known of the cluster, which is nothing yet."""
    trigger_s = config.metadata_recovery_rebootstrap_trigger_ms / 1000
    return ClusterMetadata(
        config.metadata_max_age_ms / 1000,
        _retry_backoff(config),
        random,
        max_idle_s=config.metadata_max_idle_ms / 1000,
        rebootstrap_after_s=trigger_s if config.rebootstraps else None,
        advice=acls.writer_advice,
        allow_auto_topic_creation=allow_auto_create_topics,
    )


def _retry_backoff(config: ProducerConfig) -> ExponentialBackoff:
    return ExponentialBackoff.of_ms(config.retry_backoff_ms, config.retry_backoff_max_ms)


def make_machines(
    config: ProducerConfig,
    accumulator: RecordAccumulator,
    metadata: ClusterMetadata,
    metrics: ProducerMetrics,
    random: Random,
    acls: Acls,
    make_transactions: MakeTransactions | None,
) -> Machines:
    """Return all machines, which share accumulator and metadata."""
    retry_backoff = _retry_backoff(config)
    latencies = NodeLatencies(config.partitioner_availability_timeout_ms / 1000)
    sequences: Sequences | None = None
    transactions: TransactionManager | None = None
    if config.enable_idempotence:
        sequences = Sequences(is_transactional=make_transactions is not None)
        if make_transactions is not None:
            transactions = make_transactions(sequences, retry_backoff, random, acls)
    completion = BatchCompletion(
        accumulator=accumulator,
        metadata=metadata,
        sequences=sequences,
        retries=config.retries,
        delivery_timeout_s=config.delivery_timeout_ms / 1000,
        retry_backoff=retry_backoff,
        random=random,
        transactions=transactions,
    )
    sender = Sender(
        SenderConfig(
            acks=config.acks_number,
            max_in_flight=config.max_in_flight_requests_per_connection,
            max_request_size_bytes=config.max_request_size,
            request_timeout_ms=config.request_timeout_ms,
            retry_backoff=retry_backoff,
            acls=acls,
        ),
        accumulator=accumulator,
        metadata=metadata,
        completion=completion,
        sequences=sequences,
        latencies=latencies,
        random=random,
        transactions=transactions,
    )
    return Machines(
        accumulator=accumulator,
        metadata=metadata,
        metrics=metrics,
        latencies=latencies,
        sequences=sequences,
        transactions=transactions,
        completion=completion,
        sender=sender,
        # Of the built-in partitioner alone, as in the Java client.
        is_adaptive=config.partitioner_class is None
        and config.partitioner_adaptive_partitioning_enable,
    )

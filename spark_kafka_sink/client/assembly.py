"""Make the parts of a producer from its configuration: state machines, network client, thread.

This module decides which option goes to which part. It does not start the thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.client.producer_metrics import ProducerMetrics
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException, Option
from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.node_state import NetworkConfig
from spark_kafka_sink.network.option_values import OptionValues
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.completion import BatchCompletion
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.partitioner import NodeLatencies
from spark_kafka_sink.producer.sender import Sender, SenderConfig
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.records.compression import codec

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.manager import TransactionManager

# Makes the state machine of transactions for a producer that has a transactional.id.
MakeTransactions: TypeAlias = (
    "Callable[[Sequences, ExponentialBackoff, Random, Acls], TransactionManager]"
)


def assemble(
    config: ProducerConfig,
    client_id: str,
    brokers: Sequence[Node] = (),
    *,
    allow_auto_create_topics: bool = True,
    make_transactions: MakeTransactions | None = None,
    identity: str = "",
    is_of_task: bool = False,
) -> tuple[ProducerState, ProducerThread]:
    """Make the `ProducerState` and the `ProducerThread` of a producer; the thread is not started.

    brokers: the brokers of the cluster that are known already. make_transactions: makes the state
    machine of transactions; None if there is no transactional.id. identity: see `Security`.
    is_of_task: whether rows may wait longer (see `RecordAccumulator`).
    """
    random = Random()  # noqa: S311 - jitter, not secrets
    metrics = Metrics(
        num_samples=config.metrics_num_samples,
        window_s=max(1, config.metrics_sample_window_ms) / 1000,
        tags={"client-id": client_id},
    )
    network_metrics = NetworkMetrics(metrics)
    # A producer that knows brokers in advance belongs to a Spark task. Many tasks start at the same
    # time, so this producer is one of many.
    security = Security.of(config, is_one_of_many=bool(brokers), identity=identity)
    client = _make_client(config, client_id, random, network_metrics, security)
    try:
        client.set_initial_nodes(brokers)
        retry_backoff = ExponentialBackoff.of_ms(
            config.retry_backoff_ms, config.retry_backoff_max_ms
        )
        acls = Acls.of(config, lambda: client.principal)
        metadata = _make_metadata(config, retry_backoff, random, acls, allow_auto_create_topics)
        accumulator = _make_accumulator(config, metadata.leader if is_of_task else None)
        metadata.before_change = accumulator.leaders_change
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
            latencies=NodeLatencies(config.partitioner_availability_timeout_ms / 1000),
            random=random,
            transactions=transactions,
        )
        state = ProducerState(
            time.monotonic,
            sender,
            ProducerMetrics(
                metrics, network_metrics, accumulator=accumulator, metadata=metadata, client=client
            ),
            transactions,
            # As in the Java client, only the built-in partitioner adapts to the load of brokers.
            is_adaptive=config.partitioner_class is None
            and config.partitioner_adaptive_partitioning_enable,
            rack=_rack(config),
        )
        return state, ProducerThread(state, client, client_id, sender.build)
    except BaseException:
        client.close()
        raise


def _rack(config: ProducerConfig) -> str | None:
    """Return the rack that the built-in partitioner prefers; None if it prefers no rack.

    Raise ConfigException if client.rack contains a reference (``${…}``) that cannot be resolved in
    this process, or if the resolved rack is empty.
    """
    if config.partitioner_class is not None or not config.partitioner_rack_aware:
        return None
    rack = OptionValues(config).resolved("client.rack", config.client_rack)
    if not rack.strip():
        message = (
            f"{Option('partitioner.rack.aware')} is true, but {Option('client.rack')} is "
            f"{config.client_rack}, which is empty on this machine: set it there"
        )
        raise ConfigException(message)
    return rack


def _make_accumulator(
    config: ProducerConfig, leader: Callable[[TopicPartition], Node | None] | None
) -> RecordAccumulator:
    return RecordAccumulator(
        batch_size_bytes=config.batch_size,
        linger_s=config.linger_ms / 1000,
        buffer_memory_bytes=config.buffer_memory,
        delivery_timeout_s=config.delivery_timeout_ms / 1000,
        found_limit_age_s=config.metadata_max_age_ms / 1000,
        codec=codec(config.compression_type, config.compression_level),
        leader=leader,
    )


def _make_metadata(
    config: ProducerConfig,
    retry_backoff: ExponentialBackoff,
    random: Random,
    acls: Acls,
    allow_auto_create_topics: bool,  # noqa: FBT001 - private, and called once
) -> ClusterMetadata:
    trigger_s = config.metadata_recovery_rebootstrap_trigger_ms / 1000
    return ClusterMetadata(
        config.metadata_max_age_ms / 1000,
        retry_backoff,
        random,
        max_idle_s=config.metadata_max_idle_ms / 1000,
        rebootstrap_after_s=trigger_s if config.rebootstraps else None,
        advice=acls.writer_advice,
        allow_auto_topic_creation=allow_auto_create_topics,
    )


def _make_client(
    config: ProducerConfig,
    client_id: str,
    random: Random,
    metrics: NetworkMetrics,
    security: Security | None,
) -> NetworkClient:
    selector_class = Selector if security is None else security.selector_class
    selector = selector_class(
        send_buffer_bytes=config.send_buffer_bytes,
        receive_buffer_bytes=config.receive_buffer_bytes,
        metrics=metrics,
    )
    try:
        return NetworkClient(
            selector,
            NetworkConfig.of(config, client_id),
            config.bootstrap_nodes,
            time.monotonic,
            random,
            metrics=metrics,
            security=security,
        )
    except BaseException:
        selector.close_all()
        raise

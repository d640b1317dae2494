"""TaskProducer: the producer of a Spark task, for Arrow batches alone.

It is a `KafkaProducer` without single rows, serializers and interceptors, so that a task's process
does not import these. It begins no transaction and ends none. But it can join one that the driver
has begun, and leave it, and keeps its connections meanwhile. It has besides what only a job of
several producers needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING

from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.client.appender import slice_bytes
from spark_kafka_sink.client.base_producer import BaseProducer
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    IllegalArgumentException,
    IllegalStateException,
    KafkaException,
    Option,
)
from spark_kafka_sink.model import (
    LARGEST_INT16,
    LARGEST_INT32,
    AppendFailure,
    Node,
    ProducerIdAndEpoch,
    TopicPartition,
    check_callable,
    check_counts,
    check_text,
    check_topic_name,
    checked,
    checked_number,
)
from spark_kafka_sink.network.security import login_identity
from spark_kafka_sink.plugins.batch_partitioner import PARTITIONER_CLASS, load_partitioner
from spark_kafka_sink.plugins.loading import close_plugin
from spark_kafka_sink.producer.completion import PartitionDelivery

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.joined import JoinedPartition, JoinedTransaction

__all__ = ["AppendFailure", "TaskProducer", "login_identity"]


class TaskProducer(BaseProducer):
    """A producer for columns.

    config: without a transactional.id. brokers, allow_auto_create_topics: see `KafkaProducer`.
    identity: `login_identity` of the configuration; no other principal may log in then. The end of
    a ``with`` block closes it. Raise ConfigException, IllegalArgumentException for a
    transactional.id, and KafkaException if no thread or socket can be created.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        brokers: Iterable[Node] = (),
        allow_auto_create_topics: bool = True,
        identity: str = "",
    ) -> None:
        what = "allow_auto_create_topics"
        checked(what, allow_auto_create_topics, bool, "True or False")
        check_text("identity", identity)
        checked("config", config, ProducerConfig, "a ProducerConfig")
        if config.transactional_id is not None:
            message = "a task's producer begins no transactions: remove transactional.id"
            raise IllegalArgumentException(message)
        self._joined: JoinedTransaction | None = None
        super().__init__(
            config,
            _OwnPartitioner(config),
            brokers,
            allow_auto_create_topics=allow_auto_create_topics,
            identity=identity,
        )

    def join_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        transaction_version: int,
        *,
        adds_partitions: bool,
        withholds: bool,
    ) -> None:
        """Write from now on in a transaction that another process begins and ends.

        transaction_version: the finalized feature of the cluster. adds_partitions: whether to add
        the partitions to the transaction where version 1 needs it, or whether that was done.
        withholds: whether to send nothing before `flush`, unless memory is short.

        What was appended before has to be flushed: raise IllegalStateException if it is not, or if
        the producer is in a transaction. Any error from here on means that the transaction does not
        have all rows: close the producer then.
        """
        from spark_kafka_sink.producer.transactions.joined import JoinedTransaction  # noqa: PLC0415 - most tasks join none

        check_text("transactional_id", transactional_id)
        checked("producer", producer, ProducerIdAndEpoch, "a ProducerIdAndEpoch")
        version = checked_number("transaction_version", transaction_version, 0, LARGEST_INT16)
        checked("adds_partitions", adds_partitions, bool, "True or False")
        checked("withholds", withholds, bool, "True or False")
        self._caller.before_call()
        if self._config.acks_number != -1:
            acks = Option("acks", self._config.acks)
            message = f"a transaction needs acks=all, found {acks}"
            raise IllegalStateException(message)
        joined = JoinedTransaction(
            transactional_id,
            producer,
            version,
            adds_partitions=adds_partitions,
            retry_backoff=ExponentialBackoff.of_ms(
                self._config.retry_backoff_ms, self._config.retry_backoff_max_ms
            ),
            random=Random(),  # noqa: S311 - jitter, not secrets
            acls=Acls.of(self._config, lambda: self._thread.principal),
        )
        self._state.join(joined, withholds=withholds)
        self._joined = joined

    def detach_transaction(self) -> dict[TopicPartition, JoinedPartition]:
        """Flush, and write outside of the transaction from now on; it stays open.

        Return what was written to each partition. Raise the error of a row that was not, and
        IllegalStateException if the producer is in no transaction.
        """
        self._caller.check_open()
        joined = self._joined
        if joined is None:
            raise IllegalStateException("the producer has joined no transaction")
        self.flush()
        self._state.end_joined()
        self._joined = None
        return dict(joined.partitions)

    def slice_bytes(self, partitions: int) -> int:
        """Return the best size in bytes of the rows in one append, for so many partitions.

        partitions: of all topics of the rows; 0 if unknown.
        """
        partitions = checked_number("partitions", partitions, 0, LARGEST_INT32)
        self._caller.check_process()
        return slice_bytes(partitions)

    def limit_messages(
        self,
        max_message_bytes: Mapping[str, int],
        refresh: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """Set the max.message.bytes of topics, replacing the earlier values.

        Batches stay below them. A larger row is rejected with RecordTooLargeException; if it is
        compressed, the broker decides. refresh: returns the present values; called before
        `append` rejects a row.
        """
        check_counts("max_message_bytes", max_message_bytes, 0)
        check_callable("refresh", refresh, "what gives the max.message.bytes of topics")
        self._caller.check_process()
        self._columns.limit_messages(max_message_bytes, refresh)

    def partition_counts(self, expected: Mapping[str, int]) -> dict[str, int]:
        """Return the number of partitions of several topics; see `KafkaProducer.partitions_for`.

        One request asks for all unknown topics, and another one for those with fewer partitions
        than expected, all within one max.block.ms.
        """
        check_counts("expected", expected, 0)
        for topic in expected:
            check_topic_name(topic)
        return self._partition_counts(expected)

    def take_deliveries(self) -> dict[TopicPartition, PartitionDelivery]:
        """Return what has been acknowledged since the last call, by partition."""
        self._caller.check_process()
        return self._state.take_deliveries()

    def forget_topics(self) -> None:
        """Request the metadata of each topic again at its next use; keep brokers and connections.

        Call this before new work that may begin long after the last: topics may have been deleted
        and created again meanwhile. Raise if the producer cannot go on.
        """
        self._caller.before_call()
        self._state.forget_topics()

    @property
    def record_limits(self) -> Mapping[str, int]:
        """The largest record in bytes, with its overhead, by the option that sets this limit."""
        self._caller.check_process()
        return self._limits.by_option

    @property
    def topics_written(self) -> int:
        """The number of topics that something was sent to since the producer was made."""
        self._caller.check_process()
        return self._state.metrics.topics_written

    @property
    def throttle_time_ms(self) -> int:
        """The sum of the throttle times in all Produce responses, in milliseconds."""
        self._caller.check_process()
        return self._state.metrics.throttle_time_ms


class _OwnPartitioner:
    """The user's own partitioner, if partitioner.class names one."""

    def __init__(self, config: ProducerConfig) -> None:
        self.partitioner = load_partitioner(config.partitioner_class)
        self._is_closed = False

    def close(self) -> KafkaException | None:
        """Close it once; return the error."""
        if self.partitioner is None or self._is_closed:
            return None
        self._is_closed = True
        return close_plugin(PARTITIONER_CLASS, self.partitioner)

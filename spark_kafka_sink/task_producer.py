"""TaskProducer: the producer of a Spark task, which writes only Arrow batches.

It has no `send` for single rows, no serializers and no interceptors, so that the process of a task
does not import them. It cannot begin or end a transaction. It can join a transaction that the
driver has begun, and detach from it later; its connections stay open. It also has methods that only
Spark tasks need.
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
from spark_kafka_sink.plugins.batch_partitioner import OwnPartitioner
from spark_kafka_sink.producer.completion import PartitionDelivery
from spark_kafka_sink.producer.delivery_progress import DeliveryProgress
from spark_kafka_sink.records.record_limits import RecordLimits

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.joined import JoinedPartition, JoinedTransaction

__all__ = ["AppendFailure", "DeliveryProgress", "TaskProducer", "login_identity"]


class TaskProducer(BaseProducer):
    """A producer for Arrow batches. The end of a ``with`` block closes it.

    config: a configuration without transactional.id. brokers, allow_auto_create_topics: see
    `KafkaProducer`. identity: the result of `login_identity` for the configuration; if it is set,
    logging in as a different principal fails. Raise ConfigException if the configuration is
    invalid, IllegalArgumentException for a transactional.id, and KafkaException if no thread or
    socket can be created.
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
            OwnPartitioner(config.partitioner_class),
            brokers,
            allow_auto_create_topics=allow_auto_create_topics,
            identity=identity,
            is_of_task=True,
        )

    def join_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        transaction_version: int,
        *,
        adds_partitions: bool,
        withholds: bool,
        checks_duplicates: bool,
    ) -> None:
        """Join a transaction of another process. Rows that are appended later are part of it.

        transaction_version: the cluster's finalized level of the feature transaction.version.
        adds_partitions: whether this producer must add the partitions to the transaction; False if
        they were added already. With transaction.version 2, this is ignored. withholds: whether to
        hold all batches back until `flush`, or until memory is short. checks_duplicates: whether to
        keep the batches that a broker acknowledged as duplicates (`JoinedPartition.duplicates`), so
        that the caller can compare them with the log. They are not part of ``buffer.memory``.

        If rows were appended before, call `flush` first. Raise IllegalStateException if rows are
        not flushed, if the producer is already in a transaction, or if acks is not ``all``. If any
        later call raises an error, close the producer, because rows may be missing in the
        transaction.
        """
        from spark_kafka_sink.producer.transactions.joined import JoinedTransaction  # noqa: PLC0415 - most tasks join none

        check_text("transactional_id", transactional_id)
        checked("producer", producer, ProducerIdAndEpoch, "a ProducerIdAndEpoch")
        version = checked_number("transaction_version", transaction_version, 0, LARGEST_INT16)
        checked("adds_partitions", adds_partitions, bool, "True or False")
        checked("withholds", withholds, bool, "True or False")
        checked("checks_duplicates", checks_duplicates, bool, "True or False")
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
            checks_duplicates=checks_duplicates,
            retry_backoff=ExponentialBackoff.of_ms(
                self._config.retry_backoff_ms, self._config.retry_backoff_max_ms
            ),
            random=Random(),  # noqa: S311 - jitter, not secrets
            acls=Acls.of(self._config, lambda: self._thread.principal),
        )
        self._state.join(joined, withholds=withholds)
        self._joined = joined

    def detach_transaction(self) -> dict[TopicPartition, JoinedPartition]:
        """Flush, and detach from the transaction, which stays open.

        Rows that are appended later are not part of the transaction. Return the offsets and counts
        of the records that were written to each partition in the transaction. Raise the error of a
        row that was not written, and IllegalStateException if the producer is in no transaction.
        """
        self._caller.before_flush()
        joined = self._joined
        if joined is None:
            raise IllegalStateException("the producer has joined no transaction")
        self.flush()
        self._state.end_joined()
        self._joined = None
        return dict(joined.partitions)

    def slice_bytes(self, partitions: int) -> int:
        """Return the best number of bytes to append in one call.

        partitions: the number of partitions that the rows go to, over all topics; 0 if unknown.
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

        Batches are not made larger than the value of their topic. A row that is larger is rejected
        with RecordTooLargeException. With compression, rows are not checked here, but by the
        broker. refresh: returns the current values; it is called before `append` rejects a row.
        """
        check_counts("max_message_bytes", max_message_bytes, 0)
        check_callable("refresh", refresh, "a function that returns max.message.bytes by topic")
        self._caller.check_process()
        self._columns.limit_messages(max_message_bytes, refresh)

    def partition_counts(self, expected: Mapping[str, int]) -> dict[str, int]:
        """Return the number of partitions of several topics; see `KafkaProducer.partitions_for`.

        expected: the partition count that each topic is expected to have. One metadata request is
        sent for all unknown topics, and a second request for the topics with fewer partitions than
        expected, all within one max.block.ms.
        """
        check_counts("expected", expected, 0)
        for topic in expected:
            check_topic_name(topic)
        return self._partition_counts(expected)

    def take_deliveries(self) -> dict[TopicPartition, PartitionDelivery]:
        """Return counts and offsets of records acknowledged since the last call, by partition."""
        self._caller.check_process()
        return self._state.take_deliveries()

    def progress(self) -> DeliveryProgress:
        """Return the progress since the last `take_deliveries`; any thread may call this."""
        self._caller.check_process()
        return self._state.progress()

    def forget_topics(self) -> None:
        """Forget the metadata of all topics, but keep brokers and connections.

        The metadata of a topic is requested again when the topic is used. Call this if the producer
        was unused for a long time, because topics may have been deleted and created again. Raise
        the error of the producer if the producer has failed.
        """
        self._caller.before_call()
        self._state.forget_topics()

    @property
    def record_limits(self) -> RecordLimits:
        """The limits for the size of a record."""
        self._caller.check_process()
        return self._columns.limits

    @property
    def topics_written(self) -> int:
        """The number of topics to which records were sent since the producer was created."""
        self._caller.check_process()
        return self._state.metrics.topics_written

    @property
    def throttle_time_ms(self) -> int:
        """The sum of the throttle times of all Produce responses, in milliseconds."""
        self._caller.check_process()
        return self._state.metrics.throttle_time_ms

"""TaskProducer: the producer of a Spark task, for Arrow batches alone.

It is a `KafkaProducer` without single rows, transactions, serializers and interceptors, so that a
task's process does not import these.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafka_sink.client.base_producer import BaseProducer
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import IllegalArgumentException, KafkaException
from spark_kafka_sink.model import AppendFailure, Node, checked
from spark_kafka_sink.network.security import login_identity
from spark_kafka_sink.plugins.batch_partitioner import PARTITIONER_CLASS, load_partitioner
from spark_kafka_sink.plugins.loading import close_plugin

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
        checked("config", config, ProducerConfig, "a ProducerConfig")
        if config.transactional_id is not None:
            message = "a task's producer has no transactions: remove transactional.id"
            raise IllegalArgumentException(message)
        super().__init__(
            config,
            _OwnPartitioner(config),
            brokers,
            allow_auto_create_topics=allow_auto_create_topics,
            identity=identity,
        )


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

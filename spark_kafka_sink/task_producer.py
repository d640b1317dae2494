"""TaskProducer: the producer of a task of Spark. Arrow batches go in, acknowledgements come back.

It is `KafkaProducer` without rows that are sent one by one, without transactions and without code
of the user's own but a partitioner: a task's process does not load these.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafka_sink.client.base_producer import BaseProducer
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import IllegalArgumentException, KafkaException
from spark_kafka_sink.model import AppendFailure, Node, checked
from spark_kafka_sink.network.security import with_login_identity
from spark_kafka_sink.plugins.batch_partitioner import PARTITIONER_CLASS, load_partitioner
from spark_kafka_sink.plugins.loading import close_plugin

__all__ = ["AppendFailure", "TaskProducer", "with_login_identity"]


class TaskProducer(BaseProducer):
    """A producer for columns, each row of which is acknowledged or told of as failed.

    config: without a transactional.id. brokers, allow_auto_create_topics: as of `KafkaProducer`.
    Leaving a ``with`` block closes it.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        brokers: Iterable[Node] = (),
        allow_auto_create_topics: bool = True,
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
        )


class _OwnPartitioner:
    """The partitioner of the user's own, if partitioner.class names one."""

    def __init__(self, config: ProducerConfig) -> None:
        self.partitioner = load_partitioner(config.partitioner_class)
        self._is_closed = False

    def close(self) -> KafkaException | None:
        """Close it, unless it is closed."""
        if self.partitioner is None or self._is_closed:
            return None
        self._is_closed = True
        return close_plugin(PARTITIONER_CLASS, self.partitioner)

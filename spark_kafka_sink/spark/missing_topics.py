"""Topics that do not exist, created by the task that writes to them first.

Which topics a column names is known only from the rows, so the driver cannot create them; that of
the option it has created, but a stream remembers that it did, and the topic may be gone since.
Tasks that meet the same one at once may all ask for it: one creates it, the others find it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_kafka_sink.admin import KafkaAdmin, NewTopic
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    ADMIN_CLIENT_ID,
    INTERNAL_TOPICS,
    TimeoutException,
    UnknownTopicOrPartitionException,
    internal_topic_error,
)
from spark_kafka_sink.model import TOPIC_NAME
from spark_kafka_sink.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa


@contextmanager
def suggest_create_topics(options: SinkOptions) -> Iterator[None]:
    """Name the option createTopics in the error of a topic that does not exist."""
    try:
        yield
    except TimeoutException as error:
        is_missing = isinstance(error.__cause__, UnknownTopicOrPartitionException)
        if options.new_topic is not None or not is_missing or error.topic in INTERNAL_TOPICS:
            raise
        error.args = (f"{error}, or set the option createTopics to true",)
        raise error from None


def check_not_internal(config: ProducerConfig, topic: str, *, is_internal: bool = False) -> None:
    """Raise InvalidTopicException for a topic that brokers keep for themselves.

    is_internal: whether they say so; Kafka's own are known by name, also before they exist.
    """
    if (is_internal or topic in INTERNAL_TOPICS) and config.client_id != ADMIN_CLIENT_ID:
        raise internal_topic_error(topic)


class MissingTopics:
    """What a task knows of its topics; it asks once for each.

    topic: of all rows, None for a topic column; new: what is created, None for nothing.
    """

    def __init__(self, options: SinkOptions, topic: str | None, new: NewTopic | None) -> None:
        self._options = options
        self._topic = topic
        self._new = new
        self._there: set[str] = set()

    def create_those_of(self, batch: pa.RecordBatch) -> None:
        """Create the topics of an Arrow batch where createTopics asks for it; see `create`."""
        if self._new is None:
            return
        if self._topic is not None:
            self.create([self._topic])
            return
        # Spark's strings may hold bytes that are no text.
        met = batch.column("topic").unique().drop_null().cast("large_binary").to_pylist()
        self.create([name.decode(errors="replace") for name in met])

    def create(self, names: Iterable[str]) -> None:
        """Create topics where createTopics asks for it and they are not known to be there.

        What no topic can be called is left to who appends the rows. Raises as
        `KafkaAdmin.topics` does, and InvalidTopicException for a topic of the brokers' own.
        """
        if self._new is None:
            return
        missing = [name for name in names if name not in self._there and TOPIC_NAME.match(name)]
        for name in missing:
            check_not_internal(self._options.producer, name)
        if missing:
            with KafkaAdmin(self._options.producer, brokers=self._options.brokers) as admin:
                self._there.update(admin.topics(missing, self._new))

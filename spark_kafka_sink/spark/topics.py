"""What tasks find out about topics: one that is missing, and how large a record may be.

Which topics a column names is known only from the rows, so the driver cannot create them; that of
the option it has created, but a stream remembers that it did, and the topic may be gone since.
Tasks that meet the same one at once may all ask for it: one creates it, the others find it there.

Nor can the driver look at the retention of the topics that a column names.

The driver finds max.message.bytes, and a stream remembers it. That is enough to cut batches by. A
row is too large for its topic only by what the topic says then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin import KafkaAdmin, NewTopic
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    ADMIN_CLIENT_ID,
    INTERNAL_TOPICS,
    ApiException,
    TimeoutException,
    UnknownTopicOrPartitionException,
    internal_topic_error,
)
from spark_kafka_sink.model import TOPIC_NAME
from spark_kafka_sink.spark.options import SinkOptions, with_shipped_files

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
        message = f"{error.message}, or set the option createTopics to true"
        raise error.with_message(message) from None


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
            producer = with_shipped_files(self._options.producer)
            with KafkaAdmin(producer, brokers=self._options.brokers) as admin:
                self._there.update(admin.topics(missing, self._new))


logger = logging.getLogger(__name__)

_NAME: Final = "max.message.bytes"
# Brokers themselves take as long to hear of a change, and a question takes a connection.
GOOD_FOR_S: Final = 1.0


def settings_with_limit(
    admin: KafkaAdmin, topic: str, names: Iterable[str] = ()
) -> dict[str, str | None]:
    """Give the limit and other settings by name; nothing at all if the brokers do not tell."""
    try:
        return admin.topic_configs(topic, list(dict.fromkeys((_NAME, *names))))
    except ApiException as error:
        logger.info("the settings of topic %s are not known: %s", topic, error)
        return {}


def limit_of(settings: Mapping[str, str | None]) -> int | None:
    """Give the limit if it was told; if not, brokers refuse by themselves what is over it."""
    value = settings.get(_NAME)
    return int(value) if value is not None and value.isdecimal() else None


RETENTION_SETTINGS: Final = ("cleanup.policy", "message.timestamp.type", "retention.ms")


def retention_of(settings: Mapping[str, str | None]) -> int | None:
    """Return after how long a topic loses a record by its own timestamp, None if it does not."""
    policy, timestamp_type, retention = (settings.get(name) or "" for name in RETENTION_SETTINGS)
    deletes = "delete" in [each.strip() for each in policy.split(",")]
    if deletes and timestamp_type == "CreateTime" and retention.isdecimal():
        return int(retention)
    return None


def retention_of_topics(options: SinkOptions, topics: Sequence[str]) -> dict[str, int | None]:
    """Ask the cluster for `retention_of` topics that a column names; None where it does not say."""
    try:
        with KafkaAdmin(with_shipped_files(options.producer), brokers=options.brokers) as admin:
            found = admin.configs_of_topics(topics, RETENTION_SETTINGS)
    except ApiException as error:
        logger.info("the retention of topics is not known: %s", error)
        found = {}
    return {topic: retention_of(found.get(topic, {})) for topic in topics}


class TopicLimit:
    """The limit of the option's topic, as a task knows it; None where nobody says, or no option.

    `clock` gives seconds.
    """

    def __init__(self, options: SinkOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._good_until = -math.inf
        self._topic = options.topic
        self._producer, self._brokers = options.producer, options.brokers
        self.bytes = options.max_message_bytes

    @property
    def by_topic(self) -> dict[str, int]:
        """The limit, where it is known."""
        return {} if self._topic is None or self.bytes is None else {self._topic: self.bytes}

    def look_anew(self) -> dict[str, int]:
        """Ask the cluster, for a row that seems to be over it, a second apart; gives `by_topic`."""
        if self._topic is not None and self.bytes is not None and self._clock() >= self._good_until:
            with KafkaAdmin(with_shipped_files(self._producer), brokers=self._brokers) as admin:
                self.bytes = limit_of(settings_with_limit(admin, self._topic))
            self._good_until = self._clock() + GOOD_FOR_S
        return self.by_topic

"""Topics as tasks see them: creating missing ones, and the limit of a record's size.

The topics of a column are known only from the rows, so the driver cannot create them. It creates
the topic of the option, but a stream does so only once, and the topic may be deleted later. Several
tasks may try to create a topic at once: one creates it, the others find it.

Nor can the driver read the retention of the topics of a column.

The driver finds max.message.bytes, and a stream caches it. That is enough to size batches. Before a
row is refused as too large for its topic, the limit is read again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

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
from spark_kafka_sink.spark.options import SinkOptions


@contextmanager
def suggest_create_topics(options: SinkOptions) -> Iterator[None]:
    """Suggest the option createTopics in the error about a missing topic."""
    try:
        yield
    except TimeoutException as error:
        is_missing = isinstance(error.__cause__, UnknownTopicOrPartitionException)
        if options.new_topic is not None or not is_missing or error.topic in INTERNAL_TOPICS:
            raise
        message = f"{error.message}, or set the option createTopics to true"
        raise error.with_message(message) from None


def check_not_internal(config: ProducerConfig, topic: str, *, is_internal: bool = False) -> None:
    """Raise InvalidTopicException for a topic of the brokers themselves.

    is_internal: whether brokers say so; Kafka's own are known by name, also before they exist.
    """
    if (is_internal or topic in INTERNAL_TOPICS) and config.client_id != ADMIN_CLIENT_ID:
        raise internal_topic_error(topic)


class MissingTopics:
    """The topics that a task creates if they are missing; each is checked once.

    new: settings of new topics, None to create none.
    """

    def __init__(self, options: SinkOptions, new: NewTopic | None) -> None:
        self._options = options
        self._new = new
        self._there: set[str] = set()

    @property
    def is_needed(self) -> bool:
        """Whether there may be topics to create."""
        return self._new is not None

    def create(self, names: Iterable[str]) -> None:
        """Create missing topics, if the option createTopics is set.

        Invalid names are skipped; the append refuses them. Raise the exceptions of
        `KafkaAdmin.topics`, and InvalidTopicException for a topic of the brokers themselves.
        """
        if self._new is None:
            return
        missing = [name for name in names if name not in self._there and TOPIC_NAME.match(name)]
        for name in missing:
            check_not_internal(self._options.producer, name)
        if missing:
            producer = self._options.producer
            with KafkaAdmin(producer, brokers=self._options.brokers) as admin:
                self._there.update(admin.topics(missing, self._new))


logger = logging.getLogger(__name__)

_NAME: Final = "max.message.bytes"
# Brokers need about as long to learn of a change, and each request needs a connection.
GOOD_FOR_S: Final = 1.0


def settings_with_limit(
    admin: KafkaAdmin, topic: str, names: Iterable[str] = ()
) -> dict[str, str | None]:
    """Return the limit and other settings by name; empty if the brokers do not return them."""
    try:
        return admin.topic_configs(topic, list(dict.fromkeys((_NAME, *names))))
    except ApiException as error:
        logger.info("the settings of topic %s could not be read: %s", topic, error)
        return {}


def limit_of(settings: Mapping[str, str | None]) -> int | None:
    """Return the limit, None if it is unknown; brokers then enforce it."""
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
        with KafkaAdmin(options.producer, brokers=options.brokers) as admin:
            found = admin.configs_of_topics(topics, RETENTION_SETTINGS)
    except ApiException as error:
        logger.info("the retention of topics is not known: %s", error)
        found = {}
    return {topic: retention_of(found.get(topic, {})) for topic in topics}


class TopicLimit:
    """The size limit of the option's topic; None if it is unknown or there is no such option.

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
        """The limit by topic, if it is known."""
        return {} if self._topic is None or self.bytes is None else {self._topic: self.bytes}

    def refreshed(self) -> dict[str, int]:
        """Read the limit again, at most once per second; return `by_topic`."""
        if self._topic is not None and self.bytes is not None and self._clock() >= self._good_until:
            with KafkaAdmin(self._producer, brokers=self._brokers) as admin:
                self.bytes = limit_of(settings_with_limit(admin, self._topic))
            self._good_until = self._clock() + GOOD_FOR_S
        return self.by_topic

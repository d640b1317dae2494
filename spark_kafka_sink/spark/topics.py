"""The topics that tasks write to: creation of missing topics, max.message.bytes and retention.

With a topic column, the topics are known only from the rows, so tasks create them and read their
retention. (In mode `single`, the driver creates the topics that atomic_layout has found.) The
driver creates the topic in the option `topic`. In a stream, it does so only once. If that topic is
deleted later, a task creates it. If several tasks try to create a topic at once, one of them
creates it, and the others find that it exists.

The driver reads max.message.bytes of the topic, and a stream caches the value. The cached value is
good enough to size batches. Before a task refuses a row as too large for its topic, the task reads
the value again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from spark_kafka_sink.admin import KafkaAdmin, NewTopic, TopicDescription
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
    """Suggest the option createTopics in the message of an exception about a missing topic."""
    try:
        yield
    except TimeoutException as error:
        is_missing = isinstance(error.__cause__, UnknownTopicOrPartitionException)
        if options.new_topic is not None or not is_missing or error.topic in INTERNAL_TOPICS:
            raise
        message = f"{error.message}, or set the option createTopics to true"
        raise error.with_message(message) from None


def check_not_internal(config: ProducerConfig, topic: str, *, is_internal: bool = False) -> None:
    """Raise InvalidTopicException for an internal topic, unless client.id is `ADMIN_CLIENT_ID`.

    is_internal: whether the brokers' metadata marks the topic as internal. Kafka's own internal
    topics are recognized by name, even before they exist.
    """
    if (is_internal or topic in INTERNAL_TOPICS) and config.client_id != ADMIN_CLIENT_ID:
        raise internal_topic_error(topic)


def topics_to_write(
    options: SinkOptions, admin: KafkaAdmin, names: Iterable[str]
) -> dict[str, TopicDescription]:
    """Return the topics of a write by name. Create missing topics, or wait until they exist.

    They are created if the option createTopics is true. Raise InvalidTopicException for an internal
    topic, which is never created. Raise the exceptions of `KafkaAdmin.topics`.
    """
    names = list(names)
    for name in names:
        check_not_internal(options.producer, name)
    with suggest_create_topics(options):
        there = admin.topics(names, options.new_topic)
    for name, topic in there.items():
        check_not_internal(options.producer, name, is_internal=topic.is_internal)
    return there


class MissingTopics:
    """Creates topics that are missing when a task writes to them. Each topic is checked once.

    new: how topics are created, None if they are not created.
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

        Ignore invalid topic names, because the error is raised later, when their rows are appended.
        Raise InvalidTopicException for an internal topic of the brokers. Raise the exceptions of
        `KafkaAdmin.topics`.
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
# For how many seconds a topic config is used before it is read again. A shorter time has no use,
# because brokers need about a second to apply a changed config. Each request needs a connection.
GOOD_FOR_S: Final = 1.0


def settings_with_limit(
    admin: KafkaAdmin, topic: str, names: Iterable[str] = ()
) -> dict[str, str | None]:
    """Return configs of a topic by name: max.message.bytes, and the configs in `names`.

    Return an empty dict if the brokers do not return the configs.
    """
    try:
        return admin.topic_configs(topic, list(dict.fromkeys((_NAME, *names))))
    except ApiException as error:
        logger.info("the settings of topic %s could not be read: %s", topic, error)
        return {}


def limit_of(settings: Mapping[str, str | None]) -> int | None:
    """Return max.message.bytes, or None if unknown; then only the brokers check record sizes."""
    value = settings.get(_NAME)
    return int(value) if value is not None and value.isdecimal() else None


RETENTION_SETTINGS: Final = ("cleanup.policy", "message.timestamp.type", "retention.ms")


def retention_of(settings: Mapping[str, str | None]) -> int | None:
    """Return retention.ms, or None if the topic does not delete records by their CreateTime."""
    policy, timestamp_type, retention = (settings.get(name) or "" for name in RETENTION_SETTINGS)
    deletes = "delete" in [each.strip() for each in policy.split(",")]
    if deletes and timestamp_type == "CreateTime" and retention.isdecimal():
        return int(retention)
    return None


def retention_of_topics(options: SinkOptions, topics: Sequence[str]) -> dict[str, int | None]:
    """Read the configs of topics from the brokers. Return the `retention_of` each topic.

    It is None for a topic whose configs cannot be read.
    """
    try:
        with KafkaAdmin(options.producer, brokers=options.brokers) as admin:
            found = admin.configs_of_topics(topics, RETENTION_SETTINGS)
    except ApiException as error:
        logger.info("the retention of topics is not known: %s", error)
        found = {}
    return {topic: retention_of(found.get(topic, {})) for topic in topics}


class TopicLimits:
    """max.message.bytes of the topics in the options `topic` and `deadLetterTopic`.

    by_topic: where it is known. clock: returns seconds.
    """

    def __init__(self, options: SinkOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._good_until = -math.inf
        self._producer, self._brokers = options.producer, options.brokers
        self.by_topic = options.max_message_bytes

    def refreshed(self) -> Mapping[str, int]:
        """Read max.message.bytes again, at most once per second; return `by_topic`.

        If the brokers do not return the limit of a topic, its last known limit stays.
        """
        if self.by_topic and self._clock() >= self._good_until:
            with KafkaAdmin(self._producer, brokers=self._brokers) as admin:
                found = {each: limit_of(settings_with_limit(admin, each)) for each in self.by_topic}
            known = {each: limit for each, limit in found.items() if limit is not None}
            self.by_topic = {**self.by_topic, **known}
            self._good_until = self._clock() + GOOD_FOR_S
        return self.by_topic

"""The description of an existing topic, and the properties of new topics."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.errors import IllegalArgumentException
from spark_kafka_sink.model import (
    LARGEST_INT16,
    LARGEST_INT32,
    check_text,
    check_topic_name,
    checked,
    checked_number,
)
from spark_kafka_sink.wire.admin_messages import (
    BROKERS_DEFAULT,
    BROKERS_DEFAULTS_SINCE,
    CreatableTopic,
    CreatableTopicConfig,
)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic that exists.

    replication: the number of replicas of each partition; if the numbers differ, the smallest one.
    allowed: the ACL operations that this client may perform on the topic; None if the brokers do
    not return them. is_new: whether this `KafkaAdmin` created the topic. is_internal: whether it is
    an internal topic of the brokers.
    """

    name: str
    partitions: int
    replication: int
    allowed: frozenset[str] | None
    is_new: bool = False
    is_internal: bool = False

    @property
    def may_be_written(self) -> bool:
        """Whether this client may write to the topic; True if `allowed` is None."""
        return self.allowed is None or "WRITE" in self.allowed


@dataclass(frozen=True, slots=True)
class NewTopic:
    """The properties of topics to create; None means the brokers' default.

    Raise IllegalArgumentException for properties that no topic can have.
    """

    partitions: int | None = None
    replication: int | None = None
    configs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.partitions is not None:
            checked_number("partitions", self.partitions, 1, LARGEST_INT32)
        if self.replication is not None:
            checked_number("replication", self.replication, 1, LARGEST_INT16)
        for setting in checked("configs", self.configs, tuple, "pairs of name and value"):
            pair = checked("one of configs", setting, tuple, "a pair of name and value")
            if len(pair) != 2:
                message = f"one of configs has {len(pair)} parts: expected name and value"
                raise IllegalArgumentException(message)
            for text in pair:
                check_text("one of configs", text)

    def named(self, name: str) -> CreatableTopic:
        """Return the entry of a CreateTopics request for a topic with this name."""
        check_topic_name(name)
        return CreatableTopic(
            name=name,
            num_partitions=self.partitions or BROKERS_DEFAULT,
            replication_factor=self.replication or BROKERS_DEFAULT,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in self.configs],
        )

    @property
    def options(self) -> dict[str, str]:
        """The properties that are set, as options of the Spark sink: values by option name."""
        counts = {"topic.partitions": self.partitions, "topic.replication": self.replication}
        given = {name: str(count) for name, count in counts.items() if count is not None}
        return given | {f"topic.config.{name}": value for name, value in self.configs}

    @property
    def min_version(self) -> int:
        """The first version of CreateTopics that can create topics with these properties.

        Versions before `BROKERS_DEFAULTS_SINCE` require both `partitions` and `replication`.
        """
        return 0 if self.partitions and self.replication else BROKERS_DEFAULTS_SINCE

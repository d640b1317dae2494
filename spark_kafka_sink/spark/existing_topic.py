"""A topic that exists and is not what it would have been created as: said, and left as it is.

Whoever sets createTopics and topic.* for a topic that another has made gets that other's settings.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from spark_kafka_sink.admin import NewTopic, TopicDescription
from spark_kafka_sink.logs import warn_once

logger = logging.getLogger(__name__)


def warn_of_differences(
    topic: TopicDescription, new: NewTopic, settings: Mapping[str, str | None]
) -> None:
    """Say, once, which options are not what the topic has, or where that is not known.

    settings: the topic's, as far as the brokers tell; none at all where they do not.
    """
    if topic.is_new:
        return
    counts = {"topic.partitions": topic.partitions, "topic.replication": topic.replication}
    has = {name: str(count) for name, count in counts.items()}
    has |= {f"topic.config.{name}": value for name, value in settings.items() if value is not None}
    nothing = "Kafka has no such setting" if settings else "what it has is not known"
    different = []
    for name, asked in new.options.items():
        found = has.get(name)
        if found is None:
            different.append(f"{name}={asked} ({nothing})")
        elif _meaning(found) != _meaning(asked):
            different.append(f"{name}={asked} (it has {found})")
    if different:
        message = (
            f"topic {topic.name} exists and stays as it is; options for topics that do not exist "
            f"say otherwise: {', '.join(different)}"
        )
        warn_once(logger, message)


def _meaning(value: str) -> frozenset[str | Decimal]:
    """Give what brokers read in a value: a list, or one entry; numbers as numbers."""
    return frozenset(_entry(entry.strip().lower()) for entry in value.split(","))


def _entry(text: str) -> str | Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text

"""The max.message.bytes of a topic: what may be known of it, and what it is now.

The driver finds it, and a stream remembers it, so that a task knows what it was. That is enough to
cut batches by; a row is too large for its topic only by what the topic says then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.errors import ApiException
from spark_kafka_sink.spark.options import SinkOptions

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
            with KafkaAdmin(self._producer, brokers=self._brokers) as admin:
                self.bytes = limit_of(settings_with_limit(admin, self._topic))
            self._good_until = self._clock() + GOOD_FOR_S
        return self.by_topic

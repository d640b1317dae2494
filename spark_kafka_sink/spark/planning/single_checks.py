"""Checks for mode `single`. They change nothing, so that the user's process can also run them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import warn_once
from spark_kafka_sink.spark.exactly_once import Mode
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.planning.check_cache import CheckCache

logger = logging.getLogger(__name__)

_MOST_TOPICS = 1000


def check_layout(options: SinkOptions, laid_out: Mapping[str, int] | None) -> None:
    """Raise ConfigException for mode `single` if atomic_layout has not partitioned the rows.

    Also raise it if the rows are for too many topics. laid_out: the partition count of each topic,
    which atomic_layout has stored in the metadata of the column ``partition``. It is None if
    atomic_layout was not called. It is empty if the topics come from a topic column, and
    atomic_layout found no rows.
    """
    selected = options.exactly_once
    if selected is None or selected.mode is not Mode.SINGLE:
        return
    if laid_out is None or (options.topic is not None and not laid_out):
        message = (
            "exactlyOnce=single needs each Kafka partition to be written by only one task, which "
            "atomic_layout ensures: call atomic_layout(df, options) as the last step before the "
            "write, or use exactlyOnce=two-phase"
        )
        raise ConfigException(message)
    if len(laid_out) > _MOST_TOPICS:
        message = (
            f"exactlyOnce=single writes to at most {_MOST_TOPICS} topics, and the rows were laid "
            f"out for {len(laid_out)}: use exactlyOnce=two-phase"
        )
        raise ConfigException(message)


# The times until which the checks of topics are valid.
_found: CheckCache[tuple[ProducerConfig, tuple[str, ...]], float] = CheckCache()


def check_targets(options: SinkOptions, *, may_remember: bool = False) -> None:
    """Raise ConfigException if mode `single` cannot write to one of the topics.

    It cannot write to topics with LogAppendTime, because a broker's response then does not show
    whether the broker treated a batch as a duplicate. may_remember: whether cached results up to
    metadata.max.age.ms old may be used.
    """
    selected = options.exactly_once
    if selected is None or selected.mode is not Mode.SINGLE:
        return
    if not options.laid_out:
        return
    key, now = (options.producer, tuple(sorted(options.laid_out))), time.monotonic()
    valid_until = _found.get(key) if may_remember else None
    if valid_until is not None and now < valid_until:
        return
    name = "message.timestamp.type"
    with KafkaAdmin(options.producer, brokers=options.brokers) as admin:
        found = admin.configs_of_topics(list(options.laid_out), [name])
    for topic, settings in found.items():
        if settings.get(name) is None:
            warn_once(
                logger,
                f"exactlyOnce=single: the settings of topic {topic} could not be read; tasks fail "
                f"if its {name} is not CreateTime; grant DESCRIBE_CONFIGS on the topic",
            )
        if settings.get(name) == "LogAppendTime":
            message = (
                f"exactlyOnce=single cannot write to topic {topic}, whose {name} is LogAppendTime: "
                "expected CreateTime; use exactlyOnce=two-phase"
            )
            raise ConfigException(message)
    if may_remember:
        _found.keep(key, now + options.producer.metadata_max_age_ms / 1000)

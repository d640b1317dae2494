"""Of the names in a warning, the first ten are listed, and the others are counted."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin import NewTopic, TopicDescription
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.planning.preflight import warn_of_differences

NAMES = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


@pytest.fixture(autouse=True)
def nothing_was_said() -> None:
    """A process that has not warned yet."""
    _warn.cache_clear()


def test_of_many_settings_that_an_existing_topic_does_not_have_ten_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    new = NewTopic(configs=tuple((f"c.{number}", "x") for number in range(300)))
    topic = TopicDescription(name="t", partitions=1, replication=1, allowed=None)
    has = {f"c.{number}": "x" if number < 5 else "y" for number in range(300)}
    warn_of_differences(topic, new, has)
    (record,) = caplog.records
    shown = ", ".join(f"topic.config.c.{number}=x (it has y)" for number in range(5, 15))
    assert record.message == (
        "topic t exists and is not changed; options for new topics differ from it: "
        f"{shown} and 285 more"
    )


def test_of_many_options_of_a_source_ten_are_named(caplog: pytest.LogCaptureFixture) -> None:
    given = (
        "assign", "endingOffsets", "endingTimestamp", "failOnDataLoss", "groupIdPrefix",
        "includeHeaders", "includeTimestamp", "maxTriggerDelay", "minPartitions",
        "startingOffsets", "startingTimestamp", "subscribe",
    )  # fmt: skip
    sink_options(NAMES | dict.fromkeys(given, "1"))
    (record,) = caplog.records
    assert record.message == (
        f"options of the Kafka source have no effect on a sink: {', '.join(given[:10])} and 2 more"
    )

"""What mode single finds out about its topics before a row is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import pytest

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.planning import single_checks
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.single_checks import check_targets

NAME = "message.timestamp.type"


def checks(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let topics have these settings, as far as they can be read; return the topics of checks."""
    checked: list[list[str]] = []

    class Admin:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def configs_of_topics(self, topics: list[str], _: object) -> dict[str, dict[str, str]]:
            checked.append(topics)
            return dict.fromkeys(topics, settings)

    monkeypatch.setattr(single_checks, "KafkaAdmin", Admin)
    return checked


def options_for(topic: str) -> SinkOptions:
    """Return the options of a write whose rows were laid out for a topic."""
    options = sink_options({"kafka.bootstrap.servers": "b:1", "topic": topic})
    return replace(options, exactly_once=ExactlyOnce(Mode.SINGLE), laid_out={topic: 1})


def check(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a topic that has these settings."""
    checks(settings, monkeypatch)
    check_targets(options_for("t"))


def test_a_topic_with_log_append_time_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check({NAME: "CreateTime"}, monkeypatch)
    with pytest.raises(ConfigException, match="is LogAppendTime: expected CreateTime"):
        check({NAME: "LogAppendTime"}, monkeypatch)
    assert not caplog.records


def test_a_topic_whose_settings_cannot_be_read_is_named_in_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _warn.cache_clear()
    check({}, monkeypatch)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"topic t could not be read; tasks fail if its {NAME} is not" in record.getMessage()
    assert "grant DESCRIBE_CONFIGS on the topic" in record.getMessage()


def test_the_topics_of_the_newest_micro_batches_are_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = checks({NAME: "CreateTime"}, monkeypatch)
    results: CheckCache[object, float] = CheckCache()
    monkeypatch.setattr(single_checks, "_found", results)
    topics = [f"t{number}" for number in range(150)]
    for topic in topics:
        check_targets(options_for(topic), may_remember=True)
        check_targets(options_for(topic), may_remember=True)
    assert checked == [[topic] for topic in topics]
    assert len(results) == 100
    check_targets(options_for("t149"))
    assert len(checked) == 151, "a job does not use what a micro-batch has found"

"""What mode single finds out about its topics before a row is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import pytest

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.planning import single_checks
from spark_kafka_sink.spark.planning.single_checks import check_targets

NAME = "message.timestamp.type"


def check(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a topic that has these settings, as far as they can be read."""

    class Admin:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def configs_of_topics(self, *_: object) -> dict[str, dict[str, str]]:
            return {"t": settings}

    monkeypatch.setattr(single_checks, "KafkaAdmin", Admin)
    options = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
    selected = ExactlyOnce(Mode.SINGLE)
    check_targets(replace(options, exactly_once=selected, laid_out={"t": 1}))


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
    assert f"not known whether topic t has {NAME}=CreateTime" in record.getMessage()
    assert "grant DESCRIBE_CONFIGS on the topic" in record.getMessage()

"""What the plan of exactly once says of the topic of its commit log."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import ConfigException, api_exception
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.planning import run_plan
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.run_plan import _check_compacted, _check_log


class Admin:
    """An admin client. answer: the settings of the log, or the error for them."""

    def __init__(self, answer: dict[str, str] | Exception) -> None:
        self._answer = answer

    def topic_configs(self, *_: object) -> dict[str, str]:
        """Return the answer, or raise it."""
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def check(answer: dict[str, str] | Exception) -> None:
    """Check a log with this answer."""
    admin: Any = Admin(answer)
    _check_compacted(admin, "log")


def test_a_log_that_would_forget_is_refused() -> None:
    check({"cleanup.policy": "compact"})
    with pytest.raises(ConfigException, match=r"has cleanup\.policy=delete: expected compact"):
        check({"cleanup.policy": "delete"})


def test_a_log_whose_settings_cannot_be_read_is_used_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _warn.cache_clear()
    check(api_exception(codes.TOPIC_AUTHORIZATION_FAILED, "grant DESCRIBE_CONFIGS"))
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelname == "WARNING"
    assert "it is not known whether topic log has cleanup.policy=compact" in said
    assert said.endswith("grant DESCRIBE_CONFIGS")


def test_micro_batches_share_a_check_of_the_log_and_jobs_check_it_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []

    def need_log(_: SinkOptions, log_topic: str) -> None:
        checked.append(log_topic)

    results: CheckCache[object, float] = CheckCache()
    monkeypatch.setattr(run_plan, "_need_log", need_log)
    monkeypatch.setattr(run_plan, "_found", results)
    options = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
    logs = [f"log{number}" for number in range(150)]
    for log in logs:
        _check_log(options, ExactlyOnce(Mode.TWO_PHASE, log_topic=log, version=1))
    assert checked == logs
    assert len(results) == 0, "each job may have a delegation token of its own"
    for log in logs:
        of_stream = ExactlyOnce(Mode.TWO_PHASE, log_topic=log)
        _check_log(options, of_stream)
        _check_log(options, of_stream)
    assert checked == logs * 2
    assert len(results) == 100

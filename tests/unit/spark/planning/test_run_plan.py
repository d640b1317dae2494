"""What the plan of exactly once says of the topic of its commit log."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import ConfigException, api_exception
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.spark.planning.run_plan import _check_compacted


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

"""A session's Arrow batches are limited unless the user has set their size."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from spark_kafka_sink.spark.driver.register import SETTING, SPARKS_DEFAULT, limit_arrow_batches


class Conf(dict[str, str]):
    """A session's settings, which may lack one or reject a change of it."""

    def get(self, name: str) -> str:  # type: ignore[override]  # as Spark's
        """Return an existing setting."""
        if name not in self:
            message = f"[SQL_CONF_NOT_FOUND] {name}"
            raise PySparkException(message)
        return self[name]

    def set(self, name: str, value: str) -> None:
        """Set one, unless it is fixed."""
        if "fixed" in self:
            message = f"[CANNOT_MODIFY_CONFIG] {name}"
            raise PySparkException(message)
        self[name] = value


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({SETTING: "67108864b"}, {SETTING: "7864320"}),
        ({SETTING: "268435456b"}, {SETTING: "7864320"}),
        ({SETTING: "1m"}, {SETTING: "1m"}),
        ({SETTING: "-1"}, {SETTING: "-1"}),
        ({}, {}),
        ({SETTING: SPARKS_DEFAULT, "fixed": ""}, {SETTING: SPARKS_DEFAULT, "fixed": ""}),
    ],
    ids=["default", "default of Spark 4.0", "smaller", "without limit", "not there", "fixed"],
)
def test_the_limit_is_set_where_nobody_has_set_it(
    before: dict[str, str], after: dict[str, str]
) -> None:
    conf = Conf(before)
    limit_arrow_batches(SimpleNamespace(conf=conf))  # type: ignore[arg-type]
    limit_arrow_batches(SimpleNamespace(conf=conf))  # type: ignore[arg-type]
    assert dict(conf) == after

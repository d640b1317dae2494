"""``register`` changes settings of the session that its Spark has by default."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink.spark.driver.register import LIMIT_BYTES, SETTING, limit_arrow_batches

pytestmark = pytest.mark.spark


def test_the_default_of_arrow_batches_is_replaced_and_another_size_is_kept(
    spark: SparkSession,
) -> None:
    """The default has changed between versions of Spark."""
    by_default, set_by_the_user = spark.newSession(), spark.newSession()
    set_by_the_user.conf.set(SETTING, "32m")
    limit_arrow_batches(by_default)
    limit_arrow_batches(set_by_the_user)
    assert by_default.conf.get(SETTING) == str(LIMIT_BYTES)
    assert set_by_the_user.conf.get(SETTING) == "32m"

"""The study of Spark's settings compares each candidate with the defaults of the same round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bench.studies.spark_settings import (
    _AS_IN_SPARK,
    CANDIDATES,
    DEFAULTS,
    Write,
    _rounds,
    report,
)

from spark_kafka_sink.spark.driver.register import SETTING, limit_arrow_batches


def test_ratios_are_to_the_defaults_of_the_same_round() -> None:
    found = {DEFAULTS: [Write(2.0, 4.0), Write(8.0, 4.0)], "other": [Write(1.0, 3.0)] * 2}
    usual, other = report(found)
    assert usual.split("rows/s ")[1].split() == [
        "1.00x",
        "(1.00-1.00)",
        "CPU",
        "1.00x",
        "(1.00-1.00)",
    ]
    assert other.split("rows/s ")[1].split() == [
        "5.00x",
        "(2.00-8.00)",
        "CPU",
        "0.75x",
        "(0.75-0.75)",
    ]


def test_every_round_has_every_candidate_and_those_of_the_warm_up_do_not_count() -> None:
    rounds = list(_rounds(0.0, 3))
    assert [counts for counts, _ in rounds] == [False, True, True, True]
    assert all(sorted(order) == sorted(CANDIDATES) for _, order in rounds)


def test_register_leaves_the_limit_of_the_defaults_as_it_is() -> None:
    conf = dict(_AS_IN_SPARK)
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=conf.get, set=conf.__setitem__))
    limit_arrow_batches(spark)
    assert conf == _AS_IN_SPARK
    conf[SETTING] += "b"
    limit_arrow_batches(spark)
    assert conf == CANDIDATES["Arrow batches of 7.5 MiB"]

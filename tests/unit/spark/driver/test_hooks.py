"""The table of Spark's writers fits Spark, and the arguments of the last call come last."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

from spark_kafka_sink.spark.driver.hooks.notes import join_options
from spark_kafka_sink.spark.driver.hooks.writers import WRITERS, SparkWriter, Write

WRITE = Write("json", "append", False, {"partitionBy": True}, {"a": "1"}, True)  # noqa: FBT003 - a tuple


@pytest.mark.parametrize("kind", WRITERS, ids=lambda kind: kind.module)
def test_spark_s_writers_have_what_the_table_names(kind: SparkWriter) -> None:
    writer_class = getattr(import_module(kind.module), kind.name)
    assert {kind.method, *(note.method for note in kind.notes or ())} <= set(dir(writer_class))
    parameters = inspect.signature(getattr(writer_class, kind.method)).parameters
    assert tuple(parameters) == ("self", *kind.parameters, "options")
    assert ("mode" in parameters) is (kind.set_mode is not None)


@pytest.mark.parametrize(
    ("given", "options", "changed"),
    [
        ({}, {}, {}),
        ({"format": None, "mode": None, "partitionBy": None}, {}, {}),
        ({"format": "pykafka", "mode": "o"}, {}, {"format": "pykafka", "mode": "o"}),
        ({"partitionBy": []}, {}, {"layouts": {"partitionBy": False}}),
        ({}, {"A": 2, "b": True, "c": None}, {"options": {"a": "2", "b": "true"}}),
    ],
)
def test_the_arguments_of_the_last_call_come_last(
    given: dict[str, Any], options: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert WRITE.joined(given, options) == WRITE._replace(**changed)


def test_an_option_without_a_value_leaves_an_earlier_one() -> None:
    assert join_options({"a": "1"}, {"A": None, "B": 1.5}) == {"a": "1", "b": "1.5"}

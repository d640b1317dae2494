"""The logs of a test do not depend on earlier tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from pyspark.logger import PySparkLogger
from support.pure.logging_state import logging_state

from spark_kafka_sink import logs

logger = logging.getLogger("spark_kafka_sink.a_logger_of_this_test")


def test_a_logger_of_spark_does_not_change_the_format_of_captured_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # As pytest adds its handlers to each logger that does not propagate.
    PySparkLogger("not in the registry").addHandler(caplog.handler)
    logger.error("it failed", exc_info=ZeroDivisionError("by zero"))
    assert "ZeroDivisionError: by zero" in caplog.text


@contextmanager
def all_disabled() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@contextmanager
def root_handler() -> Iterator[None]:
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    yield
    logging.root.removeHandler(handler)


@contextmanager
def level() -> Iterator[None]:
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("change", [all_disabled, root_handler, level, logs.warnings_disabled])
def test_a_change_of_later_logs_is_seen(change: Callable[[], AbstractContextManager[None]]) -> None:
    before = logging_state()
    with change():
        changed = logging_state()
    assert changed != before
    assert logging_state() == before

"""What tests of the network share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from spark_kafka_sink.logs import _warned_of


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return the logged warnings, in a process that has not warned yet."""
    _warned_of.clear()
    yield lambda: [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    _warned_of.clear()

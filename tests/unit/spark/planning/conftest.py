"""What tests of planning share."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from support.brokers.registry_server import RegistryServer, registry_server

from spark_kafka_sink.spark.planning import registry_questions


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry."""
    with registry_server() as found:
        yield found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the schemas that are kept; a test sets `now`, in seconds."""
    found = SimpleNamespace(now=1000.0)
    found.time = lambda: found.now
    monkeypatch.setattr(registry_questions, "time", found)
    return found

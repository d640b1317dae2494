"""What tests of planning share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.registry_server import RegistryServer, registry_server


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry."""
    with registry_server() as found:
        yield found

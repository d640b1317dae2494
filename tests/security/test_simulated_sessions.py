"""More seeds of `simulation/test_sessions.py`: simulated sessions that end and are renewed."""

from __future__ import annotations

import pytest
from simulation.__main__ import soak
from simulation.test_sessions import SEEDS

pytestmark = pytest.mark.long(reason="2,000 simulated clusters take a minute of two cores")


def test_every_promise_is_kept_by_2000_seeds() -> None:
    assert soak(SEEDS, 2000, sessions=True) == 0

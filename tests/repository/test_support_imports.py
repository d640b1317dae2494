"""Programs that run outside the tests' environment import nothing that only that has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

# In the environments of make demo and make bench.
COMMANDS: Final = (
    "bench.each_cell",
    "support.brokers.kafka_cluster",
    "support.brokers.fetch_kafka",
)


@pytest.mark.parametrize("module", COMMANDS)
def test_commands_need_no_pytest(module: str) -> None:
    code = f"import sys; sys.modules['pytest'] = None; import {module}"
    # As the Makefile runs them.
    given = {**os.environ, "PYTHONPATH": f"{ROOT}/benchmarks:{ROOT}/tests:{ROOT}/jobs"}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=given
    )
    assert ended.returncode == 0, ended.stderr

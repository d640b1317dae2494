"""What runs outside the tests' environment asks for nothing that only that has."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

# In the environments of make demo and make bench.
COMMANDS: Final = ("support.run_bench", "support.kafka_cluster", "support.fetch_kafka")


@pytest.mark.parametrize("module", COMMANDS)
def test_commands_need_no_pytest(module: str) -> None:
    code = f"import sys; sys.modules['pytest'] = None; import {module}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

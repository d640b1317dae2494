"""A worker keeps freed memory: the next slice causes no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from spark_kafka_sink.spark.memory import keep_heap

if sys.argv[1] == "keep":
    keep_heap()
np.ones(8_000_000, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(8_000_000, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Count the page faults of twenty arrays of 8 MB, one after the other."""
    said = subprocess.run(
        [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
    )
    return int(said.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is what is set")
def test_freed_memory_is_used_again() -> None:
    assert faults("keep") < faults("default") / 10

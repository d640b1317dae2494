"""What each partition of a slice costs, in lines of Python: counted, the same on every machine.

Over many partitions, a slice has few rows for each, and what is paid per partition is most of
Python's part. The bounds are what it was when they were set, and a fifth more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.programs.small_process import SmallProcess
from support.pure.counted_work import lines_to_append, lines_to_send

FEW, MANY = 10, 200
ROWS_EACH = 20
MOST_TO_APPEND = 59
MOST_TO_SEND = 317


@pytest.fixture(scope="module")
def counting() -> Iterator[SmallProcess]:
    """The process that counts."""
    with SmallProcess() as process:
        yield process


def test_appending_runs_few_lines_for_a_partition(counting: SmallProcess) -> None:
    # The first time, things are made once.
    _, many, few = (
        counting.call(lines_to_append, partitions, MANY * ROWS_EACH)
        for partitions in (FEW, MANY, FEW)
    )
    assert 0 < (many - few) / (MANY - FEW) < MOST_TO_APPEND


def test_sending_runs_few_lines_for_a_partition(counting: SmallProcess) -> None:
    _, many, few = (counting.call(lines_to_send, partitions) for partitions in (FEW, MANY, FEW))
    assert 0 < (many - few) / (MANY - FEW) < MOST_TO_SEND

"""No row is touched in Python: neither lines run nor objects made grow with the rows of a slice.

Counted, not timed, so that it is the same on every machine. A loop over rows, a comprehension or a
function called by `map` runs a line or more for every row; `to_pylist` makes an object for every
row, which is alive at least until the line after. Both fail here.

Three stretches of the way: a task from Spark's iterator on, the producer's `append`, and the sender
up to the buffers that are given to the socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs.small_process import SmallProcess
from support.pure import counted_work
from support.pure.counted_work import COLUMNS, EVERY_OTHER_BAD, LEADERS, SLICES, Work

FEW, MANY = 10_000, 100_000
# Wider varints may take a few lines more; one for every hundredth row is too many.
ALLOWED = (MANY - FEW) // 100


@pytest.fixture(scope="module")
def counting() -> Iterator[SmallProcess]:
    """The process that counts."""
    with SmallProcess() as process:
        yield process


def assert_as_much(few: Work, many: Work) -> None:
    assert many.lines - few.lines < ALLOWED
    assert many.objects - few.objects < ALLOWED


@pytest.mark.parametrize(("codec", "fill"), [("none", False), ("none", True), ("zstd", True)])
@pytest.mark.parametrize("columns", COLUMNS)
def test_ten_times_the_rows_run_no_more_lines_and_make_no_more_objects(
    counting: SmallProcess, columns: str, codec: str, *, fill: bool
) -> None:
    """fill: whether batches fill, and are compressed; as many of few rows as of many."""
    # The first one, in which things are made once, does not count.
    _, few, many = (
        counting.call(counted_work.of_append, columns, rows, codec, fill=fill)
        for rows in (FEW, FEW, MANY)
    )
    assert_as_much(few, many)


@pytest.mark.parametrize(
    ("columns", "on_error"), [("keys", "fail"), *((columns, "skip") for columns in COLUMNS)]
)
def test_a_task_does_as_much_about_ten_times_the_rows(
    counting: SmallProcess, columns: str, on_error: str
) -> None:
    given = {"onError": on_error}
    _, few, many = (
        counting.call(counted_work.of_task, columns, rows, given) for rows in (FEW, FEW, MANY)
    )
    assert_as_much(few, many)


@pytest.mark.parametrize("on_error", ["skip", "deadLetter"])
def test_a_task_does_as_much_about_ten_times_the_bad_rows(
    counting: SmallProcess, on_error: str, tmp_path: Path
) -> None:
    letters = {"deadLetterPath": str(tmp_path)} if on_error == "deadLetter" else {}
    given = {"onError": on_error, **letters}
    _, few, many = (
        counting.call(counted_work.of_task, EVERY_OTHER_BAD, rows, given)
        for rows in (FEW, FEW, MANY)
    )
    assert_as_much(few, many)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_sender_does_as_much_about_ten_times_the_rows(
    counting: SmallProcess, codec: str
) -> None:
    # The first time, writers of messages are made.
    _, few, many = (
        counting.call(counted_work.of_sending, codec, rows // 10) for rows in (FEW, FEW, MANY)
    )
    assert_as_much(few.work, many.work)
    assert len(few.buffers) == SLICES * len(set(LEADERS))
    # Nor is the socket given more buffers, or more requests.
    assert few.buffers == many.buffers

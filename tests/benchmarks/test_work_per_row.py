"""No row is touched in Python: neither lines run nor objects made grow with the rows of a slice.

Counted, not timed, so that it is the same on every machine. A loop over rows, a comprehension or a
function called by `map` runs a line or more for every row; `to_pylist` makes an object for every
row, which is alive at least until the line after. Both fail here.

Three stretches of the way: a task from Spark's iterator on, the producer's `append`, and the sender
up to the buffers that are given to the socket.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from support.pure.work_about_rows import (
    FEW,
    GOOD_COLUMNS,
    MANY,
    Work,
    works_of_append,
    works_of_sender,
    works_of_task,
)

# Wider varints may take a few lines more; one for every hundredth row is too many.
ALLOWED = (MANY - FEW) // 100


@pytest.fixture(scope="module")
def counting() -> Iterator[ProcessPoolExecutor]:
    """A process without this one's memory, through which Python would walk at every line."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield process


def assert_as_much(count: Callable[[], Future[tuple[Work, Work]]]) -> None:
    few, many = count().result()
    assert many.lines - few.lines < ALLOWED
    # Threads of earlier producers that end meanwhile make objects, too: count again.
    if many.objects - few.objects >= ALLOWED:
        few, many = count().result()
    assert many.objects - few.objects < ALLOWED


@pytest.mark.parametrize(("codec", "fill"), [("none", False), ("none", True), ("zstd", True)])
@pytest.mark.parametrize("columns", GOOD_COLUMNS)
def test_ten_times_the_rows_run_no_more_lines_and_make_no_more_objects(
    counting: ProcessPoolExecutor, columns: str, codec: str, *, fill: bool
) -> None:
    assert_as_much(partial(counting.submit, works_of_append, columns, codec, fill=fill))


@pytest.mark.parametrize(
    ("columns", "on_error"), [("keys", "fail"), *((columns, "skip") for columns in GOOD_COLUMNS)]
)
def test_a_task_does_as_much_about_ten_times_the_rows(
    counting: ProcessPoolExecutor, columns: str, on_error: str
) -> None:
    assert_as_much(partial(counting.submit, works_of_task, columns, {"onError": on_error}))


@pytest.mark.parametrize("on_error", ["skip", "deadLetter"])
def test_a_task_does_as_much_about_ten_times_the_bad_rows(
    counting: ProcessPoolExecutor, on_error: str, tmp_path: Path
) -> None:
    letters = {"deadLetterPath": str(tmp_path)} if on_error == "deadLetter" else {}
    given = {"onError": on_error, **letters}
    assert_as_much(partial(counting.submit, works_of_task, "every other row is bad", given))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_sender_does_as_much_about_ten_times_the_rows(
    counting: ProcessPoolExecutor, codec: str
) -> None:
    assert_as_much(partial(counting.submit, works_of_sender, codec))

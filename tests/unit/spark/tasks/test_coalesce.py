"""Small Arrow batches become larger ones, with the same rows in the same order."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pure.interrupts import interrupted

from spark_kafka_sink.spark.driver.register import LIMIT_BYTES
from spark_kafka_sink.spark.tasks import task
from spark_kafka_sink.spark.tasks.task import append_coalesced

SLICE_BYTES = 8 * 1024 * 1024


def batches_of(sizes: list[int]) -> list[pa.RecordBatch]:
    """Make batches of consecutive numbers, each with a kilobyte of value."""
    made, first = [], 0
    for rows in sizes:
        numbers = pa.array(range(first, first + rows), pa.int64())
        values = pa.array([b"v" * 1024] * rows, pa.binary())
        made.append(pa.record_batch({"number": numbers, "value": values}))
        first += rows
    return made


def coalesced(
    batches: Iterable[pa.RecordBatch], slice_bytes: int = SLICE_BYTES
) -> list[pa.RecordBatch]:
    """Return what is appended of batches that come at once."""
    made: list[pa.RecordBatch] = []
    append_coalesced(batches, lambda batch, _since: made.append(batch), slice_bytes, math.inf)
    return made


@given(st.lists(st.integers(0, 3000), max_size=12))
def test_every_row_stays_in_its_place(sizes: list[int]) -> None:
    joined = coalesced(iter(batches_of(sizes)))
    numbers = [n for batch in joined for n in batch.column("number").to_pylist()]
    assert numbers == list(range(sum(sizes)))
    assert all(batch.num_rows for batch in joined)


def test_all_but_the_last_are_large() -> None:
    joined = coalesced(batches_of([100] * 200))
    assert len(joined) == 3
    assert all(7 / 8 * SLICE_BYTES <= batch.nbytes <= SLICE_BYTES for batch in joined[:-1])


def test_two_batches_of_the_limit_that_register_sets_are_a_large_slice() -> None:
    rows = LIMIT_BYTES // (1024 + 12) + 1
    joined = coalesced(batches_of([rows] * 4), 2 * SLICE_BYTES)
    assert [batch.num_rows for batch in joined] == [2 * rows] * 2


def test_slices_of_a_large_batch_are_small() -> None:
    rows = 10_000
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    lists = pa.array([[{"key": "a", "value": None}]] * rows, headers)
    large = pa.record_batch({"value": pa.array([b"v" * 1024] * rows), "headers": lists})
    assert large.nbytes > SLICE_BYTES
    (joined,) = coalesced(large.slice(number, 10) for number in range(0, 100, 10))
    assert joined.num_rows == 100


def test_a_large_batch_is_passed_on_at_once() -> None:
    large, small = batches_of([10_000, 10])
    happened: list[pa.RecordBatch | str] = []

    def input_of_two() -> Iterator[pa.RecordBatch]:
        for batch in (large, small):
            happened.append("read")
            yield batch

    def append(batch: pa.RecordBatch, _since: float) -> None:
        happened.append(batch)

    append_coalesced(input_of_two(), append, SLICE_BYTES, math.inf)
    assert [each if isinstance(each, str) else each.num_rows for each in happened] == [
        "read", 10_000, "read", 10,
    ]  # fmt: skip
    assert happened[1] is large


def test_half_of_a_large_batch_is_not_copied() -> None:
    few, half, more = batches_of([10, 4096, 10])
    assert half.nbytes < SLICE_BYTES
    joined = coalesced([few, few, half, more, more])
    assert [batch.num_rows for batch in joined] == [20, 4096, 20]
    assert joined[1] is half


@pytest.mark.parametrize("rows", [100, 4096], ids=["joined", "alone"])
def test_nothing_of_what_was_given_is_kept(rows: int) -> None:
    before = pa.total_allocated_bytes()

    def append(batch: pa.RecordBatch, _since: float) -> None:
        assert pa.total_allocated_bytes() - before < 1.1 * batch.nbytes

    given_batches = (batches_of([rows])[0] for _ in range(50))
    append_coalesced(given_batches, append, SLICE_BYTES, math.inf)


def test_slices_are_joined_as_what_they_show() -> None:
    (complete,) = batches_of([100])
    joined = coalesced([complete.slice(10, 5), complete.slice(90), complete.slice(3, 0)])
    assert len(joined) == 1
    assert joined[0].column("number").to_pylist() == [*range(10, 15), *range(90, 100)]


def test_a_row_is_appended_in_time_also_while_the_task_waits_for_the_next_one() -> None:
    """And so is the next one: the input is slow for as long as it lasts."""
    appended = [threading.Event() for _ in range(3)]
    came_at: list[float] = []
    since_when: list[float] = []
    threads: set[int] = set()

    def slow_input() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches_of([10, 20, 30])):
            came_at.append(time.monotonic())
            yield batch
            assert appended[number].wait(60), f"batch {number} waits for the next one"

    def append(batch: pa.RecordBatch, since: float) -> None:
        since_when.append(since)
        threads.add(threading.get_ident())
        assert batch.num_rows == 10 * len(since_when)
        appended[len(since_when) - 1].set()

    append_coalesced(slow_input(), append, SLICE_BYTES, linger_s=0.01)
    assert len(since_when) == 3
    assert threading.get_ident() not in threads
    for since, came, next_came in zip(since_when, came_at, [*came_at[1:], math.inf], strict=True):
        assert came <= since <= next_came, "the rows have waited since then"


@pytest.mark.parametrize(
    ("sizes", "linger_s"),
    [([10_000], math.inf), ([4000, 4000], math.inf), ([10], math.inf), ([10, 10], 0.01)],
    ids=["large", "joined", "last", "lingered"],
)
def test_batches_are_appended_without_a_lock(
    sizes: list[int], linger_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's partitioner is called there."""
    conditions: list[threading.Condition] = []
    was_free: list[bool] = []
    appended = threading.Event()

    class Waiting(task._WaitingBatches):
        def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 - handed on
            super().__init__(*arguments)
            conditions.append(self._changed)

    def take() -> None:
        was_free.append(conditions[0].acquire(timeout=5))
        conditions[0].release()

    def append(_batch: pa.RecordBatch, _since: float) -> None:
        other = threading.Thread(target=take)
        other.start()
        other.join()
        appended.set()

    def slow_input() -> Iterator[pa.RecordBatch]:
        for batch in batches_of(sizes):
            yield batch
            assert linger_s == math.inf or appended.wait(60)

    monkeypatch.setattr(task, "_WaitingBatches", Waiting)
    append_coalesced(slow_input(), append, SLICE_BYTES, linger_s)
    assert was_free
    assert all(was_free)


def test_a_batch_waits_for_the_one_before_that_is_still_being_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    inside: list[int] = []
    most: list[int] = []

    class Waiting(task._WaitingBatches):
        def wait_for_append(self) -> None:
            if has_begun.is_set():
                may_end.set()
            super().wait_for_append()

    def input_of_two() -> Iterator[pa.RecordBatch]:
        small, large = batches_of([10, 10_000])
        yield small
        assert has_begun.wait(60)
        yield large

    def append(batch: pa.RecordBatch, _since: float) -> None:
        inside.append(batch.num_rows)
        most.append(len(inside))
        if has_begun.is_set():
            may_end.set()
        has_begun.set()
        assert threading.current_thread().name != "pykafka-linger" or may_end.wait(60)
        inside.pop()

    monkeypatch.setattr(task, "_WaitingBatches", Waiting)
    append_coalesced(input_of_two(), append, SLICE_BYTES, linger_s=0.01)
    assert most == [1, 1]


def test_the_wait_for_a_slow_append_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The append of the other thread may take long: it calls the user's partitioner."""
    has_begun, may_end, last_may_come = (threading.Event() for _ in range(3))
    since_when: list[float] = []
    ended_at: list[float] = []

    class Waiting(task._WaitingBatches):
        def wait_for_append(self) -> None:
            if has_begun.is_set():
                may_end.set()
            super().wait_for_append()

    def slow_input() -> Iterator[pa.RecordBatch]:
        first, second, large = batches_of([10, 20, 10_000])
        yield first
        assert has_begun.wait(60)
        yield second
        assert last_may_come.wait(60)
        yield large

    def append(_batch: pa.RecordBatch, since: float) -> None:
        since_when.append(since)
        if len(since_when) == 1:
            has_begun.set()
            assert may_end.wait(60)
            ended_at.append(time.monotonic())
        else:
            last_may_come.set()

    monkeypatch.setattr(task, "_WaitingBatches", Waiting)
    append_coalesced(slow_input(), append, SLICE_BYTES, linger_s=0.01)
    assert since_when[1] <= ended_at[0], "the batch came before the append had ended"


def test_an_input_that_ends_while_the_other_thread_appends_ends_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    class Joined(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            may_end.set()
            super().join(timeout)

    monkeypatch.setattr(threading, "Thread", Joined)

    def input_of_one() -> Iterator[pa.RecordBatch]:
        yield batches_of([10])[0]
        assert has_begun.wait(60)

    def append(_batch: pa.RecordBatch, _since: float) -> None:
        has_begun.set()
        assert may_end.wait(60)

    append_coalesced(input_of_one(), append, SLICE_BYTES, linger_s=0.01)
    assert "pykafka-linger" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("rows", [10, 10_000], ids=["small", "large"])
def test_a_task_settles_again_and_again_while_it_waits_for_the_next_batch(rows: int) -> None:
    settled = threading.Semaphore(0)
    appended: list[int] = []

    def slow_input() -> Iterator[pa.RecordBatch]:
        yield batches_of([rows])[0]
        for _ in range(4):
            assert settled.acquire(timeout=60), "nothing is settled before the next batch"

    append_coalesced(
        slow_input(),
        lambda batch, _since: appended.append(batch.num_rows),
        SLICE_BYTES,
        linger_s=0.01,
        settle=settled.release,
    )
    assert appended == [rows]
    assert "pykafka-linger" not in {thread.name for thread in threading.enumerate()}


def test_nothing_is_settled_during_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second batch's: the other thread runs since the first one."""
    looked = threading.Semaphore(0)
    appended: list[int] = []
    inside: list[int] = []
    during: list[int] = []

    class Waiting(task._WaitingBatches):
        def _left_s(self) -> float:
            if inside and threading.current_thread().name == "pykafka-linger":
                looked.release()
            return super()._left_s()

    def append(batch: pa.RecordBatch, _since: float) -> None:
        appended.append(batch.num_rows)
        inside.append(batch.num_rows)
        for _ in range(5 if len(appended) == 2 else 0):
            assert looked.acquire(timeout=60)
        inside.clear()

    monkeypatch.setattr(task, "_WaitingBatches", Waiting)
    append_coalesced(
        batches_of([10_000, 10_000]), append, SLICE_BYTES, 0.01, lambda: during.extend(inside)
    )
    assert appended == [10_000, 10_000]
    assert during == []


def test_what_settling_raises_while_the_task_waits_fails_the_task() -> None:
    raised = threading.Event()

    def slow_input() -> Iterator[pa.RecordBatch]:
        yield batches_of([10])[0]
        assert raised.wait(60)

    def settle() -> None:
        raised.set()
        raise ValueError("refused for good")

    with pytest.raises(ValueError, match="refused for good"):
        append_coalesced(slow_input(), lambda *_: None, SLICE_BYTES, 0.01, settle)


def test_without_linger_every_batch_is_appended_by_itself() -> None:
    made: list[pa.RecordBatch] = []
    append_coalesced(
        batches_of([1, 2, 3]), lambda batch, _since: made.append(batch), SLICE_BYTES, 0.0
    )
    assert [batch.num_rows for batch in made] == [1, 2, 3]


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_what_is_raised_while_the_task_waits_fails_the_task(kind: type[BaseException]) -> None:
    raised = threading.Event()
    taken: list[int] = []

    def slow_input() -> Iterator[pa.RecordBatch]:
        first, *others = batches_of([10, 20, 30])
        yield first
        assert raised.wait(60)
        for batch in others:
            taken.append(batch.num_rows)
            yield batch

    def append(_batch: pa.RecordBatch, _since: float) -> None:
        raised.set()
        raise kind("of the other thread")

    with pytest.raises(kind, match="of the other thread"):
        append_coalesced(slow_input(), append, SLICE_BYTES, linger_s=0.01)
    assert taken == [20], "the task went on"
    assert "pykafka-linger" not in {thread.name for thread in threading.enumerate()}


def test_an_input_that_breaks_ends_the_other_thread_and_appends_no_more() -> None:
    def broken_input() -> Iterator[pa.RecordBatch]:
        yield batches_of([10])[0]
        raise RuntimeError("the input is broken")

    made: list[pa.RecordBatch] = []
    with pytest.raises(RuntimeError, match="the input is broken"):
        append_coalesced(
            broken_input(), lambda batch, _since: made.append(batch), SLICE_BYTES, math.inf
        )
    assert made == []
    assert "pykafka-linger" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("settle", [None, lambda: None], ids=["fail", "skip"])
@pytest.mark.parametrize("linger_s", [0.0, 0.001, math.inf])
def test_a_task_ends_and_appends_no_more_wherever_it_was_interrupted(
    linger_s: float, settle: Callable[[], object] | None
) -> None:
    def call() -> None:
        batches = batches_of([10, 20, 10_000, 30])
        append_coalesced(batches, append, SLICE_BYTES, linger_s, settle)

    def append(batch: pa.RecordBatch, _since: float) -> None:
        made.append(batch.num_rows)

    def run() -> None:
        # An interrupt inside `Thread.start` may become an exception of the lock that it holds.
        with suppress(RuntimeError):
            where.append(interrupted(call, moment))

    for moment in count(1):
        made: list[int] = []
        where: list[str | None] = []
        task_thread = threading.Thread(target=run, daemon=True)
        task_thread.start()
        task_thread.join(60)
        assert not task_thread.is_alive(), f"moment {moment} hangs"
        if where == [None]:
            assert sum(made) == 10_060
            break
        before = len(made)
        time.sleep(0.002)
        assert len(made) == before, where
    assert moment > 20
    # Other tests look for threads of this name. These wait for ever, and do nothing any more.
    for thread in threading.enumerate():
        if thread.name == "pykafka-linger":
            thread.name = "interrupted"


def test_empty_lists_of_lists_as_spark_4_0_and_4_1_send_them_are_joined() -> None:
    # The lists inside have a buffer for offsets, but no offset. With them, nbytes crashes.
    nothing = pa.allocate_buffer(0)
    inner, kind = pa.list_(pa.string()), pa.list_(pa.list_(pa.string()))
    texts = pa.Array.from_buffers(pa.string(), 0, [None, nothing, nothing])
    inside = pa.Array.from_buffers(inner, 0, [None, nothing], children=[texts])
    lists = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(bytes(12))], children=[inside])
    batch = pa.record_batch({"value": ["a", "b"], "lists": lists})
    (joined,) = coalesced([batch, batch])
    assert joined.to_pydict() == {"value": ["a", "b"] * 2, "lists": [[]] * 4}

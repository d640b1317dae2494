"""The credit of buffer.memory: who gets it, in which order, and when batches have to make room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.producer.buffer_pool import BufferPool, PendingAppend


def test_who_waits_first_is_served_first_though_there_is_room_for_another() -> None:
    pool, first, second = BufferPool(100), PendingAppend(), PendingAppend()
    taken = PendingAppend()
    assert pool.reserve(taken, 50)
    assert not pool.reserve(first, 80)
    pool.wait(first)
    assert not pool.reserve(second, 10)
    pool.wait(second)
    assert (pool.waiters, pool.available_bytes) == (2, 50)
    pool.give_back(taken)
    assert pool.reserve(first, 80)
    assert not pool.reserve(second, 10), "the first one still stands in the queue"
    pool.stop_waiting(first)
    assert pool.reserve(second, 10)
    pool.stop_waiting(second)
    assert (pool.waiters, pool.available_bytes) == (0, 10)


def test_what_is_given_back_twice_is_counted_once() -> None:
    pool, reservation = BufferPool(100), PendingAppend()
    assert pool.reserve(reservation, 70)
    pool.give_back(reservation)
    pool.give_back(reservation)
    pool.stop_waiting(reservation)
    assert (pool.available_bytes, reservation.size_bytes) == (100, 0)


def test_room_is_a_quarter_of_memory_or_what_was_asked_for_last() -> None:
    pool = BufferPool(1000)
    pool.charge(760, 0)
    assert pool.is_short
    pool.draining_bytes = 10
    assert not pool.is_short, "what is on its way to be free is no longer in the way"
    assert not pool.reserve(PendingAppend(), 500)
    assert (pool.room_bytes, pool.is_short) == (500, True)
    assert pool.reserve(PendingAppend(), 10)
    assert pool.room_bytes == 250


@given(st.lists(st.integers(1, 150), min_size=1, max_size=8))
def test_everything_that_was_taken_comes_back(sizes: list[int]) -> None:
    pool = BufferPool(100)
    reservations = [PendingAppend() for _ in sizes]
    granted = [pool.reserve(each, size) for each, size in zip(reservations, sizes, strict=True)]
    held = [each.size_bytes for each in reservations]
    assert held == [size if took else 0 for size, took in zip(sizes, granted, strict=True)]
    assert pool.available_bytes == 100 - sum(held)
    assert granted[0], "with everything free, as much as is asked for"
    for each in reservations:
        pool.give_back(each)
    assert pool.available_bytes == pool.total_bytes

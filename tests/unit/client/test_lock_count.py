"""An append without waits takes the producer's lock three times per slice."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest
from support.pure.pure_transactions import PureTransactions
from support.pure.timed_waits import made, stop_time, update_metadata
from support.pure.transaction_answers import COORDINATOR, versions_of
from support.pure.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer

# Slices are at most a quarter of the memory.
MEMORY_BYTES = 400_000
SLICE_BYTES = MEMORY_BYTES // 4


class CountingLock:
    """A lock that counts how often it is taken by who does not have it yet."""

    def __init__(self, lock: Any) -> None:  # noqa: ANN401 - an RLock, which has no type
        self._lock = lock
        self._depth = 0
        self.count = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.count += not self._depth
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        self._lock.release()


def counted(producer: KafkaProducer, rows: pa.RecordBatch) -> int:
    """Append rows; return how often that takes the lock."""
    state = producer._state
    lock = CountingLock(state.lock)
    state.lock = lock  # type: ignore[assignment] # a double
    producer.append(TOPIC, rows)
    state.lock = lock._lock
    return lock.count


@pytest.mark.parametrize(
    ("columns", "slices", "config", "count"),
    [
        ({"value": ["v" * 100] * 10}, 1, {}, 3),
        ({"value": ["v" * 100] * 10, "key": ["k"] * 10}, 1, {}, 3),
        ({"value": ["v" * 1000] * 150}, 2, {}, 6),
        # Batches become full in the first; then they are larger, since rows compress well.
        ({"value": ["v" * 1000] * 150}, 2, {"compression_type": "lz4"}, 7),
    ],
)
def test_a_slice_that_waits_for_nothing_takes_the_lock_three_times(
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, list[str]],
    slices: int,
    config: dict[str, object],
    count: int,
) -> None:
    rows = pa.record_batch(columns)
    clock = stop_time(monkeypatch)
    assert rows.nbytes > (slices - 1) * SLICE_BYTES
    with made(buffer_memory=MEMORY_BYTES, **config) as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        update_metadata(producer, answer([1, 1]))
        assert counted(producer, rows) == count


def test_an_append_in_a_transaction_says_that_it_begins_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = stop_time(monkeypatch)
    with made(transactional_id="tid", buffer_memory=MEMORY_BYTES) as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        update_metadata(producer, answer([1]))
        transactions = PureTransactions()
        assert producer._state.transactions is not None
        transactions.manager = producer._state.transactions
        transactions.manager.queue.coordinators.node_ready(COORDINATOR, versions_of(2))
        transactions.writing()
        assert counted(producer, pa.record_batch({"value": ["v"]})) == 5

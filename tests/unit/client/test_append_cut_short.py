"""An Arrow batch whose transaction another thread ends while only a part of it is appended.

Time passes only in waits, and there is no I/O thread; see `support.pure.timed_waits`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from support.pure.pure_transactions import PureTransactions
from support.pure.timed_waits import made, stop_time, update_metadata
from support.pure.transaction_answers import COORDINATOR, versions_of
from support.pure.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import appender
from spark_kafka_sink.errors import IllegalStateException, KafkaException, TimeoutException
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.error_actions import Call
from spark_kafka_sink.producer.partitioner import TopicLoad
from spark_kafka_sink.producer.transactions.state import TransactionState

MEMORY_BYTES = 100_000
# Two slices, of 16 and of 14 rows: none has more than a quarter of the memory.
ROWS = pa.record_batch({"value": ["x" * 1_000] * 30})


class Bench:
    """A producer in a transaction, whose coordinator is the test."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        self.transactions = PureTransactions()
        assert producer._state.transactions is not None
        self.transactions.manager = producer._state.transactions
        self.transactions.manager.queue.coordinators.node_ready(COORDINATOR, versions_of(2))
        self.transactions.writing()

    def run(self) -> list[Call]:
        """Answer what goes out now that all that is in batches is acknowledged."""
        return [request.call for request in self.transactions.run()]

    def begin(self, end: Callable[[KafkaProducer], None]) -> None:
        """Begin to end the transaction, as another thread that waits for the end."""
        with pytest.raises(TimeoutException):
            end(self.producer)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The producer, whose calls do not wait for their ends."""
    clock = stop_time(monkeypatch)
    with made(transactional_id="tid", buffer_memory=MEMORY_BYTES, max_block_ms=0) as producer:
        with producer._state.lock:
            producer._state.metadata.track(TOPIC, clock.now)
        update_metadata(producer, answer([1]))
        yield Bench(producer)


@contextmanager
def before_slice(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, number: int, happen: Callable[[], None]
) -> Iterator[None]:
    """Call a function before the slice of the given number reserves memory."""
    caller = bench.producer._caller
    reserve, slices = caller.reserve, [0]

    def reserve_later(*arguments: Any) -> dict[str, TopicLoad]:  # noqa: ANN401 - handed on
        slices[0] += 1
        if slices[0] == number:
            happen()
        return reserve(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(caller, "reserve", reserve_later)
        yield
    assert slices == [number]


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_commit_that_comes_between_two_slices_fails(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, *, acknowledged: bool
) -> None:
    def commit() -> None:
        bench.begin(KafkaProducer.commit_transaction)
        if acknowledged:
            assert bench.run() == []

    with (
        before_slice(monkeypatch, bench, 2, commit),
        pytest.raises(IllegalStateException, match="commit_transaction is under way"),
    ):
        bench.producer.append(TOPIC, ROWS)
    assert bench.run() == []
    with pytest.raises(KafkaException, match="append failed after 16 of 30 rows") as failed:
        bench.producer.commit_transaction()
    assert not isinstance(failed.value, IllegalStateException)
    bench.begin(KafkaProducer.abort_transaction)
    assert bench.run() == [Call.ABORT]


def test_a_transaction_that_has_a_part_of_what_was_interrupted_can_only_be_aborted(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with before_slice(monkeypatch, bench, 2, interrupt), pytest.raises(KeyboardInterrupt):
        bench.producer.append(TOPIC, ROWS)
    message = "append failed after 16 of 30 rows of an Arrow batch: KeyboardInterrupt"
    with pytest.raises(KafkaException, match=message):
        bench.producer.commit_transaction()
    bench.begin(KafkaProducer.abort_transaction)
    assert bench.run() == [Call.ABORT]


@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(0, 16)])
def test_rows_that_were_put_into_batches_before_an_interrupt_count_as_appended(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, rows: pa.RecordBatch
) -> None:
    state, interrupts = bench.producer._state, [KeyboardInterrupt]
    let_go = state.let_go

    def let_go_later(pending: PendingAppend) -> None:
        if pending.is_in_batches and interrupts:
            raise interrupts.pop()
        let_go(pending)

    monkeypatch.setattr(state, "let_go", let_go_later)
    with pytest.raises(KeyboardInterrupt):
        bench.producer.append(TOPIC, rows)
    message = f"append failed after 16 of {len(rows)} rows of an Arrow batch: KeyboardInterrupt"
    with pytest.raises(KafkaException, match=message):
        bench.producer.commit_transaction()
    bench.begin(KafkaProducer.abort_transaction)
    assert bench.run() == [Call.ABORT]


def test_an_abort_that_comes_between_two_slices_waits_so_that_no_other_transaction_gets_the_rest(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    def abort() -> None:
        bench.begin(KafkaProducer.abort_transaction)
        assert bench.run() == []

    with (
        before_slice(monkeypatch, bench, 2, abort),
        pytest.raises(IllegalStateException, match="abort_transaction is under way"),
    ):
        bench.producer.append(TOPIC, ROWS)
    assert bench.run() == [Call.ABORT]
    bench.producer.abort_transaction()
    assert bench.transactions.state is TransactionState.READY


def test_a_commit_that_comes_before_the_first_slice_is_not_the_batch_s(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    with (
        before_slice(monkeypatch, bench, 1, lambda: bench.begin(KafkaProducer.commit_transaction)),
        pytest.raises(IllegalStateException, match="commit_transaction is under way"),
    ):
        bench.producer.append(TOPIC, ROWS)
    assert bench.run() == [Call.COMMIT]
    bench.producer.commit_transaction()


def test_a_table_of_which_a_part_was_appended_spoils_its_transaction(bench: Bench) -> None:
    good, bad = pa.record_batch({"value": ["x"] * 3}), pa.record_batch({"value": [5] * 2})
    bench.producer.append(TOPIC, pa.Table.from_batches([good]))
    with pytest.raises(KafkaException, match=r"value attribute unsupported type int64"):
        bench.producer.append(TOPIC, pa.Table.from_batches([bad]))
    too_large = pa.record_batch({"value": ["x" * MEMORY_BYTES]})
    with pytest.raises(KafkaException, match=r"the first 3 of the table's 4 rows were appended"):
        bench.producer.append(TOPIC, pa.Table.from_batches([good, too_large]))
    with pytest.raises(KafkaException, match="append failed after 3 of 4 rows of an Arrow table"):
        bench.producer.commit_transaction()


def test_a_table_whose_batch_fails_in_its_second_slice_spoils_one_transaction(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    state = bench.producer._state
    end_append, ends = state.end_append, count()

    def end_append_and_transaction(append: object) -> None:
        end_append(append)
        if next(ends):
            return
        bench.begin(KafkaProducer.abort_transaction)
        assert bench.run() == [Call.ABORT]
        bench.producer.abort_transaction()
        bench.producer.begin_transaction()

    def fail() -> None:
        monkeypatch.setattr(state, "end_append", end_append_and_transaction)
        message = "no memory"
        raise KafkaException(message)

    with (
        before_slice(monkeypatch, bench, 2, fail),
        pytest.raises(KafkaException, match="no memory"),
    ):
        bench.producer.append(TOPIC, pa.Table.from_batches([ROWS]))
    bench.begin(KafkaProducer.commit_transaction)
    assert bench.run() == []
    bench.producer.commit_transaction()


def test_a_second_interrupt_lets_no_part_of_an_append_be_committed(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    """It comes at the entry of the first function that is called after the first interrupt."""
    begun: list[str] = []

    def interrupt_again(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not begun and frame.f_globals["__name__"] == appender.__name__:
            begun.append(frame.f_code.co_name)
            raise KeyboardInterrupt

    def interrupt() -> None:
        sys.settrace(interrupt_again)
        raise KeyboardInterrupt

    before = sys.gettrace()
    try:
        with before_slice(monkeypatch, bench, 2, interrupt), pytest.raises(KeyboardInterrupt):
            bench.producer.append(TOPIC, ROWS)
    finally:
        sys.settrace(before)
    assert begun == ["_spoil_transaction"]
    with bench.producer._state.lock:
        bench.producer._state._clean_up_for_good()
    with pytest.raises(KafkaException, match="append failed after 16 of 30 rows"):
        bench.producer.commit_transaction()


def as_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def as_second_batch_of_a_table(rows: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([rows.slice(0, 3), rows])


ENDS = pytest.mark.parametrize(
    ("made_of", "slices", "appended"),
    [
        (as_batch, 1, "16 of the batch's 30 rows"),
        (as_second_batch_of_a_table, 2, "19 of the table's 33 rows"),
    ],
)


@ENDS
def test_an_error_says_how_many_rows_were_appended_before_it(
    monkeypatch: pytest.MonkeyPatch,
    bench: Bench,
    made_of: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table],
    slices: int,
    appended: str,
) -> None:
    def fail() -> None:
        message = "no memory"
        raise KafkaException(message)

    said = f"^no memory; the first {appended} were appended$"
    with (
        before_slice(monkeypatch, bench, slices + 1, fail),
        pytest.raises(KafkaException, match=said),
    ):
        bench.producer.append(TOPIC, made_of(ROWS))
    in_batches = bench.producer._state.accumulator.undelivered()
    assert in_batches == {TOPIC: int(appended.split(maxsplit=1)[0])}


@ENDS
def test_so_does_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
    bench: Bench,
    made_of: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table],
    slices: int,
    appended: str,
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with (
        before_slice(monkeypatch, bench, slices + 1, interrupt),
        pytest.raises(KeyboardInterrupt) as raised,
    ):
        bench.producer.append(TOPIC, made_of(ROWS))
    assert raised.value.__notes__ == [f"the first {appended} were appended"]


def test_so_does_an_exception_of_the_users_partitioner() -> None:
    calls = count()

    def choose(_topic: object, batch: pa.RecordBatch, *_: object) -> list[int]:
        if next(calls):
            sys.exit("enough")
        return [0] * batch.num_rows

    with made(partitioner_class=choose) as producer:
        with producer._state.lock:
            producer._state.metadata.track(TOPIC, time.monotonic())
        update_metadata(producer, answer([1]))
        batches = [pa.record_batch({"value": ["v"] * rows}) for rows in (3, 4)]
        with pytest.raises(SystemExit, match="enough") as raised:
            producer.append(TOPIC, pa.Table.from_batches(batches))
    assert "the first 3 of the table's 7 rows were appended" in raised.value.__notes__

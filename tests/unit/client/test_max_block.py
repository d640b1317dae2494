"""The waits of a call share its time limit exactly: max.block.ms, or the timeout of `close`.

Time passes only in waits, and there is no I/O thread; see `support.pure.timed_waits`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
from support.pure.pure_transactions import PARTITION, PureTransactions
from support.pure.timed_waits import (
    Clock,
    in_transaction,
    made,
    press_ctrl_c,
    stop_time,
    stop_time_and_thread,
    update_metadata,
)
from support.pure.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.client import unclosed
from spark_kafka_sink.client.chunk import SMALLEST_CHUNK_BYTES
from spark_kafka_sink.errors import (
    BufferExhaustedException,
    IllegalArgumentException,
    KafkaException,
    TimeoutException,
    TransactionAbortableException,
    TransactionAbortedException,
    UnknownTopicOrPartitionException,
)
from spark_kafka_sink.plugins.interceptors import ProducerInterceptor
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.transactions.state import TransactionState
from spark_kafka_sink.wire.messages import MetadataResponse, MetadataResponseTopic

MAX_BLOCK_S = 1.0
LONGEST_MS = 2**63 - 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the producer goes by."""
    return stop_time(monkeypatch)


@pytest.fixture
def producer(clock: Clock) -> Iterator[KafkaProducer]:
    """A producer that knows nothing and has no memory left."""
    with made(max_block_ms=MAX_BLOCK_S * 1000) as producer:
        producer._state.accumulator.pool.available_bytes = 0
        yield producer


def give(producer: KafkaProducer, partition: int | None, *, by_row: bool) -> KafkaException | None:
    """Pass a row to the producer; return the error if it does not accept it."""
    if by_row:
        sent = producer.send(TOPIC, b"v", partition=partition)
        error = sent.exception(0) if sent.done() else None
        assert error is None or isinstance(error, KafkaException)
        return error
    columns: dict[str, object] = {"value": ["v"]}
    if partition is not None:
        columns["partition"] = pa.array([partition], pa.int32())
    try:
        producer.append(TOPIC, pa.record_batch(columns))
    except KafkaException as error:
        return error
    return None


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize(
    ("known_after", "grown_after", "free_after", "ends_after", "error"),
    [
        (0.6, None, 0.9, 0.9, None),
        (0.6, None, 1.2, MAX_BLOCK_S, BufferExhaustedException),
        (0.6, None, None, MAX_BLOCK_S, BufferExhaustedException),
        (1.2, None, 0.1, MAX_BLOCK_S, TimeoutException),
        (None, None, None, MAX_BLOCK_S, TimeoutException),
        # The row is for a partition that is added while it waits.
        (0.3, 0.6, 0.9, 0.9, None),
        (0.3, 0.6, 1.2, MAX_BLOCK_S, BufferExhaustedException),
        (0.3, 1.2, 0.1, MAX_BLOCK_S, TimeoutException),
    ],
)
def test_metadata_more_partitions_and_memory_come_within_one_max_block_ms_or_not_at_all(
    clock: Clock,
    producer: KafkaProducer,
    known_after: float | None,
    grown_after: float | None,
    free_after: float | None,
    ends_after: float,
    error: type[KafkaException] | None,
    *,
    by_row: bool,
) -> None:
    def free() -> None:
        everything = producer._state.accumulator.pool.total_bytes
        producer._state.give_back(PendingAppend(everything))

    def know(*leaders: int) -> Callable[[], None]:
        return lambda: update_metadata(producer, answer([*leaders]))

    began_at = clock.now
    clock.after(known_after, know(1))
    clock.after(grown_after, know(1, 1))
    clock.after(free_after, free)
    found = give(producer, None if grown_after is None else 1, by_row=by_row)
    assert type(found) is (type(None) if error is None else error), found
    assert clock.now - began_at == pytest.approx(ends_after)


@pytest.mark.parametrize("by_row", [True, False])
def test_who_waits_for_metadata_asks_again_when_another_thread_forgets_topics(
    clock: Clock, *, by_row: bool
) -> None:
    with made(max_block_ms=MAX_BLOCK_S * 1000) as producer:
        metadata = producer._state.metadata
        # Somebody answers in the end, if the topic is asked for.
        clock.after(0.3, producer._state.forget_topics)
        clock.after(
            0.6, lambda: update_metadata(producer, answer([1])) if metadata._topics else None
        )
        assert give(producer, None, by_row=by_row) is None


def test_max_block_ms_may_be_as_long_as_a_number_can_be(clock: Clock) -> None:
    with made(max_block_ms=LONGEST_MS, transactional_id="tid") as producer:
        transactions = in_transaction(producer)
        transactions.finish(transactions.manager.begin_abort())
        clock.after(5.0, lambda: update_metadata(producer, answer([1])))
        assert producer.partitions_for(TOPIC) == 1
        transactions.manager.begin()
        transactions.manager.may_send(PARTITION)

        def finish() -> None:
            transactions.run()
            producer._state.notify()

        clock.after(5.0, finish)
        producer.commit_transaction()
        assert transactions.state is TransactionState.READY


def test_a_wait_for_metadata_that_was_too_long_has_what_brokers_said_as_its_cause(
    clock: Clock, producer: KafkaProducer
) -> None:
    unknown = MetadataResponseTopic(
        error_code=codes.UNKNOWN_TOPIC_OR_PARTITION, name=TOPIC, partitions=[]
    )
    said = MetadataResponse(brokers=answer([1]).brokers, topics=[unknown])
    clock.after(0.5, lambda: update_metadata(producer, said))
    for by_row in (True, False):
        error = give(producer, None, by_row=by_row)
        assert isinstance(error, TimeoutException)
        assert isinstance(error.__cause__, UnknownTopicOrPartitionException)
        assert str(error.__cause__) in str(error)


def test_closing_with_an_open_transaction_takes_as_long_as_it_is_told(clock: Clock) -> None:
    with made(transactional_id="tid") as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        producer._state.metadata.update(answer([1]), clock.now)
        in_transaction(producer)
        sent = producer.send(TOPIC, b"v")
        producer._feeder.drain()
        began_at = clock.now
        with pytest.raises(TimeoutException, match=r"not acknowledged in 3\.0 s"):
            producer.close(3.0)
        assert clock.now - began_at == pytest.approx(3.0)
        producer._thread._end()
        assert sent.done()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of producers whose I/O threads do not end."""
    return stop_time_and_thread(monkeypatch)


@contextmanager
def in_vain(clock: Clock, *, in_a_transaction: bool, **given: int) -> Iterator[KafkaProducer]:
    """Yield a producer with a row that no broker acknowledges."""
    with made(**({"transactional_id": "tid"} if in_a_transaction else {}), **given) as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        producer._state.metadata.update(answer([1]), clock.now)
        if in_a_transaction:
            in_transaction(producer)
        producer.send(TOPIC, b"v")
        if in_a_transaction:
            producer._feeder.drain()  # the I/O thread has to drop what is in a batch
        yield producer


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_ctrl_c_in_a_with_block_takes_five_seconds_at_most(
    stuck: Clock,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    *,
    in_a_transaction: bool,
) -> None:
    began_at = stuck.now

    def interrupt(producer: KafkaProducer) -> None:
        with producer:
            raise KeyboardInterrupt

    with in_vain(stuck, in_a_transaction=in_a_transaction) as producer:
        with pytest.raises(KeyboardInterrupt):
            interrupt(producer)
        assert stuck.now == began_at + 5.0
        assert "after KeyboardInterrupt: 1 record(s) (t: 1) were not delivered" in caplog.text
        # The end of the program says nothing more of it.
        unclosed._close_at_exit()
        assert stuck.now == began_at + 5.0
        assert capsys.readouterr().err == ""


def enter_and_exit(producer: KafkaProducer) -> None:
    with producer:
        pass


def fail_batches(producer: KafkaProducer) -> None:
    """Fail all batches, as the I/O thread does with those that have expired."""
    state = producer._state
    for batch in state.accumulator.incomplete:
        state._completion.abandon(batch, TimeoutException("delivery.timeout.ms has passed"))
    state._collect()
    state.notify()


@pytest.mark.parametrize("close", [KafkaProducer.close, enter_and_exit])
@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_ctrl_c_while_a_producer_closes_leaves_five_seconds_and_says_what_is_lost(
    stuck: Clock,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    close: Callable[[KafkaProducer], None],
    *,
    in_a_transaction: bool,
) -> None:
    began_at = stuck.now
    with in_vain(stuck, in_a_transaction=in_a_transaction) as producer:
        stuck.after(1.0, press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            close(producer)
        assert stuck.now == began_at + 1.0 + 5.0
        lost = "was closed after KeyboardInterrupt: 1 record(s) (t: 1) were not delivered"
        assert caplog.text.count(lost) == 1
        unclosed._close_at_exit()
        assert stuck.now == began_at + 1.0 + 5.0
        assert capsys.readouterr().err == ""


def test_ctrl_c_while_a_producer_closes_adds_nothing_to_its_time_limit_for_deliveries(
    stuck: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    began_at = stuck.now
    with in_vain(stuck, in_a_transaction=False) as producer:
        stuck.after(1.0, press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            producer.close(2.0)
        # The last second is for callbacks.
        assert stuck.now == began_at + 2.0 + 1.0
        assert "not acknowledged in 1.0 s" in caplog.text


class ExitingInterceptor(ProducerInterceptor):
    """Its close raises SystemExit."""

    def close(self) -> None:
        """Raise SystemExit."""
        raise SystemExit


def test_a_close_that_times_out_and_whose_interceptor_exits_logs_the_lost_rows(
    stuck: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with made(interceptor_classes=[ExitingInterceptor()]) as producer:
        producer._state.metadata.track(TOPIC, stuck.now)
        producer._state.metadata.update(answer([1]), stuck.now)
        producer.send(TOPIC, b"v")
        producer.append(TOPIC, pa.record_batch({"value": ["v"] * 3}))
        with pytest.raises(SystemExit) as exited:
            producer.close(2.0)
        # SystemExit must reach the caller, so the TimeoutException can only be its context.
        assert isinstance(exited.value.__context__, TimeoutException)
        assert "after SystemExit: 4 record(s) (t: 4) were not delivered" in caplog.text


def test_a_second_ctrl_c_ends_the_wait_for_deliveries_and_says_what_is_lost(
    stuck: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with in_vain(stuck, in_a_transaction=False) as producer:
        sent = producer.send(TOPIC, b"w")
        for after_s in (1.0, 2.0):
            stuck.after(after_s, press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
        assert "after KeyboardInterrupt: 2 record(s) (t: 2) were not delivered" in caplog.text
        producer._thread._end()
        assert "closed forcefully" in str(sent.exception())


@pytest.mark.parametrize("ctrl_c_after_s", [None, 1.0])
def test_rows_that_fail_while_a_program_ends_or_after_ctrl_c_are_counted(
    stuck: Clock,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    ctrl_c_after_s: float | None,
) -> None:
    with in_vain(stuck, in_a_transaction=False) as producer:
        producer.append(TOPIC, pa.record_batch({"value": ["v"] * 3}))
        stuck.after(ctrl_c_after_s, press_ctrl_c)
        stuck.after(2.0, lambda: fail_batches(producer))
        if ctrl_c_after_s is None:
            unclosed._close_at_exit()
        else:
            with pytest.raises(KeyboardInterrupt):
                producer.close()
        said = caplog.text + capsys.readouterr().err
        assert said.count("4 record(s) (t: 4) were not delivered") == 1


def test_rows_that_failed_before_are_counted_unless_a_future_or_a_call_has_told_so(
    stuck: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_vain(stuck, in_a_transaction=False) as producer:
        rows = pa.record_batch({"value": ["v"] * 3})
        producer.append(TOPIC, rows)
        producer._feeder.drain()
        fail_batches(producer)
        with pytest.raises(TimeoutException):
            producer.append(TOPIC, rows)
        producer.append(TOPIC, rows)
        fail_batches(producer)
        unclosed._close_at_exit()
        assert "ended: 3 record(s) (t: 3) were not delivered; Time" in capsys.readouterr().err


def test_the_end_of_a_program_takes_five_seconds_at_most_for_all_its_producers(
    stuck: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    began_at = stuck.now
    with ExitStack() as stack:
        for in_a_transaction in (False, True, False):
            stack.enter_context(in_vain(stuck, in_a_transaction=in_a_transaction))
        unclosed._close_at_exit()
        assert stuck.now == began_at + 5.0
    assert capsys.readouterr().err.count("1 record(s) (t: 1) were not delivered") == 3


def end_of_a_program_s(clock: Clock, *delivery_timeouts_ms: int, is_garbage: bool = False) -> float:
    """Return how many seconds the end of a program takes with producers that deliver nothing."""
    began_at = clock.now
    with ExitStack() as stack:
        for timeout_ms in delivery_timeouts_ms:
            times = {"delivery_timeout_ms": timeout_ms, "request_timeout_ms": 1, "linger_ms": 0}
            producer = stack.enter_context(in_vain(clock, in_a_transaction=False, **times))
            if is_garbage:
                close = unclosed._unclosed[producer._thread]
                unclosed._unclosed[producer._thread] = (*close[:2], lambda: None, close[3])  # type: ignore[assignment] # as a dead reference
        unclosed._close_at_exit()
        return clock.now - began_at


@pytest.mark.parametrize("is_garbage", [False, True])
@pytest.mark.parametrize(
    ("delivery_timeouts_ms", "takes_s"),
    [([500], 0.5), ([2000], 2.0), ([2000, 2000], 2.0), ([2000, 4500, 9000], 5.0)],
)
def test_the_end_of_a_program_takes_no_longer_than_delivery_timeout_ms(
    stuck: Clock, delivery_timeouts_ms: list[int], takes_s: float, *, is_garbage: bool
) -> None:
    # The callbacks, which do not return here, are included.
    found_s = end_of_a_program_s(stuck, *delivery_timeouts_ms, is_garbage=is_garbage)
    assert found_s == pytest.approx(takes_s)


def test_ctrl_c_leaves_no_more_than_delivery_timeout_ms(stuck: Clock) -> None:
    began_at = stuck.now
    times = {"delivery_timeout_ms": 2000, "request_timeout_ms": 1}
    with in_vain(stuck, in_a_transaction=False, **times) as producer:
        stuck.after(1.0, press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
        assert stuck.now - began_at == pytest.approx(1.0 + 2.0)


def commit_in_vain(producer: KafkaProducer, clock: Clock) -> PureTransactions:
    """Commit with a batch that gets no response, until the call times out."""
    producer._state.metadata.track(TOPIC, clock.now)
    producer._state.metadata.update(answer([1]), clock.now)
    transactions = in_transaction(producer)
    producer.append(TOPIC, pa.record_batch({"value": ["v"]}))
    with pytest.raises(TimeoutException, match="commit_transaction was not done"):
        producer.commit_transaction()
    return transactions


def lose_the_batch(producer: KafkaProducer, transactions: PureTransactions) -> None:
    """Fail the batch that the commit waits for, and answer all later requests."""
    fail_batches(producer)
    transactions.run()
    producer._state.notify()


def test_closing_aborts_the_transaction_of_a_commit_that_timed_out_and_failed(
    clock: Clock,
) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions = commit_in_vain(producer, clock)

        def answer_all() -> None:
            transactions.run()
            producer._state.notify()

        began_at = clock.now
        lose_the_batch(producer, transactions)
        clock.after(1.0, answer_all)
        with pytest.raises(TransactionAbortableException, match=r"delivery\.timeout\.ms has pas"):
            producer.close()
        assert clock.now - began_at == pytest.approx(1.0)
        assert transactions.coordinator.ended == [False]


def test_rows_of_a_transaction_that_closing_aborts_are_not_counted_as_lost(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def raise_in_a_block(producer: KafkaProducer) -> None:
        with producer:
            raise ZeroDivisionError

    with made(transactional_id="tid") as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        producer._state.metadata.update(answer([1]), clock.now)
        transactions = in_transaction(producer)
        producer.send(TOPIC, b"v")
        producer.append(TOPIC, pa.record_batch({"value": ["w"]}))
        clock.after(0.5, lambda: lose_the_batch(producer, transactions))
        clock.after(0.6, producer._state.make_calls)
        with pytest.raises(ZeroDivisionError):
            raise_in_a_block(producer)
        assert transactions.coordinator.ended == [False]
        assert "not delivered" not in caplog.text


class Partitioner:
    """Does not return before the test says so."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, _: str, batch: pa.RecordBatch, __: int) -> list[int]:
        """Choose partition 0."""
        self.reached.set()
        assert self.opened.wait(20)
        return [0] * batch.num_rows


def test_the_time_of_a_partitioner_is_no_wait_for_memory(clock: Clock) -> None:
    def slow(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
        clock.now += MAX_BLOCK_S + 0.3
        return [0] * batch.num_rows

    with made(partitioner_class=slow, max_block_ms=MAX_BLOCK_S * 1000) as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        update_metadata(producer, answer([1]))
        pool = producer._state.accumulator.pool
        pool.available_bytes = 0

        def free() -> None:
            pool.available_bytes = pool.total_bytes
            producer._state.notify()

        began_at = clock.now
        clock.after(MAX_BLOCK_S + 0.5, free)
        producer.append(TOPIC, pa.record_batch({"value": ["v"]}))
        assert clock.now - began_at == pytest.approx(MAX_BLOCK_S + 0.5)


def raise_in_its_block(producer: KafkaProducer) -> None:
    """Leave the block of a producer by an exception."""
    with suppress(ZeroDivisionError), producer:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "end", [KafkaProducer.abort_transaction, KafkaProducer.close, raise_in_its_block]
)
def test_an_abort_waits_for_no_partitioner(
    clock: Clock, end: Callable[[KafkaProducer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, returned = Partitioner(), threading.Event()
    with made(transactional_id="tid", partitioner_class=slow, max_block_ms=3000) as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        producer._state.metadata.update(answer([1]), clock.now)
        transactions = in_transaction(producer)
        # The second row finds the chunk of the first one full.
        sent = [producer.send(TOPIC, b"v" * SMALLEST_CHUNK_BYTES) for _ in range(2)]
        sent.append(producer.send(TOPIC, b"v", partition=0))
        assert slow.reached.wait(20)
        release = producer._feeder._release

        def release_and_say(*chunk: Any) -> None:  # noqa: ANN401 - handed on
            release(*chunk)
            if slow.opened.is_set():
                returned.set()

        monkeypatch.setattr(producer._feeder, "_release", release_and_say)

        def answer_and_call() -> None:
            transactions.run()
            producer._state.make_calls()
            producer._state.notify()

        clock.after(0.5, answer_and_call)
        began_at = clock.now
        end(producer)
        assert clock.now - began_at == pytest.approx(0.5)
        assert transactions.coordinator.ended == [False]
        for each in sent:
            assert isinstance(each.exception(0), TransactionAbortedException)
        slow.opened.set()
        assert returned.wait(20)
        accumulator = producer._state.accumulator
        assert accumulator.incomplete == []
        assert accumulator.pool.available_bytes == accumulator.pool.total_bytes


@pytest.mark.parametrize("timeout", [-1, -0.001, float("-inf"), float("nan")])
def test_an_invalid_time_limit_closes_nothing(clock: Clock, timeout: float) -> None:
    with made() as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        producer._state.metadata.update(answer([1]), clock.now)
        sent = producer.send(TOPIC, b"v")
        with pytest.raises(IllegalArgumentException, match=f"{timeout}[:,] expected"):
            producer.close(timeout)
        assert not sent.done()
        assert not producer.send(TOPIC, b"w").done()

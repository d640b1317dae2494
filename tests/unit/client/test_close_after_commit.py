"""A producer is closed after its commit has timed out or was interrupted.

Time passes only in waits, and the test is the coordinator; see `support.pure.timed_waits`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest
from support.pure.interrupts import interrupted
from support.pure.pure_transactions import PureTransactions
from support.pure.timed_waits import (
    Clock,
    in_transaction,
    made,
    press_ctrl_c,
    stop_time_and_thread,
)
from support.pure.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import unclosed
from spark_kafka_sink.errors import KafkaException, TimeoutException, TransactionAbortedException
from spark_kafka_sink.producer.error_actions import Call
from spark_kafka_sink.producer.transactions.requests import TransactionalRequest

NOT_COMMITTED = "its open transaction was not committed"
COMMITTED = "its transaction was committed"
UNKNOWN = "it is not known whether its transaction was committed"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of producers whose I/O threads do not end."""
    return stop_time_and_thread(monkeypatch)


def stop_commit(producer: KafkaProducer, clock: Clock, *, by_ctrl_c: bool) -> None:
    """Commit, and wait until the call times out or is interrupted."""
    if by_ctrl_c:
        clock.after(1.0, press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
    else:
        with pytest.raises(TimeoutException, match="commit_transaction was not done"):
            producer.commit_transaction()


def commit_unsent(
    producer: KafkaProducer, clock: Clock, *, by_ctrl_c: bool = False
) -> PureTransactions:
    """Commit with a row that is not acknowledged, so that EndTxn is not sent."""
    producer._state.metadata.track(TOPIC, clock.now)
    producer._state.metadata.update(answer([1]), clock.now)
    transactions = in_transaction(producer)
    producer.append(TOPIC, pa.record_batch({"value": ["v"]}))
    stop_commit(producer, clock, by_ctrl_c=by_ctrl_c)
    assert transactions.manager.due(0.0, has_incomplete=True) is None
    return transactions


def commit_sent(
    producer: KafkaProducer, clock: Clock, *, by_ctrl_c: bool = False
) -> tuple[PureTransactions, TransactionalRequest]:
    """Commit; EndTxn is sent, and its response is lost."""
    transactions, sent = in_transaction(producer), list[TransactionalRequest]()
    clock.after(0.5, lambda: sent.append(transactions.take_until(Call.COMMIT)))
    stop_commit(producer, clock, by_ctrl_c=by_ctrl_c)
    transactions.now += 10.0
    return transactions, sent[0]


def answer_later(
    producer: KafkaProducer,
    clock: Clock,
    transactions: PureTransactions,
    lost: TransactionalRequest | None = None,
) -> None:
    """Answer all requests in half a second. lost: the request that first gets no answer."""

    def answer_all() -> None:
        for batch in producer._state.accumulator.incomplete:
            producer._state._completion.abandon(batch, TransactionAbortedException("dropped"))
        producer._state._collect()
        if lost is not None:
            transactions.lose(lost)
            transactions.now += 10.0
        transactions.run()
        producer._state.notify()

    clock.after(0.5, answer_all)


def fail_in_block(producer: KafkaProducer) -> None:
    """Leave the block of a producer by an exception."""
    with suppress(ZeroDivisionError), producer:
        raise ZeroDivisionError


def interrupt_block(producer: KafkaProducer) -> None:
    """Leave the block of a producer by Ctrl-C."""
    with suppress(KeyboardInterrupt), producer:
        raise KeyboardInterrupt


def end_program(_: KafkaProducer) -> None:
    """End the program."""
    unclosed._close_at_exit()


ends = pytest.mark.parametrize("end", [fail_in_block, interrupt_block, end_program])
stops = pytest.mark.parametrize("by_ctrl_c", [False, True])


@ends
@stops
def test_a_commit_whose_end_txn_was_not_sent_is_aborted(
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    end: Callable[[KafkaProducer], None],
    *,
    by_ctrl_c: bool,
) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions = commit_unsent(producer, clock, by_ctrl_c=by_ctrl_c)
        answer_later(producer, clock, transactions)
        end(producer)
        assert transactions.coordinator.ended == [False]
        said = caplog.text + capsys.readouterr().err
        assert NOT_COMMITTED in said
        assert "commit_transaction was not carried out" in said


@ends
@stops
def test_a_commit_whose_end_txn_was_sent_is_repeated_and_said_to_be_committed(
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    end: Callable[[KafkaProducer], None],
    *,
    by_ctrl_c: bool,
) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions, lost = commit_sent(producer, clock, by_ctrl_c=by_ctrl_c)
        answer_later(producer, clock, transactions, lost)
        end(producer)
        assert transactions.coordinator.ended == [True]
        said = caplog.text + capsys.readouterr().err
        assert COMMITTED in said
        for other in (NOT_COMMITTED, UNKNOWN, "not carried out"):
            assert other not in said


@ends
@stops
def test_a_commit_without_an_answer_is_said_to_be_unknown(
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    end: Callable[[KafkaProducer], None],
    *,
    by_ctrl_c: bool,
) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions, _ = commit_sent(producer, clock, by_ctrl_c=by_ctrl_c)
        end(producer)
        assert transactions.coordinator.ended == []
        said = caplog.text + capsys.readouterr().err
        assert UNKNOWN in said
        assert NOT_COMMITTED not in said


def test_close_raises_unless_the_transaction_was_committed(clock: Clock) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions = commit_unsent(producer, clock)
        answer_later(producer, clock, transactions)
        with pytest.raises(TransactionAbortedException, match="was not carried out"):
            producer.close()
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        commit_sent(producer, clock)
        with pytest.raises(TimeoutException, match="it is not known whether the transaction was"):
            producer.close()
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        answer_later(producer, clock, *commit_sent(producer, clock))
        producer.close()


def test_close_says_when_the_coordinator_aborts_what_close_cannot_abort(clock: Clock) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        in_transaction(producer)
        with pytest.raises(TimeoutException, match="its coordinator aborts it after"):
            producer.close()


def test_a_commit_that_ends_before_the_program_is_said_to_be_committed(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions, sent = commit_sent(producer, clock)
        transactions.answer(sent)
        end_program(producer)
        assert capsys.readouterr().err.endswith(f"ended: {COMMITTED}\n")


def test_a_commit_that_failed_before_its_producer_is_closed_is_raised_by_close(
    clock: Clock,
) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions, sent = commit_sent(producer, clock)
        transactions.answer(sent, 90)
        with pytest.raises(Exception, match="PRODUCER_FENCED"):
            producer.close()


def test_a_commit_for_which_another_thread_waits_is_not_aborted(clock: Clock) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions = in_transaction(producer)

        def close_meanwhile() -> None:
            closing = threading.Thread(target=producer.close)
            clock.after(0.5, answer_all)
            closing.start()
            closing.join(20)
            assert not closing.is_alive()

        def answer_all() -> None:
            transactions.run()
            producer._state.notify()

        clock.after(0.5, close_meanwhile)
        producer.commit_transaction()
        assert transactions.coordinator.ended == [True]


# -- a commit that is interrupted at any moment ---------------------------------------------------


def answer_without_interrupts(
    producer: KafkaProducer, clock: Clock, transactions: PureTransactions
) -> None:
    """Answer all requests in half a second, as the I/O thread, which no interrupt reaches."""

    def answer_all() -> None:
        profiler = sys.getprofile()
        sys.setprofile(None)
        with producer._state.lock:
            producer._state._clean_up_for_good()
            if producer._state._interruption is not None:
                producer._state.give_up(producer._state._interruption)
        transactions.run()
        producer._state.notify()
        sys.setprofile(profiler)

    clock.after(0.5, answer_all)


@contextmanager
def interrupted_commit(
    clock: Clock, moment: int
) -> Iterator[tuple[KafkaProducer, PureTransactions, str | None]]:
    """Yield a producer whose commit was interrupted, its coordinator, and where that was.

    The place is None if the commit has returned.
    """
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions = in_transaction(producer)
        answer_without_interrupts(producer, clock, transactions)
        has_returned = False

        def commit() -> None:
            nonlocal has_returned
            producer.commit_transaction()
            has_returned = True

        where = interrupted(commit, moment, KeyboardInterrupt)
        if has_returned:  # an interrupt in the callback of a weak reference is ignored
            where = None
        answer_without_interrupts(producer, clock, transactions)
        yield producer, transactions, where


# A call has no effect yet when Python enters it and the method that does its work. It ends after
# about 110 moments.
MOMENTS = range(4, 120)


def test_close_returns_only_if_the_commit_was_carried_out_wherever_it_was_interrupted(
    clock: Clock,
) -> None:
    outcomes = set[bool]()
    for moment in MOMENTS:
        with interrupted_commit(clock, moment) as (producer, transactions, where):
            returns = False
            with suppress(KafkaException):
                producer.close()
                returns = True
            assert returns is (transactions.coordinator.ended == [True]), (moment, where)
            outcomes.add(returns)
    assert outcomes == {False, True}


@ends
def test_the_outcome_is_said_wherever_a_commit_was_interrupted(
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    end: Callable[[KafkaProducer], None],
) -> None:
    outcomes = set[bool]()
    for moment in MOMENTS:
        with interrupted_commit(clock, moment) as (producer, transactions, where):
            if where is None:
                continue
            caplog.clear()
            end(producer)
            said = caplog.text + capsys.readouterr().err
            is_committed = transactions.coordinator.ended == [True]
            assert (COMMITTED in said, NOT_COMMITTED in said) == (is_committed, not is_committed), (
                f"moment {moment}, {where}: {said}"
            )
            outcomes.add(is_committed)
    assert outcomes == {False, True}


def test_an_interrupted_commit_is_over_once_the_user_has_aborted(clock: Clock) -> None:
    with interrupted_commit(clock, MOMENTS[0]) as (producer, transactions, where):
        assert where is not None
        producer.abort_transaction()
        producer.begin_transaction()
        answer_without_interrupts(producer, clock, transactions)
        producer.close()


def test_a_collected_producer_aborts_a_commit_whose_end_txn_was_not_sent(clock: Clock) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        transactions, mine = commit_unsent(producer, clock), producer._transactions
        assert mine is not None
        assert mine.end_unowned() == clock.now + 3
        for batch in producer._state.accumulator.incomplete:
            producer._state._completion.abandon(batch, TransactionAbortedException("dropped"))
        transactions.run()
        assert mine.end_unowned() is None
        assert transactions.coordinator.ended == [False]
        assert mine.unowned_outcome == NOT_COMMITTED


def test_a_collected_producer_repeats_a_commit_whose_end_txn_was_sent(clock: Clock) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        (transactions, lost), mine = commit_sent(producer, clock), producer._transactions
        assert mine is not None
        assert mine.end_unowned() == clock.now + 3
        transactions.lose(lost)
        transactions.now += 10.0
        transactions.run()
        assert mine.end_unowned() is None
        assert transactions.coordinator.ended == [True]
        assert mine.unowned_outcome == COMMITTED


def test_a_collected_producer_waits_for_its_coordinator_for_max_block_ms(clock: Clock) -> None:
    with made(transactional_id="tid", max_block_ms=3000) as producer:
        commit_sent(producer, clock)
        mine = producer._transactions
        assert mine is not None
        assert mine.end_unowned() == clock.now + 3
        clock.now += 3
        assert mine.end_unowned() is None
        assert mine.unowned_outcome == UNKNOWN

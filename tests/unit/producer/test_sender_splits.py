"""The sender and batches that are too large: the results of their parts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.pure.pure_producer import FULL, PureProducer, Settings, batches

from spark_kafka_sink.errors import (
    ApiException,
    OutOfOrderSequenceException,
    TimeoutException,
)
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.wire.exchange import ClientRequest, NodeReady
from spark_kafka_sink.wire.versions import NodeApiVersions

CORRUPT, TOO_LARGE, NOT_ENOUGH_REPLICAS, OUT_OF_ORDER, DUPLICATE = 2, 10, 19, 45, 46


def test_a_batch_that_is_split_has_used_no_attempt() -> None:
    producer = PureProducer([1], Settings(retries=1))
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0], TOO_LARGE)
    for _ in range(2):
        (part,) = producer.poll()
        assert batches(part)[0].record_count == 1
        producer.answer(part, CORRUPT)
        producer.now += 10
        (again,) = producer.poll()
        producer.answer(again)
    done = [(batch.state, batch.attempts) for batch in producer.done()]
    assert done == [(BatchState.SPLIT, 0), (BatchState.SUCCEEDED, 1), (BatchState.SUCCEEDED, 1)]


def test_the_parts_of_a_batch_have_used_its_retries() -> None:
    producer = PureProducer([1], Settings(retries=1))
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0], CORRUPT)
    producer.now += 10
    producer.answer(producer.poll()[0], TOO_LARGE)
    producer.answer(producer.poll()[0], CORRUPT)
    _, part = producer.done()
    assert part.record_count == 1
    assert "CORRUPT_MESSAGE (2) from node 1 after 2 attempts" in str(part.error)


def test_the_parts_of_a_batch_say_why_its_last_attempt_failed() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0], NOT_ENOUGH_REPLICAS)
    producer.now += 10
    producer.answer(producer.poll()[0], TOO_LARGE)
    producer.now += 1000
    producer.poll()
    _, *parts = producer.done()
    assert len(parts) == 2
    for part in parts:
        assert isinstance(part.error, TimeoutException)
        assert "1 failed attempt(s)" in str(part.error)
        assert "the last attempt failed with NOT_ENOUGH_REPLICAS" in str(part.error)
        assert isinstance(part.error.__cause__, ApiException)
        assert part.error.__cause__.code == NOT_ENOUGH_REPLICAS


def _split_after_a_lost_answer(
    values: list[bytes] = FULL, were_sent: Sequence[bool] = (True,)
) -> tuple[PureProducer, ClientRequest]:
    """Lose a batch, and split it; return its first part in flight.

    were_sent: for each attempt that is lost, whether its request was sent.
    """
    producer = PureProducer([1])
    producer.append(0, values)
    producer.ready()
    for was_sent in were_sent:
        producer.lose(producer.poll()[0], was_sent=was_sent)
        producer.now += 10
        producer.sender.handle(NodeReady(1, NodeApiVersions({})), producer.now)
    (again,) = producer.poll()
    producer.answer(again, TOO_LARGE)
    (part,) = producer.poll()
    return producer, part


def test_parts_of_a_batch_that_may_have_been_written_get_no_other_number() -> None:
    """The limit of the topic was lowered after the broker had written the batch."""
    producer, part = _split_after_a_lost_answer()
    sent, requests = [], [part]
    while requests:
        (part,) = requests
        sent.append((batches(part)[0].producer.epoch, batches(part)[0].base_sequence))
        producer.answer(part, OUT_OF_ORDER)
        producer.now += 10
        requests = producer.poll()
    assert sent == [(0, 0), (0, 1)]
    _, *parts = producer.done()
    assert [type(part.error) for part in parts] == [OutOfOrderSequenceException] * 2
    assert all("may have been written although" in str(part.error) for part in parts)
    # Later rows are sent with a new epoch.
    producer.append(0, [b"later"])
    (later,) = producer.poll()
    assert (batches(later)[0].producer.epoch, batches(later)[0].base_sequence) == (1, 0)


@pytest.mark.parametrize(
    ("were_sent", "may_be_written"),
    [([False], False), ([False, False], False), ([True, False], True), ([False, True], True)],
)
def test_a_batch_that_was_never_sent_is_in_doubt_only_if_an_earlier_attempt_was_lost(
    were_sent: list[bool], *, may_be_written: bool
) -> None:
    """As requests that a connection holds while it re-authenticates."""
    producer, part = _split_after_a_lost_answer(were_sent=were_sent)
    assert batches(part)[0].maybe_written is may_be_written
    producer.answer(part, OUT_OF_ORDER)
    producer.now += 10
    sent_again = [batches(request)[0].record_count for request in producer.poll()]
    if may_be_written:
        failed, *_ = [batch.error for batch in producer.done() if batch.error is not None]
        assert "may have been written although" in str(failed)
    else:
        assert sent_again == [1]
        assert [batch.state for batch in producer.done()] == [BatchState.SPLIT]


def test_parts_of_a_batch_that_was_not_written_are_sent_like_others() -> None:
    producer, part = _split_after_a_lost_answer()
    producer.answer(part)
    (second,) = producer.poll()
    # A broker that has the first part does not have the entire batch: this is another gap.
    producer.answer(second, OUT_OF_ORDER)
    producer.now += 10
    (again,) = producer.poll()
    assert (batches(again)[0].producer.epoch, batches(again)[0].base_sequence) == (1, 0)
    producer.answer(again)
    states = [batch.state for batch in producer.done()]
    assert states == [BatchState.SPLIT, BatchState.SUCCEEDED, BatchState.SUCCEEDED]


def test_a_part_that_is_split_again_is_not_in_doubt_once_one_before_it_was_taken() -> None:
    producer, part = _split_after_a_lost_answer([b"x" * 200] * 4)
    assert batches(part)[0].record_count == 2
    producer.answer(part)
    (second,) = producer.poll()
    assert batches(second)[0].record_count == 2
    producer.answer(second, TOO_LARGE)
    (quarter,) = producer.poll()
    producer.answer(quarter, OUT_OF_ORDER)
    producer.now += 10
    for number in (0, 1):
        (again,) = producer.poll()
        (batch,) = batches(again)
        assert (batch.producer.epoch, batch.base_sequence) == (1, number)
        producer.answer(again)
    assert all(batch.error is None for batch in producer.done())


@pytest.mark.parametrize("is_first_taken", [True, False])
def test_a_part_whose_own_answer_was_lost_is_in_doubt_whatever_became_of_the_others(
    *, is_first_taken: bool
) -> None:
    producer, part = _split_after_a_lost_answer([b"x" * 200] * 4)
    producer.answer(part, 0 if is_first_taken else DUPLICATE)
    (second,) = producer.poll()
    producer.lose(second)
    producer.now += 10
    producer.sender.handle(NodeReady(1, NodeApiVersions({})), producer.now)
    (again,) = producer.poll()
    producer.answer(again, TOO_LARGE)
    requests = producer.poll()
    while requests:
        producer.answer(requests[0], OUT_OF_ORDER)
        producer.now += 10
        requests = producer.poll()
    failed = [batch.error for batch in producer.done() if batch.state is BatchState.FAILED]
    assert [type(error) for error in failed] == [OutOfOrderSequenceException] * 2
    assert all("may have been written although" in str(error) for error in failed)

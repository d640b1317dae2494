"""The sender and what keeps records in order and without duplicates: numbers, epochs, leaders."""

from __future__ import annotations

import pytest
from support.pure.pure_producer import (
    FULL,
    TOPIC,
    PureProducer,
    Settings,
    batches,
    bytes_of,
    sequences,
)

from spark_kafka_sink.errors import (
    ClusterAuthorizationException,
    OutOfOrderSequenceException,
    TimeoutException,
)
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, NodeReady
from spark_kafka_sink.wire.messages import InitProducerIdResponse, ProduceRequest
from spark_kafka_sink.wire.versions import NodeApiVersions

CORRUPT, NOT_LEADER, POLICY, OUT_OF_ORDER, DUPLICATE, UNKNOWN_PRODUCER = 2, 6, 44, 45, 46, 59
TIMED_OUT, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 7, 19, 20


def test_until_the_first_acknowledgement_one_batch_is_in_flight_then_five() -> None:
    producer = PureProducer([1])
    for _ in range(8):
        producer.append(0, FULL)
    producer.ready()
    (first,) = producer.poll()
    assert sequences(first) == [0]
    producer.answer(first)
    requests = producer.poll()
    assert [sequences(r) for r in requests] == [[2], [4], [6], [8], [10]]


def test_where_new_work_begins_one_batch_is_in_flight_again_until_it_is_acknowledged() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    assert producer.sequences is not None
    producer.sequences.unconfirm()
    for _ in range(3):
        producer.append(0, FULL)
    (first,) = producer.poll()
    assert sequences(first) == [2], "the sequences go on"
    producer.answer(first)
    assert [sequences(r) for r in producer.poll()] == [[4], [6]]


def test_after_a_topic_was_created_again_one_batch_is_in_flight_until_it_is_acknowledged() -> None:
    producer = PureProducer([1], topic_number=7)
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    producer.topic_number = 8
    producer.now += 301  # more than metadata.max.age.ms
    assert producer.poll() == []
    for _ in range(3):
        producer.append(0, FULL)
    (first,) = producer.poll()
    assert producer.metadata.topic_id(TOPIC).int == 8
    producer.answer(first, NOT_LEADER)
    producer.now += 10
    (again,) = producer.poll()
    producer.answer(again)
    later = producer.poll()
    assert [sequences(r) for r in later] == [[4], [6]]
    for request in later:
        producer.answer(request)
    assert [b.error for b in producer.done()] == [None] * 4


@pytest.mark.parametrize(("pause_s", "in_flight"), [(299, 2), (301, 1)])
def test_after_a_long_pause_one_batch_goes_first_as_the_broker_may_have_forgotten_the_producer(
    pause_s: float, in_flight: int
) -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    producer.now += pause_s
    for _ in range(2):
        producer.append(0, FULL)
    requests = producer.poll()
    assert [sequences(r) for r in requests] == [[2], [4]][:in_flight]
    producer.answer(requests[0])
    for request in requests[1:] or producer.poll():
        assert sequences(request) == [4]
        producer.answer(request)
    for _ in range(2):
        producer.append(0, FULL)
    assert [sequences(r) for r in producer.poll()] == [[6], [8]], "the pause is over"
    assert [b.error for b in producer.done()] == [None] * 3


def test_a_batch_that_is_sent_again_after_a_long_pause_goes_first_too() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=2000.0))
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    producer.append(0, FULL)
    producer.answer(producer.poll()[0], NOT_ENOUGH_REPLICAS)
    producer.now += 600
    producer.append(0, FULL)
    (again,) = producer.poll()
    assert sequences(again) == [2]
    producer.answer(again)
    (last,) = producer.poll()
    assert sequences(last) == [4]


def _three_in_flight() -> tuple[PureProducer, list[ClientRequest]]:
    """Return a producer with three batches in flight behind an acknowledged one, and requests."""
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    for _ in range(3):
        producer.append(0, FULL)
    return producer, producer.poll()


def test_a_batch_that_a_later_one_has_overtaken_is_an_error_at_once() -> None:
    producer, (second, third, fourth) = _three_in_flight()
    # The topic was created again, and its leader did not know it yet as the second batch came.
    producer.answer(second, NOT_LEADER)
    producer.answer(third)
    producer.answer(fourth, CORRUPT)
    producer.now += 1
    (again,) = producer.poll()
    producer.answer(again, OUT_OF_ORDER)
    _, _, failed = producer.done()
    assert isinstance(failed.error, OutOfOrderSequenceException)
    assert "; it is not known whether these records were written: a later " in str(failed.error)
    assert str(failed.error).endswith("or producer.id.expiration.ms had passed")
    producer.now += 1
    (again,) = producer.poll()
    assert bytes_of(again) == bytes_of(fourth)
    producer.answer(again)
    producer.append(0, FULL)
    (after,) = producer.poll()
    assert (sequences(after), batches(after)[0].producer.epoch) == ([0], 1)


def test_a_lost_batch_goes_again_first_and_byte_for_byte() -> None:
    producer = PureProducer([1])
    for _ in range(5):
        producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    requests = producer.poll()
    sent = [bytes_of(r) for r in requests]
    producer.append(0, FULL)  # which has to wait
    producer.lose(requests[0])
    producer.answer(requests[1], OUT_OF_ORDER)
    producer.answer(requests[2], OUT_OF_ORDER)
    assert producer.poll() == [], "sent again before retry.backoff.ms"
    producer.now += 10
    (again,) = producer.poll()
    assert bytes_of(again) == sent[0]
    producer.answer(again)
    (second,) = producer.poll()
    assert bytes_of(second) == sent[1]
    producer.answer(second)
    third, new = producer.poll()
    assert bytes_of(third) == sent[2]
    assert (sequences(new), batches(new)[0].attempts) == ([10], 0)
    assert [b.attempts for b in producer.done()] == [0, 1, 1]


def test_a_duplicate_is_a_success() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0], DUPLICATE)
    (batch,) = producer.done()
    assert batch.state is BatchState.SUCCEEDED


@pytest.mark.parametrize("code", [TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_a_later_batch_is_acknowledged_before_one_that_was_written_but_goes_again(
    code: int,
) -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    producer.append(0, FULL)
    producer.append(0, FULL)
    earlier, later = producer.poll()
    assert (sequences(earlier), sequences(later)) == ([2], [4])
    producer.done()
    producer.answer(earlier, code)
    producer.answer(later)
    assert [batch.base_sequence for batch in producer.done()] == [4]
    producer.now += 1
    (again,) = producer.poll()
    producer.answer(again, DUPLICATE)
    (batch,) = producer.done()
    assert (batch.base_sequence, batch.error) == (2, None)


def test_a_gap_that_is_certain_raises_the_epoch_and_numbers_anew() -> None:
    producer = PureProducer([1])
    for _ in range(4):
        producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    requests = producer.poll()
    producer.answer(requests[0], OUT_OF_ORDER)
    producer.now += 10
    assert producer.poll() == [], "the epoch rose while batches of the old one are at a broker"
    producer.answer(requests[1], OUT_OF_ORDER)
    producer.answer(requests[2], OUT_OF_ORDER)
    producer.now += 10
    (again,) = producer.poll()
    assert sequences(again) == [0]
    assert batches(again)[0].producer == ProducerIdAndEpoch(4000, 1)
    producer.answer(again)
    (after,) = producer.poll()
    assert sequences(after) == [2]
    producer.answer(after)
    assert [sequences(r) for r in producer.poll()] == [[4]]


def test_the_last_epoch_is_followed_by_a_new_producer_id() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.append(0, FULL)
    assert producer.sequences is not None
    producer.ready()
    producer.sequences.adopt(ProducerIdAndEpoch(4000, 2**15 - 1))
    first = producer.poll()[0]
    producer.answer(first, UNKNOWN_PRODUCER, log_start_offset=5)
    producer.now += 10
    (again,) = producer.poll()
    assert batches(again)[0].producer.producer_id == 4001
    assert sequences(again) == [0]


def test_what_follows_a_batch_that_was_given_up_goes_on_under_a_new_epoch() -> None:
    producer = PureProducer([1])
    for _ in range(3):
        producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    second, third = producer.poll()
    producer.answer(second, POLICY)
    producer.answer(third, OUT_OF_ORDER)
    producer.now += 10
    (again,) = producer.poll()
    assert (sequences(again), batches(again)[0].producer.epoch) == ([0], 1)
    producer.answer(again)
    states = [b.state for b in producer.done()]
    assert states == [BatchState.SUCCEEDED, BatchState.FAILED, BatchState.SUCCEEDED]


def _lost_behind_one_that_expires() -> tuple[PureProducer, ClientRequest]:
    """Return a batch that is retried after a lost response; the batch before it has failed."""
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    producer.append(0, FULL)
    (expiring,) = producer.poll()
    producer.now = 10.0
    producer.append(0, FULL)
    (lost,) = producer.poll()
    producer.lose(expiring)
    producer.lose(lost)
    producer.now = 30.0
    (again,) = producer.poll()
    assert [b.state for b in producer.done()] == [BatchState.SUCCEEDED, BatchState.FAILED]
    assert bytes_of(again) == bytes_of(lost), "a broker would take it a second time"
    return producer, again


def test_a_batch_that_was_written_after_all_keeps_the_number_it_was_written_under() -> None:
    producer, again = _lost_behind_one_that_expires()
    producer.answer(again, base_offset=4)
    producer.append(0, FULL)
    (after,) = producer.poll()
    assert (sequences(after), batches(after)[0].producer.epoch) == ([0], 1)


def test_a_batch_that_a_gap_kept_from_being_written_is_numbered_anew() -> None:
    producer, again = _lost_behind_one_that_expires()
    producer.answer(again, OUT_OF_ORDER)
    producer.now += 1
    (renumbered,) = producer.poll()
    assert (sequences(renumbered), batches(renumbered)[0].producer.epoch) == ([0], 1)


def _three_that_are_lost() -> tuple[PureProducer, list[ClientRequest]]:
    """Return a producer whose three batches in flight get no response, and their requests."""
    producer, lost = _three_in_flight()
    for request in lost:
        producer.lose(request)
    producer.done()
    producer.now += 10
    producer.sender.handle(NodeReady(1, NodeApiVersions({})), producer.now)
    return producer, lost


def test_lost_batches_are_numbered_anew_once_a_broker_has_refused_every_one_of_them() -> None:
    producer, lost = _three_that_are_lost()
    for request in lost:
        (again,) = producer.poll()
        assert bytes_of(again) == bytes_of(request)
        producer.answer(again, OUT_OF_ORDER)
        producer.now += 1
    for number in (0, 2, 4):
        (renumbered,) = producer.poll()
        assert (sequences(renumbered), batches(renumbered)[0].producer.epoch) == ([number], 1)
        producer.answer(renumbered)
    assert [b.error for b in producer.done()] == [None] * 3


def test_a_lost_batch_that_is_asked_about_keeps_its_own_back_off() -> None:
    producer, (_, second, third) = _three_that_are_lost()
    (again,) = producer.poll()
    producer.answer(again, OUT_OF_ORDER)
    producer.now += 1
    (again,) = producer.poll()
    assert bytes_of(again) == bytes_of(second)
    producer.answer(again, NOT_ENOUGH_REPLICAS)
    assert producer.poll() == []
    producer.now += 1
    answers = ((second, OUT_OF_ORDER), (third, OUT_OF_ORDER))
    for expected, code in answers:
        (again,) = producer.poll()
        assert bytes_of(again) == bytes_of(expected)
        producer.answer(again, code)
        producer.now += 1
    (renumbered,) = producer.poll()
    assert (sequences(renumbered), batches(renumbered)[0].producer.epoch) == ([0], 1)


def test_what_a_broker_that_knows_only_the_last_batch_refuses_is_not_written_again() -> None:
    """A broker restarted after it had written the first two of three batches."""
    producer, (first, second, third) = _three_that_are_lost()
    producer.append(0, FULL)  # which has to wait
    answers = ((first, OUT_OF_ORDER), (second, 0), (first, OUT_OF_ORDER), (third, 0))
    for expected, code in answers:
        (again,) = producer.poll()
        assert bytes_of(again) == bytes_of(expected)
        producer.answer(again, code)
        producer.now += 1
    _, failed, _ = done = producer.done()
    assert [b.base_sequence for b in done] == [4, 2, 6]
    assert isinstance(failed.error, OutOfOrderSequenceException)
    assert "; it is not known whether these records were written: a later" in str(failed.error)
    (after,) = producer.poll()
    assert (sequences(after), batches(after)[0].producer.epoch) == ([0], 1)


def test_a_refusal_proves_nothing_where_a_later_batch_was_given_up_and_may_be_written() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    producer.now = 10.0
    producer.append(0, FULL)
    producer.now = 5.0  # the rows of the next batch have waited longer
    producer.append(0, FULL)
    producer.now = 10.0
    for request in producer.poll():
        producer.lose(request)
    producer.done()
    producer.now = 34.0
    producer.sender.handle(NodeReady(1, NodeApiVersions({})), producer.now)
    (first,) = producer.poll()
    producer.now = 35.0
    assert producer.poll() == []
    (expired,) = producer.done()
    assert (expired.base_sequence, type(expired.error)) == (4, TimeoutException)
    producer.answer(first, OUT_OF_ORDER)
    (failed,) = producer.done()
    assert isinstance(failed.error, OutOfOrderSequenceException)
    assert "it is not known whether these records were written" in str(failed.error)


def test_a_partition_that_an_epoch_left_behind_is_numbered_anew_under_it() -> None:
    producer = PureProducer([1, 2])
    for partition in (0, 0, 1, 1, 1):
        producer.append(partition, FULL)
    producer.ready()
    for request in producer.poll():
        producer.answer(request)
    raises, first, second = sorted(producer.poll(), key=lambda r: (r.node_id, sequences(r)))
    producer.answer(raises, POLICY)
    producer.append(0, FULL)
    (raised,) = producer.poll()
    assert batches(raised)[0].producer.epoch == 1
    producer.answer(first, POLICY)
    producer.answer(second, OUT_OF_ORDER)
    producer.now += 10
    (renumbered,) = producer.poll()
    assert (sequences(renumbered), batches(renumbered)[0].producer.epoch) == ([0], 1)


def test_after_a_leader_change_nothing_overtakes_what_the_old_leader_has() -> None:
    producer = PureProducer([1])
    for _ in range(4):
        producer.append(0, FULL)
    producer.ready(1, 2)
    producer.answer(producer.poll()[0])
    requests = producer.poll()
    producer.append(0, FULL)  # which has no sequence yet
    producer.leaders = [2]
    producer.now = 5.0
    producer.answer(requests[0], NOT_LEADER)
    assert producer.poll() == []
    producer.now += 10
    renumbered = producer.poll()
    assert [(r.node_id, sequences(r)) for r in renumbered] == [(2, [2])], "the new batch went along"
    producer.answer(renumbered[0])
    assert producer.poll() == [], "sent on while the old leader has later batches"
    producer.answer(requests[1], NOT_LEADER)
    producer.answer(requests[2], NOT_LEADER)
    producer.now += 10
    (moved,) = producer.poll()
    assert (moved.node_id, sequences(moved)) == (2, [4])
    producer.answer(moved)
    assert [(r.node_id, sequences(r)) for r in producer.poll()] == [(2, [6]), (2, [8])]


def test_no_producer_id_without_permission_and_the_sentence_says_how_to_do_without() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    work = producer.sender.poll(0.0)
    request = next(r for r in work.requests if not isinstance(r.message, ProduceRequest))
    init = [r for r in work.requests if r is not request] or [request]
    refused = InitProducerIdResponse(error_code=31)
    producer.sender.handle(Answered(init[-1], 1, refused), 0.0)
    (batch,) = producer.done()
    assert isinstance(batch.error, ClusterAuthorizationException)
    assert "; enable.idempotence=false" in str(batch.error)
    assert producer.sender.fatal_error is batch.error

"""The sender, with a test as broker and clock: what is sent, when, and what answers lead to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pure_producer import PureProducer, Settings, batches, sequences

from spark_kafka_sink.errors import (
    ClusterAuthorizationException,
    OutOfOrderSequenceException,
    PolicyViolationException,
    TimeoutException,
    UnsupportedCompressionTypeException,
)
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer.producer_batch import BatchState
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    NodeDown,
    NodeReady,
    NodeThrottled,
)
from spark_kafka_sink.wire.messages import (
    InitProducerIdResponse,
    MetadataRequest,
    ProduceRequest,
    ProduceResponse,
)
from spark_kafka_sink.wire.versions import NodeApiVersions

FULL = [b"x" * 400, b"y" * 400]
"""Two of these records fill a batch of 1000 bytes."""

CORRUPT, NOT_LEADER, TIMED_OUT, TOO_LARGE, POLICY = 2, 6, 7, 10, 44
OUT_OF_ORDER, DUPLICATE, UNKNOWN_PRODUCER = 45, 46, 59


def test_one_batch_per_partition_in_a_request_and_one_request_per_node() -> None:
    producer = PureProducer([1, 1, 2])
    for partition in (0, 1, 2):
        producer.append(partition, FULL * 2)
    producer.ready()
    requests = producer.poll()
    first = {r.node_id: [b.topic_partition.partition for b in batches(r)] for r in requests}
    assert first == {1: [0, 1], 2: [2]}
    for request in requests:
        producer.answer(request)
    second = producer.poll()
    assert {r.node_id: len(batches(r)) for r in second} == {1: 2, 2: 1}
    assert [s for r in second for s in sequences(r)] == [2, 2, 2]


def test_nothing_is_sent_before_linger_has_passed_or_a_batch_is_full() -> None:
    producer = PureProducer([1], Settings(linger=5.0))
    producer.append(0, [b"small"])
    producer.ready()
    assert producer.poll() == []
    assert producer.sender.poll(producer.now).next_poll_at == pytest.approx(5.0)
    producer.now = 4.9
    assert producer.poll() == []
    producer.now = 5.0
    (request,) = producer.poll()
    assert batches(request)[0].record_count == 1


def test_a_full_batch_does_not_linger() -> None:
    producer = PureProducer([1], Settings(linger=5.0))
    producer.append(0, [*FULL, b"z" * 400])
    producer.ready()
    (request,) = producer.poll()
    assert batches(request)[0].record_count == 2


def test_a_flush_or_a_wait_for_memory_ends_lingering() -> None:
    for reason in ("flushes", "waiters"):
        producer = PureProducer([1], Settings(linger=5.0))
        producer.append(0, [b"small"])
        producer.ready()
        assert producer.poll() == []
        setattr(producer.accumulator, reason, 1)
        assert len(producer.poll()) == 1


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


def test_a_lost_batch_goes_again_first_and_byte_for_byte() -> None:
    producer = PureProducer([1])
    for _ in range(5):
        producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    requests = producer.poll()
    sent = [_bytes_of(r) for r in requests]
    producer.append(0, FULL)  # which has to wait
    producer.lose(requests[0])
    producer.answer(requests[1], OUT_OF_ORDER)
    producer.answer(requests[2], OUT_OF_ORDER)
    assert producer.poll() == [], "sent again before retry.backoff.ms"
    producer.now += 10
    (again,) = producer.poll()
    assert _bytes_of(again) == sent[0]
    producer.answer(again)
    (second,) = producer.poll()
    assert _bytes_of(second) == sent[1]
    producer.answer(second)
    third, new = producer.poll()
    assert _bytes_of(third) == sent[2]
    assert (sequences(new), batches(new)[0].attempts) == ([10], 0)
    assert [b.attempts for b in producer.done()] == [0, 1, 1]


def test_a_duplicate_is_a_success() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0], DUPLICATE)
    (batch,) = producer.done()
    assert batch.state is BatchState.SUCCEEDED


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
    """Give a batch that is sent again after its answer was lost, and the batch before given up."""
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
    assert _bytes_of(again) == _bytes_of(lost), "a broker would take it a second time"
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
    (anew,) = producer.poll()
    assert (sequences(anew), batches(anew)[0].producer.epoch) == ([0], 1)


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
    (anew,) = producer.poll()
    assert (sequences(anew), batches(anew)[0].producer.epoch) == ([0], 1)


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
    anew = producer.poll()
    assert [(r.node_id, sequences(r)) for r in anew] == [(2, [2])], "the new batch went along"
    producer.answer(anew[0])
    assert producer.poll() == [], "sent on while the old leader has later batches"
    producer.answer(requests[1], NOT_LEADER)
    producer.answer(requests[2], NOT_LEADER)
    producer.now += 10
    (moved,) = producer.poll()
    assert (moved.node_id, sequences(moved)) == (2, [4])
    producer.answer(moved)
    assert [(r.node_id, sequences(r)) for r in producer.poll()] == [(2, [6]), (2, [8])]


def test_a_partition_without_leader_waits_and_the_others_go() -> None:
    producer = PureProducer([-1, 1])
    producer.append(0, FULL)
    producer.append(1, FULL)
    producer.ready()
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [1]
    producer.leaders = [1, 1]
    producer.now += 10
    (later,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(later)] == [0]


def test_metadata_is_asked_for_where_the_leader_is_none_of_the_brokers_known() -> None:
    producer = PureProducer([7])
    response = producer.metadata_response()
    (asked,) = producer.sender.poll(producer.now).requests
    response.brokers = [broker for broker in response.brokers if broker.node_id == 1]
    producer.sender.handle(Answered(asked, 1, response), producer.now)
    producer.now = 10.0
    producer.append(0, FULL)
    assert producer.poll() == [], "which asked for metadata, and was told of the broker"
    assert producer.sender.poll(producer.now).connect == {7}


def test_data_goes_while_metadata_is_asked_for_and_no_answer_comes() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    producer.now = 10.0
    producer.metadata.request_update()
    for asked in ([MetadataRequest], [], []):
        producer.append(0, FULL)
        work = producer.sender.poll(producer.now)
        assert [type(request.message) for request in work.requests] == asked
        assert [len(drained.batches) for drained in work.drained] == [1]


def test_a_request_is_at_most_max_request_size_but_a_large_batch_goes_alone() -> None:
    producer = PureProducer([1, 1, 1], Settings(max_request_size=2000))
    producer.append(0, FULL)
    producer.append(1, FULL)
    producer.append(2, [b"z" * 5000])
    producer.ready()
    sizes = [sum(b.size_bytes for b in batches(r)) for r in producer.poll()]
    assert sizes[0] <= 2000
    assert len(sizes) == 2
    assert sizes[1] > 5000


def test_partitions_take_turns_where_a_request_has_not_room_for_all() -> None:
    producer = PureProducer([1, 1, 1], Settings(max_request_size=1000, max_in_flight=1))
    for partition in (0, 1, 2):
        for _ in range(4):
            producer.append(partition, FULL)
    producer.ready()
    for _ in range(4):
        served = []
        for _ in range(3):
            (request,) = producer.poll()
            served += [b.topic_partition.partition for b in batches(request)]
            producer.answer(request)
        assert sorted(served) == [0, 1, 2]


def test_a_node_that_asks_for_a_pause_gets_nothing_until_it_is_over() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.sender.handle(NodeThrottled(1, until=3.0), 0.0)
    assert producer.poll() == []
    assert producer.sender.poll(0.0).next_poll_at <= 3.0
    producer.now = 3.0
    assert len(producer.poll()) == 1


def test_a_node_that_is_down_is_connected_to_and_then_sent_to() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.sender.handle(NodeDown(1, "gone"), 0.0)
    work = producer.sender.poll(0.0)
    assert (work.drained, work.connect) == ([], {1})
    producer.sender.handle(NodeReady(1, NodeApiVersions({})), 0.0)
    assert len(producer.poll()) == 1


def test_a_node_that_goes_down_has_metadata_asked_for() -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.now = 10.0
    assert producer.sender.poll(producer.now).requests == []
    producer.sender.handle(NodeDown(1, "gone"), producer.now)
    (asked,) = producer.sender.poll(producer.now).requests
    assert isinstance(asked.message, MetadataRequest)


def test_one_in_flight_keeps_the_order_also_without_idempotence() -> None:
    producer = PureProducer([1], Settings(idempotent=False, max_in_flight=1))
    producer.append(0, FULL)
    producer.append(0, FULL)
    producer.ready(1, 2)
    (first,) = producer.poll()
    producer.leaders = [2]
    producer.lose(first)
    producer.now += 10
    (again,) = producer.poll()
    assert batches(again)[0] is not None
    assert _bytes_of(again) == _bytes_of(first)


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_a_request_says_how_many_are_to_acknowledge_it(acks: int) -> None:
    producer = PureProducer([1], Settings(idempotent=False, acks=acks))
    producer.append(0, FULL)
    producer.ready()
    (request,) = producer.poll()
    assert isinstance(request.message, ProduceRequest)
    assert (request.message.acks, request.expects_response) == (acks, acks != 0)


def test_acks_0_succeeds_when_written() -> None:
    producer = PureProducer([1], Settings(idempotent=False, acks=0))
    producer.append(0, FULL)
    producer.ready()
    (request,) = producer.poll()
    assert request.expects_response is False
    producer.sender.handle(Answered(request, 1, None), 0.0)
    (batch,) = producer.done()
    assert (batch.state, batch.base_offset) == (BatchState.SUCCEEDED, -1)


def test_what_expired_while_it_was_being_written_may_be_written_after_that() -> None:
    settings = Settings(idempotent=False, acks=0, delivery_timeout=30.0)
    producer = PureProducer([1], settings)
    producer.append(0, FULL)
    producer.ready()
    (request,) = producer.poll()
    producer.now = 30.0
    producer.poll()
    producer.sender.handle(Answered(request, 1, None), 30.0)
    assert [b.state for b in producer.done()] == [BatchState.FAILED]
    assert producer.accumulator.available_bytes == settings.buffer_memory


def test_retries_end_with_the_last_error() -> None:
    producer = PureProducer([1], Settings(retries=2))
    producer.append(0, FULL)
    producer.ready()
    for _ in range(3):
        (request,) = producer.poll()
        producer.answer(request, CORRUPT)
        producer.now += 10
    (batch,) = producer.done()
    assert batch.error is not None
    assert "t-0: 2 record(s) were not written: CORRUPT_MESSAGE (2) from node 1 after 3" in str(
        batch.error
    )


def test_an_error_that_no_retry_helps_is_given_at_once() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0], POLICY)
    (batch,) = producer.done()
    assert isinstance(batch.error, PolicyViolationException)
    assert producer.accumulator.available_bytes == producer.settings.buffer_memory


def test_a_batch_that_waits_too_long_expires_with_what_is_known() -> None:
    producer = PureProducer([-1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.now = 30.0
    producer.poll()
    (batch,) = producer.done()
    assert isinstance(batch.error, TimeoutException)
    assert "within delivery.timeout.ms=30000: waiting to be sent" in str(batch.error)
    assert "no leader is known" in str(batch.error)
    assert producer.accumulator.available_bytes == producer.settings.buffer_memory


def test_a_batch_that_might_be_sent_again_says_that_its_time_is_over() -> None:
    for now, told in ((29.0, False), (30.0, True)):
        producer = PureProducer([1], Settings(delivery_timeout=30.0, retries=0))
        producer.append(0, FULL)
        producer.ready()
        (request,) = producer.poll()
        producer.now = now
        producer.lose(request, TIMED_OUT)
        (batch,) = producer.done()
        assert ("; delivery.timeout.ms=30000 has passed" in str(batch.error)) is told


def test_a_batch_that_expires_names_why_its_leader_cannot_be_reached() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.sender.handle(NodeDown(1, "Connection refused"), producer.now)
    producer.now = 30.0
    producer.poll()
    errors = [str(batch.error) for batch in producer.done()]
    assert errors
    assert all("its leader is node 1 (127.0.0.1:9001) (Connection refused)" in e for e in errors)


def test_a_batch_that_expires_in_flight_keeps_its_memory_until_the_answer() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.append(0, FULL)
    producer.ready()
    (request,) = producer.poll()
    producer.now = 30.0
    producer.poll()
    assert [b.state for b in producer.done()] == [BatchState.FAILED] * 2
    assert producer.accumulator.available_bytes < producer.settings.buffer_memory
    producer.lose(request, TIMED_OUT)
    assert producer.done() == []
    assert producer.accumulator.available_bytes == producer.settings.buffer_memory


def _expired_in_flight() -> tuple[PureProducer, ClientRequest]:
    """Give a producer whose second batch expired at its broker, and that request."""
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    producer.append(0, FULL)
    (request,) = producer.poll()
    producer.now = 30.0
    producer.append(0, FULL)
    assert producer.poll() == [], "sent before the fate of the batch before is known"
    assert [b.state for b in producer.done()] == [BatchState.SUCCEEDED, BatchState.FAILED]
    return producer, request


def test_what_follows_a_batch_that_expired_goes_on_where_it_was_written_after_all() -> None:
    producer, expired = _expired_in_flight()
    producer.answer(expired)
    (after,) = producer.poll()
    assert (sequences(after), batches(after)[0].producer.epoch) == ([4], 0)


def test_what_follows_a_batch_that_expired_has_a_new_epoch_where_it_may_be_missing() -> None:
    producer, expired = _expired_in_flight()
    producer.lose(expired, TIMED_OUT)
    (after,) = producer.poll()
    assert (sequences(after), batches(after)[0].producer.epoch) == ([0], 1)


STALE, NOT_STALE = [3, 5, 6, 9, 13, 56, 72, 74, 100, 103], [2, 7, 19, 44, 75]


@pytest.mark.parametrize("code", STALE + NOT_STALE)
def test_an_error_that_means_stale_metadata_has_it_asked_for(code: int) -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    (request,) = producer.poll()
    producer.now = 10.0
    assert producer.poll() == []
    producer.now = 20.0
    assert producer.sender.poll(producer.now).requests == []
    producer.answer(request, code)
    asked = [r.message for r in producer.sender.poll(producer.now).requests]
    assert [type(message) for message in asked] == [MetadataRequest] * (code in STALE)


def test_stale_metadata_is_asked_for_also_where_the_batch_had_expired() -> None:
    for code in (NOT_LEADER, POLICY):
        producer, expired = _expired_in_flight()
        producer.now = 60.0
        assert producer.poll() == []
        assert producer.sender.poll(producer.now).requests == []
        producer.answer(expired, code)
        asked = [r.message for r in producer.sender.poll(producer.now).requests]
        assert [type(message) for message in asked] == [MetadataRequest] * (code == NOT_LEADER)


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


def _split_after_a_lost_answer(
    values: list[bytes] = FULL,
) -> tuple[PureProducer, ClientRequest]:
    """Lose the answer to a batch, and split it; gives its first part on its way."""
    producer = PureProducer([1])
    producer.append(0, values)
    producer.ready()
    producer.lose(producer.poll()[0])
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
    assert all("may have been written before" in str(part.error) for part in parts)
    # What comes later goes on under a new epoch.
    producer.append(0, [b"later"])
    (later,) = producer.poll()
    assert (batches(later)[0].producer.epoch, batches(later)[0].base_sequence) == (1, 0)


def test_parts_of_a_batch_that_was_not_written_are_sent_like_others() -> None:
    producer, part = _split_after_a_lost_answer()
    producer.answer(part)
    (second,) = producer.poll()
    # A broker that has the first part has not got the whole: this is another gap.
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
    assert all("may have been written before" in str(error) for error in failed)


def test_rows_that_lingered_in_their_chunk_wait_behind_no_newer_ones() -> None:
    producer = PureProducer([1, 1], Settings(linger=1.0, delivery_timeout=1.5))
    producer.ready()
    producer.now = 0.9
    producer.append(1, [b"newer"])
    producer.now = 0.0
    producer.append(0, [b"older"])
    producer.now = 0.9
    assert producer.poll() == []
    assert producer.sender.poll(0.9).next_poll_at == pytest.approx(1.0)
    producer.now = 1.0
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [0]
    assert producer.sender.poll(1.0).next_poll_at == pytest.approx(1.5)
    producer.now = 1.5
    producer.poll()
    assert [b.topic_partition.partition for b in producer.done()] == [0]


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


def test_memory_is_free_again_after_every_kind_of_end() -> None:
    producer = PureProducer([1], Settings(compression="lz4", retries=1))
    for values in (FULL, [b"a" * 90_000, b"b" * 100], [b"c"] * 500):
        producer.append(0, values)
    producer.ready()
    code = 0
    for _ in range(20):
        for request in producer.poll():
            producer.answer(request, code)
            code = 0 if code else CORRUPT
        producer.now += 10
    assert not producer.accumulator.has_incomplete
    assert producer.accumulator.available_bytes == producer.settings.buffer_memory


def _bytes_of(request: object) -> bytes:
    message = request.message  # type: ignore[attr-defined]
    buffers = [
        buffer
        for topic in message.topic_data
        for data in topic.partition_data
        for buffer in data.records.buffers
    ]
    return b"".join(bytes(buffer) for buffer in buffers)


def _of_version(producer: PureProducer, node: int, produce_version: int) -> None:
    versions = NodeApiVersions({0: (0, produce_version)})
    producer.sender.handle(NodeReady(node, versions), producer.now)


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 2), (13, 2)])
def test_a_batch_goes_out_in_the_record_format_of_the_node_s_produce_version(
    version: int, magic: int
) -> None:
    producer = PureProducer([1, 2], Settings(idempotent=False))
    producer.append(0, [b"a", b"b"], timestamp_ms=5)
    producer.append(1, [b"c"])
    producer.ready()
    _of_version(producer, 1, version)
    sent = {r.node_id: r for r in producer.poll()}
    for node, expected in ((1, magic), (2, 2)):
        message = sent[node].message
        assert isinstance(message, ProduceRequest)
        (data,) = message.topic_data[0].partition_data
        assert data.records is not None
        whole = b"".join(data.records.buffers)
        assert (whole[16], len(whole)) == (expected, data.records.size_bytes)
        assert batches(sent[node])[0].sent_bytes == len(whole)
    producer.lose(sent[1])
    producer.now += 1
    _of_version(producer, 1, 13)
    (again,) = producer.poll()
    message = again.message
    assert isinstance(message, ProduceRequest)
    records = message.topic_data[0].partition_data[0].records
    assert records is not None
    assert b"".join(records.buffers)[16] == 2, "a broker that was upgraded got the old format"


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_batch_that_the_node_s_record_format_cannot_hold_fails_alone(acks: int) -> None:
    settings = Settings(idempotent=False, acks=acks, compression="zstd")
    producer = PureProducer([1], settings)
    producer.append(0, [b"a"])
    producer.ready()
    _of_version(producer, 1, 2)
    (request,) = producer.poll()
    assert isinstance(request.message, ProduceRequest)
    assert request.message.topic_data == []
    response = ProduceResponse(responses=[]) if acks else None
    producer.sender.handle(Answered(request, 1, response), producer.now)
    (batch,) = producer.done()
    assert batch.state is BatchState.FAILED
    assert isinstance(batch.error, UnsupportedCompressionTypeException)
    assert "message format v1, which has no zstd" in str(batch.error)
    assert producer.poll() == []


@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.parametrize(
    "settings",
    [
        Settings(idempotent=False),
        Settings(idempotent=False, acks=0),
        Settings(),
    ],
    ids=["plain", "without answers", "idempotent"],
)
def test_zstd_goes_to_no_node_that_does_not_know_it(version: int, settings: Settings) -> None:
    settings = replace(settings, compression="zstd", option_prefix="kafka.")
    producer = PureProducer([1], settings)
    producer.append(0, [b"a"])
    producer.ready()
    _of_version(producer, 1, version)
    (request,) = producer.poll()
    assert isinstance(request.message, ProduceRequest)
    assert request.message.topic_data == []
    response = ProduceResponse(responses=[]) if settings.acks else None
    producer.sender.handle(Answered(request, 1, response), producer.now)
    (batch,) = producer.done()
    assert batch.state is BatchState.FAILED
    assert isinstance(batch.error, UnsupportedCompressionTypeException)
    assert str(batch.error) == (
        "t-0: 1 record(s) were not written: UNSUPPORTED_COMPRESSION_TYPE (76) from node 1; "
        "kafka.compression.type=zstd needs Produce version 7, which brokers have from Kafka 2.1 "
        f"on, and the partition's leader takes at most version {version}; choose another "
        "kafka.compression.type"
    )
    assert producer.poll() == []
    assert not producer.accumulator.has_incomplete
    assert producer.accumulator.available_bytes == settings.buffer_memory


def test_what_a_node_cannot_take_is_not_tried_again_where_the_connection_breaks() -> None:
    producer = PureProducer([1], Settings(compression="zstd"))
    producer.append(0, [b"a"])
    producer.ready()
    _of_version(producer, 1, 6)
    (request,) = producer.poll()
    producer.lose(request)
    (batch,) = producer.done()
    assert isinstance(batch.error, UnsupportedCompressionTypeException)
    assert not producer.accumulator.has_incomplete


@pytest.mark.parametrize(("version", "compression"), [(6, "lz4"), (7, "zstd"), (13, "zstd")])
def test_a_codec_goes_to_the_nodes_that_know_it(version: int, compression: str) -> None:
    producer = PureProducer([1], Settings(compression=compression))
    producer.append(0, [b"a"])
    producer.ready()
    _of_version(producer, 1, version)
    (request,) = producer.poll()
    producer.answer(request)
    (batch,) = producer.done()
    assert batch.state is BatchState.SUCCEEDED

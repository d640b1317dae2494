"""The sender, with a test as broker and clock: what is sent, when, and to whom."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from support.pure.pure_producer import FULL, PureProducer, Settings, batches, bytes_of, sequences

from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.wire.exchange import Answered, NodeDown, NodeReady, NodeThrottled
from spark_kafka_sink.wire.messages import MetadataRequest, ProduceRequest
from spark_kafka_sink.wire.versions import NodeApiVersions

NOT_LEADER = 6


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


def test_a_flush_ends_lingering() -> None:
    producer = PureProducer([1], Settings(linger=5.0))
    producer.append(0, [b"small"])
    producer.ready()
    assert producer.poll() == []
    producer.accumulator.begin_flush("flush")
    assert len(producer.poll()) == 1


@pytest.mark.parametrize("scale", [1, 100], ids=["copied", "referenced"])
def test_while_memory_is_short_the_oldest_go_and_no_more_than_make_room(scale: int) -> None:
    # Of 8,000 bytes a quarter is to be free, and six batches leave less.
    settings = Settings(linger=5.0, batch_size=2000 * scale, buffer_memory=8000 * scale)
    producer = PureProducer([1] * 7, settings)
    producer.ready()
    for partition in range(5):
        producer.append(partition, [b"x" * 1100 * scale])
    assert producer.poll() == []
    producer.append(5, [b"x" * 1100 * scale])
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [0]
    # Memory of batches in flight counts as free, so that the other batches go on filling.
    assert producer.poll() == []
    producer.append(6, [b"x" * 1100 * scale])
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [1]


def test_what_a_caller_waits_for_is_made_room_for() -> None:
    producer = PureProducer([1] * 4, Settings(linger=5.0, batch_size=2000, buffer_memory=8000))
    producer.ready()
    for partition in range(4):
        producer.append(partition, [b"x" * 900])
    assert producer.poll() == []
    assert not producer.accumulator.pool.reserve(PendingAppend(), 6000)
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [0, 1]


def test_a_caller_that_waits_gets_the_memory_of_slices_in_one_round_trip() -> None:
    settings = Settings(linger=5.0, batch_size=200_000, buffer_memory=800_000)
    producer = PureProducer([1] * 4, settings)
    producer.ready()
    for _ in range(2):
        producer.append_slice(np.arange(4), [b"x" * 90_000] * 4)
    (request,) = producer.poll()
    # Room for another slice, if the rest fills up and is sent, too.
    assert [b.topic_partition.partition for b in batches(request)] == [0, 1]
    assert producer.poll() == []
    # All batches reference both slices, so that no memory is free before all of them are done.
    pending = PendingAppend()
    assert not producer.accumulator.pool.reserve(pending, 100_000)
    producer.accumulator.pool.wait(pending)
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [2, 3]


def test_a_partition_whose_full_batch_goes_gives_no_second_one_to_the_same_request() -> None:
    producer = PureProducer([1], Settings(linger=0.0, batch_size=2000, buffer_memory=8000))
    producer.ready()
    producer.append(0, [b"the first one, for a producer id"])
    (request,) = producer.poll()
    producer.answer(request)
    producer.append(0, [b"x" * 1400])
    producer.append(0, [b"x" * 1400])
    assert not producer.accumulator.pool.reserve(PendingAppend(), 8000)
    requests = producer.poll()
    assert [sequences(request) for request in requests] == [[1], [2]]
    for request in requests:
        assert isinstance(request.message, ProduceRequest)
        (topic,) = request.message.topic_data
        assert len(topic.partition_data) == 1


def test_what_is_compressed_on_its_way_is_room_to_come_though_a_slice_was_referenced() -> None:
    settings = Settings(linger=5.0, batch_size=300_000, buffer_memory=300_000, compression="zstd")
    producer = PureProducer([1] * 3, settings)
    producer.ready()
    noise = Random(1)
    for partition in (0, 1):
        producer.append(partition, [noise.randbytes(70_000)])
    assert not producer.accumulator.pool.reserve(PendingAppend(), 250_000)
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [0, 1]
    producer.append(2, [b"x"])
    assert not producer.accumulator.pool.reserve(PendingAppend(), 250_000)
    assert producer.poll() == []


def test_a_batch_that_comes_back_is_no_room_to_come() -> None:
    producer = PureProducer([1] * 2, Settings(linger=5.0, batch_size=2000, buffer_memory=8000))
    producer.ready()
    producer.append(0, [b"x" * 1400])
    producer.append(1, [b"x" * 1400])
    assert not producer.accumulator.pool.reserve(PendingAppend(), 6000)
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [0]
    producer.answer(request, code=NOT_LEADER)
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [1]


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
    assert producer.poll() == [], "which asked for metadata, and learned the broker"
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


def test_one_turn_fills_as_many_requests_as_a_node_takes() -> None:
    producer = PureProducer([1] * 20, Settings(max_request_size=2000, max_in_flight=3))
    for partition in range(20):
        producer.append(partition, FULL)
    producer.ready()
    work = producer.sender.poll(producer.now)
    assert [len(drained.batches) for drained in work.drained] == [2, 2, 2]
    assert all(drained.size_bytes <= 2000 for drained in work.drained)
    assert producer.poll() == [], "a node has more requests than it takes"


def test_the_batches_of_a_partition_go_one_after_the_other_without_a_wait() -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.append(0, FULL)
    producer.answer(producer.poll()[0])
    for _ in range(7):
        producer.append(0, FULL)
    sent = 0
    while (work := producer.sender.poll(producer.now)).next_poll_at <= producer.now:
        sent += sum(len(drained.batches) for drained in work.drained)
    assert sent + sum(len(drained.batches) for drained in work.drained) == 5


def test_a_small_batch_that_has_lingered_does_not_wait_behind_those_that_always_have_more() -> None:
    settings = Settings(linger=1.0, max_in_flight=1, max_request_size=1500)
    producer = PureProducer([1, 1, 1], settings)
    producer.ready()
    producer.append(2, [b"small"])
    sent: set[int] = set()
    for _ in range(10):
        for partition in (0, 1):
            producer.append(partition, FULL * 2)
        for request in producer.poll():
            sent.update(batch.topic_partition.partition for batch in batches(request))
            producer.answer(request)
        producer.now += 1.0
    assert sent == {0, 1, 2}


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


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_node_that_goes_down_has_metadata_asked_for_if_rows_wait(*, has_rows: bool) -> None:
    """Otherwise, an unused producer would connect again and again, and warn that nobody answers."""
    producer = PureProducer([1])
    producer.ready()
    if has_rows:
        producer.append(0, FULL)
        producer.poll()
    producer.now = 10.0
    assert producer.sender.poll(producer.now).requests == []
    producer.sender.handle(NodeDown(1, "gone"), producer.now)
    asked = producer.sender.poll(producer.now).requests
    assert [type(each.message) for each in asked] == [MetadataRequest] * has_rows


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
    assert bytes_of(again) == bytes_of(first)


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

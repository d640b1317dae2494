"""How long batches may wait behind others: in the producer of a task, and in other producers."""

from __future__ import annotations

import re

import pytest
from support.pure.pure_producer import FULL, PureProducer, Settings

from spark_kafka_sink.errors import TimeoutException
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.wire.exchange import Answered

TIMED_OUT = 7
# A node acknowledges one batch in this time, so six batches take longer than the timeout.
STEP_S = 20.0
TIMEOUT_S = 100.0


def slow(
    *leaders: int,
    is_of_task: bool = True,
    acks: int = -1,
    metadata_max_idle: float = float("inf"),
) -> PureProducer:
    """Return a producer with twelve batches for each partition, and one request at a time."""
    settings = Settings(
        delivery_timeout=TIMEOUT_S,
        max_in_flight=1,
        max_request_size=1,
        is_of_task=is_of_task,
        acks=acks,
        idempotent=acks != 0,
        metadata_max_idle=metadata_max_idle,
    )
    producer = PureProducer(list(leaders), settings)
    for partition in range(len(leaders)):
        for _ in range(12):
            producer.append(partition, FULL)
    producer.ready()
    return producer


def failed(batches: list[ProducerBatch]) -> list[ProducerBatch]:
    return [batch for batch in batches if batch.error is not None]


@pytest.mark.parametrize("acks", [0, -1])
def test_in_a_task_batches_may_wait_while_their_leader_acknowledges_others(acks: int) -> None:
    producer = slow(1, acks=acks)
    done: list[ProducerBatch] = []
    while producer.accumulator.has_incomplete:
        (request,) = producer.poll()
        producer.now += STEP_S
        if acks:
            producer.answer(request)
        else:
            producer.sender.handle(Answered(request, 1, None), producer.now)
        done += producer.done()
    assert producer.now == 12 * STEP_S
    assert [batch.state for batch in done] == [BatchState.SUCCEEDED] * 12


def test_in_another_producer_the_time_counts_from_the_append() -> None:
    producer = slow(1, is_of_task=False)
    for _ in range(4):
        (request,) = producer.poll()
        producer.now += STEP_S
        producer.answer(request)
    (request,) = producer.poll()
    producer.now += STEP_S
    assert producer.poll() == []
    assert len(failed(producer.done())) == 8
    assert not producer.accumulator.has_incomplete


def acknowledge(producer: PureProducer, times: int) -> None:
    """Let the nodes acknowledge a batch in each step of time. Check that none fails."""
    for _ in range(times):
        requests = producer.poll()
        producer.now += STEP_S
        for request in requests:
            producer.answer(request)
        assert not failed(producer.done())


def update_metadata(producer: PureProducer) -> None:
    """Deliver metadata with the current leaders, as if it had been requested."""
    producer.metadata.update(producer.metadata_response(), producer.now)


CHANGES: dict[str, list[int]] = {"a new leader": [2, 2], "no leader": [-1, -1]}


@pytest.mark.parametrize("name", CHANGES)
def test_if_leaders_change_batches_wait_for_the_timeout_once_more(name: str) -> None:
    producer = slow(1, 1)
    acknowledge(producer, 8)
    changed_at = producer.now
    (lost,) = producer.poll()
    producer.leaders = CHANGES[name]
    update_metadata(producer)
    # One batch was in flight. It fails with its connection, and waits with the others.
    producer.lose(lost)
    producer.now = changed_at + TIMEOUT_S - STEP_S
    producer.poll()
    assert not failed(producer.done())
    producer.leaders = [1, 1]
    producer.now = changed_at + TIMEOUT_S - 1
    update_metadata(producer)
    for request in producer.poll():
        producer.answer(request)
    assert not failed(producer.done())


def test_a_leader_that_comes_back_finds_the_batches_of_its_partitions() -> None:
    producer = slow(1, 2)
    acknowledge(producer, 6)
    # Node 1 restarts, and another node leads its partition meanwhile.
    producer.leaders = [2, 2]
    update_metadata(producer)
    acknowledge(producer, 8)
    producer.leaders = [1, 2]
    update_metadata(producer)
    producer.now += STEP_S / 2
    producer.poll()
    assert not failed(producer.done())


def test_a_flush_may_take_longer_than_idle_topics_are_remembered() -> None:
    producer = slow(1, metadata_max_idle=TIMEOUT_S)
    while producer.accumulator.has_incomplete:
        producer.metadata.request_update()
        acknowledge(producer, 1)
    assert producer.now >= 12 * STEP_S


def test_a_leader_that_acknowledges_nothing_more_is_waited_for_no_longer_than_the_timeout() -> None:
    producer = slow(1)
    for _ in range(8):
        (request,) = producer.poll()
        producer.now += STEP_S
        producer.answer(request)
    producer.done()
    producer.poll()
    last = producer.now
    producer.now = last + TIMEOUT_S - 0.1
    polls = 0
    while True:
        next_poll_at = producer.sender.poll(producer.now).next_poll_at
        if expired := producer.done():
            break
        producer.now = next_poll_at
        polls += 1
        assert polls <= 3
    assert last + TIMEOUT_S <= producer.now <= last + TIMEOUT_S + 1
    assert len(expired) == 4
    assert all(isinstance(batch.error, TimeoutException) for batch in expired)
    expected = r"a leader of this partition last acknowledged other records 100\d{3} ms ago"
    assert all(re.search(expected, str(batch.error)) for batch in expired)


def test_acknowledgements_of_another_node_do_not_count() -> None:
    producer = slow(1, 2)
    while producer.now < TIMEOUT_S:
        assert not failed(producer.done())
        for request in producer.poll():
            if request.node_id == 1:
                producer.answer(request)
        producer.now += STEP_S
    producer.poll()
    late = failed(producer.done())
    assert [batch.topic_partition.partition for batch in late] == [1] * 12


def test_the_time_of_a_batch_counts_from_the_last_acknowledgement_before_its_first_failure() -> (
    None
):
    producer = slow(1, 1)
    for _ in range(8):
        (request,) = producer.poll()
        producer.now += STEP_S
        producer.answer(request)
    producer.done()
    began = producer.now
    # From now on, the broker rejects one of the partitions, and accepts the other.
    late: list[ProducerBatch] = []
    while not late and producer.now < began + 2 * TIMEOUT_S:
        for request in producer.poll():
            producer.answer(request, lambda partition: TIMED_OUT if partition else 0)
        producer.now += STEP_S / 10
        late = failed(producer.done())
    assert {batch.topic_partition.partition for batch in late} == {1}
    assert began + TIMEOUT_S <= producer.now <= began + TIMEOUT_S + STEP_S
    assert late[0].error is not None
    assert "failed attempt(s)" in str(late[0].error)

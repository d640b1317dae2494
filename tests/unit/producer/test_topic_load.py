"""Which partitions are open to rows without keys, by leaders, queues and slow nodes."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from support.pure.pure_producer import TOPIC, PureProducer, Settings

from spark_kafka_sink.producer.partitioner import TopicLoad
from spark_kafka_sink.wire.exchange import NodeReady
from spark_kafka_sink.wire.versions import NodeApiVersions

BATCH = [b"v" * 600, b"v" * 600]


def load(producer: PureProducer, *, adaptive: bool = True, near: Collection[int] = ()) -> TopicLoad:
    """Return the load of the topic."""
    topic = producer.metadata.topic(TOPIC)
    assert topic is not None
    return producer.accumulator.topic_load(
        TOPIC, topic, producer.latencies, adaptive=adaptive, near=near
    )


def test_partitions_with_a_leader_are_weighed_by_the_batches_they_have_waiting() -> None:
    producer = PureProducer([1, -1, 1, 1])
    assert producer.poll() == []
    producer.append(0, BATCH)
    producer.append(2, [b"small"])
    found = load(producer)
    assert found.queue_lengths is not None
    assert (found.available, found.queue_lengths()) == ([0, 2, 3], [2, 1, 0])
    assert load(producer, adaptive=False).queue_lengths is None


def test_without_any_leader_all_partitions_are_open() -> None:
    producer = PureProducer([-1, -1, -1])
    assert producer.poll() == []
    assert load(producer).available == [0, 1, 2]


def test_a_node_that_takes_no_data_for_too_long_is_left_alone_until_it_does() -> None:
    producer = PureProducer([1, 2], Settings(availability_timeout=5.0))
    producer.ready(1)
    producer.append(1, BATCH)
    producer.poll()
    producer.now += 5.0
    producer.poll()
    assert load(producer).available == [0, 1]
    producer.now += 0.1
    producer.poll()
    assert load(producer).available == [0]
    assert load(producer, adaptive=False).available == [0, 1]
    producer.sender.handle(NodeReady(2, NodeApiVersions({})), producer.now)
    assert producer.poll()
    assert load(producer).available == [0, 1]


def slow_second_node() -> PureProducer:
    """Make a producer whose second node has taken no data for too long."""
    producer = PureProducer([1, 2], Settings(availability_timeout=5.0, delivery_timeout=30.0))
    producer.ready(1)
    producer.append(1, BATCH)
    producer.poll()
    producer.now += 10.0
    producer.poll()
    assert load(producer).available == [0]
    return producer


def test_a_node_whose_backlog_expired_is_tried_again() -> None:
    producer = slow_second_node()
    producer.now = 30.0
    producer.poll()
    assert producer.done()
    assert load(producer).available == [0, 1]


def test_a_node_whose_backlog_goes_elsewhere_is_tried_again() -> None:
    producer = slow_second_node()
    producer.leaders = [2, 1]
    producer.metadata.request_update()
    producer.now += 1.0
    assert producer.poll()
    assert load(producer).available == [0, 1]


def test_a_node_is_left_alone_while_any_of_its_backlog_is_left() -> None:
    producer = slow_second_node()
    producer.append(1, BATCH)
    producer.now = 30.0
    producer.poll()
    assert producer.done()
    assert load(producer).available == [0]


def test_a_node_that_has_nothing_waiting_is_never_slow() -> None:
    producer = PureProducer([1, 2], Settings(availability_timeout=5.0))
    producer.ready(1)
    producer.now += 60.0
    producer.poll()
    assert load(producer).available == [0, 1]


@pytest.mark.parametrize("leaders", [[1, 2], [2, 2]])
def test_where_every_node_is_slow_none_is_left_out(leaders: list[int]) -> None:
    producer = PureProducer(leaders, Settings(availability_timeout=5.0))
    assert producer.poll() == []
    for partition in (0, 1):
        producer.append(partition, BATCH)
    producer.poll()
    producer.now += 6.0
    producer.poll()
    assert load(producer).available == [0, 1]


@pytest.mark.parametrize("adaptive", [True, False])
def test_partitions_with_a_leader_near_by_are_preferred_while_there_are_any(
    *, adaptive: bool
) -> None:
    producer = PureProducer([1, 2, -1, 2])
    assert producer.poll() == []
    assert load(producer, adaptive=adaptive, near={2, 3}).available == [1, 3]
    assert load(producer, adaptive=adaptive, near={3}).available == [0, 1, 3]


def test_a_slow_node_near_by_is_left_for_one_far_away() -> None:
    assert load(slow_second_node(), near={2}).available == [0]

"""How far a producer is, and what it waits for."""

from __future__ import annotations

from support.pure.pure_producer import FULL, PureProducer, Settings

from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.completion import Deliveries
from spark_kafka_sink.producer.delivery_progress import DeliveryProgress
from spark_kafka_sink.wire.exchange import NodeDown, NodeThrottled

NOT_LEADER = 6


def progress(producer: PureProducer, deliveries: Deliveries | None = None) -> DeliveryProgress:
    """Return the progress now."""
    return producer.sender.progress(deliveries or Deliveries(), producer.now)


def test_acknowledged_records_are_no_longer_on_the_way() -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.append(0, FULL)
    producer.append(0, FULL)
    assert (progress(producer).records, progress(producer).pending) == (0, 4)
    (request,) = producer.poll()
    producer.answer(request)
    deliveries = Deliveries()
    for batch in producer.done():
        deliveries.add(batch)
    found = progress(producer, deliveries)
    assert (found.records, found.pending, found.retried, found.throttled) == (2, 2, {}, {})
    assert 800 < found.bytes < 900


def test_a_batch_that_is_sent_again_is_retried_at_its_leader() -> None:
    producer = PureProducer([1, 2])
    producer.ready()
    producer.append(0, FULL)
    producer.append(1, FULL)
    first, second = producer.poll()
    producer.answer(first)
    assert progress(producer).retried == {}
    producer.answer(second, NOT_LEADER)
    assert progress(producer).retried == {2: 1}
    producer.leaders[1] = -1
    producer.now = 10.0
    producer.poll()
    assert progress(producer).retried == {-1: 1}


def test_a_node_throttles_until_its_time_is_over() -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.sender.handle(NodeThrottled(1, until=3.0), 0.0)
    producer.now = 1.0
    assert progress(producer).throttled == {1: 2.0}
    producer.now = 3.0
    assert progress(producer).throttled == {}


def test_only_nodes_that_are_needed_are_said_to_be_unreachable() -> None:
    producer = PureProducer([1, 2])
    producer.ready()
    for node_id, reason in ((1, "refused"), (2, "refused too")):
        producer.sender.handle(NodeDown(node_id, reason), 0.0)
    assert progress(producer).unreachable == {1: "refused", 2: "refused too"}, "no node is there"
    producer.append(1, FULL)
    assert progress(producer).unreachable == {2: "refused too"}
    producer.poll()
    producer.ready(2)
    assert progress(producer).unreachable == {}


def test_a_call_waits_for_memory() -> None:
    producer = PureProducer([1], Settings(buffer_memory=10))
    waiting = PendingAppend()
    assert not progress(producer).is_waiting_for_memory
    producer.accumulator.pool.wait(waiting)
    assert progress(producer).is_waiting_for_memory
    producer.accumulator.pool.stop_waiting(waiting)
    assert not progress(producer).is_waiting_for_memory

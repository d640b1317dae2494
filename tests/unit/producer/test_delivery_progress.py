"""How far a producer is, and what it waits for."""

from __future__ import annotations

from random import Random

from support.pure.pure_producer import FULL, PureProducer, Settings

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.completion import Deliveries
from spark_kafka_sink.producer.delivery_progress import DeliveryProgress
from spark_kafka_sink.producer.transactions.joined import JoinedTransaction
from spark_kafka_sink.producer.transactions.requests import TransactionalRequest
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, NodeDown, NodeThrottled
from spark_kafka_sink.wire.messages import InitProducerIdResponse

NOT_LEADER = 6


def progress(producer: PureProducer, deliveries: Deliveries | None = None) -> DeliveryProgress:
    """Return the progress now, while no call waits for metadata."""
    return producer.sender.progress(deliveries or Deliveries(), [], producer.now)


def request_of(producer: PureProducer) -> ClientRequest:
    """Let the producer send one request that is not Produce."""
    (request,) = producer.sender.poll(producer.now).requests
    return request


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
    assert progress(producer).awaited == {}
    producer.leaders[1] = -1
    producer.now = 10.0
    (again,) = producer.poll()
    assert progress(producer).retried == {2: 1}, "it is at its old leader"
    assert progress(producer).awaited == {}
    producer.answer(again, NOT_LEADER)
    assert progress(producer).retried == {}
    assert progress(producer).awaited == {"the leader of t-1": ""}


def test_a_batch_that_was_never_sent_waits_for_its_leader() -> None:
    producer = PureProducer([1, -1])
    producer.ready()
    producer.append(0, FULL)
    producer.append(1, FULL)
    (request,) = producer.poll()
    assert progress(producer).awaited == {"the leader of t-1": ""}
    producer.leaders[:] = [-1, 1]
    producer.now = 10.0
    producer.poll()
    assert progress(producer).awaited == {}, "the first is in flight, the second has a leader"
    producer.answer(request)


def test_a_batch_waits_for_the_metadata_of_a_topic_that_is_gone() -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.append(0, FULL)
    known = producer.metadata_response()
    (gone,) = known.topics
    gone.error_code, gone.partitions = codes.UNKNOWN_TOPIC_OR_PARTITION, []
    producer.metadata.update(known, producer.now)
    assert progress(producer).awaited == {"the metadata of topic t": "UNKNOWN_TOPIC_OR_PARTITION"}


def test_batches_wait_for_a_producer_id() -> None:
    producer = PureProducer([1])
    producer.answer_other(request_of(producer))
    assert progress(producer).awaited == {}, "there is no batch"
    producer.append(0, FULL)
    assert progress(producer).awaited == {"a producer id": ""}
    loading = InitProducerIdResponse(error_code=codes.COORDINATOR_LOAD_IN_PROGRESS)
    producer.sender.handle(Answered(request_of(producer), 1, loading), producer.now)
    assert progress(producer).awaited == {"a producer id": "COORDINATOR_LOAD_IN_PROGRESS"}
    producer.now = 10.0
    producer.poll()
    assert progress(producer).awaited == {}


def test_batches_wait_for_the_coordinator_that_adds_their_partition() -> None:
    producer = PureProducer([1, 1], Settings(linger=1.0))
    producer.ready()
    transaction = JoinedTransaction(
        "app/0.0",
        ProducerIdAndEpoch(77, 3),
        1,
        adds_partitions=True,
        checks_duplicates=False,
        retry_backoff=ExponentialBackoff(0.1, 1.0),
        random=Random(1),
    )
    producer.sender.join(transaction)
    producer.append(0, [b"lingers"])
    producer.sender.poll(producer.now)
    assert progress(producer).awaited == {}
    producer.now = 2.0
    request = request_of(producer)
    assert isinstance(request.context, TransactionalRequest)
    missing = producer.coordinator.answer(request.context, codes.COORDINATOR_NOT_AVAILABLE)
    producer.sender.handle(Answered(request, 1, missing), producer.now)
    assert progress(producer).awaited == {
        "the transaction coordinator": "COORDINATOR_NOT_AVAILABLE"
    }
    producer.now = 10.0
    producer.poll()
    assert progress(producer).awaited == {}


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

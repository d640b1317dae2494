"""Produce requests: whether topics go by name or by id, and answers that leave something out."""

from __future__ import annotations

from uuid import UUID

import pytest
from support.pure.pure_producer import TOPIC, PureProducer, Settings, batches

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.produce_requests import DrainedBatches
from spark_kafka_sink.producer.producer_batch import ProducerBatch, RetainedBuffer
from spark_kafka_sink.records.compression import NO_COMPRESSION
from spark_kafka_sink.wire.exchange import Answered
from spark_kafka_sink.wire.messages import (
    MetadataResponseTopic,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

FULL = [b"x" * 400, b"y" * 400]


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("named", [[], [0], [1]])
def test_a_batch_that_an_answer_does_not_name_fails_and_nothing_stays_in_flight(
    named: list[int], *, idempotent: bool
) -> None:
    producer = PureProducer([1, 1], Settings(idempotent=idempotent, max_in_flight=1))
    for partition in (0, 1):
        producer.append(partition, FULL)
    producer.ready()
    (request,) = producer.poll()
    answers = [PartitionProduceResponse(index=number, error_code=0) for number in named]
    topics = [TopicProduceResponse(name=TOPIC, partition_responses=answers)] if named else []
    producer.sender.handle(Answered(request, 1, ProduceResponse(responses=topics)), producer.now)
    done = {batch.topic_partition.partition: batch for batch in producer.done()}
    assert set(done) == {0, 1}
    for number, batch in done.items():
        is_named = number in named
        assert batch.state is (BatchState.SUCCEEDED if is_named else BatchState.FAILED)
        left_out = "the response does not contain this partition"
        assert is_named or left_out in str(batch.error)
    assert not producer.accumulator.has_incomplete
    assert producer.accumulator.pool.available_bytes == producer.settings.buffer_memory
    for partition in (0, 1):
        producer.append(partition, FULL)
    producer.now += 10
    (after,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(after)] == [0, 1]


@pytest.mark.parametrize("unknown", [[], ["u"], ["t"], ["t", "u"]])
def test_topics_go_by_name_until_the_id_of_every_topic_in_the_request_is_known(
    unknown: list[str],
) -> None:
    producer = PureProducer([1])
    response = producer.metadata_response()
    response.topics = [
        MetadataResponseTopic(
            error_code=0,
            name=name,
            topic_id=UUID(int=0 if name in unknown else number),
            partitions=response.topics[0].partitions,
        )
        for number, name in enumerate(("t", "u"), start=1)
    ]
    producer.metadata.track("u", producer.now)
    producer.metadata.update(response, producer.now)
    drained = DrainedBatches(1, [_batch("t"), _batch("u")])
    last_version_by_name = 12
    expected = last_version_by_name if unknown else None
    assert producer.sender.build(drained).max_version == expected


def _batch(topic: str) -> ProducerBatch:
    batch = ProducerBatch(TopicPartition(topic, 0), NO_COMPRESSION, 0, 0.0)
    batch.append(memoryview(b"record"), 1, 0, RetainedBuffer(6))
    batch.seal()
    return batch

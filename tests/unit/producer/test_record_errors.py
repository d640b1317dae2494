"""A broker's errors for single records (KIP-467): the user reads which and why."""

from __future__ import annotations

import pytest
from support.pure.pure_producer import TOPIC, PureProducer, Settings
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.errors import InvalidRecordException, InvalidTimestampException
from spark_kafka_sink.wire.exchange import Answered
from spark_kafka_sink.wire.messages import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

INVALID_TIMESTAMP, INVALID_RECORD = 32, 87


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            PartitionProduceResponse(
                index=0,
                error_code=INVALID_RECORD,
                record_errors=[
                    BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key"),
                    BatchIndexAndErrorMessage(batch_index=2),
                ],
                error_message="some records are invalid",
            ),
            "INVALID_RECORD (87) from node 1; some records are invalid; record 1 of the batch: "
            "no key",
        ),
        (
            PartitionProduceResponse(
                index=0,
                error_code=INVALID_RECORD,
                record_errors=[BatchIndexAndErrorMessage(batch_index=2)],
            ),
            "INVALID_RECORD (87) from node 1; record 2 of the batch",
        ),
        (
            PartitionProduceResponse(index=0, error_code=INVALID_RECORD),
            "INVALID_RECORD (87) from node 1",
        ),
    ],
    ids=["with messages", "by number", "nothing said"],
)
def test_the_first_record_that_a_broker_refused_is_named(
    answer: PartitionProduceResponse, said: str
) -> None:
    producer = PureProducer([1])
    producer.append(0, [b"a", b"b", b"c"])
    producer.ready()
    (request,) = producer.poll()
    topic = TopicProduceResponse(name=TOPIC, partition_responses=[answer])
    producer.sender.handle(Answered(request, 1, ProduceResponse(responses=[topic])), 0.0)
    (batch,) = producer.done()
    assert isinstance(batch.error, InvalidRecordException)
    assert str(batch.error) == f"{TOPIC}-0: 3 record(s) were not written: {said}"


def test_a_number_that_no_record_has_blames_nobody() -> None:
    producer = PureProducer([1])
    producer.append(0, [b"a", b"b"])
    producer.ready()
    (request,) = producer.poll()
    refused = [BatchIndexAndErrorMessage(batch_index=number) for number in (-1, 1, 2, 2**31 - 1)]
    answer = PartitionProduceResponse(index=0, error_code=INVALID_RECORD, record_errors=refused)
    topic = TopicProduceResponse(name=TOPIC, partition_responses=[answer])
    producer.sender.handle(Answered(request, 1, ProduceResponse(responses=[topic])), 0.0)
    (batch,) = producer.done()
    assert list(batch.record_errors) == [1]


def test_a_long_message_for_many_records_is_cut_and_kept_once() -> None:
    count = 50
    producer = PureProducer([1])
    producer.append(0, [b"a"] * count)
    producer.ready()
    (request,) = producer.poll()
    refused = [BatchIndexAndErrorMessage(batch_index=number) for number in range(count)]
    refused[1].batch_index_error_message = "own " + "y" * 32_000
    answer = PartitionProduceResponse(
        index=0,
        error_code=INVALID_RECORD,
        record_errors=refused,
        error_message="line\n" + "x" * 32_000,
    )
    topic = TopicProduceResponse(name=TOPIC, partition_responses=[answer])
    with traced_memory() as memory:
        producer.sender.handle(Answered(request, 1, ProduceResponse(responses=[topic])), 0.0)
    assert memory.peak_bytes < 500_000
    (batch,) = producer.done()
    said = "the broker refused the record: "
    assert str(batch.record_errors[0]) == f"{said}line {'x' * 995}…"
    assert str(batch.record_errors[1]) == f"{said}own {'y' * 996}…"
    assert str(batch.record_errors[2]) is str(batch.record_errors[0])
    assert str(batch.error).endswith(f"; line {'x' * 995}…; record 0 of the batch")


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_timestamps_that_a_broker_refused_are_told_from_the_earliest_to_the_latest(
    compression: str,
) -> None:
    producer = PureProducer([1], Settings(compression=compression))
    for timestamp_ms in (50, 10, 90, 60):
        producer.append(0, [b"a"], timestamp_ms)
    producer.ready()
    (request,) = producer.poll()
    answer = PartitionProduceResponse(index=0, error_code=INVALID_TIMESTAMP)
    topic = TopicProduceResponse(name=TOPIC, partition_responses=[answer])
    producer.sender.handle(Answered(request, 1, ProduceResponse(responses=[topic])), 0.0)
    (batch,) = producer.done()
    assert isinstance(batch.error, InvalidTimestampException)
    assert "4 record(s) were not written" in str(batch.error)
    assert "; its timestamps are 10 to 90 ms; " in str(batch.error)

"""What each partition of a slice costs, in lines of Python: counted, the same on every machine.

Over many partitions, a slice has few rows for each, and what is paid per partition is most of
Python's part. The bounds are what it was when they were set, and a fifth more.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC, PureProducer, Settings
from support.pure.work_about_rows import ONE_BATCH_EACH, PLENTY, lines_of, values

from spark_kafka_sink.wire.frames import encode_request
from spark_kafka_sink.wire.messages import PRODUCE

FEW, MANY = 10, 200
ROWS_EACH = 20
MOST_TO_APPEND = 59
MOST_TO_SEND = 317


def lines_to_append(partitions: int) -> int:
    """Count the lines that append a slice with rows for each partition, twice."""
    rows = MANY * ROWS_EACH
    numbers = pa.array([n % partitions for n in range(rows)], pa.int32())
    batch = pa.record_batch({"value": values(rows), "partition": numbers})
    with idle_producer(partitions, batch_size=ONE_BATCH_EACH, buffer_memory=PLENTY) as producer:
        producer.append(TOPIC, batch)  # what makes the batches does not count
        return lines_of(partial(producer.append, TOPIC, batch))


def lines_to_send(partitions: int) -> int:
    """Count the lines from a batch of each partition to their acknowledgement."""
    settings = Settings(
        batch_size=ONE_BATCH_EACH, buffer_memory=PLENTY, max_request_size=ONE_BATCH_EACH
    )
    producer = PureProducer([1] * partitions, settings)
    producer.ready()
    for partition in range(partitions):
        producer.append(partition, [b"value"])

    def send() -> None:
        for request in producer.poll():
            encode_request(PRODUCE, PRODUCE.max_version, 1, "client", request.message)
            producer.answer(request)
        producer.done()

    return lines_of(send)


def test_appending_runs_few_lines_for_a_partition() -> None:
    lines_to_append(FEW)  # the first time, things are made once
    each = (lines_to_append(MANY) - lines_to_append(FEW)) / (MANY - FEW)
    assert 0 < each < MOST_TO_APPEND


def test_sending_runs_few_lines_for_a_partition() -> None:
    lines_to_send(FEW)
    each = (lines_to_send(MANY) - lines_to_send(FEW)) / (MANY - FEW)
    assert 0 < each < MOST_TO_SEND

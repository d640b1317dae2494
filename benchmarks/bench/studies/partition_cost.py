"""The Python cost of each partition of a slice, by step: few and many partitions in turns.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.partition_cost``

The same slices of rows pass through the producer's state machines, without a network, to a response
that acknowledges them. A step's figure is the difference in CPU time of a slice with many
partitions and with few, in microseconds per partition. It is the CPU time of this thread.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

import numpy as np
from support.pure.chance import binary_column
from support.pure.pure_producer import TOPIC, PureProducer, Settings

from spark_kafka_sink.client.appender import SLICE_BYTES
from spark_kafka_sink.producer.partitioner import Partitioner, TopicLoad, choose_partitions
from spark_kafka_sink.producer.produce_requests import DrainedBatches
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns, Rows
from spark_kafka_sink.records.encoder import encode_rows, record_sizes
from spark_kafka_sink.spark.options import SINK_DEFAULTS
from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.exchange import Answered, ClientRequest
from spark_kafka_sink.wire.frames import decode_response, encode_request
from spark_kafka_sink.wire.messages import (
    PRODUCE,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.wire.primitives import Writer

FEW: Final = 12
MANY: Final = 1000
KEY_BYTES, VALUE_BYTES = 16, 100
ROWS: Final = SLICE_BYTES // (KEY_BYTES + VALUE_BYTES + 10)
SLICES: Final = 30
ROUNDS: Final = 5
VERSION: Final = 11
# The time between slices: with this, a batch of each partition has three slices.
SECONDS_A_SLICE: Final = 0.1


class Steps:
    """The CPU seconds of each step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Add the time of the `with` block to a step's time."""
        began = time.thread_time()
        yield
        self.seconds[step] += time.thread_time() - began


def columns() -> RecordColumns:
    """Return the rows of a slice, with random bytes."""
    chance = np.random.default_rng(1)
    return RecordColumns.of(
        key=BinaryColumn.of(binary_column(chance, ROWS, KEY_BYTES)),
        value=BinaryColumn.of(binary_column(chance, ROWS, VALUE_BYTES)),
        headers=None,
        timestamps_ms=np.full(ROWS, 1_700_000_000_000),
    )


def no_load(*_: object) -> TopicLoad:
    """Return no queue sizes, which rows with keys do not need."""
    raise NotImplementedError


def send(rows: Rows, partitions: int) -> dict[str, float]:
    """Send slices through all steps; return the CPU seconds of each."""
    step = Steps()
    settings = Settings(
        batch_size=int(SINK_DEFAULTS["batch.size"]),
        linger=int(SINK_DEFAULTS["linger.ms"]) / 1000,
        buffer_memory=int(SINK_DEFAULTS["buffer.memory"]),
        max_request_size=int(SINK_DEFAULTS["max.request.size"]),
    )
    producer = PureProducer([1] * partitions, settings)
    producer.ready()
    topic = producer.metadata.topic(TOPIC)
    assert topic is not None
    partitioner, accumulator = Partitioner(Random(1), None, ignore_keys=False), producer.accumulator
    for _ in range(SLICES):
        with step("choosing partitions"):
            sizes = record_sizes(rows.columns)
            grouped = choose_partitions(rows, sizes, [topic], partitioner, no_load)
        with step("laying out and encoding"):
            cuts, encoded = encode_rows(
                grouped.rows.columns, grouped.runs, accumulator.hold(grouped.targets)
            )
        with step("appending to batches"):
            accumulator.append(grouped.targets, cuts, encoded, producer.now)
            accumulator.let_go(grouped.targets)
        producer.now += SECONDS_A_SLICE
        for request in _due(producer, step):
            _answer(producer, request, step)
    return step.seconds


def _due(producer: PureProducer, step: Steps) -> Iterator[ClientRequest]:
    while True:
        with step("draining"):
            work = producer.sender.poll(producer.now)
        for other in work.requests:
            producer.answer_other(other)
        for drained in work.drained:
            yield _built(producer, drained, step)
        if not work.drained and not work.requests:
            return


def _built(producer: PureProducer, drained: DrainedBatches, step: Steps) -> ClientRequest:
    with step("headers, checksums, the request"):
        request = producer.sender.build(drained)
        buffers = encode_request(PRODUCE, VERSION, 1, "client", request.message)
        # As the selector converts them.
        deque(memoryview(buffer).cast("B") for buffer in buffers if len(buffer))
    return request


def _answer(producer: PureProducer, request: ClientRequest, step: Steps) -> None:
    assert isinstance(request.message, ProduceRequest)
    (asked,) = request.message.topic_data
    answers = [
        PartitionProduceResponse(index=data.index, error_code=0, base_offset=1)
        for data in asked.partition_data
    ]
    response = ProduceResponse(
        responses=[TopicProduceResponse(name=TOPIC, partition_responses=answers)]
    )
    frame = Writer()
    frame.out += bytes(5)  # the correlation id, and no tagged fields
    message_codecs.writer(ProduceResponse, VERSION, flexible=True)(response, frame)
    with step("the answer"):
        read = decode_response(PRODUCE, VERSION, frame.out)
        producer.sender.handle(Answered(request, 1, read), producer.now)
        producer.completion.done.clear()


def main() -> None:
    """Print the time of each step."""
    rows = Rows(columns(), [TOPIC], None, None)
    least: dict[int, dict[str, float]] = {FEW: {}, MANY: {}}
    for _ in range(ROUNDS + 1):
        for partitions, found in least.items():
            for name, seconds in send(rows, partitions).items():
                found[name] = min(seconds / SLICES, found.get(name, seconds))
    for name, seconds in least[MANY].items():
        print(f"{(seconds - least[FEW][name]) / (MANY - FEW) * 1e6:6.2f}  {name}")
    few, many = (sum(found.values()) for found in least.values())
    print(f"{(many - few) / (MANY - FEW) * 1e6:6.2f} us per partition of a slice, which is "
          f"{many / ROWS * 1e6:.3f} us per row instead of {few / ROWS * 1e6:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()

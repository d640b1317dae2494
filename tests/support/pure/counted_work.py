"""Lines of Python and objects, counted: what the stretches of a row's way do about many rows.

A trace function looks at the number of objects at each line, which takes the longer the more there
are in the process. So tests have a `SmallProcess` run these functions.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from types import FrameType
from typing import Any, Final, NamedTuple, TypeAlias
from unittest import mock

import pyarrow as pa

from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.tasks import task
from spark_kafka_sink.task_producer import TaskProducer
from spark_kafka_sink.wire.frames import encode_request
from spark_kafka_sink.wire.messages import PRODUCE
from spark_kafka_sink.wire.primitives import Buffer
from support.pure.idle_producer import idle_producer, idle_task_producer
from support.pure.pure_producer import TOPIC, PureProducer, Settings

TraceFunction: TypeAlias = Callable[[FrameType, str, object], Any]
PARTITIONS: Final = 4
ONE_BATCH_EACH: Final = 8 * 1024 * 1024
PLENTY: Final = 2**28
# What Spark hands over of any number of rows, one by one.
ARROW_BATCHES: Final = 10
# What each partition is sent one after another.
SLICES: Final = 5
LEADERS: Final = [1, 2]


@cache
def values(rows: int) -> pa.Array:
    """Make values, no two of which are equal."""
    return pa.array([b"value%d" % n for n in range(rows)], pa.binary())


@cache
def _keys_of_one_length(rows: int) -> pa.Array:
    return pa.array([b"%016d" % n for n in range(rows)], pa.binary())


COLUMNS: dict[str, Callable[[int], dict[str, pa.Array]]] = {
    "values alone": lambda rows: {"value": values(rows)},
    "keys": lambda rows: {"value": values(rows), "key": values(rows)},
    "keys of one length": lambda rows: {"value": values(rows), "key": _keys_of_one_length(rows)},
    "keys and values as text": lambda rows: {
        "value": values(rows).cast(pa.string()),
        "key": values(rows).cast(pa.large_string()),
    },
    "nulls": lambda rows: {
        "value": pa.array([None, b"v"] * (rows // 2), pa.binary()),
        "key": pa.array([b"k", None] * (rows // 2), pa.binary()),
    },
    "headers": lambda rows: {
        "value": values(rows),
        "headers": pa.array(
            [[{"key": "h", "value": b"%d" % n}] for n in range(rows)],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    },
    "topics, partitions and timestamps": lambda rows: {
        "value": values(rows),
        "topic": pa.array([TOPIC] * rows),
        "partition": pa.array([n % PARTITIONS for n in range(rows)], pa.int32()),
        "timestamp": pa.array(range(rows), pa.timestamp("us", "UTC")),
    },
}
EVERY_OTHER_BAD: Final = "every other row bad"


def columns_of(name: str, rows: int) -> dict[str, pa.Array]:
    """Make rows that have the columns of this name."""
    if name == EVERY_OTHER_BAD:
        return {"value": values(rows), "partition": pa.array([0, -1] * (rows // 2), pa.int32())}
    return COLUMNS[name](rows)


class Work(NamedTuple):
    """Lines of Python that were run, and the most small objects that there were beyond before."""

    lines: int
    objects: int


def work_of(call: Callable[[], None]) -> Work:
    """Count what a call does in this thread; a loop's turns count each."""
    lines = most = 0

    def count(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal lines, most
        lines += event == "line"
        most = max(most, sys.getallocatedblocks())
        return count

    gc.disable()  # what is collected runs lines of its own
    tracing, before = sys.gettrace(), sys.getallocatedblocks()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(tracing)
        gc.enable()
    return Work(lines, most - before)


def of_append(columns: str, rows: int, codec: str, *, fill: bool) -> Work:
    """Count what `append` does; fill: whether batches fill, as many of few rows as of many."""
    batch = pa.record_batch(columns_of(columns, rows))
    topic = None if "topic" in batch.schema.names else TOPIC
    batch_size = batch.num_rows if fill else ONE_BATCH_EACH
    with idle_producer(
        PARTITIONS, batch_size=batch_size, compression_type=codec, buffer_memory=PLENTY
    ) as producer:
        return work_of(partial(producer.append, topic, batch))


class _AllAppendedError(Exception):
    """A task has reached the point at which it waits for brokers."""


class _Lender(NamedTuple):
    """Replaces the producer pool of tasks, and returns an existing producer."""

    lent: TaskProducer

    @contextmanager
    def producer(self, _config: object, _brokers: object) -> Iterator[TaskProducer]:
        """Yield the producer, whatever the configuration."""
        yield self.lent


def _write(options: SinkOptions, batches: list[pa.RecordBatch]) -> None:
    """Run a task until it waits for brokers."""
    try:
        task.write_task(options, iter(batches))
    except _AllAppendedError:
        return
    raise AssertionError("the task did not wait for brokers")


def of_task(columns: str, rows: int, given: dict[str, str]) -> Work:
    """Count what a task does about rows that come in Arrow batches; given: options of the sink."""
    batch = pa.record_batch(columns_of(columns, rows))
    topic = {} if "topic" in batch.schema.names else {"topic": TOPIC}
    # However slow tracing makes the task, no batch waits long enough to be sent on its own.
    linger = {"kafka.linger.ms": "60000"}
    options = sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", **linger, **topic, **given})
    each = batch.num_rows // ARROW_BATCHES
    batches = [batch.slice(number * each, each) for number in range(ARROW_BATCHES)]
    sizes = {"batch_size": ONE_BATCH_EACH, "max_request_size": ONE_BATCH_EACH}
    with (
        idle_task_producer(PARTITIONS, **sizes, buffer_memory=PLENTY) as producer,
        ExitStack() as patched,
    ):
        for where, name, what in (
            (task, "POOL", _Lender(producer)),
            (TaskProducer, "flush", mock.Mock(side_effect=_AllAppendedError)),
            # No broker is there to be asked.
            (task, "retention_of_topics", lambda _options, topics: dict.fromkeys(topics)),
        ):
            patched.enter_context(mock.patch.object(where, name, what))
        return work_of(partial(_write, options, batches))


class Sent(NamedTuple):
    """What sending took, and the number of buffers of each Produce request."""

    work: Work
    buffers: list[int]


def of_sending(codec: str, rows: int) -> Sent:
    """Count what sends a slice of so many rows to every partition, `SLICES` times.

    The slice is acknowledged before the next one is sent.
    """
    settings = Settings(
        batch_size=ONE_BATCH_EACH,
        buffer_memory=PLENTY,
        max_request_size=ONE_BATCH_EACH,
        compression=codec,
    )
    producer = PureProducer(LEADERS, settings)
    producer.ready()
    slices = [[b"value%d" % n for n in range(rows)]] * SLICES
    requests: list[list[Buffer]] = []

    def send() -> None:
        for values_of_slice in slices:
            for partition in range(len(LEADERS)):
                producer.append(partition, values_of_slice)
            for request in producer.poll():
                version = request.max_version or PRODUCE.max_version
                frame = encode_request(PRODUCE, version, len(requests), "client", request.message)
                requests.append(frame)
                producer.answer(request)
            producer.done()

    return Sent(work_of(send), list(map(len, requests)))


def lines_to_append(partitions: int, rows: int) -> int:
    """Count the lines that append a slice with rows for each partition, the second time."""
    numbers = pa.array([n % partitions for n in range(rows)], pa.int32())
    batch = pa.record_batch({"value": values(rows), "partition": numbers})
    with idle_producer(partitions, batch_size=ONE_BATCH_EACH, buffer_memory=PLENTY) as producer:
        producer.append(TOPIC, batch)  # what makes the batches does not count
        return work_of(partial(producer.append, TOPIC, batch)).lines


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

    return work_of(send).lines

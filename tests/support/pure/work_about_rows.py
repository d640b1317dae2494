"""Count the lines of Python that few rows and many run, and the objects that they make.

Call `work_of` in a process that has little else in its memory: Python walks through all of it to
count objects.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pytest

from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.tasks import task, task_rows
from spark_kafka_sink.task_producer import TaskProducer
from spark_kafka_sink.wire.frames import encode_request
from spark_kafka_sink.wire.messages import PRODUCE
from spark_kafka_sink.wire.primitives import Buffer
from support.pure.idle_producer import idle_producer, idle_task_producer
from support.pure.pure_producer import TOPIC, PureProducer, Settings

TraceFunction: TypeAlias = Callable[[FrameType, str, object], Any]
FEW, MANY = 10_000, 100_000
PARTITIONS = 4
ONE_BATCH_EACH = 8 * 1024 * 1024
PLENTY = 2**28
# Spark hands over either number of rows in this many batches, one by one.
ARROW_BATCHES = 10
# Each partition gets this many slices, one after another; together they have as many rows as above.
SLICES = 5
LEADERS = [1, 2]


@cache
def values(rows: int) -> pa.Array:
    return pa.array([b"value%d" % n for n in range(rows)], pa.binary())


@cache
def keys_of_one_length(rows: int) -> pa.Array:
    return pa.array([b"%016d" % n for n in range(rows)], pa.binary())


GOOD_COLUMNS: dict[str, Callable[[int], dict[str, pa.Array]]] = {
    "values alone": lambda rows: {"value": values(rows)},
    "keys": lambda rows: {"value": values(rows), "key": values(rows)},
    "keys of one length": lambda rows: {"value": values(rows), "key": keys_of_one_length(rows)},
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
COLUMNS = GOOD_COLUMNS | {
    "every other row is bad": lambda rows: {
        "value": values(rows),
        "partition": pa.array([0, -1] * (rows // 2), pa.int32()),
    },
}


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

    before = sys.getallocatedblocks()
    _trace(call, count)
    return Work(lines, most - before)


Count: TypeAlias = Callable[[Callable[[], None]], Work]


def uncounted(call: Callable[[], None]) -> Work:
    """Make a call, the first one, in which things are made that are made once."""
    call()
    return Work(0, 0)


def lines_of(call: Callable[[], None]) -> int:
    """Count the lines alone: to count the objects, Python walks through all of its memory."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal lines
        lines += event == "line"
        return count

    _trace(call, count)
    return lines


def _trace(call: Callable[[], None], count: TraceFunction) -> None:
    gc.disable()  # what is collected runs lines of its own
    tracing = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(tracing)
        gc.enable()


def works_of_append(columns: str, codec: str, *, fill: bool) -> tuple[Work, Work]:
    """Count what the producer's append does about few rows and about many.

    fill: whether batches fill, and are compressed; as many of few rows as of many.
    """
    few, many = (pa.record_batch(COLUMNS[columns](rows)) for rows in (FEW, MANY))

    def append(batch: pa.RecordBatch, count: Count) -> Work:
        topic = None if "topic" in batch.schema.names else TOPIC
        batch_size = batch.num_rows if fill else ONE_BATCH_EACH
        with idle_producer(
            PARTITIONS, batch_size=batch_size, compression_type=codec, buffer_memory=PLENTY
        ) as producer:
            return count(partial(producer.append, topic, batch))

    append(few, uncounted)
    return append(few, work_of), append(many, work_of)


class AllAppendedError(Exception):
    """A task has reached the point at which it waits for brokers."""


def all_appended(_producer: TaskProducer) -> None:
    raise AllAppendedError


class Lender(NamedTuple):
    """Replaces the producer pool of tasks, and returns an existing producer."""

    lent: TaskProducer

    @contextmanager
    def producer(self, _config: object, _brokers: object) -> Iterator[TaskProducer]:
        """Yield the producer, whatever the configuration."""
        yield self.lent


def write(options: SinkOptions, batches: list[pa.RecordBatch]) -> None:
    """Run a task until it waits for brokers."""
    with pytest.raises(AllAppendedError):
        task.write_task(options, iter(batches))


def works_of_task(columns: str, given: dict[str, str]) -> tuple[Work, Work]:
    """Count what a task does about few rows and about many; given: options of the sink."""
    few, many = COLUMNS[columns](FEW), COLUMNS[columns](MANY)
    _run_task(few, given, uncounted)
    return _run_task(few, given, work_of), _run_task(many, given, work_of)


def _run_task(columns: dict[str, pa.Array], given: dict[str, str], count: Count) -> Work:
    """Run a task on rows that come in Arrow batches."""
    topic = {} if "topic" in columns else {"topic": TOPIC}
    # However slow tracing makes the task, no batch waits long enough to be sent on its own.
    linger = {"kafka.linger.ms": "60000"}
    options = sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", **linger, **topic, **given})
    batch = pa.record_batch(columns)
    each = batch.num_rows // ARROW_BATCHES
    batches = [batch.slice(number * each, each) for number in range(ARROW_BATCHES)]
    sizes = {"batch_size": ONE_BATCH_EACH, "max_request_size": ONE_BATCH_EACH}
    with (
        idle_task_producer(PARTITIONS, **sizes, buffer_memory=PLENTY) as producer,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(task, "POOL", Lender(producer))
        patched.setattr(TaskProducer, "flush", all_appended)
        # No broker is there to be asked.
        patched.setattr(
            task_rows, "retention_of_topics", lambda _options, topics: dict.fromkeys(topics)
        )
        return count(partial(write, options, batches))


class Sending(NamedTuple):
    """A producer without a network, and its Produce requests as the buffers of each."""

    producer: PureProducer
    requests: list[list[Buffer]]

    def send(self, slices: list[list[bytes]]) -> None:
        """Send a slice to every partition, have that acknowledged, and send the next one."""
        for values_of_slice in slices:
            for partition in range(len(LEADERS)):
                self.producer.append(partition, values_of_slice)
            for request in self.producer.poll():
                version = request.max_version or PRODUCE.max_version
                number = len(self.requests)
                frame = encode_request(PRODUCE, version, number, "client", request.message)
                self.requests.append(frame)
                self.producer.answer(request)
            self.producer.done()


def sending(codec: str) -> Sending:
    """Make a producer that knows its brokers; what is appended goes out at once."""
    settings = Settings(
        batch_size=ONE_BATCH_EACH,
        buffer_memory=PLENTY,
        max_request_size=ONE_BATCH_EACH,
        compression=codec,
    )
    producer = PureProducer(LEADERS, settings)
    producer.ready()
    return Sending(producer, [])


def works_of_sender(codec: str) -> tuple[Work, Work]:
    """Count what the sender does about few rows and about many, in as many requests and buffers."""
    few, many = (
        [[b"value%d" % n for n in range(rows)]] * SLICES for rows in (FEW // 10, MANY // 10)
    )
    sending(codec).send(few)  # the first time, writers of messages are made
    by_few, by_many = sending(codec), sending(codec)
    works = work_of(partial(by_few.send, few)), work_of(partial(by_many.send, many))
    assert len(by_few.requests) == len(by_many.requests) == SLICES * len(set(LEADERS))
    # Nor is the socket given more buffers.
    assert list(map(len, by_few.requests)) == list(map(len, by_many.requests))
    return works

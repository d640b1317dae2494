"""Callers that are interrupted, as by Ctrl-C: at any moment, with nothing lost, doubled or stuck.

Each moment of a call is tried with a producer of its own, which reaches no broker: what is in its
batches expires, and whoever waits for a row is told of it, with the partition that it went to.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import pyarrow as pa
import pytest
from support.interrupts import interrupted
from support.unreachable import NOBODY, TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import RecordMetadata
from spark_kafka_sink.slice_owner import AppendFailure

# How many moments of each call are tried; all with 0.
MOMENTS = int(os.environ.get("INTERRUPTS", "60"))
SEED = int(os.environ.get("INTERRUPTS_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
PARTITIONS = 3
ENOUGH_S = 20


class World:
    """A producer whose rows are given up as soon as they wait to be sent."""

    def __init__(self, **config: object) -> None:
        options = {name.replace("_", "."): value for name, value in config.items()}
        short = {"delivery.timeout.ms": 1, "request.timeout.ms": 1, "linger.ms": 0}
        self.producer = KafkaProducer({"bootstrap.servers": NOBODY, **short, **options})
        self.told: Counter[int] = Counter()
        self.futures: dict[int, Future[RecordMetadata]] = {}
        self.partitions: dict[int, int] = {}
        thread = self.producer._thread
        with thread.lock:
            thread.metadata.track(TOPIC, time.monotonic())
            thread.metadata.update(answer([1] * PARTITIONS), time.monotonic())

    def send(self, rows: range) -> None:
        """Send rows one by one, each with a partition that its number gives."""
        for row in rows:

            def told(metadata: RecordMetadata, _: object, row: int = row) -> None:
                self.told[row] += 1
                self.partitions[row] = metadata.partition

            partition = row % PARTITIONS
            self.futures[row] = self.producer.send(
                TOPIC, b"x" * 200, partition=partition, on_delivery=told
            )

    def append(self, rows: range) -> None:
        """Append rows as one Arrow batch."""

        def told(failure: AppendFailure) -> None:
            self.told.update((failure.rows + rows.start).tolist())

        batch = pa.record_batch(
            {
                "value": ["x" * 200] * len(rows),
                "partition": pa.array([row % PARTITIONS for row in rows], pa.int32()),
            }
        )
        self.producer.append(TOPIC, batch, told)

    def check(self) -> None:
        """See that another thread can use the producer, and that it comes to rest."""
        with contextlib.suppress(KafkaException):
            self.producer.flush(ENOUGH_S)
        thread = self.producer._thread
        with thread.lock:
            accumulator = thread.accumulator
            assert accumulator.incomplete == []
            assert accumulator._held == set()
            assert (accumulator.waiters, accumulator.flushes) == (0, 0)
            if thread.fatal_error is None:
                assert accumulator._packing == set()
                assert accumulator.available_bytes == accumulator.buffer_memory_bytes
            else:
                assert "came in the middle of a change" in str(thread.fatal_error)
        for row, future in self.futures.items():
            assert future.exception(ENOUGH_S) is not None
            assert self.told[row] == 1, row
        for row, partition in self.partitions.items():
            assert partition in (-1, row % PARTITIONS), row
        assert set(self.told.values()) <= {1}


def in_another_thread(call: Callable[[], None]) -> None:
    """Make a call that has to end; its thread has no locks yet."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(2 * ENOUGH_S)
    assert not thread.is_alive(), "it hangs"
    if failures:
        raise failures[0]


def some_rows(world: World) -> None:
    world.send(range(50))


def rows_and_a_flush(world: World) -> None:
    world.send(range(3))
    with contextlib.suppress(KafkaException):
        world.producer.flush()


def a_batch(world: World) -> None:
    world.append(range(60))


def rows_that_wait_for_memory(world: World) -> None:
    for first in range(0, 40, 20):
        world.append(range(first, first + 20))


SMALL: dict[str, object] = {"batch_size": 2_000, "buffer_memory": 40_000}
CALLS: dict[str, tuple[Callable[[World], None], dict[str, object]]] = {
    "rows": (some_rows, SMALL),
    "compressed rows": (some_rows, SMALL | {"compression_type": "lz4", "batch_size": 1_000}),
    "flush": (rows_and_a_flush, {}),
    "columns": (a_batch, SMALL | {"buffer_memory": 20_000}),
    "compressed columns": (a_batch, {"compression_type": "lz4", "batch_size": 1_000}),
    "memory": (rows_that_wait_for_memory, {"buffer_memory": 5_600}),
}


def moments_of(call: Callable[[World], None], config: dict[str, object]) -> list[int]:
    """Draw moments of a call, up to a little after its end."""
    end = 64
    while True:
        world = World(**config)
        with contextlib.suppress(KafkaException):
            over = interrupted(lambda: call(world), end) is None  # noqa: B023 - called at once
        world.producer.close(0)
        if over:
            break
        end *= 2
    moments = list(range(1, end))
    return moments if not MOMENTS else sorted(random.Random(SEED).sample(moments, MOMENTS))


@pytest.mark.parametrize("name", CALLS)
def test_a_caller_that_is_interrupted_loses_nothing_and_leaves_nothing_that_hangs(
    name: str,
) -> None:
    print(f"INTERRUPTS_SEED={SEED}")
    call, config = CALLS[name]
    cut = 0
    for moment in moments_of(call, config):
        world = World(**config)
        where = None
        with contextlib.suppress(KafkaException):
            where = interrupted(lambda: call(world), moment)  # noqa: B023 - called at once
        try:
            in_another_thread(world.check)
            if world.producer._thread.fatal_error is None:
                in_another_thread(lambda: world.send(range(1000, 1010)))  # noqa: B023
            else:
                cut += 1
            in_another_thread(world.check)
            assert world.producer._feeder._pending == {}
        except BaseException as error:
            error.add_note(f"interrupted at moment {moment}: {where}; INTERRUPTS_SEED={SEED}")
            raise
        finally:
            in_another_thread(lambda: world.producer.close(0))  # noqa: B023
    print(f"{name}: {cut} in the middle of a change")

"""A worker keeps freed memory: the next slice causes no page faults. Its imports are no garbage."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from spark_kafka_sink.spark.worker import keep_heap

FAULTS = """
import resource, sys
import numpy as np
from spark_kafka_sink.spark.worker import keep_heap

if sys.argv[1] == "keep":
    keep_heap()
np.ones(8_000_000, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(8_000_000, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Count the page faults of twenty arrays of 8 MB, one after the other."""
    said = subprocess.run(
        [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
    )
    return int(said.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is what is set")
def test_freed_memory_is_used_again() -> None:
    assert faults("keep") < faults("default") / 10


class Allocator:
    """An allocator's mallopt, as glibc has it, with the largest mmap threshold that it takes."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.mmap_threshold: int | None = None
        self.trim_threshold: int | None = None

    def mallopt(self, option: int, value: int) -> int:
        """Set an option; return 1 if it was accepted."""
        if option == -3:
            if value > self.most_bytes:
                return 0
            self.mmap_threshold = value
        elif option == -1:
            self.trim_threshold = value
        return 1


def test_old_glibc_takes_the_thresholds_and_one_that_refuses_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for most, taken in ((32 << 20, (32 << 20, 64 << 20)), (16 << 20, (None, None))):
        libc = Allocator(most)
        monkeypatch.setattr(ctypes, "CDLL", lambda _name, libc=libc: libc)
        keep_heap()
        assert (libc.mmap_threshold, libc.trim_threshold) == taken


FROZEN = """
import gc, sys
from contextlib import suppress
from pyspark.sql.types import BinaryType, StructType
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.planning.datasource import check_batch_write
from spark_kafka_sink.spark.writer import MicroBatchWriter
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.writer import KafkaArrowWriter

options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "kafka.max.block.ms": "1"}
schema = StructType().add("value", BinaryType())
acts = {
    "plan": lambda: KafkaDataSource(options).writer(schema, False),
    "write": lambda: KafkaArrowWriter(sink_options(options)).write(iter(())),
    "plan of a stream": lambda: KafkaDataSource(options).streamWriter(schema, False),
    "commit of a micro-batch": lambda: MicroBatchWriter(sink_options(options), 1).commit([None]),
    "commit": lambda: KafkaArrowWriter(sink_options(options)).commit([None]),
    "look ahead": lambda: check_batch_write(schema, options),
}
assert gc.get_freeze_count() == 0
with suppress(KafkaException):
    acts[sys.argv[1]]()
frozen, left = gc.get_freeze_count(), len(gc.get_objects())
with suppress(KafkaException):
    acts[sys.argv[1]]()
print(frozen, left, gc.get_freeze_count() - frozen)
"""


@pytest.mark.parametrize(
    "act", ["plan", "write", "commit", "plan of a stream", "commit of a micro-batch"]
)
def test_what_a_worker_has_imported_is_walked_through_by_no_collection(act: str) -> None:
    """Only imports are excluded: the objects of tasks are still collected."""
    frozen, left, more = frozen_by(act)
    assert frozen > 10 * left
    assert more == 0


def test_a_user_s_own_process_collects_its_garbage_as_ever() -> None:
    frozen, _, _ = frozen_by("look ahead")
    assert frozen == 0


def frozen_by(act: str) -> list[int]:
    """Count what no collection looks at, what one does, and what a repeat adds to the former."""
    said = subprocess.run(
        [sys.executable, "-c", FROZEN, act], capture_output=True, text=True, check=True
    )
    return [int(word) for word in said.stdout.split()]

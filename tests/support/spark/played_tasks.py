"""Tasks of Spark that a test plays: what `TaskContext` tells in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark import TaskContext


@contextmanager
def in_task(
    partition: int, attempt: int = 0, properties: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a block as an attempt of a task, also inside of another one.

    partition, attempt: the numbers that Spark has for them. properties: the local properties.
    """
    context = object.__new__(TaskContext)
    context._stageId, context._partitionId, context._attemptNumber = 0, partition, attempt
    context._localProperties = dict(properties or {})
    around = TaskContext._taskContext
    TaskContext._taskContext = context
    try:
        yield
    finally:
        TaskContext._taskContext = around

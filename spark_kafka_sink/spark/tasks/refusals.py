"""Appends batches in which brokers may refuse single rows (KIP-467).

A broker refuses a whole batch if some of its rows are invalid. A `Refusal` lists the invalid rows,
and the other rows of the batch, which can be sent again. Any other error is raised. To send rows
again, a task keeps them until they are acknowledged (`KeptRows`).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.serde.bad_rows import fault_of_error
from spark_kafka_sink.serde.row_rules import Fault
from spark_kafka_sink.task_producer import AppendFailure, TaskProducer

T = TypeVar("T")

# Each kept row also has two int64: its number in the task, and its position in the batch.
_BYTES_OF_NUMBERS: Final = 16


class KeptRows:
    """The rows that a task keeps until they are acknowledged, because brokers may refuse them.

    In buffer.memory, the producer counts only encoded rows, which may be compressed. limit_bytes:
    how much memory the kept rows may take in addition. One thread at a time may use this object.
    """

    def __init__(self, producer: TaskProducer, limit_bytes: int) -> None:
        self._producer = producer
        self._limit_bytes = limit_bytes
        # The I/O thread drops batches at any time, so this object must not keep them alive.
        self._kept: list[tuple[weakref.ref[pa.RecordBatch], int]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Count rows that will be kept. If there is no room for them, flush first.

        They count until no other object refers to `rows`. Raise the exceptions of
        `TaskProducer.flush`.
        """
        size = rows.get_total_buffer_size() + rows.num_rows * _BYTES_OF_NUMBERS
        self._kept = [each for each in self._kept if each[0]() is not None]
        if sum(kept for _, kept in self._kept) + size > self._limit_bytes:
            self._producer.flush()
        self._kept.append((weakref.ref(rows), size))


class Refusal(NamedTuple, Generic[T]):
    """Rows of one append that brokers refused.

    appended: the object that the caller passed to `append`. culprits: the indexes of the invalid
    rows, int64. others: the indexes of the other rows in the refused batches, int64.
    """

    appended: T
    culprits: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]
    fault: Fault
    error: Exception


class CarefulAppender(Generic[T]):
    """Appends batches, and collects their failures for `refusals`: a flush does not raise them.

    kept: counts the rows that are kept. If it is None, no rows are kept, and the task fails if
    brokers refuse a row: a flush raises the error. built_in_partitioner: as in
    `TaskProducer.append`.
    """

    def __init__(
        self,
        producer: TaskProducer,
        topic: str | None,
        kept: KeptRows | None,
        *,
        built_in_partitioner: bool = False,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._kept = kept
        self._built_in_partitioner = built_in_partitioner
        self._failures: deque[tuple[T, AppendFailure]] = deque()

    def append(
        self,
        batch: pa.RecordBatch,
        appended: T,
        rows: pa.RecordBatch,
        lingers_since: float | None = None,
    ) -> None:
        """Append a batch.

        appended: an object that identifies the batch in a `Refusal`. rows: the rows in `appended`,
        which keeps them. lingers_since: as in `TaskProducer.append`.
        """
        if self._kept is not None:
            self._kept.add(rows)
        self._producer.append(
            self._topic,
            batch,
            None if self._kept is None else partial(self._failed, appended),
            built_in_partitioner=self._built_in_partitioner,
            lingers_since=lingers_since,
        )

    def _failed(self, appended: T, failure: AppendFailure) -> None:
        self._failures.append((appended, failure))

    def refusals(self) -> Iterator[Refusal[T]]:
        """Yield the refusals since the last call. Raise any other error."""
        while self._failures:
            appended, (rows, culprits, error) = self._failures.popleft()
            fault = fault_of_error(error)
            if fault is None or culprits is None:
                raise error
            others = np.setdiff1d(rows, culprits, assume_unique=True)
            yield Refusal(appended, culprits, others, fault, error)

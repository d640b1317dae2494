"""Appends batches in which brokers may refuse single rows (KIP-467).

A broker refuses a whole batch if some of its rows are invalid. A `Refusal` lists the invalid rows,
and the other rows of the batch, which can be sent again. Any other error is raised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.serde.bad_rows import fault_of_error
from spark_kafka_sink.serde.row_rules import Fault
from spark_kafka_sink.task_producer import AppendFailure, TaskProducer

T = TypeVar("T")


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

    built_in_partitioner: as in `TaskProducer.append`.
    """

    def __init__(
        self, producer: TaskProducer, topic: str | None, *, built_in_partitioner: bool = False
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._built_in_partitioner = built_in_partitioner
        self._failures: deque[tuple[T, AppendFailure]] = deque()

    def append(
        self, batch: pa.RecordBatch, appended: T, lingers_since: float | None = None
    ) -> None:
        """Append a batch. appended: an object that identifies the batch in a `Refusal`.

        lingers_since: as in `TaskProducer.append`.
        """
        self._producer.append(
            self._topic,
            batch,
            lambda failure: self._failures.append((appended, failure)),
            built_in_partitioner=self._built_in_partitioner,
            lingers_since=lingers_since,
        )

    def refusals(self) -> Iterator[Refusal[T]]:
        """Yield the refusals since the last call. Raise any other error."""
        while self._failures:
            appended, (rows, culprits, error) = self._failures.popleft()
            fault = fault_of_error(error)
            if fault is None or culprits is None:
                raise error
            others = np.setdiff1d(rows, culprits, assume_unique=True)
            yield Refusal(appended, culprits, others, fault, error)

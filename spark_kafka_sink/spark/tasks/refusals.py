"""Rows that are sent with an ear for brokers that refuse single ones (KIP-467).

A batch is refused as a whole, for the sake of some rows of it. Here a refusal becomes two parts:
the rows to blame, and the others, which may be sent again. What is the fault of no row is raised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.model import AppendFailure
from spark_kafka_sink.serde.bad_rows import fault_of_error
from spark_kafka_sink.serde.row_rules import Fault

T = TypeVar("T")


class Refusal(NamedTuple, Generic[T]):
    """Rows of one append that brokers refused.

    appended: what the caller said of the append; culprits, others: numbers of its rows, int64.
    """

    appended: T
    culprits: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]
    fault: Fault
    error: Exception


class CarefulAppender(Generic[T]):
    """Appends batches and gives what is refused of them, instead of failing the next flush.

    built_in_partitioner: as of `KafkaProducer.append`.
    """

    def __init__(
        self, producer: KafkaProducer, topic: str | None, *, built_in_partitioner: bool = False
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._built_in_partitioner = built_in_partitioner
        self._failures: deque[tuple[T, AppendFailure]] = deque()

    def append(
        self, batch: pa.RecordBatch, appended: T, lingers_since: float | None = None
    ) -> None:
        """Append a batch; appended: what to remember of it for a refusal.

        lingers_since: as of `KafkaProducer.append`.
        """
        self._producer.append(
            self._topic,
            batch,
            lambda failure: self._failures.append((appended, failure)),
            built_in_partitioner=self._built_in_partitioner,
            lingers_since=lingers_since,
        )

    def refusals(self) -> Iterator[Refusal[T]]:
        """Give what has been refused since the last call. Raises other failures."""
        while self._failures:
            appended, (rows, culprits, error) = self._failures.popleft()
            fault = fault_of_error(error)
            if fault is None or culprits is None:
                raise error
            others = np.setdiff1d(rows, culprits, assume_unique=True)
            yield Refusal(appended, culprits, others, fault, error)

"""Rows that contain their position: each partition's rows are numbered from 0, as appended.

So the records of a topic can be compared with the appended rows: every row once, in order.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_kafka_sink import KafkaProducer
from support.oracles.readers import Record

# Long enough that a request is more than one TCP segment.
_PADDING = "x" * 80


class NumberedRows:
    """Appends such rows to a topic; `appended` is the number of rows per partition."""

    def __init__(self, producer: KafkaProducer, topic: str, partitions: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = range(partitions)
        self.appended = 0

    def append(self, count: int) -> None:
        """Append `count` rows to every partition, in one batch."""
        numbers = range(self.appended, self.appended + count)
        places = [(number, partition) for number in numbers for partition in self._partitions]
        batch = pa.record_batch(
            {
                "value": pa.array(f"{number} {_PADDING}" for number, _ in places),
                "partition": pa.array([partition for _, partition in places], pa.int32()),
            }
        )
        self._producer.append(self._topic, batch)
        self.appended += count

    def append_until(self, happened: Callable[[], bool], step: int = 50) -> None:
        """Append rows until `happened` returns True."""
        while not happened():
            self.append(step)

    def check(self, records: list[Record]) -> None:
        """Assert that the records read are the rows appended: every row once, in order."""
        found = numbers(records)
        assert sorted(found) == list(self._partitions)
        for partition, seen in found.items():
            first_wrong = next((at for at, number in enumerate(seen) if at != number), None)
            assert first_wrong is None, f"partition {partition} has {seen[first_wrong]} there"
            assert len(seen) == self.appended, f"partition {partition}"


def numbers(records: list[Record]) -> dict[int, list[int]]:
    """Return the numbers of the rows that were read, by partition, in the order read."""
    found: dict[int, list[int]] = {}
    for record in records:
        assert record.value is not None
        found.setdefault(record.partition, []).append(int(record.value.split()[0]))
    return found

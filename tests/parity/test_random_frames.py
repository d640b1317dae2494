"""Random frames, written by this sink and by Spark's own: the same records in the same partitions.

The frames come from seeds, so a failure is reproducible. Without Spark's own sink, what was written
is compared with the frame alone.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from conftest import NewTopic
from pyspark.sql import SparkSession
from support.brokers import fetch_kafka
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import READERS, Record
from support.spark.peer import OURS, THEIRS, Sink

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_ROWS = 400
_PARTITIONS = (1, 4, 7)
_CHARACTERS = "aZ0 \0ü€語😀"

Data = str | bytes | None
# Number of the topic, partition, key, value, headers.
Row = tuple[int, int | None, Data, Data, list[tuple[str, bytes | None]] | None]


class Frames:
    """Makes the rows of one seed: keys and values are strings or bytes throughout."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.types = [self._random.choice(["STRING", "BINARY"]) for _ in ("key", "value")]
        self.has_partitions = self._random.random() < 0.6
        self.has_headers = self._random.random() < 0.6

    def rows(self) -> list[Row]:
        """Return all rows."""
        return [self._row() for _ in range(_ROWS)]

    def _row(self) -> Row:
        number = self._random.randrange(len(_PARTITIONS))
        partition = None
        if self.has_partitions and self._random.random() < 0.3:
            partition = self._random.randrange(_PARTITIONS[number])
        key, value = (self._data(kind) for kind in self.types)
        return number, partition, key, value, self._headers() if self.has_headers else None

    def _data(self, kind: str) -> Data:
        size = self._random.choice([None, 0, 1, 3, 4, 17, 200, self._random.randrange(5000)])
        if size is None:
            return None
        if kind == "STRING":
            return "".join(self._random.choices(_CHARACTERS, k=size))
        return self._random.randbytes(size)

    def _headers(self) -> list[tuple[str, bytes | None]] | None:
        count = self._random.choice([None, 0, 1, 2, 5])
        if count is None:
            return None
        values = (None, b"", b"\0", self._random.randbytes(40))
        names = ("", "h", "h", "ü", "x" * 300)
        return [(self._random.choice(names), self._random.choice(values)) for _ in range(count)]


def as_bytes(data: Data) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


# Every type of key and of value, with partitions and headers and without, read by each client.
_SEEDS = (0, 1, 5, 6, 7)
_MORE = pytest.mark.long(reason="more frames of the types that the others have")


@pytest.mark.parametrize(
    "seed", [*_SEEDS, *(pytest.param(seed, marks=_MORE) for seed in (2, 3, 4))]
)
def test_both_sinks_write_the_same_records_to_the_same_partitions(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, seed: int
) -> None:
    frames = Frames(seed)
    rows = frames.rows()
    key_type, value_type = frames.types
    schema = f"""topic STRING, partition INT, key {key_type}, value {value_type},
        headers ARRAY<STRUCT<key: STRING, value: BINARY>>"""
    read = list(READERS.values())[seed % len(READERS)]
    written = {}
    for name in [OURS, THEIRS] if fetch_kafka.takes_jvm_sink() else [OURS]:
        topics = [new_topic(partitions) for partitions in _PARTITIONS]
        frame = spark.createDataFrame([(topics[row[0]], *row[1:]) for row in rows], schema)
        left_out = [
            *([] if frames.has_partitions else ["partition"]),
            *([] if frames.has_headers else ["headers"]),
        ]
        Sink(name, kafka.bootstrap).append(frame.drop(*left_out).coalesce(1))
        written[name] = [read(kafka.bootstrap, topic) for topic in topics]
    for number in range(len(_PARTITIONS)):
        records = [placed(read[number]) for read in written.values()]
        expected = [row for row in rows if row[0] == number]
        assert Counter(r[1:] for r in records[0]) == Counter(record(row) for row in expected)
        pinned = Counter((row[1], *record(row)) for row in expected if row[1] is not None)
        for found in records:
            assert pinned <= Counter(found)
            # A row with a key has its partition, and its order there.
            assert [r for r in found if r[1] is not None] == [
                r for r in records[0] if r[1] is not None
            ]


def placed(records: list[Record]) -> list[tuple[Any, ...]]:
    """Return partition, key, value and headers, in order within each partition."""
    ordered = sorted(records, key=lambda r: (r.partition, r.offset))
    return [(r.partition, r.key, r.value, r.headers) for r in ordered]


def record(row: Row) -> tuple[bytes | None, bytes | None, Any]:
    """Return key, value and headers as a consumer sees them."""
    _, _, key, value, headers = row
    return as_bytes(key), as_bytes(value), tuple(headers or ())

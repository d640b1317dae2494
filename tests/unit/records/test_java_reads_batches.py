"""Kafka's Java code reads our batches, and writes uncompressed ones byte for byte as we do."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import NamedTuple

from support.brokers.jvm import run_java
from support.oracles.record_batches import NO_PRODUCER, Producer, Row, columns_of, records_of

from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.records.batch import BatchInfo, batch_header
from spark_kafka_sink.records.compression import codec

LEVELS: dict[str, list[int | None]] = {
    "none": [None],
    "gzip": [None, 1, 9],
    "snappy": [None],
    "lz4": [None, 1, 9, 17],
    "zstd": [None, -5, 22],
}


class Case(NamedTuple):
    """A batch and what is in it."""

    codec_name: str
    level: int | None
    producer: Producer
    rows: list[Row]

    def batch(self) -> bytes:
        """Seal the rows as a batch of this package."""
        made = codec(self.codec_name, self.level)
        pieces = made([records_of(columns_of(self.rows))])
        timestamps = [row.timestamp_ms for row in self.rows]
        header = batch_header(
            BatchInfo(len(self.rows), timestamps[0], max(timestamps), made.id),
            pieces,
            self.producer.id_and_epoch,
            self.producer.base_sequence,
            transactional=self.producer.transactional,
        )
        return b"".join([header, *pieces])

    def expected(self) -> list[str]:
        """Return the lines that the Java program prints for this batch."""
        producer = self.producer
        last = max(row.timestamp_ms for row in self.rows)
        head = f"batch {self.codec_name} {len(self.rows)} {last}"
        head += f" {producer.id_and_epoch.producer_id} {producer.id_and_epoch.epoch}"
        head += f" {producer.base_sequence} {str(producer.transactional).lower()}"
        if self.codec_name == "none":
            head += " same bytes"
        return [head, *(_line(offset, row) for offset, row in enumerate(self.rows))]


def _show(value: bytes | None) -> str:
    if value is None:
        return "null"
    if len(value) < 20:
        return value.hex()
    return f"{len(value)}:{hashlib.sha256(value).hexdigest()}"


def _line(offset: int, row: Row) -> str:
    headers = [f"{_show(name.encode())}={_show(value)}" for name, value in row.headers]
    return " ".join([f"{offset} {row.timestamp_ms} {_show(row.key)} {_show(row.value)}", *headers])


def _random_rows(seed: int) -> list[Row]:
    rng = random.Random(seed)
    first = rng.choice([0, 1_700_000_000_000, 2**62])
    largest = rng.choice([1, 1000, 2**61, 2**62])

    def some_bytes() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randrange(90)), bytes(rng.randrange(9000))])

    def headers() -> tuple[tuple[str, bytes | None], ...]:
        names = [rng.choice(["", "h", "grüße", "日本語", "🙂"]) for _ in range(rng.randrange(4))]
        return tuple((name, some_bytes()) for name in names)

    return [
        Row(some_bytes(), some_bytes(), headers(), first + rng.randrange(largest))
        for _ in range(rng.choice([1, 2, 70]))
    ]


def _cases() -> list[Case]:
    rng = random.Random(2)
    large = [Row(b"%d" % i, b"value %d " % i * 10, (), i) for i in range(3000)]
    incompressible = [Row(None, rng.randbytes(20_000), (), 5) for _ in range(10)]
    one_megabyte = [Row(None, bytes(1 << 20), (("name", None),), 2**63 - 1), Row(b"", b"", (), 0)]
    idempotent = Producer(ProducerIdAndEpoch(2**63 - 1, 2**15 - 1), 2**31 - 2, transactional=False)
    transactional = Producer(ProducerIdAndEpoch(1, 0), 0, transactional=True)
    producers = [NO_PRODUCER, idempotent, transactional]
    cases = [
        Case(name, level, NO_PRODUCER, rows)
        for name, levels in LEVELS.items()
        for level in levels
        for rows in (large, incompressible, one_megabyte)
    ]
    for seed in range(200):
        name = rng.choice(["none", "none", *LEVELS])
        cases.append(Case(name, None, rng.choice(producers), _random_rows(seed)))
    return cases


def test_java_reads_every_batch_and_would_write_the_same_bytes(tmp_path: Path) -> None:
    cases = _cases()
    stored = tmp_path / "batches"
    stored.write_bytes(b"".join(case.batch() for case in cases))
    read = iter(run_java("ReadBatches", stored).splitlines())
    for case in cases:
        for expected in case.expected():
            assert next(read, "nothing") == expected
    assert list(read) == []

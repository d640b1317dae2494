"""The matrix of the benchmark as data: the cells (rows and their topic) and the contenders.

Nothing is run here. A cell is measured with all contenders that support it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

BASELINE: Final = "R2t"
# The sink under test; without it, there is nothing to report.
OURS: Final = "R1"
SAIL: Final = "R7"
HEADERS: Final = (("trace-id", 16), ("producer", 16))
USUAL_PARTITIONS: Final = 12
# The factor for the warm-up of an application's first warm cell, when nothing is compiled yet.
FIRST_WARM_UPS: Final = 3
TUNED: Final = {"linger.ms": "50", "batch.size": "1048576", "buffer.memory": "268435456"}


class Kind(Enum):
    """The way in which a cell's rounds are measured."""

    WARM = "warm"
    """Jobs over cached rows in one session, after rounds that are not counted."""
    COLD = "cold"
    """Every job in a session just made, with Python workers just made, and no warm-up.

    The JVM goes on from round 0: its classes are loaded, and little of them is compiled.
    """
    STREAM = "stream"
    """Micro-batches of one stream, written inside foreachBatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The rows of a job or micro-batch, and their topic."""

    rows: int
    value_bytes: int = 100
    key_bytes: int = 16
    headers: bool = False
    partitions: int = USUAL_PARTITIONS
    compression: str = "none"
    kind: Kind = Kind.WARM
    tls: bool = False
    """Whether sinks take part over TLS, too, and no other contenders."""
    exactly_once: bool = False
    """Whether this sink takes part in each mode of exactlyOnce, and no other contenders.

    The rows are laid out by Kafka partition, which mode single needs.
    """
    avro: str = ""
    """The structs that become Avro, flat or nested, if values are not bytes; see `bench.rows`.

    Only ways to write Avro take part, and value_bytes has no effect.
    """
    parquet: bool = False
    """Whether the rows are read from a Parquet file in every write, and are not cached.

    So the sink can take part on Sail, which reads the same file.
    """

    def __str__(self) -> str:
        key = f"keys of {self.key_bytes} bytes" if self.key_bytes else "no keys"
        headers = f", {len(HEADERS)} headers" if self.headers else ""
        values = (
            f"{self.avro} structs as Avro" if self.avro else f"values of {self.value_bytes:,} bytes"
        )
        return (
            f"{self.rows:,} rows, {values}, {key}{headers}, "
            f"{self.partitions:,} partitions, compression {self.compression}, {self.kind.value}"
            f"{', also over TLS' if self.tls else ''}"
            f"{', laid out, with and without exactlyOnce' if self.exactly_once else ''}"
            f"{', read from Parquet' if self.parquet else ''}"
        )


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to write rows; `share`: the fraction of a cell's rows that a slow one writes.

    in_spark: whether it is a Spark job. in_workers: whether that runs in Python workers.
    partitions: the partitions of its topic, if these are not the cell's. over_tls: the contender
    that this one is, over TLS. exactly_once: the value of the option exactlyOnce. avro: whether it
    is a way to write Avro, and only that.
    """

    what: str
    share: float = 1.0
    in_spark: bool = True
    in_workers: bool = False
    partitions: int | None = None
    over_tls: str | None = None
    exactly_once: str | None = None
    avro: bool = False


CONTENDERS: Final[Mapping[str, Contender]] = {
    "R0": Contender("raw sockets, batches encoded beforehand", in_spark=False),
    "R1": Contender("this sink, nothing set but brokers and topic", in_workers=True),
    "R1b": Contender("this sink as it is in the checkout of --before", in_workers=True),
    "R1p": Contender("this sink, to a topic of one partition", in_workers=True, partitions=1),
    "R1u": Contender(
        "this sink without register: Arrow batches as Spark has them", in_workers=True
    ),
    "R1c": Contender("this sink's codec alone, in as many threads as tasks", in_spark=False),
    "R1h": Contender("a Python writer that discards: the hop from the JVM alone", in_workers=True),
    "noop": Contender("Spark's noop sink: reading the rows alone"),
    "R2": Contender("Spark's JVM sink, nothing set but brokers and topic"),
    "R2t": Contender("Spark's JVM sink, linger.ms 50, batch.size 1 MiB, buffer.memory 256 MiB"),
    "R3": Contender("confluent-kafka, row by row in an Arrow writer", in_workers=True),
    "R4": Contender("kafka-python, row by row in an Arrow writer", share=0.1, in_workers=True),
    "R6": Contender("kafka-producer-perf-test, settings of R2t", in_spark=False),
    SAIL: Contender("R1 on Sail instead of Spark", in_spark=False),
    "R8": Contender(
        "arrow-kafka-pyo3, Avro, linger.ms 50, batch.size 1 MiB", share=0.2, in_workers=True
    ),
    "R1s": Contender("R1 over TLS", in_workers=True, over_tls="R1"),
    "R2s": Contender("R2 over TLS", over_tls="R2"),
    "R2ts": Contender("R2t over TLS", over_tls="R2t"),
    "R1e": Contender("R1 with exactlyOnce=true", in_workers=True, exactly_once="true"),
    "R1x": Contender("R1 with exactlyOnce=single", in_workers=True, exactly_once="single"),
    "R1j": Contender("R1 with values made by Spark's to_avro", in_workers=True, avro=True),
    "R3a": Contender(
        "confluent-kafka's AvroSerializer, row by row in an Arrow writer",
        share=0.1,
        in_workers=True,
        avro=True,
    ),
}

# Rows for at least about a second of work on two cores, by the size of a value.
_SIZES: Final = {"100B": (100, 3_000_000), "1KB": (1000, 500_000), "10KB": (10_000, 60_000)}
CODECS: Final = ("none", "lz4", "zstd", "snappy")
_PARTITIONS: Final = (1, 12, 100, 1000)


def _cells() -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    for size, (value_bytes, rows) in _SIZES.items():
        for codec in CODECS:
            name = size if codec == "none" else f"{size}-{codec}"
            found[name] = Cell(rows=rows, value_bytes=value_bytes, compression=codec)
        found[f"{size}-nokey"] = Cell(rows=rows, value_bytes=value_bytes, key_bytes=0)
        for count in _PARTITIONS:
            if count != USUAL_PARTITIONS:
                name = f"{size}-{count}p"
                found[name] = Cell(rows=rows, value_bytes=value_bytes, partitions=count)
        found[f"{size}-tls"] = Cell(rows=rows, value_bytes=value_bytes, tls=True)
        found[f"{size}-headers"] = Cell(rows=rows, value_bytes=value_bytes, headers=True)
    for count in (4, 100):
        name = f"1KB-{count}p-once"
        found[name] = Cell(rows=1_000_000, value_bytes=1000, partitions=count, exactly_once=True)
    found["100B-once"] = Cell(rows=3_000_000, exactly_once=True)
    found["10MB-once"] = Cell(rows=10_000, value_bytes=1000, partitions=4, exactly_once=True)
    found["200tasks-once"] = Cell(rows=200_000, value_bytes=1000, partitions=200, exactly_once=True)
    found["stream-once"] = Cell(rows=10_000, partitions=4, kind=Kind.STREAM, exactly_once=True)
    found["avro-flat"] = Cell(rows=1_000_000, avro="flat")
    found["avro-nested"] = Cell(rows=150_000, avro="nested")
    for size, (value_bytes, rows) in _SIZES.items():
        found[f"{size}-parquet"] = Cell(rows=rows, value_bytes=value_bytes, parquet=True)
    found["1row"] = Cell(rows=1)
    found["1000rows"] = Cell(rows=1000)
    found["cold"] = Cell(rows=100_000, kind=Kind.COLD)
    found["cold-1000p"] = Cell(rows=3_000_000, partitions=1000, kind=Kind.COLD)
    found["stream"] = Cell(rows=10_000, kind=Kind.STREAM)
    return found


CELLS: Final[Mapping[str, Cell]] = _cells()
# The cells of the targets, R6 at one size, and the ways to start.
CORE: Final = (
    *_SIZES,
    *(f"{size}-{codec}" for size in _SIZES for codec in ("lz4", "zstd")),
    *(f"{size}-{count}p" for size in _SIZES for count in (100, 1000)),
    *("100B-nokey", "1row", "cold", "stream"),
    *(f"{size}-tls" for size in _SIZES),
    *("avro-flat", "avro-nested"),
)

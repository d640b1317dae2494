"""The cost per byte of lz4 and zstd: as the sink calls them, in other ways, and from Java.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.codecs``, in an environment of ``make
bench``.

The bytes are those of a batch of the benchmark's rows, in two pieces, as in a batch of two slices.
Each figure is the minimum CPU time of a thread over many rounds. The Python variants alternate, and
Java runs twice in between, with the libraries of Spark's own sink.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import lz4.frame
import pyarrow as pa
import pyspark
import zstandard

from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.spark.options import SINK_DEFAULTS
from spark_kafka_sink.spark.worker import keep_heap

BATCH_BYTES: Final = int(SINK_DEFAULTS["batch.size"])
PIECES: Final = 2
JAVAS_BLOCK: Final = 64 * 1024
ROUNDS: Final = 40
ZSTD_LEVEL: Final = 3
JAVA: Final = Path(__file__).with_name("CodecSpeed.java")
JARS: Final = Path(pyspark.__file__).parent / "jars"


def records(value_bytes: int) -> list[bytes]:
    """Return records with keys, with the benchmark's values."""
    numbers = random.Random(value_bytes)
    count = BATCH_BYTES // (value_bytes + 26)
    pieces = value_bytes // 24 + 1
    made = []
    for row in range(count):
        text = b"".join(b'"customer_name":%08x' % numbers.getrandbits(32) for _ in range(pieces))
        made.append(b"%04d\0\x20%016d%04d" % (row % 9999, row, row % 9999) + text[:value_bytes])
    return made


def ways_of_lz4(pieces: list[bytes]) -> dict[str, Callable[[], bytes]]:
    """Return other ways to compress a batch with lz4 from Python than the sink's."""

    def joined(size: int) -> bytes:
        packed: bytes = lz4.frame.compress(b"".join(pieces), block_size=size, block_linked=False)
        return packed

    def blocks_of_pyarrow() -> bytes:
        block, view = pa.Codec("lz4_raw"), memoryview(b"".join(pieces))
        starts = range(0, len(view), JAVAS_BLOCK)
        packed = [block.compress(view[at : at + JAVAS_BLOCK], asbytes=True) for at in starts]
        return b"".join(packed)

    return {
        "pieces that are joined first": partial(joined, lz4.frame.BLOCKSIZE_MAX64KB),
        "and blocks of 256 KiB": partial(joined, lz4.frame.BLOCKSIZE_MAX256KB),
        "pyarrow's, block by block": blocks_of_pyarrow,
    }


def ways_of_zstd(pieces: list[bytes]) -> dict[str, Callable[[], bytes]]:
    """Return other ways to compress a batch with zstd from Python than the sink's."""
    context = zstandard.ZstdCompressor(level=ZSTD_LEVEL)

    def by_pieces() -> bytes:
        frame = context.compressobj(size=sum(map(len, pieces)))
        return b"".join([*map(frame.compress, pieces), frame.flush()])

    return {
        "pieces that are not joined": by_pieces,
        "python-zstandard, its context kept": lambda: context.compress(b"".join(pieces)),
    }


def as_the_sink(name: str, pieces: list[bytes]) -> Callable[[], bytes]:
    """Return the sink's way."""
    compress = codec(name).compress
    assert compress is not None
    return lambda: compress(pieces)


WAYS: Final = {"lz4": ways_of_lz4, "zstd": ways_of_zstd}
# Their names in CodecSpeed.java, and their descriptions.
JAVAS: Final = {
    "lz4": {"lz4": "Java"},
    "zstd": {"zstd": "Java, whole", "zstd-stream": "Java, as a stream, which Kafka's producer has"},
}


def by_java(name: str, data: bytes) -> tuple[float, int]:
    """Return the seconds and the compressed bytes of Java, with the jars of the installed Spark."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        jars = [*JARS.glob("lz4-java-*.jar"), *JARS.glob("zstd-jni-*.jar")]
        command = ["java", "-cp", ":".join(map(str, jars)), str(JAVA), name, file.name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    nanoseconds, packed = done.stdout.split()
    return int(nanoseconds) / 1e9, int(packed)


def measure(name: str, value_bytes: int) -> None:
    """Print the nanoseconds per byte of each way."""
    data = b"".join(records(value_bytes))
    piece_bytes = -(-len(data) // PIECES)
    pieces = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
    ways = {"the sink": as_the_sink(name, pieces), **WAYS[name](pieces)}
    least: dict[str, float] = {}
    packed: dict[str, int] = {}
    for _ in range(2):
        for codec_of_java, way in JAVAS[name].items():
            took, packed[way] = by_java(codec_of_java, data)
            least[way] = min(took, least.get(way, took))
        for _ in range(ROUNDS):
            for way, run in ways.items():
                began = time.thread_time()
                packed[way] = len(run())
                took = time.thread_time() - began
                least[way] = min(took, least.get(way, took))
    print(f"{name}, values of {value_bytes:,} bytes")
    for way, seconds in least.items():
        size = packed[way] / len(data)
        print(f"  {seconds / len(data) * 1e9:.2f} ns a byte, to {size:.1%}: {way}")


if __name__ == "__main__":
    keep_heap()
    for name in WAYS:
        for size in (100, 1000, 10_000):
            measure(name, size)

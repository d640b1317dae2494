"""Compress records with Kafka's four codecs, in the framing that brokers and all clients can read.

gzip: one member. snappy: the xerial stream, 32 KiB blocks after a 16-byte header. lz4: a frame of
independent 64 KiB blocks without checksum or content size, with the same header bytes that Java
writes. Most libraries write linked blocks by default (pyarrow's lz4 does too), and Java's reader
rejects linked blocks. zstd: one frame.

All codecs release the GIL while they compress. The libraries are imported at the first compression,
because the processes in which Spark plans a job only need the name of a codec.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
Compress: TypeAlias = Callable[[Sequence[Buffer]], bytes]

_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_GZIP_WINDOW_BITS: Final = 31
# Kafka's default level 9 selects the fast compressor (Lz4Compression), which is lz4's level 0.
_KAFKA_LZ4_FAST_LEVEL: Final = 9
_LZ4_HC_LEVELS: Final = (3, 12)


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec with a compression level.

    id: the number of the codec in a batch's attributes. name: the value of compression.type.
    """

    id: int
    name: str
    compress: Compress | None

    def __call__(self, pieces: Sequence[Buffer]) -> tuple[Buffer, ...]:
        """Return the pieces compressed as one block. The codec `none` returns them unchanged."""
        return tuple(pieces) if self.compress is None else (self.compress(pieces),)


NO_COMPRESSION: Final = Codec(0, "none", None)
LZ4: Final = 3
ZSTD: Final = 4

DEFAULT_LEVELS: Final = {"gzip": -1, "lz4": _KAFKA_LZ4_FAST_LEVEL, "zstd": 3}


def codec(name: str, level: int | None = None) -> Codec:
    """Return the codec for a compression.type.

    level: the value of the codec's level option, None for the default level.
    """
    if name in DEFAULT_LEVELS and level is None:
        level = DEFAULT_LEVELS[name]
    if name == "gzip":
        return Codec(1, name, _gzip(level or 0))
    if name == "snappy":
        return Codec(2, name, _snappy())
    if name == "lz4":
        return Codec(LZ4, name, _lz4(level or 0))
    if name == "zstd":
        return Codec(ZSTD, name, _zstd(level or 0))
    return NO_COMPRESSION


def _gzip(level: int) -> Compress:
    def compress(pieces: Sequence[Buffer]) -> bytes:
        stream = zlib.compressobj(level, wbits=_GZIP_WINDOW_BITS)
        return b"".join([*map(stream.compress, pieces), stream.flush()])

    return compress


def _snappy() -> Compress:
    def compress(pieces: Sequence[Buffer]) -> bytes:
        import pyarrow as pa  # noqa: PLC0415 - see the module's docstring

        block = pa.Codec("snappy")
        view = memoryview(_joined(pieces))
        out = [_XERIAL_HEADER]
        for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
            packed = block.compress(view[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
            out += [struct.pack(">i", len(packed)), packed]
        return b"".join(out)

    return compress


def _lz4(kafka_level: int) -> Compress:
    low, high = _LZ4_HC_LEVELS
    level = 0 if kafka_level == _KAFKA_LZ4_FAST_LEVEL else min(max(kafka_level, low), high)

    def compress(pieces: Sequence[Buffer]) -> bytes:
        import lz4.frame  # noqa: PLC0415 - see the module's docstring

        frame = lz4.frame.LZ4FrameCompressor(
            compression_level=level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
        )
        # Joining the pieces first would cost 3 % of the producer's CPU time: see
        # docs/contributing/performance.md.
        return b"".join([frame.begin(), *map(frame.compress, pieces), frame.flush()])

    return compress


def _zstd(level: int) -> Compress:
    def compress(pieces: Sequence[Buffer]) -> bytes:
        import pyarrow as pa  # noqa: PLC0415 - see the module's docstring

        block = pa.Codec("zstd", compression_level=level)
        packed: bytes = block.compress(_joined(pieces), asbytes=True)
        return packed

    return compress


def _joined(pieces: Sequence[Buffer]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


_IMPROVING_SHARE: Final = 0.5
_DETERIORATE_STEP: Final = 0.05
# The safety factor of the estimate, in case a batch compresses worse than the batches before it.
_SAFETY: Final = 1.05
# The lowest ratio that is used, so that the records of a batch take at most 16 times as many bytes
# as the batch should. If rows that do not compress follow rows that compress well, brokers reject
# the first batch and its parts at most a few times. Batches of 8 MiB before compression instead of
# larger ones cost no measurable time or size.
_LOWEST_RATIO: Final = 1 / 16


class CompressionRatioEstimator:
    """Estimates the compression ratio (compressed / uncompressed size) of a topic's next batch.

    If the ratio of a batch is higher than the estimate, the estimate rises at least to that ratio,
    as in Java's CompressionRatioEstimator. If the ratio is lower, the estimate falls by half of the
    difference. (In Java, it falls by at most 0.005 per batch.)
    """

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def observe(self, topic: str, ratio: float) -> None:
        """Update the estimate with the compression ratio of a batch."""
        estimate = self._ratios.get(topic, 1.0)
        if ratio > estimate:
            estimate = max(estimate + _DETERIORATE_STEP, ratio)
        elif ratio < estimate:
            estimate -= (estimate - ratio) * _IMPROVING_SHARE
        self._ratios[topic] = estimate

    def uncompressed_bytes(self, topic: str, compressed_bytes: int) -> int:
        """Return how many uncompressed bytes of records compress to about `compressed_bytes`.

        The result is at most 16 times `compressed_bytes`, even if records compress better.
        """
        ratio = max(self._ratios.get(topic, 1.0) * _SAFETY, _LOWEST_RATIO)
        return int(compressed_bytes / ratio)

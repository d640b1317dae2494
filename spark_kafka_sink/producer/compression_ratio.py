"""How well batches compress, per topic: so that they are full after compression.

As in CompressionRatioEstimator, the estimate starts at 1 and follows a deterioration at once (by at
least 0.05), so that batches rarely come out too large. An improvement it follows by half the
difference a batch, where the Java client goes 0.005: a Spark task may be a hundred batches long.
"""

from __future__ import annotations

from typing import Final

_IMPROVING_SHARE: Final = 0.5
_DETERIORATE_STEP: Final = 0.05
# What is filled in is the estimate and a little more: room for the batch that compresses worse.
_SAFETY: Final = 1.05


class CompressionRatioEstimator:
    """Estimates compressed size / uncompressed size of a topic's next batch."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def observe(self, topic: str, ratio: float) -> None:
        """Take the ratio a batch came out with."""
        estimate = self._ratios.get(topic, 1.0)
        if ratio > estimate:
            estimate = max(estimate + _DETERIORATE_STEP, ratio)
        elif ratio < estimate:
            estimate -= (estimate - ratio) * _IMPROVING_SHARE
        self._ratios[topic] = estimate

    def uncompressed_bytes(self, topic: str, compressed_bytes: int) -> int:
        """Give how many bytes of records fill `compressed_bytes`."""
        return int(compressed_bytes / (self._ratios.get(topic, 1.0) * _SAFETY))

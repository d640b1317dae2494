"""Exponential back-off with jitter (KIP-580), computed from the number of attempts."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Self

_MULTIPLIER: Final = 2.0
_JITTER: Final = 0.2


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays that begin at base_s and double per attempt up to max_s, with a jitter of 20 %.

    If base_s >= max_s, every delay is exactly max_s, as in the Java client
    (org.apache.kafka.common.utils.ExponentialBackoff).
    """

    base_s: float
    max_s: float

    @classmethod
    def of_ms(cls, base_ms: int, max_ms: int) -> Self:
        """Return a back-off for a first delay and a maximum delay in milliseconds."""
        return cls(base_ms / 1000, max_ms / 1000)

    def delay_s(self, attempts: int, random: Random) -> float:
        """Return the seconds to wait before a retry; attempts: the number of retries before it."""
        if self.base_s >= self.max_s:
            return self.max_s
        # The exponent is limited to avoid overflow. 2**64 times base_s exceeds every maximum.
        delay = min(self.max_s, self.base_s * _MULTIPLIER ** min(attempts, 64))
        return min(self.max_s, delay * random.uniform(1 - _JITTER, 1 + _JITTER))

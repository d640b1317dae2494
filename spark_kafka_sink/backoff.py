"""Exponential back-off with jitter (KIP-580), as a pure function of attempts and chance."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Self

_MULTIPLIER: Final = 2.0
_JITTER: Final = 0.2


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Waits of base_s, doubled per attempt, each 20 % more or less by chance, never over max_s.

    A base that is not under the maximum means: the maximum, always and exactly, as in the Java
    client (org.apache.kafka.common.utils.ExponentialBackoff).
    """

    base_s: float
    max_s: float

    @classmethod
    def of_ms(cls, base_ms: int, max_ms: int) -> Self:
        """Make one of two options, which are in milliseconds."""
        return cls(base_ms / 1000, max_ms / 1000)

    def delay_s(self, attempts: int, random: Random) -> float:
        """Give the wait after `attempts` failed attempts (0: the first retry)."""
        if self.base_s >= self.max_s:
            return self.max_s
        # 2**64 base waits are over every maximum; beyond, the power would overflow.
        delay = min(self.max_s, self.base_s * _MULTIPLIER ** min(attempts, 64))
        return min(self.max_s, delay * random.uniform(1 - _JITTER, 1 + _JITTER))

"""Exponential back-off with jitter (KIP-580), as a pure function of attempts and chance."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

_MULTIPLIER: Final = 2.0
_JITTER: Final = 0.2


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Waits of base_s, doubled per attempt up to max_s, each 20 % more or less by chance.

    A base over the maximum means: the maximum, always.
    """

    base_s: float
    max_s: float

    def delay_s(self, attempts: int, random: Random) -> float:
        """Give the wait after `attempts` failed attempts (0: the first retry)."""
        if self.base_s <= 0:
            return 0.0
        # 2**64 base waits are over every maximum; beyond, the power would overflow.
        delay = min(self.max_s, self.base_s * _MULTIPLIER ** min(attempts, 64))
        return delay * random.uniform(1 - _JITTER, 1 + _JITTER)

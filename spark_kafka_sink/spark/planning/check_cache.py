"""A cache for the results of checks in this process. Streams and write_batch check repeatedly.

The key of a result contains everything that was checked, including the delegation token and the
topics of the rows. The key changes when the token is renewed, and the topics may change with every
micro-batch. So only the newest results are kept.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# How many results are kept: more than the streams of one application need at the same time.
_MOST_KEPT: Final = 100


class CheckCache(Generic[K, V]):
    """The newest results by key. Several threads may use one cache at the same time."""

    def __init__(self) -> None:
        self._results: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: K) -> V | None:
        """Return the result that is kept for a key, or None if there is none."""
        return self._results.get(key)

    def keep(self, key: K, result: V) -> None:
        """Keep a result, and drop the oldest results if there are too many."""
        self._results.pop(key, None)
        self._results[key] = result
        for oldest in list(self._results)[:-_MOST_KEPT]:
            self._results.pop(oldest, None)

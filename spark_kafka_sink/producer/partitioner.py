"""Which partition each row goes to: the column's, the key's, or one that the load asks for.

In that order of precedence, as in the Java client: an explicit partition wins; a key goes to
``toPositive(murmur2(key)) % partitions`` over *all* partitions, available or not, so that it keeps
its partition whatever fails (BuiltInPartitioner.partitionForKey); the rest is spread over the
available partitions, in the way that partitioner.class names:

built in (null)  sticky for a batch's worth of bytes, then another one: the less a partition has
                 waiting, the more likely (KIP-794)
roundrobin       each row to the next one; keys do not count (RoundRobinPartitioner)
uniformsticky    sticky, then any other one; keys do not count (KIP-480)

It knows nothing of how loads come about, and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Final, Protocol

import numpy as np

from spark_kafka_sink.errors import DataException, row_of_batch
from spark_kafka_sink.producer.murmur2 import murmur2, to_positive
from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.varint import Int64s

_ALL: Final = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    """How a topic's partitions stand just now.

    available: the partitions to spread rows over, at least one; queue_lengths: how many batches
    each of *those* has waiting, None where that is not to count; batch_bytes: what fills a batch.
    """

    available: Sequence[int]
    queue_lengths: Sequence[int] | None
    batch_bytes: int


class Spread(Protocol):
    """Spreads the rows of one topic that have no partition yet."""

    def assign(self, sizes: Int64s, load: TopicLoad) -> Int64s:
        """Give the partition of each row, int64, from the rows' sizes in bytes, at least one."""


class StickyPartitioner:
    """The sticky partition of one topic, and how many bytes it has had.

    elsewhere: whether the next one must be another one, where there is one (UniformSticky);
    otherwise the same may be drawn again, and `queue_lengths` weigh.
    """

    def __init__(self, random: Random, *, elsewhere: bool = False) -> None:
        self._random = random
        self._elsewhere = elsewhere
        self._partition = -1
        self._bytes = 0

    def assign(self, sizes: Int64s, load: TopicLoad) -> Int64s:
        """Give the partition of each row."""
        # Few rows of a topic begin no new stretch, and then nobody asks.
        limits = cache(partial(_cumulative_weights, load.queue_lengths))
        if self._partition not in load.available:
            self._partition = self._pick(load.available, limits)
        # A row belongs to the stretch in which it begins: the row that fills one still goes there.
        ends = np.cumsum(sizes) + self._bytes
        stretch = (ends - sizes) // max(1, load.batch_bytes)
        self._bytes = int(ends[-1]) - int(stretch[-1]) * max(1, load.batch_bytes)
        # Where batches are smaller than rows, none begins in most stretches: those are passed over.
        change = np.cumsum(np.diff(stretch, prepend=0) > 0)
        chosen = [self._partition]
        for _ in range(int(change[-1])):
            self._partition = self._pick(load.available, limits)
            chosen.append(self._partition)
        assigned: Int64s = np.array(chosen, np.int64)[change]
        return assigned

    def _pick(self, available: Sequence[int], limits: Callable[[], Int64s | None]) -> int:
        if self._elsewhere:
            others = [partition for partition in available if partition != self._partition]
            available = others or available
        elif (weights := limits()) is not None:
            drawn = self._random.randrange(int(weights[-1]))
            return available[int(np.searchsorted(weights, drawn, "right"))]
        return available[self._random.randrange(len(available))]


class RoundRobinPartitioner:
    """Each row to the next available partition of one topic."""

    def __init__(self) -> None:
        self._next = 0

    def assign(self, sizes: Int64s, load: TopicLoad) -> Int64s:
        """Give the partition of each row."""
        turns = self._next + np.arange(len(sizes))
        self._next += len(sizes)
        assigned: Int64s = np.array(load.available, np.int64)[turns % len(load.available)]
        return assigned


@dataclass(frozen=True, slots=True)
class Strategy:
    """A partitioner.class: how it spreads a topic's rows, and whether keys count."""

    spread: Callable[[Random], Spread]
    uses_keys: bool


# By partitioner.class; None is the built-in one.
STRATEGIES: Final[Mapping[str | None, Strategy]] = {
    None: Strategy(StickyPartitioner, uses_keys=True),
    "roundrobin": Strategy(lambda _: RoundRobinPartitioner(), uses_keys=False),
    "uniformsticky": Strategy(
        lambda random: StickyPartitioner(random, elsewhere=True), uses_keys=False
    ),
}


def _strategy(name: str | None) -> Strategy:
    # What a user's own partitioner leaves open is the built-in one's.
    return STRATEGIES.get(name, STRATEGIES[None])


def uses_keys(name: str | None, *, ignore_keys: bool) -> bool:
    """Tell whether keys count for a partitioner.class where nobody else chooses a partition."""
    return _strategy(name).uses_keys and not ignore_keys


class Partitioner:
    """Partitions for slices of rows of any topic, by one strategy."""

    def __init__(
        self, random: Random, name: str | None = None, *, ignore_keys: bool = False
    ) -> None:
        self._strategy = _strategy(name)
        self._random = random
        self._spreads: dict[str, Spread] = {}
        self.uses_keys = uses_keys(name, ignore_keys=ignore_keys)

    def partition(
        self,
        topic: str,
        hashes: Int64s | None,
        explicit: Int64s | None,
        sizes: Int64s,
        partitions: int,
        load: Callable[[], TopicLoad],
    ) -> Int64s:
        """Give the partition of each row of one topic, int64.

        hashes: of `hash_keys`, None where keys do not count or no row has one; explicit: the
        partition column, -1 where it is null, None without one; sizes: bytes of each row;
        partitions: how many the topic has; load: asked only where rows are to be spread.
        """
        if explicit is None and hashes is not None and hashes.min(initial=0) >= 0:
            # The usual case. Hashes are below 2**31, and 32 bits are divided three times as fast.
            of_keys: Int64s = (hashes.astype(np.uint32) % np.uint32(partitions)).astype(np.int64)
            return of_keys
        chosen = np.full(len(sizes), -1) if explicit is None else explicit.copy()
        if hashes is not None:
            keyed = (chosen < 0) & (hashes >= 0)
            chosen[keyed] = hashes[keyed] % partitions
        loose = np.flatnonzero(chosen < 0)
        if len(loose):
            spread = self._spreads.get(topic)
            if spread is None:
                spread = self._spreads[topic] = self._strategy.spread(self._random)
            chosen[loose] = spread.assign(sizes[loose], load())
        return chosen


def _cumulative_weights(queue_lengths: Sequence[int] | None) -> Int64s | None:
    """Give the running sum of the partitions' weights, None where all weigh the same.

    A partition's weight is the longest queue's length + 1 - its own (BuiltInPartitioner's
    updatePartitionLoadStats), so that the longest queue still gets a share.
    """
    if queue_lengths is None:
        return None
    lengths = np.array(queue_lengths, np.int64)
    if not (lengths != lengths[0]).any():
        return None
    return np.cumsum(int(lengths.max()) + 1 - lengths)


def hash_keys(key: BinaryColumn | None) -> Int64s | None:
    """Give each key's positive hash, int64, -1 for a null key; None without a key column."""
    if key is None:
        return None
    hashes = to_positive(murmur2(key))
    return hashes if key.valid is None else np.where(key.valid, hashes, -1)


def check_partitions(
    topic: str, explicit: Int64s, partitions: int, of_topic: Int64s | slice = _ALL
) -> None:
    """Raise DataException for the first explicit partition that the topic does not have.

    explicit: of all rows; of_topic: which of them are the topic's.
    """
    beyond = np.flatnonzero(explicit[of_topic] >= partitions)
    if len(beyond):
        row = int(np.arange(len(explicit))[of_topic][beyond[0]])
        message = (
            f"the partition column has {int(explicit[row])} in {row_of_batch(row)}, "
            f"but topic {topic} has {partitions} partitions, 0 to {partitions - 1}"
        )
        raise DataException(message, topic=topic, partition=int(explicit[row]), row=row)

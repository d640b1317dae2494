"""Which partition each row goes to: the column's, the key's, or the sticky one.

In that order of precedence, as in the Java client: an explicit partition wins; a key goes to
``toPositive(murmur2(key)) % partitions`` over *all* partitions, available or not, so that it keeps
its partition whatever fails (BuiltInPartitioner.partitionForKey); a row without key goes to its
topic's sticky partition, which changes after every batch.size bytes (KIP-794, without its weighting
by queue length).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.producer.murmur2 import murmur2, to_positive
from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.varint import Int64s


class StickyPartitioner:
    """The sticky partition of one topic, and how many bytes it has had."""

    def __init__(self, switch_after_bytes: int, random: Random) -> None:
        self._switch_after_bytes = max(1, switch_after_bytes)
        self._random = random
        self._partition = -1
        self._bytes = 0

    def assign(self, sizes: Int64s, available: Sequence[int]) -> Int64s:
        """Give the partition of each row from the rows' sizes in bytes.

        available: the partitions that have a leader, or all where none has.
        """
        if self._partition not in available:
            self._partition = self._pick(available)
        # A row belongs to the stretch in which it begins: the row that fills one still goes there.
        ends = np.cumsum(sizes) + self._bytes
        stretch = (ends - sizes) // self._switch_after_bytes
        last = int(stretch[-1])
        chosen = [self._partition, *(self._pick(available) for _ in range(last))]
        self._partition = chosen[-1]
        self._bytes = int(ends[-1]) - last * self._switch_after_bytes
        assigned: Int64s = np.array(chosen, np.int64)[stretch]
        return assigned

    def _pick(self, available: Sequence[int]) -> int:
        return available[self._random.randrange(len(available))]


class Partitioner:
    """Partitions for slices of rows of any topic."""

    def __init__(self, batch_size_bytes: int, random: Random) -> None:
        self._batch_size_bytes = batch_size_bytes
        self._random = random
        self._sticky: dict[str, StickyPartitioner] = {}

    def partition(
        self,
        topic: str,
        hashes: Int64s | None,
        explicit: Int64s | None,
        sizes: Int64s,
        partitions: int,
        available: Sequence[int],
    ) -> Int64s:
        """Give the partition of each row of one topic, int64.

        hashes: of `hash_keys`, None where no row has a key; explicit: the partition column, -1
        where it is null, None without one; sizes: bytes of each row; partitions: how many the topic
        has; available: those of them that have a leader.
        """
        chosen = np.full(len(sizes), -1) if explicit is None else explicit.copy()
        if hashes is not None:
            keyed = (chosen < 0) & (hashes >= 0)
            chosen[keyed] = hashes[keyed] % partitions
        loose = np.flatnonzero(chosen < 0)
        if len(loose):
            chosen[loose] = self._sticky_of(topic).assign(
                sizes[loose], available or range(partitions)
            )
        return chosen

    def _sticky_of(self, topic: str) -> StickyPartitioner:
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = StickyPartitioner(self._batch_size_bytes, self._random)
            self._sticky[topic] = sticky
        return sticky


def hash_keys(key: BinaryColumn | None) -> Int64s | None:
    """Give each key's positive hash, int64, -1 for a null key; None without a key column."""
    if key is None:
        return None
    hashes = to_positive(murmur2(key))
    return hashes if key.valid is None else np.where(key.valid, hashes, -1)


def check_partitions(topic: str, explicit: Int64s, partitions: int) -> None:
    """Raise DataException for the first explicit partition that the topic does not have."""
    beyond = np.flatnonzero(explicit >= partitions)
    if len(beyond):
        row = int(beyond[0])
        message = (
            f"the partition column has {int(explicit[row])} in row {row} of an Arrow batch, "
            f"but topic {topic} has {partitions} partitions, 0 to {partitions - 1}"
        )
        raise DataException(message, topic=topic, partition=int(explicit[row]))

"""Choose the partition of each row: from the partition column, from the key, or by the load.

This order is the precedence, as in the Java client. An explicit partition comes first. A key
goes to ``toPositive(murmur2(key)) % partitions`` over *all* partitions, available or not, so that
it keeps its partition during failures (BuiltInPartitioner.partitionForKey). All other rows are
spread over the available partitions, depending on partitioner.class:

built in (null)  one sticky partition for the bytes of a full batch, then another, drawn at random;
                 partitions with fewer waiting batches are more likely (KIP-794). Spark tasks use
                 `EvenPartitioner` instead
roundrobin       each row to the next partition; keys are ignored (RoundRobinPartitioner)
uniformsticky    one sticky partition, then another at random; keys are ignored (KIP-480)

In this module, a *stretch* is the bytes that go to one sticky partition before the next partition
is chosen.

The module does not compute loads, and never waits. `choose_partitions` also sorts the rows of a
slice by partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Final, Protocol

import numpy as np

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.murmur2 import murmur2, to_positive
from spark_kafka_sink.records.columns import BinaryColumn, Bools, Rows
from spark_kafka_sink.records.layout import Runs, group_by_partition
from spark_kafka_sink.records.varint import Int64s

# If a topic has more partitions than this, `EvenPartitioner` does not spread a few rows evenly. If
# all topics of a slice together have more, no stretch is shorter than this fraction of the slice.
MOST_EVEN: Final = 100
_ALL: Final = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    """The current load of a topic's partitions.

    available: the partitions to spread rows over, at least one; queue_lengths: returns the number
    of waiting batches of each *available* partition, None if rows are spread regardless of the
    load; batch_bytes: the size of a full batch.
    """

    available: Sequence[int]
    queue_lengths: Callable[[], Sequence[int]] | None
    batch_bytes: int


class Spread(Protocol):
    """Spreads the rows of one topic that get no partition from the partition column or a key."""

    def assign(self, sizes: Int64s, load: TopicLoad) -> Int64s:
        """Return the partition of each row, int64; sizes: the size of each row in bytes."""


class StickyPartitioner:
    """Keeps the sticky partition of one topic, and the number of bytes that went to it.

    elsewhere: True if the next partition must differ from the current one, if possible
    (UniformSticky). False if the same partition may be drawn again. The weights of the draw then
    come from `queue_lengths`.
    """

    def __init__(self, random: Random, *, elsewhere: bool = False) -> None:
        self._random = random
        self._elsewhere = elsewhere
        self._partition = -1
        self._bytes = 0

    def assign(self, sizes: Int64s, load: TopicLoad) -> Int64s:
        """Return the partition of each row."""
        # The weights are only computed if a new stretch begins. With few rows, often none begins.
        limits = cache(partial(_cumulative_weights, load.queue_lengths))
        if self._partition not in load.available:
            self._partition = self._pick(load.available, limits)
        batch_bytes = max(1, load.batch_bytes)
        # A row belongs to the stretch in which it begins, even if it ends after the stretch.
        ends = np.cumsum(sizes) + self._bytes
        stretches = (ends - sizes) // batch_bytes
        self._bytes = int(ends[-1]) - int(stretches[-1]) * batch_bytes
        changes = _changes(stretches, 0)
        chosen = [self._partition]
        for _ in range(int(changes[-1])):
            self._partition = self._pick(load.available, limits)
            chosen.append(self._partition)
        assigned: Int64s = np.array(chosen, np.int64)[changes]
        return assigned

    def _pick(self, available: Sequence[int], limits: Callable[[], Int64s | None]) -> int:
        if self._elsewhere:
            others = [partition for partition in available if partition != self._partition]
            available = others or available
        elif (weights := limits()) is not None:
            drawn = self._random.randrange(int(weights[-1]))
            return available[int(np.searchsorted(weights, drawn, "right"))]
        return available[self._random.randrange(len(available))]


class EvenPartitioner:
    """A sticky partitioner that goes through the partitions in rounds, to spread few rows evenly.

    A round contains each available partition once, in random order; partitions with short queues
    tend to come first. A stretch is the bytes that go to one partition before the next partition is
    chosen. The first rounds have short stretches. In the first round, the size of a stretch is the
    size of the first slice of rows, divided by the number of partitions. In the following rounds, a
    stretch is as large as all earlier stretches of the partition together, until each partition has
    had the bytes of a batch. So no partition gets more than twice as many bytes as the average
    partition. After these rounds, a round leaves out partitions with long queues at random, so that
    each partition gets the share that KIP-794 defines.

    start: the index, among the available partitions, of the partition that gets rows first.
    least_bytes: no stretch is shorter than this, so it limits how even the first rounds are. With
    more than `MOST_EVEN` partitions, every stretch is as large as a batch.
    """

    def __init__(self, random: Random, start: int, least_bytes: int = 0) -> None:
        self._random = random
        self._start: int | None = start
        self._least_bytes = least_bytes
        self._partition = -1
        # The end of each stretch of the first rounds, in bytes since the first row; empty after
        # these rounds, None before the first row.
        self._first_ends: list[int] | None = None
        # The number of the last row's stretch, and the end of that row in bytes. During the first
        # rounds, both count from the first row. After them, the bytes count from the beginning of
        # the stretch, and the number is 0.
        self._stretch = 0
        self._bytes = 0
        # The partitions that are left in the round; the next partition is the last element.
        self._round: list[int] = []

    def assign(self, sizes: Int64s, load: TopicLoad) -> Int64s:
        """Return the partition of each row."""
        batch_bytes = max(1, load.batch_bytes)
        shares = cache(partial(_shares, load))
        first_ends = self._first_ends
        if first_ends is None:
            partitions = len(load.available)
            first = max(1, self._least_bytes, int(sizes.sum()) // partitions)
            first_ends = self._first_ends = _first_rounds(first, partitions, batch_bytes)
        if self._partition not in load.available:
            self._partition = self._pick(shares())
        ends = np.cumsum(sizes) + self._bytes
        begins = ends - sizes
        if first_ends:
            full = np.maximum(begins - first_ends[-1], 0) // batch_bytes
            stretches = np.searchsorted(first_ends, begins, "right") + full
        else:
            stretches = begins // batch_bytes
        changes = _changes(stretches, self._stretch)
        chosen = [self._partition]
        chosen += (self._pick(shares()) for _ in range(int(changes[-1])))
        self._partition = chosen[-1]
        self._stretch, self._bytes = int(stretches[-1]), int(ends[-1])
        if self._stretch >= len(first_ends):
            over = first_ends[-1] if first_ends else 0
            self._bytes -= over + (self._stretch - len(first_ends)) * batch_bytes
            self._stretch, self._first_ends = 0, []
        assigned: Int64s = np.array(chosen, np.int64)[changes]
        return assigned

    def _pick(self, shares: Mapping[int, float]) -> int:
        while True:
            if not self._round:
                self._round = self._new_round(shares)
            partition = self._round.pop()
            share = shares.get(partition, 0.0)  # 0 if it is unavailable now
            if self._random.random() < share or (share and self._first_ends):
                return partition

    def _new_round(self, shares: Mapping[int, float]) -> list[int]:
        # With these sort keys, the last element is drawn at random by the weights, the second last
        # from the remaining partitions by their weights, and so on (Efraimidis and Spirakis 2006).
        order = sorted(shares, key=lambda each: self._random.random() ** (1 / shares[each]))
        if self._start is not None:
            first = list(shares)[self._start % len(shares)]
            order.remove(first)
            order.append(first)
            self._start = None
        return order


def _first_rounds(first: int, partitions: int, batch_bytes: int) -> list[int]:
    """Return the end of each stretch that is shorter than a batch, in bytes since the first row.

    After the last of these stretches, each partition has had the bytes of a batch.
    `EvenPartitioner` explains stretches. first: the bytes of a stretch of the first round.
    """
    ends: list[int] = []
    had = 0
    if partitions > MOST_EVEN or first >= batch_bytes:
        return ends
    while had < batch_bytes:
        stretch = min(max(first, had), batch_bytes - had)
        begin = had * partitions
        ends += range(begin + stretch, begin + stretch * partitions + 1, stretch)
        had += stretch
    return ends


def _changes(stretches: Int64s, current: int) -> Int64s:
    """Return, for each row, the number of stretches that have begun after the `current` one.

    A stretch in which no row begins does not count. Such stretches are common if rows are large.
    """
    changes: Int64s = np.cumsum(np.diff(stretches, prepend=current) > 0)
    return changes


class RoundRobinPartitioner:
    """Each row of a topic goes to the next available partition, and the first row to a random one.

    The random start matters if many producers send few rows each, as Spark tasks may. Otherwise,
    they would all send their rows to the partitions with the lowest numbers.
    """

    def __init__(self, random: Random) -> None:
        self._next = random.randrange(2**31)

    def assign(self, sizes: Int64s, load: TopicLoad) -> Int64s:
        """Return the partition of each row."""
        numbers = self._next + np.arange(len(sizes))
        self._next += len(sizes)
        assigned: Int64s = np.array(load.available, np.int64)[numbers % len(load.available)]
        return assigned


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a partitioner.class does: how it spreads rows, and whether keys choose partitions."""

    spread: Callable[[Random], Spread]
    uses_keys: bool


# By partitioner.class; None is the built-in partitioner.
STRATEGIES: Final[Mapping[str | None, Strategy]] = {
    None: Strategy(StickyPartitioner, uses_keys=True),
    "roundrobin": Strategy(RoundRobinPartitioner, uses_keys=False),
    "uniformsticky": Strategy(
        lambda random: StickyPartitioner(random, elsewhere=True), uses_keys=False
    ),
}


def _strategy(name: str | None) -> Strategy:
    # Rows for which a user's partitioner chose no partition go to the built-in partitioner.
    return STRATEGIES.get(name, STRATEGIES[None])


def uses_keys(name: str | None, *, ignore_keys: bool) -> bool:
    """Return whether the key chooses the partition of a row without an explicit partition."""
    return _strategy(name).uses_keys and not ignore_keys


class Partitioner:
    """Chooses the partitions of rows of any topic, with the strategy of partitioner.class."""

    def __init__(
        self, random: Random, name: str | None = None, *, ignore_keys: bool = False
    ) -> None:
        self._strategy = _strategy(name)
        self._start: int | None = None
        self._random = random
        self._spreads: dict[str, Spread] = {}
        self.uses_keys = uses_keys(name, ignore_keys=ignore_keys)

    def spread_evenly(self, start: int) -> None:
        """Spread rows evenly from now on, with `EvenPartitioner` instead of `StickyPartitioner`.

        start: the index, among the available partitions of a topic, of the partition that gets rows
        first. A partitioner that partitioner.class names stays in use.
        """
        if self._strategy.spread is StickyPartitioner:
            self._start = start
            self._spreads.clear()

    def partition(
        self,
        topic: str,
        hashes: Int64s | None,
        explicit: Int64s | None,
        sizes: Int64s,
        partitions: int,
        load: Callable[[], TopicLoad],
        slice_bytes: Callable[[], int] | None = None,
    ) -> Int64s:
        """Return the partition of each row of one topic, int64.

        hashes: the keys' hashes from `hash_keys`, None if keys choose no partitions or no row has a
        key; explicit: the partition column, with -1 for null, or None if there is no such column;
        sizes: the size of each row in bytes; partitions: the topic's number of partitions; load:
        only called if there are rows to spread; slice_bytes: returns the bytes to spread of all
        topics in the slice, None if the topics have at most `MOST_EVEN` partitions together.
        """
        if explicit is None and hashes is not None and hashes.min(initial=0) >= 0:
            # The usual case. Hashes are below 2**31, and a 32-bit division takes a third of the
            # time of a 64-bit division.
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
                spread = self._spreads[topic] = self._new_spread(slice_bytes)
            chosen[loose] = spread.assign(sizes[loose], load())
        return chosen

    def _new_spread(self, slice_bytes: Callable[[], int] | None) -> Spread:
        if self._start is None:
            return self._strategy.spread(self._random)
        # Otherwise, nearly each row of a slice with a thousand topics would be a batch.
        least_bytes = 0 if slice_bytes is None else slice_bytes() // MOST_EVEN
        return EvenPartitioner(self._random, self._start, least_bytes)


def _cumulative_weights(queue_lengths: Callable[[], Sequence[int]] | None) -> Int64s | None:
    """Return the running sum of the partitions' weights, None if all weights are equal.

    The weight of a partition is ``longest queue length + 1 - its own queue length``. So even the
    partition with the longest queue gets rows (updatePartitionLoadStats of BuiltInPartitioner).
    """
    if queue_lengths is None:
        return None
    lengths = np.array(queue_lengths(), np.int64)
    if not (lengths != lengths[0]).any():
        return None
    return np.cumsum(int(lengths.max()) + 1 - lengths)


def _shares(load: TopicLoad) -> dict[int, float]:
    """Return the weight of each available partition, divided by the largest weight."""
    if load.queue_lengths is None:
        return dict.fromkeys(load.available, 1.0)
    lengths = load.queue_lengths()
    most = max(lengths) + 1
    largest = most - min(lengths)
    weights = ((most - length) / largest for length in lengths)
    return dict(zip(load.available, weights, strict=True))


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows sorted by partition: the runs (see `records.layout`), and the partition of each run."""

    rows: Rows
    runs: Runs
    targets: list[TopicPartition]


def topics_to_spread(
    rows: Rows, topics: Sequence[TopicMetadata], hashes: Int64s | None
) -> dict[str, TopicMetadata]:
    """Return the topics that may have rows without a partition from the partition column or a key.

    topics: the metadata of each topic in ``rows.topics``.
    """
    is_open = _is_open(rows, hashes)
    if is_open is not None and not is_open.any():
        return {}
    return dict(zip(rows.topics, topics, strict=True))


def _is_open(rows: Rows, hashes: Int64s | None) -> Bools | None:
    """Return, for each row, whether it has neither a partition nor a key; None if no row has."""
    is_open: Bools | None = None
    if rows.partitions is not None:
        is_open = rows.partitions < 0
    if hashes is not None:
        is_open = hashes < 0 if is_open is None else is_open & (hashes < 0)
    return is_open


def _bytes_to_spread(rows: Rows, sizes: Int64s, hashes: Int64s | None) -> int:
    is_open = _is_open(rows, hashes)
    return int(sizes.sum() if is_open is None else sizes[is_open].sum())


def choose_partitions(
    rows: Rows,
    sizes: Int64s,
    topics: Sequence[TopicMetadata],
    partitioner: Partitioner,
    load: Callable[[str, TopicMetadata], TopicLoad],
    hashes: Int64s | None = None,
) -> GroupedRows:
    """Choose the partition of each row, and sort the rows by partition.

    topics: the metadata of each topic in ``rows.topics``; load: returns the load of a topic, only
    called for topics that `topics_to_spread` returns; hashes: the keys' hashes, if they are already
    computed.
    """
    if hashes is None and partitioner.uses_keys:
        hashes = hash_keys(rows.columns.key)
    bases = np.cumsum([0, *(len(topic.leaders) for topic in topics)])
    chosen = np.empty(len(rows), np.int64)
    slice_bytes = None
    if bases[-1] > MOST_EVEN:
        slice_bytes = cache(partial(_bytes_to_spread, rows, sizes, hashes))
    for number, of_topic in rows.by_topic():
        chosen[of_topic] = bases[number] + partitioner.partition(
            rows.topics[number],
            None if hashes is None else hashes[of_topic],
            None if rows.partitions is None else rows.partitions[of_topic],
            sizes[of_topic],
            len(topics[number].leaders),
            partial(load, rows.topics[number], topics[number]),
            slice_bytes,
        )
    runs = group_by_partition(chosen)
    numbers = np.searchsorted(bases, runs.partitions, "right") - 1
    names = map(rows.topics.__getitem__, numbers.tolist())
    partitions = (np.array(runs.partitions, np.int64) - bases[numbers]).tolist()
    targets = map(TopicPartition._make, zip(names, partitions, strict=True))
    return GroupedRows(rows, runs, list(targets))


def hash_keys(key: BinaryColumn | None) -> Int64s | None:
    """Return the positive hash of each key, int64, -1 for null. Without keys, return None."""
    if key is None:
        return None
    hashes = to_positive(murmur2(key))
    return hashes if key.valid is None else np.where(key.valid, hashes, -1)


def check_partitions(
    topic: str, explicit: Int64s, partitions: int, of_topic: Int64s | slice = _ALL
) -> None:
    """Raise DataException for the first explicit partition that the topic does not have.

    explicit: the partition column of the rows of all topics; of_topic: which of these rows belong
    to `topic`.
    """
    beyond = np.flatnonzero(explicit[of_topic] >= partitions)
    if len(beyond):
        row = int(np.arange(len(explicit))[of_topic][beyond[0]])
        message = (
            f"the partition column has {int(explicit[row])}, but "
            f"topic {topic} has {partitions} partitions, 0 to {partitions - 1}"
        )
        raise DataException(message, topic=topic, partition=int(explicit[row]), row=row)


@dataclass(slots=True)
class _NodeTimes:
    data_at: float
    sendable_at: float


class NodeLatencies:
    """Measures how long data waits for each node, for partitioner.availability.timeout.ms.

    Times are seconds. With a timeout of 0, nothing is measured, and no node counts as slow.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._nodes: dict[int, _NodeTimes] = {}

    def update(self, node_id: int, now: float, *, can_send: bool) -> None:
        """Record that data waits for a node, and whether the node accepts it now."""
        if not self._timeout_s:
            return
        times = self._nodes.setdefault(node_id, _NodeTimes(now, now))
        times.data_at = now
        if can_send:
            times.sendable_at = now

    @property
    def has_slow(self) -> bool:
        """Whether data has waited for any node for longer than the timeout."""
        return any(map(self.is_slow, self._nodes))

    def keep(self, node_ids: Collection[int]) -> None:
        """Forget all nodes except `node_ids`, the nodes for which data waits."""
        self._nodes = {node: times for node, times in self._nodes.items() if node in node_ids}

    def is_slow(self, node_id: int) -> bool:
        """Return whether data has waited for a node for longer than the timeout."""
        times = self._nodes.get(node_id)
        return times is not None and times.data_at - times.sendable_at > self._timeout_s

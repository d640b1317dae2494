"""Which partition a row goes to: its own, its key's, or the sticky one of the moment."""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2
from support.brokers.mock_cluster import MockCluster

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.producer.partitioner import (
    EvenPartitioner,
    Partitioner,
    RoundRobinPartitioner,
    StickyPartitioner,
    TopicLoad,
    check_partitions,
    hash_keys,
)
from spark_kafka_sink.records.columns import BinaryColumn

BATCH_BYTES = 100
MIGRATE = Path(__file__).parents[3] / "docs" / "how-to" / "migrate.md"

SIZES = st.lists(st.integers(1, 250), min_size=1, max_size=50)
SEEDS = st.integers(0, 2**32 - 1)
ROWS = st.lists(
    st.tuples(st.none() | st.binary(max_size=6), st.integers(-1, 3), st.integers(1, 250)),
    min_size=1,
    max_size=50,
)


class _Cycle(Random):
    """Chooses each time the next one, so that every switch is seen."""

    def __init__(self) -> None:
        super().__init__(0)
        self._next = -1

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        self._next += 1
        return self._next % start


def _load(
    available: Sequence[int], queue_lengths: Sequence[int] | None = None
) -> Callable[[], TopicLoad]:
    lengths = None if queue_lengths is None else lambda: queue_lengths
    return lambda: TopicLoad(available=available, queue_lengths=lengths, batch_bytes=BATCH_BYTES)


def _int64(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def _keys(keys: Sequence[bytes | None]) -> npt.NDArray[np.int64] | None:
    return hash_keys(BinaryColumn.of(pa.array(keys, pa.binary())))


@pytest.mark.parametrize("partitions", [1, 7, 65_537, 2**31 - 1])
def test_a_remainder_is_right_for_the_largest_hash_and_number(partitions: int) -> None:
    hashes = [0, 1, 65_536, 2**31 - 2, 2**31 - 1]
    for some in (hashes, [*hashes, -1]):  # with a row that has no key, and without
        chosen = Partitioner(Random(0)).partition(
            "topic", _int64(some), None, _int64([1] * len(some)), partitions, _load([0])
        )
        assert chosen.dtype == np.int64
        assert chosen[: len(hashes)].tolist() == [each % partitions for each in hashes]


@given(
    rows=ROWS,
    partitions=st.integers(4, 9),
    available=st.lists(st.integers(0, 3), min_size=1, unique=True),
    seed=SEEDS,
)
def test_explicit_partitions_win_then_keys_and_only_the_rest_is_sticky(
    rows: list[tuple[bytes | None, int, int]], partitions: int, available: list[int], seed: int
) -> None:
    keys, explicit, sizes = zip(*rows, strict=True)
    chosen = Partitioner(Random(seed)).partition(
        "topic", _keys(keys), _int64(explicit), _int64(sizes), partitions, _load(available)
    )
    sticky = []
    for key, own, partition in zip(keys, explicit, chosen.tolist(), strict=True):
        if own >= 0:
            assert partition == own
        elif key is not None:
            # Over all partitions, whether they have a leader or not.
            assert partition == (kafka_python_murmur2(key) & 0x7FFFFFFF) % partitions
        else:
            sticky.append(partition)
    assert set(sticky) <= set(available)


@given(keys=st.lists(st.none() | st.binary(max_size=6), min_size=1), seed=SEEDS)
def test_keys_decide_where_there_is_no_partition_column(
    keys: list[bytes | None], seed: int
) -> None:
    sizes = _int64([10] * len(keys))
    chosen = Partitioner(Random(seed)).partition("topic", _keys(keys), None, sizes, 7, _load([6]))
    for key, partition in zip(keys, chosen.tolist(), strict=True):
        hashed = 6 if key is None else (kafka_python_murmur2(key) & 0x7FFFFFFF) % 7
        assert partition == hashed


def _written_by_librdkafka(
    keys: Sequence[bytes | None], partitions: int, **options: str
) -> list[tuple[bytes | None, int]]:
    """Return each key and its partition, as confluent-kafka writes it to a new topic."""
    written: list[tuple[bytes | None, int]] = []

    def note(error: object, message: Message) -> None:
        assert error is None
        written.append((message.key(), message.partition() or 0))

    with MockCluster() as cluster:
        cluster.create_topic("t", partitions)
        quiet = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        # Without sticky partitions, each record without a key is written to a random one.
        producer = Producer(quiet | {"sticky.partitioning.linger.ms": 0} | options)
        for key in keys:
            producer.produce("t", b"v", key=key, on_delivery=note)
        assert producer.flush(30) == 0
    assert len(written) == len(keys)
    return written


def test_the_page_about_migrating_keeps_the_partitions_of_librdkafka() -> None:
    formula = "CAST(crc32(CAST(key AS BINARY)) % {n} AS INT) AS partition"
    assert formula in MIGRATE.read_text()
    keys = [*(str(number).encode() for number in range(500)), b"\0", "é".encode()]
    assert any(crc32(key) >= 2**31 for key in keys)
    written = _written_by_librdkafka(keys, 12)
    assert written == [(key, crc32(key or b"") % 12) for key, _ in written]
    # The page also says what librdkafka does without a key, or with an empty one.
    for key in (None, b""):
        assert len({partition for _, partition in _written_by_librdkafka([key] * 200, 12)}) > 1


def test_keys_of_librdkafka_with_murmur2_random_go_to_the_same_partitions() -> None:
    assert "`partitioner=murmur2_random`" in MIGRATE.read_text()
    keys = [*(str(number).encode() for number in range(500)), b"", b"\0", "é".encode()]
    written = _written_by_librdkafka(keys, 12, partitioner="murmur2_random")
    hashes, sizes = _keys([key for key, _ in written]), _int64([10] * len(keys))
    chosen = Partitioner(Random(1)).partition("t", hashes, None, sizes, 12, _load([6]))
    assert [partition for _, partition in written] == chosen.tolist()


def test_the_partition_column_is_not_written_to() -> None:
    explicit = _int64([-1, 2, -1])
    Partitioner(Random(1)).partition("topic", None, explicit, _int64([1, 1, 1]), 3, _load(range(3)))
    assert explicit.tolist() == [-1, 2, -1]


@given(slices=st.lists(SIZES, min_size=1, max_size=6))
def test_the_sticky_partition_changes_after_every_batch_size_of_bytes(
    slices: list[list[int]],
) -> None:
    """A row belongs to the stretch in which its first byte lies, in slices of any size.

    A stretch in which no row begins, since one is larger than it, has no partition drawn for it.
    """
    sticky = StickyPartitioner(_Cycle())
    chosen = [p for s in slices for p in sticky.assign(_int64(s), _load(range(1000))()).tolist()]
    sizes = [size for each in slices for size in each]
    stretches = [sum(sizes[:row]) // BATCH_BYTES for row in range(len(sizes))]
    begun = sorted(set(stretches))
    assert chosen == [begun.index(stretch) for stretch in stretches]


@given(sizes=SIZES, partitions=st.integers(1, 5), seed=SEEDS)
def test_rows_without_keys_stay_together_until_a_batch_is_full(
    sizes: list[int], partitions: int, seed: int
) -> None:
    sticky = StickyPartitioner(Random(seed))
    chosen = sticky.assign(_int64(sizes), _load(range(partitions))()).tolist()
    assert set(chosen) <= set(range(partitions))
    ends = np.cumsum(sizes).tolist()
    for row, (before, after) in enumerate(pairwise(chosen)):
        if before != after:
            # The stretch that this row ends in is not the one the next row begins in.
            assert (ends[row] - sizes[row]) // BATCH_BYTES < ends[row] // BATCH_BYTES


def test_bytes_count_on_from_slice_to_slice() -> None:
    sticky = StickyPartitioner(_Cycle())
    assert sticky.assign(_int64([60]), _load(range(9))()).tolist() == [0]
    assert sticky.assign(_int64([60]), _load(range(9))()).tolist() == [0]
    assert sticky.assign(_int64([60, 60]), _load(range(9))()).tolist() == [1, 1]
    assert sticky.assign(_int64([60]), _load(range(9))()).tolist() == [2]


@given(sizes=SIZES, seed=SEEDS, elsewhere=st.booleans())
def test_one_partition_takes_all(sizes: list[int], seed: int, *, elsewhere: bool) -> None:
    sticky = StickyPartitioner(Random(seed), elsewhere=elsewhere)
    assert set(sticky.assign(_int64(sizes), _load(range(1))()).tolist()) == {0}


@given(available=st.lists(st.lists(st.integers(0, 9), min_size=1, unique=True)), seed=SEEDS)
def test_only_partitions_that_are_available_now_are_chosen(
    available: list[list[int]], seed: int
) -> None:
    sticky = StickyPartitioner(Random(seed))
    for now in available:
        assert set(sticky.assign(_int64([40] * 9), _load(now)()).tolist()) <= set(now)


def test_a_sticky_partition_that_loses_its_leader_is_left() -> None:
    sticky = StickyPartitioner(_Cycle())
    assert sticky.assign(_int64([10]), _load([4, 5])()).tolist() == [4]
    assert sticky.assign(_int64([10]), _load([6, 7])()).tolist() == [7]
    assert sticky.assign(_int64([10]), _load([4, 7])()).tolist() == [7]


@given(seed=SEEDS)
def test_over_many_batches_every_partition_gets_its_share(seed: int) -> None:
    sizes = _int64([BATCH_BYTES] * 4000)
    chosen = Partitioner(Random(seed)).partition("topic", None, None, sizes, 4, _load(range(4)))
    counts = np.bincount(chosen, minlength=4)
    assert (counts > 800).all()


def test_topics_stick_each_to_a_partition_of_their_own() -> None:
    partitioner = Partitioner(_Cycle())
    for topic, expected in (("a", 0), ("b", 1), ("a", 0), ("b", 1)):
        chosen = partitioner.partition(topic, None, None, _int64([10]), 9, _load(range(9)))
        assert chosen.tolist() == [expected]


def test_a_partition_that_the_topic_lacks_is_refused_by_its_row() -> None:
    check_partitions("flights", _int64([0, -1, 2]), 3)
    with pytest.raises(DataException) as refusal:
        check_partitions("flights", _int64([0, -1, 3, 7]), 3)
    assert "row 2 of the Arrow batch: the partition column has 3, but" in str(refusal.value)
    assert "topic flights has 3 partitions, 0 to 2" in str(refusal.value)
    assert (refusal.value.topic, refusal.value.partition) == ("flights", 3)
    of_topic = _int64([1, 3])
    check_partitions("flights", _int64([9, 0, 9, 1]), 3, of_topic)
    with pytest.raises(
        DataException, match=r"^row 3 of the Arrow batch: the partition column has 7, but"
    ):
        check_partitions("flights", _int64([9, 0, 9, 7]), 3, of_topic)


@given(lengths=st.lists(st.integers(0, 9), min_size=2, max_size=6), seed=SEEDS)
def test_the_less_a_partition_has_waiting_the_more_it_gets(lengths: list[int], seed: int) -> None:
    """Against the weights of BuiltInPartitioner: the longest queue + 1 - the partition's own."""
    sizes = _int64([BATCH_BYTES] * 6000)
    partitions = [10 + number for number in range(len(lengths))]
    chosen = StickyPartitioner(Random(seed)).assign(sizes, _load(partitions, lengths)())
    counts = np.bincount(chosen, minlength=partitions[-1] + 1)[10:]
    weights = max(lengths) + 1 - np.array(lengths)
    expected = weights / weights.sum() * len(sizes)
    # Five standard deviations of a count.
    assert (abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()


@given(sizes=SIZES, partitions=st.integers(2, 5), seed=SEEDS)
def test_uniform_sticky_always_goes_elsewhere_and_does_not_look_at_keys(
    sizes: list[int], partitions: int, seed: int
) -> None:
    partitioner = Partitioner(Random(seed), "uniformsticky")
    assert not partitioner.uses_keys
    chosen = partitioner.partition(
        "topic", None, None, _int64(sizes), partitions, _load(range(partitions))
    )
    ends = np.cumsum(sizes)
    stretches = ((ends - sizes) // BATCH_BYTES).tolist()
    pairs = zip(pairwise(stretches), pairwise(chosen.tolist()), strict=True)
    for (stretch, following), (before, after) in pairs:
        if following == stretch:
            assert before == after
        elif following == stretch + 1:
            assert before != after


@given(slices=st.lists(SIZES, min_size=1, max_size=6), partitions=st.integers(1, 5), seed=SEEDS)
def test_round_robin_gives_each_row_to_the_next(
    slices: list[list[int]], partitions: int, seed: int
) -> None:
    robin = RoundRobinPartitioner(Random(seed))
    available = range(100, 100 + partitions)
    chosen = [p for s in slices for p in robin.assign(_int64(s), _load(available)()).tolist()]
    first = available.index(chosen[0])
    assert chosen == [available[(first + n) % partitions] for n in range(len(chosen))]


def test_round_robin_of_many_producers_and_topics_starts_anywhere() -> None:
    """Thirty producers of five rows each would else fill the first five partitions alone."""
    starts = set()
    for seed in range(30):
        partitioner = Partitioner(Random(seed), "roundrobin")
        for topic in ("a", "b"):
            chosen = partitioner.partition(
                topic, None, None, _int64([10] * 5), 100, _load(range(100))
            )
            starts.add(int(chosen[0]))
    # Of sixty numbers below 100, some are drawn twice.
    assert len(starts) > 30


@given(slices=st.lists(SIZES, min_size=1, max_size=6), partitions=st.integers(1, 12), seed=SEEDS)
def test_an_even_spread_never_gives_a_partition_twice_the_mean_and_a_row(
    slices: list[list[int]], partitions: int, seed: int
) -> None:
    even = EvenPartitioner(Random(seed), seed)
    had, largest_row, total = np.zeros(partitions), 0, 0
    for sizes in slices:
        chosen = even.assign(_int64(sizes), _load(range(partitions))())
        np.add.at(had, chosen, sizes)
        largest_row, total = max(largest_row, *sizes), total + sum(sizes)
        # A row that begins in a stretch belongs to it entirely; the last row may count twice.
        assert had.max() <= 2 * total / partitions + 2 * largest_row + BATCH_BYTES


@given(
    rows=st.integers(1, 400), partitions=st.integers(1, 12), start=st.integers(0, 2**40), seed=SEEDS
)
def test_the_first_slice_visits_every_partition_once_from_the_start_on(
    rows: int, partitions: int, start: int, seed: int
) -> None:
    even = EvenPartitioner(Random(seed), start)
    each = max(1, rows // partitions)
    load = TopicLoad(available=range(partitions), queue_lengths=None, batch_bytes=each * 10 + 1)
    chosen = even.assign(_int64([10] * rows), load).tolist()
    visits = [each for each, _ in groupby(chosen)][:partitions]
    assert visits[0] == start % partitions
    assert len(set(visits)) == min(rows, partitions)


def test_an_even_spread_visits_partitions_in_random_order_and_short_queues_first() -> None:
    orders = set()
    short_first = 0
    for seed in range(300):
        even = EvenPartitioner(Random(seed), 0)
        orders.add(tuple(even.assign(_int64([10] * 4), _load(range(4))())))
        even = EvenPartitioner(Random(seed), 0)
        chosen = even.assign(_int64([10] * 3), _load(range(3), [0, 9, 0])())
        short_first += chosen.tolist() == [0, 2, 1]
    # Partition 0 is the start; the other three have six orders.
    assert len(orders) == 6
    # The queue of 9 makes a share of a tenth: ten times in eleven it comes after the other one.
    assert 250 < short_first < 300


def test_above_a_hundred_partitions_few_rows_fill_batches_rather_than_partitions() -> None:
    for partitions, filled in ((100, 100), (101, 5)):
        even = EvenPartitioner(Random(1), 0)
        chosen = even.assign(_int64([1] * 5 * BATCH_BYTES), _load(range(partitions))())
        assert len(set(chosen.tolist())) == filled


def test_stretches_grow_to_a_batch_within_a_batch_for_each_partition() -> None:
    partitions, batch = 4, 1600
    even = EvenPartitioner(Random(1), 0)
    load = TopicLoad(available=range(partitions), queue_lengths=None, batch_bytes=batch)
    slices = [40] + [400] * 40
    chosen = [p for size in slices for p in even.assign(_int64([10] * (size // 10)), load).tolist()]
    rows_of_a_batch = batch // 10
    before, after = chosen[: partitions * rows_of_a_batch], chosen[partitions * rows_of_a_batch :]
    assert sorted(before[:partitions]) == [*range(partitions)]
    assert np.bincount(before).tolist() == [rows_of_a_batch] * partitions
    # From there on, the rows of a batch stay together.
    table = np.reshape(
        after[: len(after) // rows_of_a_batch * rows_of_a_batch], (-1, rows_of_a_batch)
    )
    assert (table == table[:, :1]).all()


@given(lengths=st.lists(st.integers(0, 9), min_size=2, max_size=6), seed=SEEDS)
def test_an_even_spread_of_many_rows_has_the_shares_of_the_sticky_one(
    lengths: list[int], seed: int
) -> None:
    sizes = _int64([BATCH_BYTES] * 6000)
    partitions = [10 + number for number in range(len(lengths))]
    even = EvenPartitioner(Random(seed), 0)
    chosen = even.assign(sizes, _load(partitions, lengths)())
    counts = np.bincount(chosen, minlength=partitions[-1] + 1)[10:]
    weights = max(lengths) + 1 - np.array(lengths)
    expected = weights / weights.sum() * len(sizes)
    assert (abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()


def test_an_even_spread_goes_on_with_the_partitions_that_are_available() -> None:
    even = EvenPartitioner(Random(3), 1)
    seen = []
    for available in ([4, 5, 6], [4, 5, 6], [6, 7], [7, 8], [4]):
        chosen = even.assign(_int64([30] * 12), _load(available)())
        assert set(chosen.tolist()) <= set(available)
        seen.append(set(chosen.tolist()))
    assert seen[0] == {4, 5, 6}


def test_an_even_spread_begins_again_and_leaves_named_partitioners_alone() -> None:
    partitioner = Partitioner(Random(1))
    for start in (3, 1, 4):
        partitioner.spread_evenly(start)
        for topic in ("a", "b"):
            chosen = partitioner.partition(topic, None, None, _int64([10]), 5, _load(range(5)))
            assert chosen.tolist() == [start]
    for name in ("roundrobin", "uniformsticky"):
        same, spread = (Partitioner(Random(7), name) for _ in range(2))
        spread.spread_evenly(0)
        sizes, load = _int64([40] * 20), _load(range(9))
        expected = same.partition("a", None, None, sizes, 9, load)
        assert spread.partition("a", None, None, sizes, 9, load).tolist() == expected.tolist()


def test_keys_do_not_count_where_they_are_to_be_ignored() -> None:
    assert Partitioner(Random(1)).uses_keys
    assert not Partitioner(Random(1), ignore_keys=True).uses_keys
    assert not Partitioner(Random(1), "roundrobin").uses_keys

"""Every row goes into one batch of its partition, in order, and batches are filled but not over."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records.layout import (
    Cut,
    Layout,
    OpenBatch,
    Runs,
    group_by_partition,
    lay_out,
)

# Small numbers, so that rows often fill a batch to its last byte.
SIZES = st.integers(1, 6)
FULL_BYTES = 10

OPEN_BATCHES = st.builds(
    OpenBatch,
    st.integers(1, 1000),
    st.integers(-3, FULL_BYTES),
    st.just(FULL_BYTES),
    st.integers(0, 2**62),
) | st.just(OpenBatch(0, 0, FULL_BYTES, -1))


class Case(NamedTuple):
    """Rows in partition order, and what `lay_out` made of them."""

    runs: Runs
    sizes: list[int]
    timestamps: list[int]
    opens: list[OpenBatch]
    layout: Layout

    def cuts_of(self, run: int) -> list[Cut]:
        """Return the cuts of one run."""
        return [cut for cut in self.layout.cuts if cut.run == run]

    def size(self, cut: Cut) -> int:
        """Return the bytes of a cut's rows."""
        return sum(self.sizes[cut.start : cut.stop])

    def room(self, cut: Cut) -> int:
        """Return the bytes that fit the batch of a cut."""
        batch = self.opens[cut.run]
        return batch.full_bytes if cut.starts_batch else batch.room_bytes


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    count = sum(lengths)
    starts = np.cumsum([0, *lengths]).tolist()
    runs = Runs(np.arange(count), list(range(len(lengths))), starts)
    oversize = st.just(FULL_BYTES + 5)
    sizes = draw(st.lists(SIZES | oversize, min_size=count, max_size=count))
    timestamps = draw(st.lists(st.integers(0, 2**62), min_size=count, max_size=count))
    opens = draw(st.lists(OPEN_BATCHES, min_size=len(lengths), max_size=len(lengths)))
    layout = lay_out(runs, np.array(sizes, np.int64), np.array(timestamps, np.int64), opens)
    return Case(runs, sizes, timestamps, opens, layout)


@given(case=cases())
def test_every_row_is_in_exactly_one_cut_of_its_own_run_in_order(case: Case) -> None:
    for run, (start, stop) in enumerate(pairwise(case.runs.starts)):
        cuts = case.cuts_of(run)
        assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(
            range(start, stop)
        )
        assert all(cut.start < cut.stop for cut in cuts)
    assert [cut.run for cut in case.layout.cuts] == sorted(cut.run for cut in case.layout.cuts)


@given(case=cases())
def test_only_the_first_cut_of_a_run_fills_the_open_batch_and_only_if_there_is_one(
    case: Case,
) -> None:
    for _, cuts in groupby(case.layout.cuts, lambda cut: cut.run):
        first, *others = cuts
        assert first.starts_batch or case.opens[first.run].records > 0
        assert all(cut.starts_batch for cut in others)


@given(case=cases())
def test_no_batch_is_over_its_room_unless_a_record_has_it_alone(case: Case) -> None:
    for cut in case.layout.cuts:
        alone = cut.starts_batch and cut.stop - cut.start == 1
        assert alone or case.size(cut) <= case.room(cut)


@given(case=cases())
def test_no_batch_ends_where_the_next_record_would_have_fitted(case: Case) -> None:
    for run, batch in enumerate(case.opens):
        cuts = case.cuts_of(run)
        for cut, following in pairwise(cuts):
            assert case.size(cut) + case.sizes[following.start] > case.room(cut)
        if batch.records and cuts[0].starts_batch:
            assert case.sizes[cuts[0].start] > batch.room_bytes


@given(case=cases())
def test_offset_deltas_continue_the_open_batch_and_begin_at_0_in_a_new_one(case: Case) -> None:
    for cut in case.layout.cuts:
        first = 0 if cut.starts_batch else case.opens[cut.run].records
        deltas = case.layout.offset_deltas[cut.start : cut.stop].tolist()
        assert deltas == list(range(first, first + cut.stop - cut.start))


@given(case=cases())
def test_timestamps_are_relative_to_their_batch_s_first(case: Case) -> None:
    for cut in case.layout.cuts:
        timestamps = case.timestamps[cut.start : cut.stop]
        batch = case.opens[cut.run]
        base = timestamps[0] if cut.starts_batch else batch.base_timestamp_ms
        assert cut.base_timestamp_ms == base
        assert cut.max_timestamp_ms == max(timestamps)
        deltas = case.layout.timestamp_deltas[cut.start : cut.stop].tolist()
        assert deltas == [timestamp - base for timestamp in timestamps]


def _grouped(runs: Runs) -> Iterator[tuple[int, list[int]]]:
    for partition, (start, stop) in zip(runs.partitions, pairwise(runs.starts), strict=True):
        yield partition, runs.order[start:stop].tolist()


@given(
    partitions=st.lists(st.integers(0, 5), max_size=60)
    | st.lists(st.sampled_from([0, 65_535, 65_536, 65_537, 131_072, 2**31 - 1]), max_size=60)
)
def test_rows_are_grouped_by_partition_and_keep_their_order_within_it(
    partitions: list[int],
) -> None:
    runs = group_by_partition(np.array(partitions, np.int64))
    assert list(_grouped(runs)) == [
        (partition, [row for row, p in enumerate(partitions) if p == partition])
        for partition in sorted(set(partitions))
    ]


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 70_000])
def test_any_number_of_partitions_can_be_grouped(count: int) -> None:
    rows = np.random.default_rng(count).permutation(np.repeat(np.arange(count), 2))
    runs = group_by_partition(rows)
    assert runs.partitions == list(range(count))
    first, second = runs.order[::2], runs.order[1::2]
    assert (rows[first] == np.arange(count)).all()
    assert (rows[second] == np.arange(count)).all()
    assert (first < second).all()

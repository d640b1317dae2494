"""Which rows of a fetched log a reader sees: those in range, of data, and not aborted."""

from __future__ import annotations

import gc
import pickle
import struct
import tracemalloc
from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.log_records import (
    OLD_ROWS,
    batch_of,
    emptied,
    old_batch_of,
    with_attributes,
)
from support.oracles.record_batches import Producer, Row
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.consumer.reading import SCHEMA, fetched_records, next_offset
from spark_kafka_sink.errors import CorruptRecordException
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.wire.fetch_messages import AbortedTransaction, PartitionData

HERE = TopicPartition("t", 3)
ABORT, COMMIT = 0, 1


class Fetched(NamedTuple):
    """The rows of a log, and the offset to go on from."""

    batches: list[pa.RecordBatch]
    next_offset: int

    @property
    def batch(self) -> pa.RecordBatch | None:
        """The rows as one batch, None if there are none."""
        return pa.concat_batches(self.batches) if self.batches else None


def fetched(
    log: bytes,
    start: int = 0,
    end: int = 2**62,
    aborted: Sequence[tuple[int, int]] | None = None,
    *,
    read_committed: bool = False,
    budget_bytes: int = 1 << 20,
) -> Fetched:
    """Read a log as the answer of a broker."""
    data = partition_data(log, aborted)
    rows = fetched_records(
        HERE, data, start, end, read_committed=read_committed, budget_bytes=budget_bytes
    )
    return Fetched(list(rows), next_offset(data, start, end))


def partition_data(log: bytes, aborted: Sequence[tuple[int, int]] | None = None) -> PartitionData:
    """Return a log as in a broker's response."""
    return PartitionData(
        partition_index=HERE.partition,
        error_code=0,
        high_watermark=2**62,
        records=memoryview(log),
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=who, first_offset=first) for who, first in aborted],
    )


def values(found: Fetched) -> list[bytes]:
    """Return the values of the rows, in order."""
    return [value for batch in found.batches for value in batch.column("value").to_pylist()]


class Log:
    """A log that a test writes batch by batch."""

    def __init__(self) -> None:
        self.data = b""
        self.size = 0

    def plain(self, *texts: str) -> None:
        """Append a batch without a transaction."""
        self._append(texts, Producer(ProducerIdAndEpoch(-1, -1), -1, transactional=False))

    def transactional(self, who: int, *texts: str) -> None:
        """Append a batch of a transaction."""
        self._append(texts, Producer(ProducerIdAndEpoch(who, 0), 0, transactional=True))

    def mark(self, who: int, kind: int) -> None:
        """End a transaction."""
        row = Row(struct.pack(">hh", 0, kind), bytes(6), (), 1)
        producer = Producer(ProducerIdAndEpoch(who, 0), -1, transactional=True)
        self.data += with_attributes(
            batch_of([row], first_offset=self.size, producer=producer), 0x20
        )
        self.size += 1

    def _append(self, texts: Sequence[str], producer: Producer) -> None:
        rows = [Row(None, text.encode(), (), 1) for text in texts]
        self.data += batch_of(rows, codec=2, first_offset=self.size, producer=producer)
        self.size += len(rows)


@given(
    parts=st.lists(st.tuples(OLD_ROWS, st.sampled_from([0, 1, 2])), max_size=4),
    start=st.integers(0, 30),
    end=st.integers(0, 30),
    budget_bytes=st.sampled_from([1, 100, 300, 1 << 20]),
)
def test_rows_of_the_range_are_given_whatever_batches_they_lie_in(
    parts: list[tuple[list[Row], int]], start: int, end: int, budget_bytes: int
) -> None:
    log, offset, rows = b"", 0, []
    for part, magic in parts:
        make = batch_of(part, codec=1, first_offset=offset) if magic == 2 else None
        log += make or old_batch_of(part, magic, codec=1, first_offset=offset)
        offset += len(part)
        rows += part
    found = fetched(log, start, end, budget_bytes=budget_bytes)
    expected = [row.value for row in rows[start:end]]
    assert values(found) == expected
    if found.batch is not None:
        assert found.batch.schema == SCHEMA
        assert found.batch.column("offset").to_pylist() == list(range(start, start + len(expected)))
        assert set(found.batch.column("partition").to_pylist()) == {3}
    if start < end:
        assert found.next_offset == max(start, min(end, offset))


def test_aborted_transactions_are_hidden_only_from_read_committed() -> None:
    log = Log()
    log.transactional(1, "a", "b")  # 0, 1: aborted
    log.transactional(2, "c")  # 2: committed
    log.plain("d")
    log.transactional(1, "e")  # 4: aborted
    log.mark(1, ABORT)
    log.transactional(1, "f")  # 6: the next transaction of the same producer is committed
    log.mark(2, COMMIT)
    log.mark(1, COMMIT)
    log.transactional(2, "g")  # 9: aborted
    log.transactional(1, "h")
    log.mark(2, ABORT)
    log.mark(1, COMMIT)
    aborted = [(2, 9), (1, 0)]
    committed = fetched(log.data, aborted=aborted, read_committed=True)
    assert values(committed) == [b"c", b"d", b"f", b"h"]
    assert committed.next_offset == log.size
    everything = fetched(log.data, aborted=None)
    assert values(everything) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]


def test_an_answer_that_begins_within_an_aborted_transaction() -> None:
    log = Log()
    log.transactional(1, "a")
    log.transactional(1, "b")
    log.mark(1, ABORT)
    log.plain("c")
    complete = fetched(log.data, 1, aborted=[(1, 0)], read_committed=True)
    assert (values(complete), complete.next_offset) == ([b"c"], 4)


def test_an_answer_of_marks_alone_moves_on_without_rows() -> None:
    log = Log()
    log.mark(1, COMMIT)
    log.mark(2, ABORT)
    assert fetched(log.data, read_committed=True) == Fetched([], 2)
    assert fetched(log.data) == Fetched([], 2)


def test_a_mark_that_compaction_emptied_is_passed_over() -> None:
    log = Log()
    log.mark(1, COMMIT)
    log.data = emptied(log.data)
    log.plain("a")
    for read_committed in (False, True):
        found = fetched(log.data, read_committed=read_committed)
        assert (values(found), found.next_offset) == ([b"a"], 2)


def mark_with_more_records(count: int, codec: int) -> bytes:
    """Return a control batch that aborts a transaction, with `count` more records."""
    rows = [Row(struct.pack(">hh", 0, ABORT), bytes(6), (), 1), *[Row(None, None, (), 1)] * count]
    producer = Producer(ProducerIdAndEpoch(1, 0), -1, transactional=True)
    return with_attributes(batch_of(rows, codec=codec, first_offset=1, producer=producer), 0x20)


def test_only_the_first_record_of_a_mark_is_decoded() -> None:
    log = Log()
    log.transactional(1, "a")
    log.data += mark_with_more_records(100_000, codec=0)
    with traced_memory() as memory:
        assert fetched(log.data, aborted=[(1, 0)], read_committed=True).batches == []
    assert memory.peak_bytes < 100_000


def test_a_compressed_mark_that_is_larger_than_any_mark_is_refused() -> None:
    with pytest.raises(CorruptRecordException, match="expands to more than 65536 bytes"):
        fetched(mark_with_more_records(100_000, codec=1), read_committed=True)


def test_an_empty_answer_moves_nothing() -> None:
    assert fetched(b"", 7) == Fetched([], 7)


def test_a_record_without_a_timestamp_has_a_null() -> None:
    found = fetched(old_batch_of([Row(None, b"v", (), 5)], 0))
    assert found.batch is not None
    assert found.batch.column("timestamp").to_pylist() == [None]
    found = fetched(batch_of([Row(None, b"v", (), 2**63 - 1)]))
    assert found.batch is not None
    assert found.batch.column("timestamp").cast("int64").to_pylist() == [2**63 - 1]


# A batch of one record that is a thousand times as large when it is unpacked.
UNPACKED_BYTES: Final = 1 << 18


def packed_log(
    batches: int, magic: int, codec: int = 1, unpacked_bytes: int = UNPACKED_BYTES
) -> bytes:
    """Return a log of batches that are small until they are decompressed."""
    log = b""
    for number in range(batches):
        rows = [Row(None, bytes(unpacked_bytes), (), number)]
        if magic == 2:
            log += batch_of(rows, codec=codec, first_offset=number)
        else:
            log += old_batch_of(rows, magic, codec=codec, first_offset=number)
    return log


def peak_bytes(log: bytes, budget_bytes: int, expected_rows: int) -> int:
    """Return the peak memory of reading a log whose rows are dropped."""
    data = partition_data(log)
    pool = pa.default_memory_pool()
    fetched(log)  # the first reading imports libraries
    gc.collect()
    tracemalloc.start()
    try:
        before, most, rows = pool.bytes_allocated(), 0, 0
        for batch in fetched_records(
            HERE, data, 0, 2**62, read_committed=False, budget_bytes=budget_bytes
        ):
            most = max(most, pool.bytes_allocated() - before)
            rows += len(batch)
            del batch
        assert rows == expected_rows
        return most + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("magic", [1, 2])
def test_what_is_unpacked_at_once_is_a_budget_and_one_batch(magic: int) -> None:
    log = packed_log(40, magic)
    assert len(log) < 20_000
    for batches in (4, 8, 16):
        assert peak_bytes(log, batches * UNPACKED_BYTES, 40) < (batches + 1) * UNPACKED_BYTES


def most_bytes(unpacked_bytes: int, budget_bytes: int) -> float:
    """Return the budget and one batch, and what reading a batch of any size takes besides."""
    # A growing bytearray has an eighth unused. A codec returns pieces of 256 KiB.
    return budget_bytes + 9 / 8 * unpacked_bytes + 3 * (1 << 18)


# Message sets of format 1 cannot be compressed with zstd.
@pytest.mark.parametrize(("magic", "codec"), [*product([1, 2], [0, 1, 2, 3]), (2, 4)])
def test_a_record_that_is_larger_than_the_budget_is_in_memory_once(magic: int, codec: int) -> None:
    unpacked_bytes = 1 << 22
    log = packed_log(2, magic, codec, unpacked_bytes)
    assert peak_bytes(log, 1, 2) < most_bytes(unpacked_bytes, 1)


@pytest.mark.parametrize("value_bytes", [None, 10, 1000, 100_000])
@pytest.mark.parametrize("magic", [1, 2])
def test_a_batch_that_is_larger_than_the_budget_is_decoded_in_parts(
    magic: int, value_bytes: int | None
) -> None:
    value = None if value_bytes is None else bytes(value_bytes)
    rows = [Row(None, value, (), 1)] * (3_000_000 // max(value_bytes or 0, 150))
    log = batch_of(rows, codec=1) if magic == 2 else old_batch_of(rows, magic, codec=1)
    unpacked = batch_of(rows, codec=0) if magic == 2 else old_batch_of(rows, magic, codec=0)
    budget_bytes = 1 << 20
    assert peak_bytes(log, budget_bytes, len(rows)) < most_bytes(len(unpacked), budget_bytes)
    at_once = fetched(log, budget_bytes=1 << 30).batch
    assert fetched(log, budget_bytes=budget_bytes).batch == at_once


def test_many_headers_are_decoded_in_parts() -> None:
    headers = (("", None),) * 500
    rows = [Row(None, b"", headers, 1)] * 600
    log, unpacked = batch_of(rows, codec=1), batch_of(rows)
    budget_bytes = 1 << 22
    assert peak_bytes(log, budget_bytes, 600) < most_bytes(len(unpacked), budget_bytes)
    assert fetched(log, budget_bytes=budget_bytes).batch == fetched(log, budget_bytes=1 << 30).batch


def test_an_only_header_that_is_larger_than_the_budget_is_in_memory_once() -> None:
    unpacked_bytes = 1 << 22
    rows = [Row(None, None, (("h", bytes(unpacked_bytes)),), 1)]
    log = b"".join(batch_of(rows, codec=1, first_offset=offset) for offset in range(2))
    assert peak_bytes(log, 1, 2) < most_bytes(unpacked_bytes, 1)
    assert fetched(log, budget_bytes=1).batch == fetched(log, budget_bytes=1 << 30).batch


def test_a_record_with_more_headers_than_a_million_is_refused() -> None:
    log = batch_of([Row(None, b"", (("", None),) * ((1 << 20) + 1), 1)], codec=1)
    with pytest.raises(CorruptRecordException, match="1048577 headers: expected at most 1048576"):
        fetched(log)


@pytest.mark.parametrize("magic", [1, 2])
def test_a_row_that_is_kept_does_not_keep_the_other_rows(magic: int) -> None:
    rows = [Row(b"k", bytes(300_000), (), n) for n in range(20)]
    log = batch_of(rows, codec=1) if magic == 2 else old_batch_of(rows, magic, codec=1)
    found = fetched(log, budget_bytes=1 << 20)
    kept = [batch.column("key") for batch in found.batches]
    assert sum(array.get_total_buffer_size() for array in kept) < 10_000
    assert len(pickle.dumps(found.batches[0])) < 400_000


def test_the_topic_s_name_in_each_row_counts_towards_the_budget() -> None:
    rows = [Row(None, None, (), 1)] * 40_000
    here, data = TopicPartition("t" * 249, 3), partition_data(batch_of(rows, codec=1))
    budget_bytes = 1 << 20
    found = list(
        fetched_records(here, data, 0, 2**62, read_committed=False, budget_bytes=budget_bytes)
    )
    assert sum(map(len, found)) == 40_000
    assert max(batch.column("topic").nbytes for batch in found) < budget_bytes // 3


def test_a_part_is_checked_before_its_rows_are_returned_and_the_count_after_the_last() -> None:
    rows = [Row(None, bytes(900), (), n) for n in range(20)]
    log = bytearray(batch_of(rows))
    log[57:61] = (21).to_bytes(4, "big")
    log[17:21] = crc32c(bytes(log[21:])).to_bytes(4, "big")
    data = partition_data(bytes(log))
    found = fetched_records(HERE, data, 0, 99, read_committed=False, budget_bytes=16_000)
    assert next(found).column("offset").to_pylist() == [0, 1, 2, 3]
    with pytest.raises(CorruptRecordException, match="20 records where its header says 21"):
        list(found)


def test_lz4_takes_memory_for_what_is_there_and_not_for_the_limit_of_a_batch() -> None:
    rows = [Row(None, bytes(UNPACKED_BYTES), (), 1)]
    log = batch_of(rows, codec=3)
    data = partition_data(log)
    fetched(log)  # the first reading imports libraries
    tracemalloc.start()
    try:
        (found,) = fetched_records(HERE, data, 0, 9, read_committed=False, budget_bytes=1)
        assert len(found) == 1
        assert tracemalloc.get_traced_memory()[1] < 16 * UNPACKED_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_the_next_batch_is_unpacked_when_the_last_one_was_taken(magic: int) -> None:
    broken = bytearray(old_batch_of([Row(None, b"v", (), 1)], 1, codec=1, first_offset=3))
    broken[-10] ^= 1
    data = partition_data(packed_log(3, magic) + broken)
    found = fetched_records(HERE, data, 0, 2**62, read_committed=False, budget_bytes=1)
    assert [next(found).column("offset").to_pylist() for _ in range(3)] == [[0], [1], [2]]
    with pytest.raises(CorruptRecordException, match="CRC-32"):
        next(found)


def test_batches_are_joined_as_far_as_the_budget_allows() -> None:
    log = b"".join(batch_of([Row(None, bytes(900), (), 1)], first_offset=n) for n in range(20))
    assert [len(batch) for batch in fetched(log, budget_bytes=1 << 20).batches] == [20]
    assert [len(batch) for batch in fetched(log, budget_bytes=20_000).batches] == [5, 5, 5, 5]


def test_many_small_records_are_several_batches_since_each_row_has_the_topic_s_name() -> None:
    rows = [Row(None, None, (), 1)] * 70_000
    found = fetched(batch_of(rows, codec=1), budget_bytes=1 << 30)
    assert [len(batch) for batch in found.batches] == [65_536, 4_464]
    offsets = [o for batch in found.batches for o in batch.column("offset").to_pylist()]
    assert offsets == list(range(70_000))

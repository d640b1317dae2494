"""Which rows of a fetched log a reader sees: those in range, of data, and not aborted."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from support.log_records import (
    OLD_ROWS,
    batch_of,
    emptied,
    old_batch_of,
    with_attributes,
)
from support.record_batches import Producer, Row

from spark_kafka_sink.consumer.fetched_records import SCHEMA, FetchedRecords, fetched_records
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.wire.fetch_messages import AbortedTransaction, PartitionData

HERE = TopicPartition("t", 3)
ABORT, COMMIT = 0, 1


def fetched(
    log: bytes,
    start: int = 0,
    end: int = 2**62,
    aborted: Sequence[tuple[int, int]] | None = None,
    *,
    read_committed: bool = False,
) -> FetchedRecords:
    """Read a log as the answer of a broker."""
    data = PartitionData(
        partition_index=HERE.partition,
        error_code=0,
        high_watermark=2**62,
        records=memoryview(log),
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=who, first_offset=first) for who, first in aborted],
    )
    return fetched_records(HERE, data, start, end, read_committed=read_committed)


def values(found: FetchedRecords) -> list[bytes]:
    """Give the values of the rows, in order."""
    return [] if found.batch is None else found.batch.column("value").to_pylist()


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
)
def test_rows_of_the_range_are_given_whatever_batches_they_lie_in(
    parts: list[tuple[list[Row], int]], start: int, end: int
) -> None:
    log, offset, rows = b"", 0, []
    for part, magic in parts:
        make = batch_of(part, codec=1, first_offset=offset) if magic == 2 else None
        log += make or old_batch_of(part, magic, codec=1, first_offset=offset)
        offset += len(part)
        rows += part
    found = fetched(log, start, end)
    wanted = [row.value for row in rows[start:end]]
    assert values(found) == wanted
    if found.batch is not None:
        assert found.batch.schema == SCHEMA
        assert found.batch.column("offset").to_pylist() == list(range(start, start + len(wanted)))
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
    whole = fetched(log.data, 1, aborted=[(1, 0)], read_committed=True)
    assert (values(whole), whole.next_offset) == ([b"c"], 4)


def test_an_answer_of_marks_alone_moves_on_without_rows() -> None:
    log = Log()
    log.mark(1, COMMIT)
    log.mark(2, ABORT)
    assert fetched(log.data, read_committed=True) == FetchedRecords(None, 2)
    assert fetched(log.data) == FetchedRecords(None, 2)


def test_a_mark_that_compaction_emptied_is_passed_over() -> None:
    log = Log()
    log.mark(1, COMMIT)
    log.data = emptied(log.data)
    log.plain("a")
    for read_committed in (False, True):
        found = fetched(log.data, read_committed=read_committed)
        assert (values(found), found.next_offset) == ([b"a"], 2)


def test_an_empty_answer_moves_nothing() -> None:
    assert fetched(b"", 7) == FetchedRecords(None, 7)


def test_a_record_without_a_timestamp_has_a_null() -> None:
    found = fetched(old_batch_of([Row(None, b"v", (), 5)], 0))
    assert found.batch is not None
    assert found.batch.column("timestamp").to_pylist() == [None]
    found = fetched(batch_of([Row(None, b"v", (), 2**63 - 1)]))
    assert found.batch is not None
    assert found.batch.column("timestamp").cast("int64").to_pylist() == [2**63 - 1]

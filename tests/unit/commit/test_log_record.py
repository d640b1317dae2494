"""The commit log: which record counts, and which versions it says are written."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.log_records import batch_of
from support.oracles.record_batches import Producer, Row
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.commit import log_record
from spark_kafka_sink.commit.log_record import (
    BatchPlace,
    CommitRecord,
    DecidedTransaction,
    LogEntry,
    LogReader,
    NewerFormatError,
    Place,
    RecordState,
    StreamMark,
    VersionSet,
    decode,
    encode,
)
from spark_kafka_sink.commit.names import TaskSlot, checked_owner
from spark_kafka_sink.errors import ApiException
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker, batch_header
from spark_kafka_sink.records.default_record import DefaultRecord, one_record, read_batches

OWNER = checked_owner("pykafka", "flights", "t")
OTHER = checked_owner("pykafka", "flights", "u")
KEY = OWNER.driver_id
RECORD = CommitRecord(RecordState.DONE, "run 1", rows=5, written_at=7)
DECIDED = replace(
    RECORD,
    state=RecordState.DECIDED,
    versions=VersionSet().adding(3),
    streams=(StreamMark("query", 7, 100, "run"),),
    transactions=(
        DecidedTransaction(
            TaskSlot(0, 0), ProducerIdAndEpoch(10, 3), TopicPartition("t", 1), 2**40
        ),
        DecidedTransaction(TaskSlot(12, 1), ProducerIdAndEpoch(11, 0), TopicPartition("u", 0), 0),
    ),
    application="app é",
    query="q",
    checkpoint="/c",
)
VERSIONS = st.lists(st.integers(-20, 60), max_size=60)


# -- versions -------------------------------------------------------------------------------------


@given(versions=VERSIONS)
def test_versions_in_any_order_are_those_that_were_added(versions: list[int]) -> None:
    found = VersionSet()
    for version in versions:
        found = found.adding(version)
    assert [v for v in range(-30, 70) if found.place(v) is Place.WRITTEN] == sorted({*versions})
    assert all(high + 1 < low for (_, high), (low, _) in pairwise(found.intervals))
    assert VersionSet.unpacked(found.packed(), found.floor) == found


@given(versions=VERSIONS, most=st.integers(1, 5))
def test_a_version_that_was_written_is_never_written_again_and_is_kept_at_once(
    versions: list[int], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_record, "MAX_INTERVALS", most)
        found, written = VersionSet(), set()
        for version in versions:
            if found.place(version) is Place.NEW:
                assert version not in written
                written.add(version)
                found = found.adding(version)
                # The same job that runs again is skipped, and not refused.
                assert found.place(version) is Place.WRITTEN
            else:
                assert found.adding(version) == found
            assert len(found.intervals) <= most
        for version in range(-30, 70):
            place = found.place(version)
            if place is Place.BELOW_FLOOR:
                # Only versions below all that are kept are refused, with the lowest that is not.
                assert found.lowest is not None
                assert version < found.lowest <= found.intervals[0][0]
            else:
                assert (place is Place.WRITTEN) == (version in written), version
        assert VersionSet.unpacked(found.packed(), found.floor) == found


def test_a_version_that_a_full_record_could_not_keep_is_refused_before_it_is_written() -> None:
    full = VersionSet(tuple((2 * n, 2 * n) for n in range(10, 10_010)))
    assert [full.place(version) for version in (0, 18, 19, 20, 21)] == [
        Place.BELOW_FLOOR, Place.BELOW_FLOOR, Place.NEW, Place.WRITTEN, Place.NEW
    ]  # fmt: skip
    assert full.lowest == 19
    # A version beside an interval makes it longer, so that it is kept.
    longer = full.adding(19)
    assert (longer.place(19), longer.lowest) == (Place.WRITTEN, 18)
    # Two intervals that become one leave room for a lower one.
    joined = full.adding(21)
    assert (joined.place(0), joined.lowest) == (Place.NEW, None)


def test_ten_thousand_intervals_are_kept_and_the_floor_is_above_the_one_that_is_dropped() -> None:
    found = VersionSet(tuple((2 * n, 2 * n) for n in range(10_000)))
    assert found.floor is None
    more = found.adding(30_000)
    assert (len(more.intervals), more.intervals[0], more.floor) == (10_000, (2, 2), 1)
    assert more.place(0) is Place.BELOW_FLOOR
    assert more.place(1) is Place.NEW
    assert more.adding(1).place(1) is Place.WRITTEN
    # A job each five minutes for 35 days, in a record that every log takes.
    minutes = VersionSet(tuple((202_601_010_000 + 5 * n,) * 2 for n in range(10_000)))
    assert len(encode(KEY, replace(RECORD, versions=minutes))) < 100_000


@pytest.mark.parametrize(
    ("batch_id", "run_id", "place"),
    [
        (8, "other", BatchPlace.NEXT), (7, "other", BatchPlace.REPLAY), (7, "", BatchPlace.REPLAY),
        (7, "run", BatchPlace.SAME_RUN), (6, "run", BatchPlace.OLDER), (9, "run", BatchPlace.NEXT),
    ],
)  # fmt: skip
def test_a_micro_batch_is_placed_by_the_last_one_of_its_query(
    batch_id: int, run_id: str, place: BatchPlace
) -> None:
    assert DECIDED.place_of_batch("query", batch_id, run_id) is place
    assert DECIDED.place_of_batch("another", batch_id, run_id) is BatchPlace.NEW_QUERY


def test_the_ten_newest_queries_are_kept() -> None:
    record = RECORD
    for number in [*range(12), 5]:
        record = record.after_batch(StreamMark(f"q{number}", number, 1, "run"))
    assert [mark.query_id for mark in record.streams] == [
        f"q{n}" for n in (2, 3, 4, 6, 7, 8, 9, 10, 11, 5)
    ]


def test_a_record_says_what_was_written_last() -> None:
    assert (RECORD.last_written, RECORD.has_written) == ("nothing", False)
    by_version = RECORD.after_version(9).after_version(4)
    assert by_version.has_written
    assert by_version.last_written == "version 4"
    by_stream = by_version.after_batch(StreamMark("q", 3, 1, "run"))
    assert by_stream.last_written == "micro-batch 3 of query q"
    assert decode(KEY, encode(KEY, by_version)).last_written == "version 4"


# -- the value ------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written() -> None:
    assert decode(KEY, encode(KEY, DECIDED)) == DECIDED
    assert decode(KEY, encode(KEY, RECORD)) == RECORD
    thousand = tuple(
        DecidedTransaction(
            TaskSlot(n, 0), ProducerIdAndEpoch(100_000 + n, 1), TopicPartition("topic", 3), 10**8
        )
        for n in range(1000)
    )
    assert len(encode(KEY, replace(DECIDED, transactions=thousand))) < 40_000


def _changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(encode(KEY, DECIDED)), **fields}).encode()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "its value is not JSON"),
        (b"[" * 100_000, "its value is not JSON"),
        (b"{", "its value is not JSON"),
        (b"7", "its value has no format"),
        (b'{"v":true}', "its value has no format"),
        (_changed(id=OTHER.driver_id), "its value belongs to another owner than its key"),
        (_changed(state="OVER"), "incomplete"),
        (_changed(rows="5"), "incomplete"),
        (_changed(version="5"), "incomplete"),
        (_changed(versions=[3]), "its last interval of versions has no end"),
        (_changed(versions=[3, 0, 1, 0]), "its versions are not in order"),
        (_changed(versions=None), "incomplete"),
        (_changed(streams=[["q", 1, 2]]), "incomplete"),
        (_changed(txns=[[]]), "incomplete"),
        (_changed(streams=[[1, 1, 2, "r"]]), "incomplete"),
        (_changed(txns=[["0.00", 1, 1, 0, 0, 0]]), "incomplete"),
        (_changed(txns=[["0.0", 1, 1, 9, 0, 0]]), "incomplete"),
        (_changed(txns=[["0.0", 1, 1, 0, 0]]), "incomplete"),
        (_changed(txns=7), "incomplete"),
        (b'{"v":1,"id":"' + KEY.encode() + b'"}', "its value is incomplete (KeyError('floor'))"),
    ],
)
def test_a_value_that_is_no_record_is_refused(value: bytes | None, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        decode(KEY, value)


def test_a_key_that_is_no_owners_is_refused() -> None:
    with pytest.raises(ValueError, match="its key is not the id of an owner"):
        decode("pykafka/flights", encode("pykafka/flights", RECORD))


# -- the log --------------------------------------------------------------------------------------


def write(
    producer_id: int,
    offset: int,
    record: CommitRecord = RECORD,
    key: str = KEY,
    *,
    plain: bool = False,
) -> LogEntry:
    """Make the entry of a record; plain: outside a transaction."""
    if plain:
        return LogEntry(producer_id, base_offset=offset)
    stored = DefaultRecord(offset, key.encode(), encode(key, record))
    return LogEntry(producer_id, is_transactional=True, records=(stored,))


def end(producer_id: int, marker: Marker | None) -> LogEntry:
    """Make the entry of a marker; None for one whose record compaction has removed."""
    return LogEntry(producer_id, is_transactional=True, is_control=True, marker=marker)


def read(*entries: LogEntry) -> LogReader:
    """Read a log."""
    reader = LogReader(KEY)
    reader.read(entries)
    return reader


def test_a_record_counts_once_its_producers_next_marker_commits_it() -> None:
    second = replace(RECORD, run="run 2")
    entries = [write(1, 0), end(2, Marker.COMMIT), end(1, Marker.COMMIT), write(1, 3, second)]
    assert read(*entries[:2]).reading(KEY).record is None
    assert read(*entries[:2]).reading(KEY).undecided == RECORD
    assert read(*entries[:3]).reading(KEY).record == RECORD
    found = read(*entries).reading(KEY)
    assert (found.record, found.offset, found.undecided) == (RECORD, 0, second)
    assert read(*entries, end(1, Marker.ABORT)).reading(KEY) == replace(found, undecided=None)
    assert read(*entries, end(1, Marker.COMMIT)).reading(KEY).record == second


def test_another_applications_open_transaction_hides_nothing() -> None:
    open_before = write(9, 0, key=OTHER.driver_id)
    found = read(open_before, write(1, 1), end(1, Marker.COMMIT)).reading(KEY)
    assert (found.record, found.offset) == (RECORD, 1)


def test_a_marker_without_its_record_was_a_commit_if_its_transaction_has_records_left() -> None:
    assert read(write(1, 0), end(1, None)).reading(KEY).record == RECORD


def test_a_forged_record_is_ignored_with_a_warning_that_names_its_offset() -> None:
    forged = replace(RECORD, versions=VersionSet().adding(9))
    of_other = LogEntry(
        5, is_transactional=True,
        records=(DefaultRecord(41, KEY.encode(), encode(OTHER.driver_id, forged)),),
    )  # fmt: skip
    reader = read(
        write(1, 0), end(1, Marker.COMMIT),
        write(1, 40, forged, plain=True),
        of_other, end(5, Marker.COMMIT),
        LogEntry(-1, base_offset=43),
    )  # fmt: skip
    assert reader.reading(KEY).record == RECORD
    assert reader.take_warnings() == [
        "the record at offset 41 is ignored: its value belongs to another owner than its key",
        "the batch at offset 40 is ignored: it is outside a transaction; "
        "1 later batch is ignored for the same reason",
    ]
    assert reader.take_warnings() == []


def test_at_most_ten_warnings_about_single_records_are_kept() -> None:
    forged = [
        LogEntry(5, is_transactional=True, records=(DefaultRecord(at, KEY.encode(), b"x"),))
        for at in range(12)
    ]
    warnings = read(*forged).take_warnings()
    assert len(warnings) == 10
    assert warnings[-1].startswith("the record at offset 9 is ignored")


def test_a_record_of_a_newer_format_is_not_ignored() -> None:
    newer = LogEntry(
        1, is_transactional=True,
        records=(DefaultRecord(6, KEY.encode(), b'{"v":2}'),),
    )  # fmt: skip
    found = read(write(1, 0), end(1, Marker.COMMIT), newer, end(1, Marker.COMMIT)).reading(KEY)
    assert (found.record, found.offset) == (None, 6)
    assert (
        found.newer_format == "it has format 2, and this version of the package reads only format 1"
    )
    with pytest.raises(NewerFormatError):
        decode(KEY, b'{"v":2}')


def test_a_reader_of_all_owners_has_each() -> None:
    reader = LogReader()
    reader.read([write(1, 0), end(1, Marker.COMMIT), write(2, 2, key=OTHER.driver_id)])
    assert list(reader.owners()) == [KEY, OTHER.driver_id]
    assert reader.reading(OTHER.driver_id).undecided == RECORD


def test_batches_as_brokers_have_them_are_entries_of_the_log() -> None:
    section, info = one_record(KEY.encode(), encode(KEY, DECIDED), 1)
    data = batch_header(info, [section], ProducerIdAndEpoch(4, 1), 0, transactional=True) + section
    reader = LogReader(KEY)
    reader.read(LogEntry.of(batch) for batch in read_batches(data))
    assert reader.reading(KEY).undecided == DECIDED


def compressed(producer: ProducerIdAndEpoch, *, transactional: bool) -> bytes:
    """Make a batch that has more bytes, once it is decompressed, than any batch may have."""
    section, info = one_record(KEY.encode(), bytes(65 * 1024 * 1024), 1)
    packed = gzip.compress(section, 1)
    info = info._replace(codec_id=1)
    return batch_header(info, [packed], producer, 0, transactional=transactional) + packed


def test_the_records_of_a_batch_are_decoded_one_at_a_time() -> None:
    rows = [Row(b"other", b"", (), 1)] * 50_000
    producer = Producer(ProducerIdAndEpoch(4, 1), 0, transactional=True)
    batches = read_batches(batch_of(rows, producer=producer))
    reader = LogReader(KEY)
    with traced_memory() as memory:
        reader.read(LogEntry.of(batch) for batch in batches)
    assert memory.peak_bytes < 100_000


def test_a_batch_outside_a_transaction_is_ignored_however_large_its_records_are() -> None:
    reader = LogReader(KEY)
    data = compressed(NO_PRODUCER_ID, transactional=False)
    reader.read(LogEntry.of(batch) for batch in read_batches(data))
    assert reader.take_warnings() == [
        "the batch at offset 0 is ignored: it is outside a transaction"
    ]


def test_a_batch_in_a_transaction_that_cannot_be_read_is_never_ignored() -> None:
    (batch,) = read_batches(compressed(ProducerIdAndEpoch(4, 1), transactional=True))
    with pytest.raises(ApiException, match="records cannot be read"):
        LogEntry.of(batch)

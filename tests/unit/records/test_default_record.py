"""Records read and written one by one are those of kafka-python and of the columnar reader."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.log_records import (
    CODECS,
    batch_of,
    checked,
    emptied,
    found,
    found_by_kafka_python,
    old_batch_of,
    with_attributes,
)
from support.oracles.record_batches import BATCHES, BYTES, PRODUCERS, Producer, Row
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.errors import CorruptRecordException
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.records.batch import Marker, batch_header
from spark_kafka_sink.records.default_record import DefaultRecord, one_record, read_batches
from spark_kafka_sink.records.log_reader import read_log


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(rows=BATCHES, first_offset=st.integers(0, 2**40), producer=PRODUCERS)
def test_batches_of_kafka_python_are_read_as_their_rows(
    codec: int, rows: list[Row], first_offset: int, producer: Producer
) -> None:
    log = batch_of(rows, codec=codec, first_offset=first_offset, producer=producer)
    one, two = read_batches(log + log + log[:-1])
    expected = [DefaultRecord(first_offset + n, row.key, row.value) for n, row in enumerate(rows)]
    assert list(one.records()) == list(two.records()) == expected
    assert one.header.producer_id == producer.id_and_epoch.producer_id
    assert one.header.producer_epoch == producer.id_and_epoch.epoch
    assert one.header.is_transactional == producer.transactional
    assert not one.header.is_control
    assert one.header.last_offset == first_offset + len(rows) - 1


@given(key=BYTES, value=BYTES, timestamp=st.integers(0, 2**63 - 1))
def test_a_record_is_read_by_kafka_python_as_it_was_written(
    key: bytes, value: bytes, timestamp: int
) -> None:
    section, info = one_record(key, value, timestamp)
    header = batch_header(info, [section], ProducerIdAndEpoch(7, 3), 0, transactional=True)
    (record,) = found_by_kafka_python(header + section)
    assert (record.key, record.value, record.timestamp_ms) == (key, value, timestamp)
    (batch,) = read_batches(header + section)
    assert list(batch.records()) == [DefaultRecord(0, key, value)]
    assert (batch.header.producer_id, batch.header.producer_epoch) == (7, 3)
    assert batch.header.is_transactional


@pytest.mark.parametrize(("kind", "meant"), [(0, Marker.ABORT), (1, Marker.COMMIT), (2, None)])
def test_a_control_batch_is_read_as_its_marker(kind: int, meant: Marker | None) -> None:
    mark = Row(struct.pack(">hh", 0, kind), bytes(6), (), 1)
    log = with_attributes(batch_of([mark]), 0x30)
    (batch,) = read_batches(log)
    assert batch.header.is_control
    assert batch.marker() is meant
    (empty,) = read_batches(emptied(log))
    assert empty.header.is_control
    assert empty.marker() is None


def test_only_the_first_record_of_a_control_batch_is_decoded() -> None:
    rows = [Row(struct.pack(">hh", 0, 0), bytes(6), (), 1), *[Row(None, None, (), 1)] * 50_000]
    (batch,) = read_batches(with_attributes(batch_of(rows), 0x30))
    with traced_memory() as memory:
        assert batch.marker() is Marker.ABORT
    assert memory.peak_bytes < 100_000
    (packed,) = read_batches(with_attributes(batch_of(rows, codec=1), 0x30))
    with pytest.raises(CorruptRecordException, match="expands to more than 65536 bytes"):
        packed.marker()


def test_records_are_decoded_one_at_a_time() -> None:
    (batch,) = read_batches(batch_of([Row(None, None, (), 1)] * 50_000))
    with traced_memory() as memory:
        assert sum(1 for _ in batch.records()) == 50_000
    assert memory.peak_bytes < 100_000


def _damaged() -> st.SearchStrategy[bytes]:
    log = batch_of([Row(b"key", b"value" * 30, (("h", b"x"),), 9), Row(None, None, (), 10)])
    flips = st.lists(st.tuples(st.integers(57, len(log) - 1), st.integers(0, 255)), max_size=4)

    def damage(changes: list[tuple[int, int]]) -> bytes:
        copy = bytearray(log)
        for position, byte in changes:
            copy[position] = byte
        return checked(bytes(copy))

    return flips.map(damage)


@given(log=_damaged())
def test_damaged_batches_are_read_as_the_columnar_reader_reads_them_or_refused(log: bytes) -> None:
    try:
        ours = [record for batch in read_batches(log) for record in batch.records()]
    except CorruptRecordException:
        return
    try:
        columns = [record for batch in read_log(log) for record in found(batch.records())]
    except CorruptRecordException:
        return  # it also reads headers, which nothing here needs
    assert ours == [DefaultRecord(each.offset, each.key, each.value) for each in columns]


@given(log=st.binary(max_size=200))
def test_garbage_is_batches_or_a_corrupt_record_exception(log: bytes) -> None:
    try:
        [list(batch.records()) for batch in read_batches(log)]
    except CorruptRecordException as error:
        assert str(error).startswith("records cannot be read: ")  # noqa: PT017 - either may come


def test_what_is_no_batch_of_this_format_is_refused() -> None:
    with pytest.raises(CorruptRecordException, match="entry of -5 bytes"):
        list(read_batches(struct.pack(">qi", 0, -5)))
    with pytest.raises(CorruptRecordException, match="a batch has format 1: expected 2"):
        list(read_batches(old_batch_of([Row(None, b"v", (), 1)], 1)))
    broken = bytearray(batch_of([Row(None, b"v", (), 1)]))
    broken[-1] ^= 1
    with pytest.raises(CorruptRecordException, match="the CRC-32C of the batch at offset 0 is"):
        list(read_batches(bytes(broken)))


def test_it_is_imported_without_numpy_and_arrow() -> None:
    program = (
        "import sys\n"
        "import spark_kafka_sink.records.default_record as module\n"
        "record, info = module.one_record(b'k', b'v', 1)\n"
        "print([name for name in ('numpy', 'pyarrow', 'lz4') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")

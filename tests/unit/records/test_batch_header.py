"""The 61 bytes in front of the records: what they say, and sequence numbers that wrap."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from support.oracles.record_batches import PRODUCERS, Producer

from spark_kafka_sink.records.batch import (
    MAX_SEQUENCE,
    RECORD_BATCH_OVERHEAD,
    BatchInfo,
    batch_header,
    increment_sequence,
)

SEQUENCES = st.integers(0, MAX_SEQUENCE) | st.sampled_from([0, 1, MAX_SEQUENCE - 1, MAX_SEQUENCE])
INFOS = st.builds(
    BatchInfo,
    st.integers(1, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(0, 4),
)

# What librdkafka computes the checksum of in its own test: the licence of its crc32c.c.
LICENCE = b"""\
  This software is provided 'as-is', without any express or implied
  warranty.  In no event will the author be held liable for any damages
  arising from the use of this software.

  Permission is granted to anyone to use this software for any purpose,
  including commercial applications, and to alter it and redistribute it
  freely, subject to the following restrictions:

  1. The origin of this software must not be misrepresented; you must not
     claim that you wrote the original software. If you use this software
     in a product, an acknowledgment in the product documentation would be
     appreciated but is not required.
  2. Altered source versions must be plainly marked as such, and must not be
     misrepresented as being the original software.
  3. This notice may not be removed or altered from any source distribution."""


def _header(info: BatchInfo, pieces: list[bytes], producer: Producer) -> bytes:
    return batch_header(
        info,
        pieces,
        producer.id_and_epoch,
        producer.base_sequence,
        transactional=producer.transactional,
    )


@given(info=INFOS, pieces=st.lists(st.binary(max_size=30), max_size=4), producer=PRODUCERS)
def test_a_header_is_read_by_kafka_python_as_what_it_was_given(
    info: BatchInfo, pieces: list[bytes], producer: Producer
) -> None:
    header = _header(info, pieces, producer)
    batch = DefaultRecordBatch(header + b"".join(pieces))
    assert len(header) == RECORD_BATCH_OVERHEAD
    assert batch.validate_crc()
    assert batch.magic == 2
    assert batch.base_offset == 0
    assert batch.size_in_bytes == len(header) + sum(map(len, pieces))
    assert batch.records_count == info.record_count
    assert batch.last_offset_delta == info.record_count - 1
    assert batch.first_timestamp == info.base_timestamp_ms
    assert batch.max_timestamp == info.max_timestamp_ms
    assert batch.compression_type == info.codec_id
    assert batch.timestamp_type == 0
    assert not batch.is_control_batch
    assert batch.is_transactional is producer.transactional
    assert batch.producer_id == producer.id_and_epoch.producer_id
    assert batch.producer_epoch == producer.id_and_epoch.epoch
    assert batch.base_sequence == producer.base_sequence


@given(info=INFOS, records=st.binary(max_size=60), producer=PRODUCERS, data=st.data())
def test_a_header_does_not_depend_on_the_pieces_that_records_come_in(
    info: BatchInfo, records: bytes, producer: Producer, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(records)))
    joined = _header(info, [records], producer)
    assert _header(info, [records[:cut], b"", records[cut:]], producer) == joined


@given(info=INFOS, records=st.binary(min_size=1, max_size=60), producer=PRODUCERS, data=st.data())
def test_a_bit_that_flips_behind_the_checksum_is_noticed(
    info: BatchInfo, records: bytes, producer: Producer, data: st.DataObject
) -> None:
    batch = bytearray(_header(info, [records], producer) + records)
    bit = data.draw(st.integers(8 * 21, 8 * len(batch) - 1))
    batch[bit // 8] ^= 1 << bit % 8
    assert not DefaultRecordBatch(bytes(batch)).validate_crc()


@given(sequence=SEQUENCES, records=SEQUENCES)
def test_sequence_numbers_count_on_past_the_largest_as_in_java(sequence: int, records: int) -> None:
    # DefaultRecordBatch.incrementSequence, as Java writes it.
    over = sequence > MAX_SEQUENCE - records
    expected = records - (MAX_SEQUENCE - sequence) - 1 if over else sequence + records
    assert increment_sequence(sequence, records) == expected


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"),
    [
        (MAX_SEQUENCE, 1, 0),
        (MAX_SEQUENCE - 5, 10, 4),
        (MAX_SEQUENCE, 100, 99),
        (99, MAX_SEQUENCE, 98),
        (0, 0, 0),
    ],
)
def test_sequence_numbers_of_the_java_client_s_tests(
    sequence: int, increment: int, expected: int
) -> None:
    assert increment_sequence(sequence, increment) == expected


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"123456789", 0xE3069283),
        # RFC 3720, B.4.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (LICENCE, 0x7DCDE113),
    ],
    ids=["check value", "zeros", "ones", "rising", "falling", "licence"],
)
def test_the_checksum_is_the_one_that_is_written_down_elsewhere(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum

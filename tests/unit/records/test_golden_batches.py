"""Batches written down elsewhere, bit by bit: by aiokafka, by kafka-python and by a 0.11 broker."""

from __future__ import annotations

import pytest
from support.oracles.record_batches import NO_PRODUCER, Producer, Row, columns_of, records_of, seal

from spark_kafka_sink.model import ProducerIdAndEpoch

# Encoded alike by aiokafka and kafka-python, with Java's leader epoch of -1.
WRITTEN_BY_CLIENTS = {
    "headers, nulls and a sequence about to wrap": (
        Producer(ProducerIdAndEpoch(4000, 7), 2_147_483_646, transactional=False),
        [
            Row(b"k0", b"v0", (("h", b"x"),), 1000),
            Row(None, b"v1", (), 1001),
            Row(b"", None, (("n", None),), 1005),
        ],
        (
            "000000000000000000000053ffffffff028875ea5300000000000200000000000003e8"
            "00000000000003ed0000000000000fa000077ffffffe000000031c000000046b300476"
            "30020268027810000202010476310012000a04000102026e01"
        ),
    ),
    "no producer id": (
        NO_PRODUCER,
        [Row(b"k", b"v", (), 1000)],
        (
            "00000000000000000000003affffffff02716a618900000000000000000000000003e8"
            "00000000000003e8ffffffffffffffffffffffffffff0000000110000000026b027600"
        ),
    ),
    "transactional": (
        Producer(ProducerIdAndEpoch(12345, 3), 5, transactional=True),
        [Row(b"k", b"v", (), 1000)],
        (
            "00000000000000000000003affffffff020df2f46600100000000000000000000003e8"
            "00000000000003e800000000000030390003000000050000000110000000026b027600"
        ),
    ),
}

# As a 0.11 broker stored them; the base offset and the leader epoch are the broker's.
STORED_BY_A_BROKER = {
    "a value": (
        [Row(None, b"123", (), 1_503_229_838_908)],
        (
            "00000000000000000000003b00000001020318a2700000000000000000015dff7b063c"
            "0000015dff7b063cffffffffffffffffffffffffffff0000000112000000010631323300"
        ),
    ),
    "two empty values": (
        [Row(None, b"", (), 1_503_229_959_532), Row(None, b"", (), 1_503_229_959_700)],
        (
            "0000000000000001000000400000000202c85cbd230000000000010000015dff7cdd6c"
            "0000015dff7cde14ffffffffffffffffffffffffffff000000020c0000000100000e00"
            "d00202010000"
        ),
    ),
    "a header": (
        [Row(None, b"hdr", (("hkey", b"hval"),), 1_535_546_684_353)],
        (
            "00000000000000000000004500000000025cd8ef520000000000000000016585b6f3c1"
            "0000016585b6f3c1ffffffffffffffffffffffffffff00000001260000000106686472"
            "0208686b6579086876616c"
        ),
    ),
}


@pytest.mark.parametrize(
    ("producer", "rows", "expected"), WRITTEN_BY_CLIENTS.values(), ids=WRITTEN_BY_CLIENTS
)
def test_batches_are_those_that_other_clients_wrote(
    producer: Producer, rows: list[Row], expected: str
) -> None:
    # The same with and without a column for keys or headers that no row has.
    assert seal(rows, records_of(columns_of(rows)), producer).hex() == expected
    assert seal(rows, records_of(columns_of(rows, drop_empty=True)), producer).hex() == expected


@pytest.mark.parametrize(("rows", "stored"), STORED_BY_A_BROKER.values(), ids=STORED_BY_A_BROKER)
def test_batches_are_those_that_a_broker_stored(rows: list[Row], stored: str) -> None:
    batch, expected = seal(rows, records_of(columns_of(rows)), NO_PRODUCER), bytes.fromhex(stored)
    assert batch[8:12] == expected[8:12]
    assert batch[16:] == expected[16:]

"""The headers of dead letters: the row's own ones, then what is wrong with it."""

from __future__ import annotations

import pyarrow as pa

from spark_kafka_sink.spark.tasks.dead_letters import ERROR_HEADERS, UNNAMED_HEADER, with_headers

ROWS = 100
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_a_letter_has_the_headers_of_its_row_first_in_their_order() -> None:
    own = [
        [("same name", b"%d of row %d" % (n, row)) for n in range(row % 4)] for row in range(ROWS)
    ]
    added = [[f"{name} of row {row}" for row in range(ROWS)] for name in ERROR_HEADERS]
    made = with_headers(pa.array(own, HEADERS), tuple(map(pa.array, added)))
    found = [[(each["key"], each["value"]) for each in headers] for headers in made.to_pylist()]
    assert found == [
        own[row] + [(name, f"{name} of row {row}".encode()) for name in ERROR_HEADERS]
        for row in range(ROWS)
    ]


def test_a_header_without_a_name_gets_one_and_a_row_without_headers_has_only_what_is_added() -> (
    None
):
    own = pa.array([[(None, b"1"), ("h", None)], None], HEADERS)
    made = with_headers(own, tuple(pa.array([None, name]) for name in ERROR_HEADERS))
    unnamed, none = [
        [(each["key"], each["value"]) for each in headers] for headers in made.to_pylist()
    ]
    assert unnamed == [
        (UNNAMED_HEADER, b"1"), ("h", None), *((name, None) for name in ERROR_HEADERS)
    ]  # fmt: skip
    assert none == [(name, name.encode()) for name in ERROR_HEADERS]

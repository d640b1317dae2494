"""The study of the Avro encoder: both sides write the same bytes, and its limits are checked."""

from __future__ import annotations

import re

import pytest
from bench.studies import avro_encoding
from bench.studies.avro_encoding import Costs


def test_both_write_the_same_rows_and_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert avro_encoding.main(["--rows", "140", "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    line = r"{} +\d+ bytes a row: encoder [\d,]+ ns, AvroSerializer [\d,]+ ns, [\d.]+x; [\d.]+ ms"
    for name in ("flat", "nested"):
        assert re.search(line.format(name), said), said
    limits = re.findall(r"^(\w+ +.+): [\d.]+(?:x| ms), (.+): (?:met|not met)$", said, re.MULTILINE)
    assert [(" ".join(what.split()), target) for what, target in limits] == [
        ("flat AvroSerializer to the encoder, CPU a row", "at least 40x"),
        ("flat CPU of a call with one row", "at most 1.5 ms"),
        ("nested AvroSerializer to the encoder, CPU a row", "at least 20x"),
        ("nested CPU of a call with one row", "at most 1.5 ms"),
    ]


@pytest.mark.parametrize(
    ("name", "ratio", "call_ms", "expected"),
    [
        ("flat", 40.0, 1.5, [True, True]),
        ("flat", 39.9, 1.6, [False, False]),
        ("nested", 20.0, 0.1, [True, True]),
        ("nested", 19.9, 1.5, [False, True]),
    ],
)
def test_a_limit_is_met_or_not(
    name: str, ratio: float, call_ms: float, expected: list[bool]
) -> None:
    found = Costs(encoder_ns=100, serializer_ns=100 * ratio, call_ms=call_ms, row_bytes=1)
    assert [each.is_met for each in avro_encoding.reached(name, found)] == expected

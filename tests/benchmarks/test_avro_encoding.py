"""The study of the Avro encoder: both sides write the same bytes, and its ratio is printed."""

from __future__ import annotations

import re

import pytest
from bench.studies import avro_encoding


def test_both_write_the_same_rows_and_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert avro_encoding.main(["--rows", "140", "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    line = r"{} +\d+ bytes a row: encoder [\d,]+ ns, AvroSerializer [\d,]+ ns, [\d.]+x; [\d.]+ ms"
    for name in ("flat", "nested"):
        assert re.search(line.format(name), said), said

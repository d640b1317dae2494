"""Bytes that are no text: U+FFFD in their place, as Java has it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from support.brokers.jvm import run_java

from spark_kafka_sink.records.columns import decode_utf8, valid_utf8

# First bytes, following bytes and bytes that are neither, at the edges of what is allowed.
BYTES = bytes.fromhex("41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


def test_bytes_become_the_text_that_java_makes_of_them(tmp_path: Path) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    names = [bytes(random.choices(BYTES, k=random.randint(1, 7))) for _ in range(20_000)]
    lines = tmp_path / "lines"
    lines.write_text("\n".join(name.hex() for name in names))
    java = run_java("ReplaceInvalidUtf8", lines).split()
    assert [decode_utf8(name).encode().hex() for name in names] == java


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_only_what_is_no_text_is_replaced(kind: pa.DataType) -> None:
    names = [b"\xffa", None, "\u00e9".encode(), b"a\xc3", b"\xffa", b""]
    expected = ["\ufffda", None, "\u00e9", "a\ufffd", "\ufffda", ""]
    array = pa.array([b"before", *names], pa.large_binary()).cast(kind, safe=False)
    found = valid_utf8(array.slice(1))
    assert found.to_pylist() == expected
    is_large = kind in (pa.large_string(), pa.large_binary())
    assert found.type == (pa.large_string() if is_large else pa.string())
    found.validate(full=True)


def test_valid_text_is_not_copied() -> None:
    array = pa.array(["\u00e9t\u00e9", None, "x" * 100])
    assert valid_utf8(array).buffers()[2].address == array.buffers()[2].address

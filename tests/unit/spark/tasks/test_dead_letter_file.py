"""Files of dead letters: every column that a row came with, by names that Spark can tell apart."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.programs.unprivileged import unprivileged

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.spark.tasks.dead_letters import (
    ERROR_COLUMNS,
    BadBatch,
    DeadLetterFile,
    distinct_names,
)


def written(folder: Path, rows: pa.RecordBatch) -> pa.Table:
    """Write rows as the dead letters of a task, and read them."""
    letters = DeadLetterFile(folder, "t", 0, 0)
    numbers = np.arange(rows.num_rows)
    letters.take(BadBatch(rows, np.zeros(rows.num_rows, np.uint8), numbers))
    (path,) = letters.finish()
    return pq.read_table(path)


@pytest.mark.parametrize(
    ("names", "distinct"),
    [
        (["KEY", "key", "Key"], ["KEY_2", "key", "Key_3"]),
        (["key", "key", "a", "A"], ["key", "key_2", "a", "A_2"]),
        (["a", "A", "a_2", "A_2"], ["a", "A_3", "a_2", "A_2_2"]),
        (["ß", "SS", "İ", "i"], ["ß", "SS", "İ", "i"]),
        ([], []),
    ],
)
def test_names_differ_by_more_than_their_case(names: list[str], distinct: list[str]) -> None:
    assert distinct_names(names, ("key", "value")) == distinct


def test_columns_of_the_same_name_but_for_the_case_are_all_there(tmp_path: Path) -> None:
    rows = pa.record_batch(
        [pa.array([each]) for each in ("1", "2", "3", "4", "5", "6")],
        names=["KEY", "key", "value", "Value", "value", "PYKAFKA_ERROR_ROW"],
    )
    found = written(tmp_path, rows)
    names = ["KEY_2", "key", "value", "Value_2", "value_3", "PYKAFKA_ERROR_ROW_2"]
    assert found.column_names == [*names, *ERROR_COLUMNS]
    assert found.select(names).to_pylist() == [
        dict(zip(names, ("1", b"2", b"3", "4", b"5", "6"), strict=True))
    ]


def test_dead_letters_that_are_dead_once_more_have_each_column_once(tmp_path: Path) -> None:
    first = written(tmp_path, pa.record_batch({"id": [7], "value": ["v"]}))
    (again,) = first.to_batches()
    found = written(tmp_path, again)
    assert found.column_names == ["id", "value", *ERROR_COLUMNS]


def test_fields_of_structs_differ_by_more_than_their_case(tmp_path: Path) -> None:
    inner = pa.struct([("x", pa.int32()), ("X", pa.int32())])
    kind = pa.struct([("a", pa.list_(inner)), ("A", pa.map_(pa.string(), inner))])
    value = {"a": [{"x": 1, "X": 2}], "A": [("k", {"x": 3, "X": 4})]}
    rows = pa.record_batch({"value": ["v", "w"], "struct": pa.array([value, None], kind)})
    found = written(tmp_path, rows.slice(0)).column("struct")
    # Which Arrow shows as a dict by name.
    assert found.to_pylist() == [
        {"a": [{"x": 1, "X_2": 2}], "A_2": [("k", {"x": 3, "X_2": 4})]},
        None,
    ]


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    dirty = pa.array([b"\xffa"], pa.binary()).cast(pa.string(), safe=False)
    found = written(tmp_path, pa.record_batch({"value": dirty, "other": dirty}))
    assert found.column("value").to_pylist() == [b"\xffa"]
    assert found.column("other").to_pylist() == ["\ufffda"]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_bytes_that_are_no_text_are_replaced_at_any_depth(
    tmp_path: Path, text: pa.DataType
) -> None:
    is_large = pa.types.is_large_string(text)
    binary = pa.large_binary() if is_large else pa.binary()
    header = [("key", binary), ("value", pa.binary())]
    headers, nested = pa.list_(pa.struct(header)), pa.map_(binary, pa.struct([("a", binary)]))
    values = {
        "headers": pa.array([[{"key": b"\xff", "value": b"\xff"}], None, [], [None]], headers),
        "nested": pa.array([[(b"k", {"a": b"\xfe"})], [(b"k", None)], None, []], nested),
    }
    as_text = {
        "headers": pa.list_(pa.struct([("key", text), ("value", pa.binary())])),
        "nested": pa.map_(text, pa.struct([("a", text)])),
    }
    columns = {name: values[name].view(as_text[name]) for name in values}
    rows = pa.record_batch({"value": ["v"] * 4, **columns})
    found = written(tmp_path, rows)
    headers_found = [[{"key": "\ufffd", "value": b"\xff"}], None, [], [None]]
    nested_found = [[("k", {"a": "\ufffd"})], [("k", None)], None, []]
    assert found.column("headers").to_pylist() == headers_found
    assert found.column("nested").to_pylist() == nested_found
    later = written(tmp_path, rows.slice(1, 2))
    assert later.column("headers").to_pylist() == headers_found[1:3]
    assert later.column("nested").to_pylist() == nested_found[1:3]


TIMES = {
    "00:00:00": 0,
    "12:30:00.5": 45_000_500_000_000,
    "20:00:00.00000001": 72_000_000_000_010,
    "23:59:59.999999999": 86_399_999_999_999,
}


def test_times_of_day_are_texts_at_any_depth(tmp_path: Path) -> None:
    times = pa.array([*TIMES.values(), None], pa.time64("ns"))
    texts = [*TIMES, None]
    each = pa.array(range(6), pa.int32())
    columns = {
        "value": times,
        "struct": pa.StructArray.from_arrays([times, texts], ["t", "s"]),
        "list": pa.ListArray.from_arrays(each, times),
        "map": pa.MapArray.from_arrays(each, pa.array(range(5)), times),
    }
    found = written(tmp_path, pa.record_batch(columns).slice(1))
    assert found.select(list(columns)).to_pydict() == {
        "value": texts[1:],
        "struct": [{"t": text, "s": text} for text in texts[1:]],
        "list": [[text] for text in texts[1:]],
        "map": [[(number, texts[number])] for number in range(1, 5)],
    }
    assert not any("time" in str(kind) for kind in found.schema.types), "Spark would not read it"


def year_month_interval() -> pa.DataType:
    """Return the Arrow type of Spark's year-month intervals, which pyarrow only reads."""
    other = pa.schema([pa.field("other", pa.month_day_nano_interval())])
    described = bytes(other.serialize())
    for place in (place for place, byte in enumerate(described) if byte == 2):
        changed = described[:place] + bytes([0]) + described[place + 1 :]
        with suppress(pa.ArrowInvalid, OSError):
            found = pa.ipc.read_schema(pa.py_buffer(changed))[0].type
            if str(found) == "month_interval":
                return found
    raise AssertionError(described)


def test_a_year_month_interval_is_told_with_its_type(tmp_path: Path) -> None:
    kind = pa.list_(year_month_interval())
    months = pa.array([[1, 2], None], pa.list_(pa.int32())).view(kind)
    letters = DeadLetterFile(tmp_path, "t", 0, 0)
    rows = pa.record_batch({"value": ["v", "w"], "months": months})
    bad = BadBatch(rows, np.zeros(2, np.uint8), np.arange(2))
    found = r"Parquet does not support a column of the data \(type month_interval\); select the"
    with pytest.raises(DataException, match=found):
        letters.take(bad)
    assert list(tmp_path.iterdir()) == []


BAD = BadBatch(pa.record_batch({"value": ["v"]}), np.zeros(1, np.uint8), np.arange(1))


@contextmanager
def full_disk(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "go_on", [lambda letters: letters.take(BAD), DeadLetterFile.finish], ids=["take", "finish"]
)
def test_a_disk_that_becomes_full_is_told_by_the_option_and_leaves_no_file(
    tmp_path: Path, go_on: Callable[[DeadLetterFile], object]
) -> None:
    letters = DeadLetterFile(tmp_path, "t", 0, 0)
    letters.take(BAD)
    (partial,) = tmp_path.iterdir()
    found = f"option deadLetterPath is {tmp_path}, which cannot be written into (File too large) on"
    with full_disk(partial.stat().st_size):
        with pytest.raises(ConfigException, match=re.escape(found)):
            go_on(letters)
        letters.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_searched_is_told_by_the_option(tmp_path: Path) -> None:
    folder = tmp_path / "sealed" / "letters"
    folder.mkdir(parents=True)
    letters = DeadLetterFile(folder, "t", 0, 0)
    found = f"option deadLetterPath is {folder}, which cannot be written into (Permission denied)"
    with (
        unprivileged(folder.parent),
        pytest.raises(ConfigException, match=re.escape(found)),
    ):
        letters.take(BAD)


def test_a_full_disk_replaces_no_error_of_the_task(tmp_path: Path) -> None:
    letters = DeadLetterFile(tmp_path, "t", 0, 0)
    letters.take(BAD)
    (partial,) = tmp_path.iterdir()
    with full_disk(partial.stat().st_size):
        letters.discard()
    assert list(tmp_path.iterdir()) == []

"""Adds the prefix with the schema id to rows that are already JSON, for all rows at once.

Spark's ``to_json`` has made the rows from a column. They are parsed only to check the rules of the
column's plan (`json_schema.JsonRule`). There are two ways to check a rule. For most rules about
numbers and about values of maps, a search for a string such as ``null`` finds the few rows that may
break the rule, and only these rows are parsed. For the other rules, pyarrow reads the parts of the
rows that the rule is about, as an Arrow column. This can take 15 times the memory of the rows, so
only some of the rows are read together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.records.columns import BinaryColumn, Bools, valid_mask
from spark_kafka_sink.records.encoder import Pieces
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.serde.avro_encoder import EncodedColumn, RowFault
from spark_kafka_sink.serde.column_types import ColumnType, Kind
from spark_kafka_sink.serde.json_schema import (
    JSON_TYPES,
    Each,
    JsonPlan,
    JsonRule,
    RowRule,
    Steps,
)
from spark_kafka_sink.serde.row_rules import Fault

# How many bytes of rows pyarrow reads together; more only if they are of one row.
_READ_BYTES: Final = 1024 * 1024
# The strings that to_json writes for numbers that JSON does not have.
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
# Each row that breaks the rule contains one of these strings. Other rows may contain them, too.
_SIGNS: Final = {
    RowRule.FINITE: (b'"NaN"', b'"Infinity"', b'"-Infinity"'),
    RowRule.NOT_NULL: (b"null",),
}
_FAULTS: Final = {
    RowRule.PRESENT: Fault.NULL_IN_REQUIRED,
    RowRule.NOT_NULL: Fault.NULL_IN_REQUIRED,
    RowRule.FINITE: Fault.OUT_OF_RANGE,
}
_MESSAGES: Final = {
    RowRule.PRESENT: "is null, so to_json leaves it out, but the JSON Schema requires it",
    RowRule.NOT_NULL: "is null, and the JSON Schema does not accept null there",
    RowRule.FINITE: "is NaN or infinite, and JSON has no such numbers",
}
# The type by which pyarrow reads a part that a rule is about, for each type in JSON.
_READ_AS: Final = {
    "boolean": pa.bool_(),
    "integer": pa.float64(),
    "number": pa.float64(),
    "string": pa.string(),
    # An object without any of its fields.
    "object": pa.struct([]),
}


def encode_json(plan: JsonPlan, array: pa.Array, prefix: bytes) -> EncodedColumn:
    """Return the rows of a string or binary column, each with a prefix. A null stays null.

    Rows are read only to check the rules of the plan. Raise DataException if a row that is read is
    not JSON, or not in the form that to_json writes.
    """
    texts = array.cast(pa.large_binary())
    faults: list[RowFault] = []
    good = ~_nulls(texts)
    by_text = [rule for rule in plan.rules if _is_found_by_text(rule)]
    rows = np.flatnonzero(_suspects(by_text, texts) & good)
    first = _first_broken(by_text, texts.take(pa.array(rows)))
    for number in np.unique(first[first < len(by_text)]).tolist():
        _blame(by_text[number], rows[first == number], good, faults)
    others = [rule for rule in plan.rules if not _is_found_by_text(rule)]
    if others:
        # Only the good rows are read, because pyarrow fails if a number is the string NaN.
        for rows in _read_together(texts, np.flatnonzero(good)):
            parts = _read(texts.take(pa.array(rows)), others)
            for rule in others:
                _blame(rule, rows[_lacks(parts, rule.steps)], good, faults)
    return EncodedColumn(_with_prefix(texts, prefix), faults)


def _with_prefix(texts: pa.Array, prefix: bytes) -> pa.Array:
    if not prefix or not len(texts):
        return texts
    column = BinaryColumn.of(texts)
    rows, valid = len(texts), column.valid
    pieces = Pieces(2 * rows)
    start = BinaryColumn(np.frombuffer(prefix, np.uint8), np.array([0, len(prefix)]), None)
    sizes = np.full(rows, len(prefix))
    if valid is not None:
        sizes *= valid
    pieces.put_parts(slice(0, None, 2), start, np.zeros(rows, np.int64), sizes)
    pieces.put(slice(1, None, 2), column)
    data, offsets = pieces.gather()
    validity = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets[::2].copy()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), rows, buffers)


def _blame(rule: JsonRule, rows: Int64s, good: Bools, faults: list[RowFault]) -> None:
    if len(rows):
        good[rows] = False
        message = f"column {rule.path} {_MESSAGES[rule.rule]}"
        faults.append(RowFault(_FAULTS[rule.rule], rows, message))


def _nulls(texts: pa.Array) -> Bools:
    valid = valid_mask(texts)
    return np.zeros(len(texts), np.bool_) if valid is None else ~valid


# -- rules about numbers and values of maps: a search for a text finds the rows -------------------


def _is_found_by_text(rule: JsonRule) -> bool:
    """Return whether a rule is checked by a search for a string, and not by pyarrow.

    pyarrow cannot check such a rule: it cannot read a map from JSON, or "NaN" as a number.
    """
    return rule.rule is RowRule.FINITE or Each.VALUE in rule.steps


def _suspects(rules: Sequence[JsonRule], texts: pa.Array) -> Bools:
    """Return a mask of the rows that may break a rule. All other rows satisfy all rules."""
    kinds = {rule.rule for rule in rules}
    if kinds - _SIGNS.keys():
        return np.ones(len(texts), np.bool_)
    column = BinaryColumn.of(texts)
    suspects = np.zeros(len(texts), np.bool_)
    for sign in (sign for kind in kinds for sign in _SIGNS[kind]):
        suspects[list(_rows_with(sign, column))] = True
    return suspects


def _first_broken(rules: Sequence[JsonRule], texts: pa.Array) -> Int64s:
    """Return the number of the first rule that each row breaks, or the count of the rules.

    Each row is parsed once.
    """
    checks = _Checks(len(rules))
    for number, rule in enumerate(rules):
        checks.add(number, rule)
    return np.array([checks.first_broken(_parsed(text)) for text in texts.to_pylist()], np.int64)


def _rows_with(sign: bytes, column: BinaryColumn) -> Iterator[int]:
    """Yield the indexes of the rows that contain the bytes `sign`.

    The bytes of all rows are searched together. So a row is also yielded if `sign` begins in it and
    ends in the next row.
    """
    offsets = column.offsets
    first = int(offsets[0])
    data = column.data[first : int(offsets[-1])].tobytes()
    place = data.find(sign)
    while place >= 0:
        row = int(np.searchsorted(offsets, place + first, side="right")) - 1
        yield row
        place = data.find(sign, int(offsets[row + 1]) - first)


def _parsed(text: bytes) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _is_no_json(error) from None


class _Checks:
    """The rules about a part of each row, and about everything inside this part.

    null, no_number: the number of the first rule that the part breaks if it is null, or if it is a
    string of `_NO_NUMBERS`. none: a number larger than that of each rule, if no rule is broken.
    inside: the rules about the parts inside, by the step to them.
    """

    __slots__ = ("inside", "no_number", "none", "null")

    def __init__(self, none: int) -> None:
        self.null = self.no_number = self.none = none
        self.inside: dict[str | Each, _Checks] = {}

    def add(self, number: int, rule: JsonRule) -> None:
        """Add a rule. The checks are those of the whole row."""
        checks = self
        for step in rule.steps:
            checks = checks.inside.setdefault(step, _Checks(self.none))
        if rule.rule is RowRule.FINITE:
            checks.no_number = min(checks.no_number, number)
        else:
            checks.null = min(checks.null, number)

    def first_broken(self, part: object) -> int:
        """Return the number of the first rule that is broken. A field that is absent is null."""
        if part is None:
            return self.null
        if isinstance(part, str):
            return self.no_number if part in _NO_NUMBERS else self.none
        found = self.none
        for step, checks in self.inside.items():
            for each in _inside(part, step):
                # Most parts are numbers, which break no rule.
                if not isinstance(each, float):
                    found = min(found, checks.first_broken(each))
        return found


def _inside(part: object, step: str | Each) -> Iterable[object]:
    """Return the parts inside a part to which a step of a `JsonRule` leads."""
    if isinstance(part, dict):
        return part.values() if step is Each.VALUE else (part.get(step),)
    return part if step is Each.ITEM and isinstance(part, list) else ()


# -- all other rules: pyarrow reads the parts that they are about ---------------------------------


def _read_together(texts: pa.Array, rows: Int64s) -> list[Int64s]:
    """Return row numbers in groups. A group is one row, or rows of about `_READ_BYTES` together."""
    ends = np.cumsum(BinaryColumn.of(texts).lengths[rows])
    return np.split(rows, np.flatnonzero(np.diff(ends // _READ_BYTES)) + 1)


def _read(texts: pa.Array, rules: Sequence[JsonRule]) -> pa.StructArray:
    """Return a struct for each row, with the parts of the row that the rules are about."""
    from pyarrow import json as arrow_json  # noqa: PLC0415 - most tasks have no such rules

    kind = _type_of([(rule.steps, rule.column) for rule in rules])
    if not len(texts):
        return pa.array([], kind)
    nothing, end = (pa.scalar(text, pa.large_binary()) for text in (b"", b"\n"))
    lines = pc.binary_join_element_wise(texts, nothing, end)
    data = BinaryColumn.of(lines)
    source = pa.py_buffer(data.data[data.offsets[0] : data.offsets[-1]])
    try:
        table = arrow_json.read_json(
            pa.BufferReader(source),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=source.size),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema(kind), unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        raise _is_no_json(error) from None
    if table.num_rows != len(texts):
        raise _is_no_json(f"{len(texts)} rows have {table.num_rows} JSON objects")
    return pa.concat_arrays(table.to_struct_array().chunks)


def _type_of(parts: Sequence[tuple[Steps, ColumnType]]) -> pa.DataType:
    """Return the Arrow type with which pyarrow reads only some parts of a value.

    parts: for each of these parts, the steps from the value to the part, and the part's type.
    """
    steps, column = parts[0]
    if not any(steps for steps, _ in parts):
        return _read_as(column)
    inside: dict[str | Each, list[tuple[Steps, ColumnType]]] = {}
    for steps, column in parts:
        if steps:
            inside.setdefault(steps[0], []).append((steps[1:], column))
    if Each.ITEM in inside:
        return pa.list_(_type_of(inside[Each.ITEM]))
    return pa.struct([(str(name), _type_of(each)) for name, each in inside.items()])


def _read_as(column: ColumnType) -> pa.DataType:
    if column.kind is Kind.ARRAY:
        return pa.list_(_read_as(column.fields[0].type))
    return _READ_AS[JSON_TYPES[column.kind]]


def _lacks(array: pa.Array, steps: Steps) -> Bools:
    """Return a mask of the values that have a null where the steps lead.

    A null inside an object that is itself null does not count.
    """
    if not steps:
        return _nulls(array)
    step, further = steps[0], steps[1:]
    if isinstance(step, str):
        lacks = _lacks(array.field(array.type.get_field_index(step)), further)
        return lacks & ~_nulls(array)
    lacks = np.zeros(len(array), np.bool_)
    parents = pc.list_parent_indices(array).to_numpy(zero_copy_only=False)
    lacks[parents[_lacks(array.flatten(), further)]] = True
    return lacks


def _is_no_json(reason: object) -> DataException:
    message = (
        "a row is not the JSON that to_json makes of the columns given to to_kafka "
        f"({reason}): call to_kafka last, right before the write"
    )
    return DataException(message)

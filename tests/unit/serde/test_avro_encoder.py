"""Avro by columns: byte for byte what fastavro writes row by row, in every layout of Arrow."""

from __future__ import annotations

import io
import json
import random
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.arrow_types import column_type
from spark_kafka_sink.serde.avro_encoder import EncodedColumn, encode_avro
from spark_kafka_sink.serde.avro_plan import Form, Leaf, fit
from spark_kafka_sink.serde.avro_schema import parse_schema
from spark_kafka_sink.serde.row_rules import Fault
from spark_kafka_sink.serde.wire_format import schema_id_prefix

T = TypeVar("T")
Json: TypeAlias = str | dict[str, Any] | list[Any]

PREFIX = b"\0\0\0\0\x07"
SYMBOLS = ("RED", "GREEN", "BLUE")
SIZE: Final = 5


class Column(NamedTuple):
    """A column of a schema. values: what fastavro gets for each row; None for a null."""

    schema: Json
    array: pa.Array
    values: list[Any]


def encode(schema: object, array: pa.Array, prefix: bytes = b"") -> EncodedColumn:
    """Encode a column by the JSON of a schema."""
    plan = fit(column_type(array.type), parse_schema(json.dumps(schema)), "value")
    return encode_avro(plan, array, prefix)


def rows_of(schema: object, array: pa.Array, prefix: bytes = b"") -> list[bytes | None]:
    """Return the rows of a column in which none is at fault."""
    encoded = encode(schema, array, prefix)
    assert encoded.faults == []
    encoded.array.validate(full=True)
    rows: list[bytes | None] = encoded.array.to_pylist()
    return rows


def with_fastavro(schema: Json, values: Sequence[Any], prefix: bytes = b"") -> list[bytes | None]:
    """Return the rows as fastavro writes them."""
    parsed = fastavro.parse_schema(schema)
    rows: list[bytes | None] = []
    for value in values:
        if value is None:
            rows.append(None)
            continue
        out = io.BytesIO(prefix)
        out.seek(len(prefix))
        fastavro.schemaless_writer(out, parsed, value)
        rows.append(out.getvalue())
    return rows


# -- leaves ---------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A leaf: its schema, Arrow types that fit it, and how to make a value of Arrow and of Avro."""

    schema: Json
    types: tuple[pa.DataType, ...]
    value: Callable[[random.Random, pa.DataType], tuple[Any, Any]]


def _same(make: Callable[[random.Random], Any]) -> Callable[[random.Random, Any], tuple[Any, Any]]:
    def value(chance: random.Random, _kind: pa.DataType) -> tuple[Any, Any]:
        made = make(chance)
        return made, made

    return value


def _integer(bits: int) -> Callable[[random.Random], int]:
    def make(chance: random.Random) -> int:
        edge: int = 2 ** (chance.randint(1, bits) - 1)
        return min(int(2 ** (bits - 1)) - 1, chance.randint(-edge, edge))

    return make


def _text(chance: random.Random) -> str:
    size = chance.choice([0, 1, 5, 12, 13, 40, 300])
    return "".join(chance.choice("aZ é€😀\0") for _ in range(size))


def _time(unit_of_avro: int) -> Callable[[random.Random, pa.DataType], tuple[int, int]]:
    def value(chance: random.Random, kind: pa.DataType) -> tuple[int, int]:
        of_arrow = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        limit = (2**63 - 1) * of_arrow // max(of_arrow, unit_of_avro)
        if pa.types.is_time(kind):
            limit = 86_400 * of_arrow - 1
        found = chance.randint(0 if pa.types.is_time(kind) else -limit, limit)
        return found, found * unit_of_avro // of_arrow

    return value


def _number(chance: random.Random) -> float:
    made = chance.choice([0.0, -0.0, 1.5, float("inf"), float("nan"), chance.gauss(0, 1e6)])
    return float(struct.unpack("<f", struct.pack("<f", made))[0])


def _small_number(chance: random.Random) -> float:
    return chance.choice([-0.0, float("-inf"), float("nan"), 1.5 * chance.randint(-9, 9)])


def _decimal(fixed: int = 0) -> Callable[[random.Random, pa.DataType], tuple[Decimal, bytes]]:
    def value(chance: random.Random, kind: pa.DataType) -> tuple[Decimal, bytes]:
        most = 10 ** chance.randint(0, kind.precision) - 1
        edge = min(most, 2 ** chance.randint(0, 127))
        unscaled = chance.choice([edge, -edge, chance.randint(-most, most)])
        # As few bytes as hold the number and its sign, as BigInteger.toByteArray returns.
        size = fixed or (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return Decimal(f"{unscaled}e-{kind.scale}"), unscaled.to_bytes(size, signed=True)

    return value


def _uuid(chance: random.Random) -> uuid.UUID:
    return uuid.UUID(int=chance.getrandbits(128))


def _logical(base: str, name: str) -> dict[str, str]:
    return {"type": base, "logicalType": name}


_TEXTS = (
    pa.string(), pa.large_string(), pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()),
)  # fmt: skip
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())
_INTS = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_ZONED = tuple(pa.timestamp(unit, "Europe/Zurich") for unit in ("s", "ms", "us", "ns"))
_LOCAL = tuple(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns"))
_TIMES = (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))


def _int_of(chance: random.Random, kind: pa.DataType) -> tuple[int, int]:
    made = _integer(kind.bit_width)(chance)
    made = abs(made) % 2 ** (kind.bit_width - 1) if pa.types.is_unsigned_integer(kind) else made
    return made, made


def _date(chance: random.Random, kind: pa.DataType) -> tuple[int, int]:
    days = _integer(25)(chance)
    return (days * 86_400_000 if pa.types.is_date64(kind) else days), days


TYPES_OF_AVRO: dict[str, Kind] = {
    "boolean": Kind("boolean", (pa.bool_(),), _same(lambda chance: chance.random() < 0.5)),
    "int": Kind("int", _INTS, _int_of),
    "int of bigint": Kind("int", (pa.int64(),), _same(_integer(32))),
    "long": Kind("long", (*_INTS, pa.int64(), pa.uint32()), _int_of),
    "float": Kind("float", (pa.float32(), pa.float16()), _same(_small_number)),
    "double": Kind("double", (pa.float32(), pa.float64()), _same(_number)),
    "string": Kind("string", _TEXTS, _same(_text)),
    "bytes": Kind("bytes", _BYTES, _same(lambda chance: chance.randbytes(chance.randint(0, 40)))),
    "bytes of text": Kind("bytes", _TEXTS, lambda c, _: (made := _text(c), made.encode())),
    "fixed": Kind(
        {"type": "fixed", "name": "F", "size": SIZE},
        (*_BYTES, pa.binary(SIZE)),
        _same(lambda chance: chance.randbytes(SIZE)),
    ),
    "enum": Kind(
        {"type": "enum", "name": "E", "symbols": list(SYMBOLS)},
        _TEXTS,
        _same(lambda chance: chance.choice(SYMBOLS)),
    ),
    "uuid": Kind(_logical("string", "uuid"), _TEXTS, _same(lambda chance: str(_uuid(chance)))),
    "fixed uuid": Kind(
        {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
        _TEXTS,
        lambda c, _: (str(made := _uuid(c)).upper(), made.bytes),
    ),
    "decimal": Kind(
        {**_logical("bytes", "decimal"), "precision": 38, "scale": 2},
        (pa.decimal128(38, 2), pa.decimal128(9, 2), pa.decimal256(20, 2)),
        _decimal(),
    ),
    "small decimal": Kind(
        {**_logical("bytes", "decimal"), "precision": 18, "scale": 2},
        (pa.decimal128(18, 2), pa.decimal128(5, 2)),
        _decimal(),
    ),
    "long fixed decimal": Kind(
        {"type": "fixed", "name": "D", "size": 18, "logicalType": "decimal", "precision": 38},
        (pa.decimal128(38, 0),),
        _decimal(18),
    ),
    "fixed decimal": Kind(
        {"type": "fixed", "name": "D", "size": 9, "logicalType": "decimal", "precision": 20},
        (pa.decimal128(20, 0),),
        _decimal(9),
    ),
    "date": Kind(_logical("int", "date"), (pa.date32(), pa.date64()), _date),
    "days": Kind("int", (pa.date32(),), _date),
    "time-millis": Kind(_logical("int", "time-millis"), _TIMES, _time(10**3)),
    "time-micros": Kind(_logical("long", "time-micros"), _TIMES, _time(10**6)),
    "timestamp-millis": Kind(_logical("long", "timestamp-millis"), _ZONED, _time(10**3)),
    "timestamp-micros": Kind(_logical("long", "timestamp-micros"), _ZONED, _time(10**6)),
    "timestamp-nanos": Kind(_logical("long", "timestamp-nanos"), _ZONED, _time(10**9)),
    "milliseconds": Kind("long", (*_ZONED, *_LOCAL), _time(10**3)),
    "local millis": Kind(_logical("long", "local-timestamp-millis"), _LOCAL, _time(10**3)),
    "local micros": Kind(_logical("long", "local-timestamp-micros"), _LOCAL, _time(10**6)),
    "local nanos": Kind(_logical("long", "local-timestamp-nanos"), _LOCAL, _time(10**9)),
    "interval": Kind("long", (pa.duration("us"), pa.duration("ns")), _time(10**6)),
}  # fmt: skip


class Maker:
    """Makes columns of any schema: sliced at each level, and with values under null parents."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._names = 0

    def _any(self, *choices: T) -> T:
        return self._chance.choice(choices)

    def column(self, rows: int, depth: int = 3) -> Column:
        """Return a column that is not null, or is of a union with null."""
        union = self._any(None, None, "first", "last", "alone")
        before, after = self._any((0, 0), (0, 0), (2, 0), (1, 3))
        made = self._required(before + rows + after, depth, is_nullable=union in ("first", "last"))
        array = made.array.slice(before, rows)
        values = made.values[before : before + rows]
        schema = {
            None: made.schema,
            "first": ["null", made.schema],
            "last": [made.schema, "null"],
            "alone": [made.schema],
        }[union]
        return Column(schema, array, values)

    def _valid(self, rows: int, *, is_nullable: bool) -> list[bool]:
        return [not is_nullable or self._chance.random() < 0.6 for _ in range(rows)]

    def _required(self, rows: int, depth: int, *, is_nullable: bool) -> Column:
        kind = self._any("leaf", "record", "array", "map") if depth else "leaf"
        valid = self._valid(rows, is_nullable=is_nullable)
        make = {"record": self._record, "array": self._list, "map": self._map, "leaf": self._leaf}
        made: Column = make[kind](rows, valid, depth)
        values = [each if there else None for each, there in zip(made.values, valid, strict=True)]
        return made._replace(values=values)

    def _leaf(self, rows: int, valid: list[bool], _depth: int) -> Column:
        kind = TYPES_OF_AVRO[self._any(*TYPES_OF_AVRO)]
        type_ = self._any(*kind.types)
        made = [kind.value(self._chance, type_) for _ in range(rows)]
        inputs = [each[0] if there else None for each, there in zip(made, valid, strict=True)]
        plain = type_.value_type if pa.types.is_dictionary(type_) else type_
        # pyarrow 26 concatenates dictionaries of float16 wrongly.
        if plain is type_ and type_ != pa.float16() and self._chance.random() < 0.2:
            array = self._dictionary(inputs, type_)
        else:
            array = arrow_array(inputs, plain).cast(type_)
        return Column(self._named(kind.schema), array, [each[1] for each in made])

    def _dictionary(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Return a dictionary column without a null in its dictionary.

        pyarrow flattens no fixed-size lists and no list views of dictionaries with nulls.
        """
        order = self._chance.sample(range(len(values)), len(values))
        order = [row for row in order if values[row] is not None]
        words = arrow_array([values[row] for row in order], kind).cast(kind)
        places = [order.index(row) if row in order else None for row in range(len(values))]
        return pa.DictionaryArray.from_arrays(pa.array(places, pa.int16()), words)

    def _named(self, schema: Json) -> Json:
        if isinstance(schema, dict) and "name" in schema:
            self._names += 1
            return {**schema, "name": f"{schema['name']}{self._names}"}
        return schema

    def _record(self, rows: int, valid: list[bool], depth: int) -> Column:
        columns = [self.column(rows, depth - 1) for _ in range(self._any(1, 2, 5))]
        fields: list[Json] = [
            {"name": f"f{number}", "type": column.schema} for number, column in enumerate(columns)
        ]
        for number in range(self._any(0, 0, 1, 3)):
            field = {"name": f"d{number}", "type": "string", "default": "é" * self._any(0, 2, 30)}
            fields.insert(self._chance.randint(0, len(fields)), field)
        schema = self._named({"type": "record", "name": "R", "fields": fields})
        order = self._chance.sample(range(len(columns)), len(columns))
        array = pa.StructArray.from_arrays(
            [hidden_by(valid, columns[number].array) for number in order],
            [f"f{number}" for number in order],
            mask=pa.array([not there for there in valid], pa.bool_()),
        )
        values = [
            {f"f{number}": column.values[row] for number, column in enumerate(columns)}
            for row in range(rows)
        ]
        return Column(schema, array, values)

    def _list(self, rows: int, valid: list[bool], depth: int) -> Column:
        if self._chance.random() < 0.3:
            return self._fixed_size_list(rows, valid, depth)
        start = self._any(0, 0, 3)
        counts = [self._chance.choice([0, 0, 1, 2, 5]) for _ in range(rows)]
        offsets = [start + int(each) for each in np.cumsum([0, *counts])]
        items = self.column(offsets[-1] + 1, depth - 1)
        mask = pa.array([not there for there in valid], pa.bool_())
        is_large = self._chance.random() < 0.5
        of, kind = (pa.LargeListArray, pa.int64()) if is_large else (pa.ListArray, pa.int32())
        if self._chance.random() < 0.3:
            view = pa.LargeListViewArray if is_large else pa.ListViewArray
            sizes = pa.array(counts, kind)
            array = view.from_arrays(pa.array(offsets[:-1], kind), sizes, items.array, mask=mask)
        else:
            array = of.from_arrays(pa.array(offsets, kind), items.array, mask=mask)
        values = [items.values[a:b] for a, b in pairwise(offsets)]
        return Column({"type": "array", "items": items.schema}, array, values)

    def _fixed_size_list(self, rows: int, valid: list[bool], depth: int) -> Column:
        items = self.column(2 * rows, depth - 1)
        mask = pa.array([not there for there in valid], pa.bool_())
        array = pa.FixedSizeListArray.from_arrays(items.array, 2, mask=mask)
        values = [items.values[2 * row : 2 * row + 2] for row in range(rows)]
        return Column({"type": "array", "items": items.schema}, array, values)

    def _map(self, rows: int, valid: list[bool], depth: int) -> Column:
        counts = [self._chance.choice([0, 1, 3]) for _ in range(rows)]
        offsets = [int(each) for each in np.cumsum([2, *counts])]
        items = self.column(offsets[-1] + 1, depth - 1)
        keys = [f"{number} {_text(self._chance)}" for number in range(len(items.values))]
        kind = self._any(*_TEXTS)
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        array = pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()),
            arrow_array(keys, plain).cast(kind),
            items.array,
            mask=pa.array([not there for there in valid], pa.bool_()),
        )
        values = [
            dict(zip(keys[a:b], items.values[a:b], strict=True)) for a, b in pairwise(offsets)
        ]
        return Column({"type": "map", "values": items.schema}, array, values)


def hidden_by(valid: list[bool], array: pa.Array) -> pa.Array:
    """Return a child of a struct. Under a null struct, a dictionary has an index outside of it."""
    if not pa.types.is_dictionary(array.type):
        return array
    outside = pa.scalar(-1, array.type.index_type)
    indices = pc.if_else(pa.array(valid, pa.bool_()), array.indices, outside)
    return pa.DictionaryArray.from_arrays(indices, array.dictionary, safe=False)


@pytest.mark.parametrize(
    ("logical", "kind", "data", "written"),
    [
        (
            {"type": "int", "logicalType": "date"},
            pa.date64(),
            (86_400_000).to_bytes(8, "little") + b"\x01" * 8,
            1,
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0},
            pa.decimal256(20, 0),
            (7).to_bytes(32, "little") + b"\x7f" * 32,
            Decimal(7),
        ),
    ],
    ids=["date64", "decimal256"],
)
def test_a_null_struct_hides_values_that_are_not_of_their_type(
    logical: Json, kind: pa.DataType, data: bytes, written: int | Decimal
) -> None:
    child = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(data)])
    rows = pa.StructArray.from_arrays([child], ["a"], mask=pa.array([False, True]))
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": logical}]}
    schema = ["null", record]
    assert rows_of(schema, rows) == with_fastavro(schema, [{"a": written}, None])


def made_of(chance: random.Random) -> Column:
    """Return a column of a record batch, or of a slice of one."""
    made = Maker(chance).column(chance.choice([0, 1, 3, 8, 20]))
    start = chance.choice([0, chance.randint(0, len(made.values))])
    batch = pa.record_batch({"value": made.array}).slice(start)
    return made._replace(array=batch.column("value"), values=made.values[start:])


# A smaller seed is no simpler a column, so nothing is gained by looking for one.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**64))
def test_rows_are_byte_for_byte_those_of_fastavro(seed: int) -> None:
    chance = random.Random(seed)
    column = made_of(chance)
    prefix = chance.choice([b"", PREFIX])
    expected = with_fastavro(column.schema, column.values, prefix)
    assert rows_of(column.schema, column.array, prefix) == expected


@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**64))
def test_rows_are_the_same_if_they_are_encoded_in_slices(seed: int) -> None:
    chance = random.Random(seed)
    column = made_of(chance)
    expected = with_fastavro(column.schema, column.values, PREFIX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{encode_avro.__module__}._MOST_BYTES", chance.choice([0, 500, 2000]))
        assert rows_of(column.schema, column.array, PREFIX) == expected


def in_lists(items: pa.Array, rows: int) -> pa.Array:
    """Return lists of about the same length with all items."""
    ends = np.linspace(0, len(items), rows + 1).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), items)


MANY: Final[dict[str, Callable[[], tuple[Json, pa.Array]]]] = {
    "bytes": lambda: ("int", pa.array(np.zeros(2_000_000, np.int8))),
    "floats": lambda: ("float", pa.array(np.zeros(2_000_000, np.float32))),
    "strings": lambda: ("string", pa.array(["ab"] * 1_000_000)),
    "lists": lambda: (
        {"type": "array", "items": "int"},
        in_lists(pa.array(np.zeros(600_000, np.int8)), 600_000),
    ),
    "wide structs": lambda: (
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": f"f{number}", "type": "string"} for number in range(100)],
        },
        pa.StructArray.from_arrays(
            [pa.array(["ab"] * 15_000)] * 100, [f"f{number}" for number in range(100)]
        ),
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_many_small_items_take_little_memory(name: str) -> None:
    item, items = MANY[name]()
    array = in_lists(items, 100)
    assert array.nbytes < 12 * 1024 * 1024
    with traced_memory() as memory:
        encoded = encode({"type": "array", "items": item}, array)
    assert len(encoded.array) == 100
    assert memory.peak_bytes < 64_000_000


DEFAULTS: Final[dict[str, list[Json]]] = {
    "a long text": [{"name": "d", "type": "string", "default": "x" * 20_000}],
    "many nulls": [
        {"name": f"d{number}", "type": ["null", "int"], "default": None} for number in range(2000)
    ],
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_all_rows_share_the_bytes_of_fields_without_a_column(name: str) -> None:
    fields = [{"name": "a", "type": "int"}, *DEFAULTS[name], {"name": "z", "type": "int"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    rows = [{"a": number, "z": -number} for number in range(1000)]
    array = pa.array(rows)
    plan = fit(column_type(array.type), parse_schema(json.dumps(schema)), "value")
    with traced_memory() as memory:
        encoded = encode_avro(plan, array)
    assert memory.peak_bytes < 1_000_000
    assert encoded.array.to_pylist() == with_fastavro(schema, rows)


def arrow_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if type_ == pa.string_view():
        return pa.array(values, pa.large_string())
    if type_ == pa.float16():  # PyArrow 19 takes no Python floats
        values = [None if each is None else np.float16(each) for each in values]
    return pa.array(values, type_)


@pytest.mark.parametrize("name", TYPES_OF_AVRO)
@pytest.mark.parametrize("union", ["", "first", "last"])
def test_each_type_is_written_as_by_fastavro(name: str, union: str) -> None:
    kind, chance = TYPES_OF_AVRO[name], random.Random(name)
    for type_ in kind.types:
        made = [kind.value(chance, type_) for _ in range(60)]
        inputs = [
            None if union and number % 3 == 1 else each[0] for number, each in enumerate(made)
        ]
        plain = type_.value_type if pa.types.is_dictionary(type_) else type_
        array = arrow_array(inputs, plain)
        field = {"": kind.schema, "first": ["null", kind.schema], "last": [kind.schema, "null"]}
        schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": field[union]}]}
        rows = pa.StructArray.from_arrays([array.cast(type_)], ["f"])
        values = [
            {"f": None if given is None else each[1]}
            for given, each in zip(inputs, made, strict=True)
        ]
        assert rows_of(schema, rows) == with_fastavro(schema, values)


@pytest.mark.parametrize("name", TYPES_OF_AVRO)
def test_dictionaries_of_each_type_are_written_as_by_fastavro(name: str) -> None:
    kind, chance = TYPES_OF_AVRO[name], random.Random(name)
    schema = {"type": "array", "items": ["null", kind.schema]}
    for type_ in kind.types:
        made = [*(kind.value(chance, type_) for _ in range(5)), (None, None)]
        plain = type_.value_type if pa.types.is_dictionary(type_) else type_
        words = arrow_array([each[0] for each in made], plain).cast(type_)
        places = [chance.choice([None, *range(6)]) for _ in range(30)]
        column = pa.DictionaryArray.from_arrays(pa.array(places, pa.uint16()), words)
        values = [None if place is None else made[place][1] for place in places]
        rows = pa.ListArray.from_arrays([3, 3, 20, 30], column)
        assert rows_of(schema, rows) == with_fastavro(schema, [[], values[3:20], values[20:]])


def test_nulls_without_a_type_are_written_as_by_fastavro() -> None:
    fields = {"n": pa.null(), "l": pa.list_(pa.null()), "m": pa.map_(pa.string(), pa.null())}
    full: dict[str, Any] = {"n": None, "l": [None, None], "m": {"a": None}}
    values: list[Any] = [None, full, {"n": None, "l": [], "m": {}}]
    rows = pa.array([None, {**full, "m": [("a", None)]}, values[2]], pa.struct(fields))
    items = {"type": "array", "items": ["int", "null", "string"]}
    entries = {"type": "map", "values": ["null"]}
    named = {"n": ["string", "null"], "l": ["null", items], "m": [entries]}
    schema: Json = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in named.items()],
    }
    assert rows_of(schema, rows) == with_fastavro(schema, values)
    assert rows_of("null", pa.nulls(2)) == [None, None]


# -- golden bytes ---------------------------------------------------------------------------------


def test_the_examples_of_the_specification() -> None:
    record = {
        "type": "record",
        "name": "test",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
    }
    rows = pa.array([{"a": 27, "b": "foo"}])
    assert rows_of(record, rows) == [bytes.fromhex("36 06 66 6f 6f")]
    array = {"type": "array", "items": "long"}
    assert rows_of(array, pa.array([[3, 27], []])) == [bytes.fromhex("04 06 36 00"), b"\0"]
    fields = [{"name": "f", "type": ["null", "string"]}]
    union = {"type": "record", "name": "u", "fields": fields}
    assert rows_of(union, pa.array([{"f": None}, {"f": "a"}])) == [b"\0", bytes.fromhex("02 02 61")]
    table = {0: "00", -1: "01", 1: "02", -2: "03", 2: "04", -64: "7f", 64: "80 01"}
    expected = [bytes.fromhex(each) for each in table.values()]
    assert rows_of("long", pa.array(list(table), pa.int64())) == expected


def test_decimals_have_as_few_bytes_as_in_java() -> None:
    """BigInteger.toByteArray; fastavro writes one byte more at -128 and its like."""
    numbers = {
        0: "00",
        127: "7f",
        128: "0080",
        -128: "80",
        -129: "ff7f",
        2**63: "008000000000000000",
    }
    numbers |= {-(2**63): "8000000000000000", 2**64: "010000000000000000"}
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 38}
    array = pa.array([Decimal(number) for number in numbers], pa.decimal128(38, 0))
    found = [row and row[1:].hex() for row in rows_of(schema, array)]
    assert found == list(numbers.values())


def test_nan_and_the_prefix_of_a_schema_id() -> None:
    assert rows_of("double", pa.array([float("nan")]), schema_id_prefix(258)) == [
        bytes.fromhex("00 00000102 000000000000f87f")
    ]


def test_a_null_row_stays_null_and_has_no_prefix() -> None:
    union = ["null", {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}]
    for schema in (union, union[1]):
        rows = pa.array([None, {"a": 1}], pa.struct([("a", pa.int32())]))
        index = b"\x02" if schema is union else b""
        assert rows_of(schema, rows, PREFIX) == [None, PREFIX + index + b"\x02"]


def raw_plan(kind: pa.DataType) -> Leaf:
    """Return the plan of a whole value of type bytes, as it is with a registry."""
    plan = fit(column_type(kind), parse_schema('"bytes"'), "value")
    assert isinstance(plan, Leaf)
    return replace(plan, form=Form.RAW)


def test_invalid_utf8_becomes_the_replacement_character() -> None:
    broken = pa.array([b"a\xff", b"ok"]).view(pa.string())
    expected = ["\x08a\ufffd".encode(), b"\x04ok"]
    for schema in ("string", "bytes"):
        assert rows_of(schema, broken) == expected
        # Likewise inside other types.
        field = {"type": "record", "name": "R", "fields": [{"name": "f", "type": schema}]}
        assert rows_of(field, pa.StructArray.from_arrays([broken], ["f"])) == expected
        lists_ = pa.ListArray.from_arrays([0, 1, 2], broken)
        listed = [b"\x02" + (each or b"") + b"\0" for each in expected]
        assert rows_of({"type": "array", "items": schema}, lists_) == listed
    # With a registry, a value of type bytes has no length.
    encoded = encode_avro(raw_plan(pa.string()), broken, PREFIX).array
    assert encoded.to_pylist() == [PREFIX + "a\ufffd".encode(), PREFIX + b"ok"]


def test_binary_data_stays_as_it_is() -> None:
    data = pa.array([b"a\xff", b"ok"])
    assert rows_of("bytes", data) == [b"\x04a\xff", b"\x04ok"]
    assert encode_avro(raw_plan(pa.binary()), data).array.to_pylist() == [b"a\xff", b"ok"]


def test_a_field_without_a_column_is_its_default() -> None:
    fields = [
        {"name": "a", "type": "int"},
        {"name": "n", "type": ["null", "string"], "default": None},
        {"name": "s", "type": ["string", "null"], "default": "é"},
        {"name": "l", "type": {"type": "array", "items": "long"}, "default": [1, -1]},
        {"name": "b", "type": "bytes", "default": "\u00ff"},
        {"name": "m", "type": {"type": "map", "values": "double"}, "default": {"k": 1.5}},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    value = {"a": 3, "n": None, "s": "é", "l": [1, -1], "b": b"\xff", "m": {"k": 1.5}}
    assert rows_of(schema, pa.array([{"a": 3}])) == with_fastavro(schema, [value])


def test_a_record_without_fields_is_nothing() -> None:
    schema = {"type": "record", "name": "R", "fields": []}
    assert rows_of(schema, pa.array([{}, None], pa.struct([]))) == [b"", None]


def test_rows_of_many_narrow_and_wide_fields() -> None:
    """Their run of small fields is longer than a few words."""
    names = [f"f{number}" for number in range(60)]
    fields = [{"name": name, "type": ["null", "double"]} for name in names]
    schema = {"type": "record", "name": "R", "fields": fields}
    rows = [{name: None if (n + r) % 3 else 0.5 for n, name in enumerate(names)} for r in range(9)]
    array = pa.array(rows, pa.struct([(name, pa.float64()) for name in names]))
    assert rows_of(schema, array) == with_fastavro(schema, rows)


# -- rows at fault --------------------------------------------------------------------------------


def faults_of(schema: Json, array: pa.Array) -> list[tuple[Fault, list[int], str]]:
    """Return the faults of a column: reason, rows, message."""
    return [(f.fault, f.rows.tolist(), f.message) for f in encode(schema, array).faults]


def of_field(kind: Json) -> Json:
    """Return the schema of a list of records with one field."""
    record = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    return {"type": "array", "items": ["null", record]}


def lists(kind: pa.DataType, *rows: Any) -> pa.Array:  # noqa: ANN401 - any Arrow value
    """Return lists of structs with one field."""
    return pa.array(
        [None if row is None else [each and {"f": each[0]} for each in row] for row in rows],
        pa.list_(pa.struct([("f", kind)])),
    )


FAULTY: dict[str, tuple[Json, pa.DataType, Any, Any, Fault, str]] = {
    "null": (
        "int",
        pa.int32(),
        1,
        None,
        Fault.NULL_IN_REQUIRED,
        "is null, and the Avro schema expects int",
    ),
    "int": ("int", pa.int64(), 2**31 - 1, 2**31, Fault.OUT_OF_RANGE, "does not fit int"),
    "negative int": (
        "int",
        pa.int64(),
        -(2**31),
        -(2**31) - 1,
        Fault.OUT_OF_RANGE,
        "does not fit int",
    ),
    "enum": (
        TYPES_OF_AVRO["enum"].schema,
        pa.string(),
        "RED",
        "red",
        Fault.UNKNOWN_SYMBOL,
        "not a symbol of enum E",
    ),
    "fixed": (
        TYPES_OF_AVRO["fixed"].schema,
        pa.binary(),
        b"12345",
        b"1234",
        Fault.OUT_OF_RANGE,
        "does not fit fixed of 5 bytes",
    ),
    "uuid": (
        _logical("string", "uuid"),
        pa.string(),
        str(uuid.UUID(int=7)),
        "7",
        Fault.INVALID_UUID,
        "is not a UUID",
    ),
    "almost a uuid": (
        _logical("string", "uuid"),
        pa.string(),
        str(uuid.UUID(int=7)),
        "0" * 36,
        Fault.INVALID_UUID,
        "is not a UUID",
    ),
    "nanos": (
        _logical("long", "timestamp-nanos"),
        pa.timestamp("us", "UTC"),
        9_223_372_036_854_775,
        9_223_372_036_854_776,
        Fault.OUT_OF_RANGE,
        "does not fit long with logicalType timestamp-nanos",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_rows_at_fault_are_named_with_the_path_of_their_field(name: str) -> None:
    kind, type_, good, bad, fault, words = FAULTY[name]
    array = lists(type_, [(good,)], None, [None, (good,), (bad,)], [], [(bad,), (bad,)], [(good,)])
    ((found, rows, message),) = faults_of(of_field(kind), array)
    assert (found, rows) == (fault, [2, 4])
    assert message.startswith("column value[].f ")
    assert words in message
    ((_, rows, _),) = faults_of(of_field(kind), array.slice(1, 3))
    assert rows == [1]


def test_rows_at_fault_are_the_same_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    fields = [{"name": "a", "type": "int"}, {"name": "b", "type": TYPES_OF_AVRO["enum"].schema}]
    item = {"type": "record", "name": "Item", "fields": fields}
    values = [
        [
            {"a": chance.choice([1, 2, 2**31, None]), "b": chance.choice([*SYMBOLS, "red"])}
            for _ in range(chance.choice([0, 1, 1, 2]))
        ]
        for _ in range(60)
    ]
    array = pa.array(values, pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])))

    def found() -> list[list[tuple[Fault, str]]]:
        faults: list[list[tuple[Fault, str]]] = [[] for _ in range(len(array))]
        for fault, rows, message in faults_of({"type": "array", "items": item}, array):
            for row in rows:
                faults[row].append((fault, message))
        return faults

    at_once = found()
    assert {len(each) for each in at_once} == {0, 1, 2}
    for most_bytes in (0, 1000, 5000):
        monkeypatch.setattr(f"{encode_avro.__module__}._MOST_BYTES", most_bytes)
        assert found() == at_once


@pytest.mark.parametrize("name", FAULTY)
def test_garbage_under_a_null_is_at_no_fault(name: str) -> None:
    kind, type_, good, bad, *_ = FAULTY[name]
    fields = [pa.array([bad, good], type_)]
    structs = pa.StructArray.from_arrays(fields, ["f"], mask=pa.array([True, False]))
    lists_ = pa.ListArray.from_arrays([0, 1, 2], structs)
    assert faults_of(of_field(kind), lists_) == []
    hidden = pa.StructArray.from_arrays([pa.array([bad, good], type_)], ["f"])
    lists_ = pa.ListArray.from_arrays([0, 1, 2], hidden, mask=pa.array([True, False]))
    assert faults_of(of_field(kind), lists_) == []


def test_another_type_than_planned_is_refused() -> None:
    plan = fit(column_type(pa.int64()), parse_schema('"long"'), "value")
    with pytest.raises(
        DataException, match="column value has the type string in a task, but the plan has"
    ):
        encode_avro(plan, pa.array(["1"]))

"""Encode an Arrow column as Avro, for many rows at once. A plan (see `avro_plan`) states how.

A row is a list of pieces. Small fields (the branch index of a union, varints, doubles, the length
of the next string) are put side by side in 64-bit words (see `records.varint`). Long fields are
pieces of the column's own bytes. One gather operation then interleaves them (see
`records.encoder.Pieces`). The items of lists and maps are encoded first, for all rows together. The
encoded items of one list are contiguous, so they are one piece. All this can take much more memory
than the column itself, so a large column is encoded in slices of rows.

If a part of a row is null, or is inside a null struct or list, its width is 0 in every piece. The
value that Arrow stores in its place is ignored. All other parts are *live*; a mask marks them.

Rows that cannot be written are found while the column is encoded. Their bytes have no meaning, and
the caller does not send them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.records.columns import BinaryColumn, Bools, valid_mask, valid_utf8
from spark_kafka_sink.records.encoder import Pieces
from spark_kafka_sink.records.varint import (
    FieldBytes,
    Int64s,
    UInt8s,
    UInt64s,
    VarintFields,
    varint_widths,
    zigzag,
)
from spark_kafka_sink.serde.arrow_types import column_type
from spark_kafka_sink.serde.avro_plan import (
    Constant,
    Form,
    Leaf,
    ListPlan,
    Plan,
    RecordPlan,
    UnionPlan,
)
from spark_kafka_sink.serde.column_types import Kind
from spark_kafka_sink.serde.row_rules import Fault

# The most memory that rows may take while they are encoded together. A single row may take more. A
# usual batch takes less, so that it is one slice.
_MOST_BYTES: Final = 48 * 1024 * 1024
# About how much memory is taken by a row, an item, a string or a list; and by a number in them.
_PIECE_BYTES: Final = 64
_NUMBER_BYTES: Final = 16
# A run of small fields ends at this many bytes, because longer unequal rows need many words.
_LONGEST_RUN: Final = 24
_WORD_BYTES: Final = 8
_DECIMAL_BYTES: Final = 16
_INT_LIMIT: Final = 2**31
_LONG_LIMIT: Final = 2**63
_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_UUID_TEXT: Final = 36
_DASHES: Final = (8, 13, 18, 23)
_NO_HEX: Final = 0xFF

Mask: TypeAlias = Bools | None
Numbers: TypeAlias = npt.NDArray[Any]


class RowFault(NamedTuple):
    """Rows that cannot be written for the same reason. rows: row numbers, ascending, int64."""

    fault: Fault
    rows: Int64s
    message: str


class EncodedColumn(NamedTuple):
    """An encoded column (large_binary, with the same nulls), and the rows that have a fault."""

    array: pa.Array
    faults: list[RowFault]


def encode_avro(plan: Plan, array: pa.Array, prefix: bytes = b"") -> EncodedColumn:
    """Encode each row of a column. A null stays null.

    prefix: the bytes before each row. Raise DataException if the column is not of the type for
    which the plan was made.
    """
    encoded: list[pa.Array] = []
    faults: list[RowFault] = []
    start = 0
    for rows in _slices(array):
        part = _encode_at_once(plan, rows, prefix)
        encoded.append(part.array)
        faults += [fault._replace(rows=fault.rows + start) for fault in part.faults]
        start += len(rows)
    return EncodedColumn(encoded[0] if len(encoded) == 1 else pa.concat_arrays(encoded), faults)


def _slices(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the rows in slices that need at most `_MOST_BYTES`, or are one row. Copy no row."""
    rows = len(array)
    if rows <= 1 or _bytes_of_rows(array) <= _MOST_BYTES:
        yield array
    else:
        yield from _slices(array.slice(0, rows // 2))
        yield from _slices(array.slice(rows // 2))


def _bytes_of_rows(array: pa.Array) -> int:
    """Return about how much memory the pieces of rows, or of the items of lists, take.

    The bytes that pieces point to are not counted, because smaller slices would not save them.
    """
    return _PIECE_BYTES * len(array) + _bytes_of_fields(array)


def _bytes_of_fields(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_struct(kind):
        return sum(_bytes_of_fields(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_nested(kind):
        return _PIECE_BYTES * len(array) + _bytes_of_rows(list_items(array)[1])
    return (_NUMBER_BYTES if pa.types.is_primitive(kind) else _PIECE_BYTES) * len(array)


def _encode_at_once(plan: Plan, array: pa.Array, prefix: bytes) -> EncodedColumn:
    array = plain_layout(array)
    live = valid_mask(array)
    datums = _Datums(len(array), [], lambda rows: rows)
    datums.constant(prefix, live)
    datums.write(plan, array, live)
    column = datums.gathered()
    validity = None if live is None else pa.py_buffer(np.packbits(live, bitorder="little"))
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    encoded = pa.Array.from_buffers(pa.large_binary(), len(array), buffers)
    return EncodedColumn(encoded, datums.faults)


class _Datums:
    """The pieces of all rows, or of all items of a list.

    rows_of: a function that converts the indexes of items to the numbers of their rows.
    """

    def __init__(
        self, count: int, faults: list[RowFault], rows_of: Callable[[Int64s], Int64s]
    ) -> None:
        self._count = count
        self.faults = faults
        self._rows_of = rows_of
        self._pieces: list[FieldBytes | tuple[BinaryColumn, Int64s, Int64s]] = []
        self._run: VarintFields | None = None

    # -- structure --------------------------------------------------------------------------------

    def write(self, plan: Plan, array: pa.Array, live: Mask) -> None:
        """Add a column. live: a mask of the rows that contain it, as a null or as a value."""
        array = plain_layout(array)
        valid = valid_mask(array)
        if isinstance(plan, UnionPlan):
            part = plan.part
            if plan.null is None:
                self.constant(bytes([2 * plan.other]), live)
                live = self._required(part, valid, live)
            else:
                live = self._branches(plan, plan.null, valid, live)
        else:
            part = plan
            live = self._required(part, valid, live)
        if isinstance(part, UnionPlan):
            raise DataException("a union directly inside a union; this is a bug")
        if column_type(array.type).kind is not part.kind:
            message = (
                f"column {part.path} has the type {array.type} in a task, but the plan has "
                f"{part.kind.value}; this is a bug"
            )
            raise DataException(message)
        if isinstance(part, RecordPlan):
            self._record(part, array, live)
        elif isinstance(part, ListPlan):
            self._list(part, array, live)
        else:
            _WRITERS[part.form](self, part, array, live)

    def _required(
        self, part: Leaf | RecordPlan | ListPlan | UnionPlan, valid: Mask, live: Mask
    ) -> Mask:
        """Return a mask of the live rows that are not null. Live rows that are null get a fault."""
        if valid is None or isinstance(part, UnionPlan):
            return live
        if not isinstance(part, Leaf) or part.form is not Form.NULL:
            self._blame(
                Fault.NULL_IN_REQUIRED,
                ~valid if live is None else live & ~valid,
                f"column {part.path} is null, and the Avro schema expects {part.schema_type} "
                "there, not null",
            )
        return _and(valid, live)

    def _branches(self, plan: UnionPlan, null: int, valid: Mask, live: Mask) -> Mask:
        """Add the branch index of a union. Return a mask of the live rows that are not null."""
        if valid is None:
            self.constant(bytes([2 * plan.other]), live)
            return live
        choices = np.array([2 * null, 2 * plan.other], np.uint64)
        self._raw(choices[valid.view(np.uint8)], 1, live)
        return _and(valid, live)

    def _record(self, plan: RecordPlan, array: pa.Array, live: Mask) -> None:
        constants = b""
        for name, part in plan.fields:
            if isinstance(part, Constant):
                constants += part.data
                continue
            number = array.type.get_field_index(name)
            if number < 0:
                message = f"column {plan.path} has no field {name} in a task; this is a bug"
                raise DataException(message)
            self.constant(constants, live)
            constants = b""
            self.write(part, array.field(number), live)
        self.constant(constants, live)

    def _list(self, plan: ListPlan, array: pa.Array, live: Mask) -> None:
        offsets, items = list_items(array)
        counts = np.diff(offsets)
        live_items: Mask = None
        if live is not None:
            there, counts = counts, np.where(live, counts, 0)
            if not np.array_equal(there, counts):
                live_items = np.repeat(live, there)
        datums = _Datums(
            len(items),
            self.faults,
            lambda found: self._rows_of(np.searchsorted(offsets, found, side="right") - 1),
        )
        if plan.key is None:
            datums.write(plan.item, items, live_items)
        else:
            datums.write(plan.key, items.field(0), live_items)
            datums.write(plan.item, items.field(1), live_items)
        column = datums.gathered()
        starts = column.offsets[offsets[:-1]]
        self._varint(counts, counts > 0)
        self._piece(column, starts, column.offsets[offsets[1:]] - starts)
        self.constant(b"\0", live)

    # -- pieces -----------------------------------------------------------------------------------

    def constant(self, data: bytes, live: Mask) -> None:
        """Add the same bytes to each row. Long data becomes a piece whose bytes all rows share."""
        if len(data) > _LONGEST_RUN:
            column = BinaryColumn(np.frombuffer(data, np.uint8), np.array([0, len(data)]), None)
            sizes = np.full(self._count, len(data)) if live is None else live * np.int64(len(data))
            self._piece(column, np.zeros(self._count, np.int64), sizes)
            return
        for start in range(0, len(data), _WORD_BYTES):
            part = data[start : start + _WORD_BYTES]
            word = np.uint64(int.from_bytes(part, "little"))
            self._raw(np.full(self._count, word), len(part), live)

    def _fields(self) -> VarintFields:
        """Return the current run of small fields; the caller adds a field to it."""
        if self._run is not None and self._run.most_bytes >= _LONGEST_RUN:
            self._end_run()
        if self._run is None:
            self._run = VarintFields(self._count)
        return self._run

    def _end_run(self) -> None:
        if self._run is not None:
            self._pieces.append(self._run.rows())
            self._run = None

    def _raw(self, words: UInt64s, size: int, live: Mask) -> None:
        """Add the first `size` bytes of each word. The word's other bytes must be 0."""
        if live is None:
            self._fields().raw(words, size)
        else:
            self._fields().raw_of(np.where(live, words, np.uint64(0)), live * np.int64(size))

    def _varint(self, values: Int64s, live: Mask) -> None:
        """Add each value as a zigzag varint."""
        if live is None:
            self._fields().varint(zigzag(values))
            return
        zigzagged = zigzag(np.where(live, values, 0))
        self._fields().varint(zigzagged, np.where(live, varint_widths(zigzagged), 0))

    def _piece(self, column: BinaryColumn, starts: Int64s, lengths: Int64s) -> None:
        """Append parts of a column's data to the output."""
        self._end_run()
        self._pieces.append((column, starts, lengths))

    def gathered(self) -> BinaryColumn:
        """Return the bytes of each row. Call this last."""
        self._end_run()
        step = len(self._pieces)
        if not step or not self._count:
            offsets = np.zeros(self._count + 1, np.int64)
            return BinaryColumn(np.empty(0, np.uint8), offsets, None)
        pieces = Pieces(self._count * step)
        for number, piece in enumerate(self._pieces):
            where = slice(number, None, step)
            if isinstance(piece, FieldBytes):
                pieces.put_fields(where, piece)
            else:
                pieces.put_parts(where, *piece)
        data, offsets = pieces.gather()
        return BinaryColumn(np.frombuffer(data, np.uint8), offsets[::step].copy(), None)

    def _blame(self, fault: Fault, bad: Bools, message: str) -> None:
        if bad.any():
            rows = np.unique(self._rows_of(np.flatnonzero(bad)))
            self.faults.append(RowFault(fault, rows, message))

    # -- leaves -----------------------------------------------------------------------------------

    def null(self, _plan: Leaf, _array: pa.Array, _live: Mask) -> None:
        """Add nothing, because Avro encodes a null as no bytes."""

    def boolean(self, _plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add a byte, 0 or 1."""
        self._raw(_numbers(array).astype(np.uint64), 1, live)

    def integer(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add an integer as a varint."""
        values = _numbers(array).astype(np.int64)
        if plan.form is Form.INT:
            is_beyond = (values >= _INT_LIMIT) | (values < -_INT_LIMIT)
            self._out_of_range(plan, is_beyond, live)
        self._varint(values, live)

    def time(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add a time as a varint, rounded down to the unit of the schema."""
        values = _numbers(array).astype(np.int64)
        found, asked = _PER_SECOND[array.type.unit], plan.per_second
        if asked < found:
            values = values // (found // asked)
        elif asked > found:
            most = (_LONG_LIMIT - 1) // (asked // found)
            self._out_of_range(plan, (values > most) | (values < -most), live)
            values = values * (asked // found)
        self._varint(values, live)

    def _out_of_range(self, plan: Leaf, bad: Bools, live: Mask) -> None:
        message = f"column {plan.path} has a value that does not fit {plan.schema_type}"
        self._blame(Fault.OUT_OF_RANGE, _and(bad, live), message)

    def single(self, _plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add a number as four bytes."""
        values = _numbers(array).astype(np.float32)
        self._raw(values.view(np.uint32).astype(np.uint64), 4, live)

    def double(self, _plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add a number as eight bytes."""
        self._raw(_numbers(array).astype(np.float64).view(np.uint64), 8, live)

    def bytes(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add the length and the bytes. Invalid UTF-8 in a string becomes U+FFFD."""
        self._sized(_bytes_of(plan, array), live)

    def _sized(self, column: BinaryColumn, live: Mask) -> None:
        """Add the length and the bytes."""
        self._varint(np.diff(column.offsets), live)
        self._bytes_alone(column, live)

    def _bytes_alone(self, column: BinaryColumn, live: Mask) -> None:
        """Add the bytes."""
        lengths = np.diff(column.offsets)
        self._piece(column, column.offsets[:-1], lengths if live is None else lengths * live)

    def raw(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add the bytes without their length. Invalid UTF-8 in a string becomes U+FFFD."""
        self._bytes_alone(_bytes_of(plan, array), live)

    def fixed(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add a fixed number of bytes."""
        column = BinaryColumn.of(array)
        lengths = np.diff(column.offsets)
        self._out_of_range(plan, lengths != plan.size, live)
        self._bytes_alone(column, live)

    def symbol(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add the index of an enum's symbol."""
        found = pc.index_in(array, value_set=pa.array(plan.symbols, array.type))
        message = f"column {plan.path} has a text that is not a symbol of {plan.schema_type}"
        is_known = valid_mask(found)
        if is_known is not None:
            self._blame(Fault.UNKNOWN_SYMBOL, _and(~is_known, live), message)
        self._varint(_numbers(found.fill_null(0)).astype(np.int64), live)

    def uuid(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add the length and the text of a UUID."""
        self._hex_digits(plan, array, live)
        self._sized(BinaryColumn.of(array), live)

    def fixed_uuid(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add the 16 bytes of a UUID."""
        digits = self._hex_digits(plan, array, live)
        rows: UInt8s = digits[:, ::2] << np.uint8(4) | digits[:, 1::2] & np.uint8(0xF)
        self._matrix(rows, live)

    def _hex_digits(self, plan: Leaf, array: pa.Array, live: Mask) -> UInt8s:
        """Return each UUID's 32 digits, uint8 of shape (rows, 32); arbitrary for other strings."""
        column = BinaryColumn.of(array)
        starts, lengths = column.offsets[:-1], np.diff(column.offsets)
        texts = _first_bytes(column.data, np.where(lengths == _UUID_TEXT, starts, 0), _UUID_TEXT)
        digits = _HEX[np.delete(texts, _DASHES, axis=1)]
        bad = (lengths != _UUID_TEXT) | (digits == _NO_HEX).any(axis=1)
        bad |= (texts[:, _DASHES] != ord("-")).any(axis=1)
        message = f"column {plan.path} has a text that is not a UUID"
        self._blame(Fault.INVALID_UUID, _and(bad, live), message)
        return digits

    def _matrix(self, rows: UInt8s, live: Mask) -> None:
        """Append to row i the bytes of `rows[i]`. rows: uint8, shape (rows, bytes of each)."""
        count, size = rows.shape
        offsets = np.arange(0, count * size + 1, size) if size else np.zeros(count + 1, np.int64)
        column = BinaryColumn(np.ascontiguousarray(rows).reshape(-1), offsets, None)
        lengths = np.full(count, size) if live is None else live * np.int64(size)
        self._piece(column, offsets[:-1], lengths)

    def decimal(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add a length and the bytes of a number, big-endian and as few as possible.

        In the form RAW_DECIMAL, the length is omitted.
        """
        low, high = _halves(array)
        sizes = _sizes(low, high)
        if live is not None:
            sizes = sizes * live
        if int(sizes.max(initial=0)) <= _WORD_BYTES:
            if plan.form is Form.DECIMAL:
                self._raw(sizes.astype(np.uint64) << np.uint64(1), 1, live)
            # A shift by 64 returns 0.
            shifts = np.uint64(64) - (sizes.astype(np.uint64) << np.uint64(3))
            self._fields().raw_of(low.byteswap() >> shifts, sizes)
            return
        if plan.form is Form.DECIMAL:
            self._varint(sizes, live)
        rows = _big_endian(low, high)
        ends = np.arange(_DECIMAL_BYTES, rows.size + 1, _DECIMAL_BYTES)
        self._piece(BinaryColumn(rows.reshape(-1), np.append(0, ends), None), ends - sizes, sizes)

    def fixed_decimal(self, plan: Leaf, array: pa.Array, live: Mask) -> None:
        """Add a number as a fixed number of bytes, big-endian."""
        low, high = _halves(array)
        self._out_of_range(plan, _sizes(low, high) > plan.size, live)
        rows = _big_endian(low, high)
        if plan.size > _DECIMAL_BYTES:
            signs = (high >> 63).astype(np.uint8)[:, np.newaxis]
            more = np.repeat(signs, plan.size - _DECIMAL_BYTES, axis=1)
            rows = np.concatenate([more, rows], axis=1)
        else:
            rows = rows[:, _DECIMAL_BYTES - plan.size :]
        self._matrix(rows, live)


_WRITERS: Final[dict[Form, Callable[[_Datums, Leaf, pa.Array, Mask], None]]] = {
    Form.NULL: _Datums.null,
    Form.BOOLEAN: _Datums.boolean,
    Form.INT: _Datums.integer,
    Form.LONG: _Datums.integer,
    Form.TIME: _Datums.time,
    Form.FLOAT: _Datums.single,
    Form.DOUBLE: _Datums.double,
    Form.BYTES: _Datums.bytes,
    Form.STRING: _Datums.bytes,
    Form.UUID: _Datums.uuid,
    Form.DECIMAL: _Datums.decimal,
    Form.RAW: _Datums.raw,
    Form.RAW_DECIMAL: _Datums.decimal,
    Form.FIXED: _Datums.fixed,
    Form.FIXED_UUID: _Datums.fixed_uuid,
    Form.FIXED_DECIMAL: _Datums.fixed_decimal,
    Form.ENUM: _Datums.symbol,
}

_HEX: Final = np.full(256, _NO_HEX, np.uint8)
for _digit in "0123456789abcdefABCDEF":
    _HEX[ord(_digit)] = int(_digit, 16)


def _and(mask: Bools, live: Mask) -> Bools:
    return mask if live is None else mask & live


def _bytes_of(plan: Leaf, array: pa.Array) -> BinaryColumn:
    """Return the bytes of binary data or strings. Invalid UTF-8 in strings becomes U+FFFD."""
    return BinaryColumn.of(valid_utf8(array) if plan.kind is Kind.STRING else array)


def plain_layout(array: pa.Array) -> pa.Array:
    """Return an array in a layout that encoders can read. Most arrays are not changed.

    Arrow says that a date64 is a whole day, and that a decimal has its precision. This is not
    checked, because any bytes may be under a null parent.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        # pyarrow cannot decode views. Under a null parent, an index may be outside the dictionary.
        words, indices = plain_layout(array.dictionary), _numbers(array.indices)
        is_inside = pa.array((indices >= 0) & (indices < len(words)))
        return words.take(pc.if_else(is_inside, array.indices, None))
    if pa.types.is_decimal(kind) and kind.bit_width != 8 * _DECIMAL_BYTES:
        return array.cast(pa.decimal128(kind.precision, kind.scale), safe=False)
    layout = next((layout for is_kind, layout in _LAYOUTS if is_kind(kind)), None)
    return array if layout is None else array.cast(layout, safe=not pa.types.is_date64(kind))


_LAYOUTS: Final = (
    (pa.types.is_string_view, pa.large_string()),
    (pa.types.is_binary_view, pa.large_binary()),
    (pa.types.is_fixed_size_binary, pa.large_binary()),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date64, pa.date32()),
)


def list_items(array: pa.Array) -> tuple[Int64s, pa.Array]:
    """Return (offsets, items): the offsets of the lists in `items`, int64, and all items."""
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)):
        counts = pc.list_value_length(array).fill_null(0).to_numpy()
        return np.append(0, np.cumsum(counts, dtype=np.int64)), array.flatten()
    if not len(array):
        return np.zeros(1, np.int64), array.values.slice(0, 0)
    offsets = array.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, array.values.slice(first, last - first)


def _numbers(array: pa.Array) -> Numbers:
    """Return the numbers of an array. A null becomes an arbitrary number."""
    kind, count = array.type, len(array)
    if pa.types.is_boolean(kind):
        buffers = [None, array.buffers()[1]]
        bare = pa.Array.from_buffers(kind, count, buffers, offset=array.offset)
        numbers: Numbers = bare.to_numpy(zero_copy_only=False)
        return numbers
    letter = (
        "u" if pa.types.is_unsigned_integer(kind) else "f" if pa.types.is_floating(kind) else "i"
    )
    dtype = np.dtype(f"{letter}{kind.bit_width // 8}")
    data = array.buffers()[1]
    if not count or data is None:
        return np.zeros(count, dtype)
    return np.frombuffer(data, dtype, count, array.offset * dtype.itemsize)


def _halves(array: pa.Array) -> tuple[UInt64s, Int64s]:
    """Return the lower and the upper eight bytes of each decimal."""
    data, count = array.buffers()[1], len(array)
    if not count or data is None:
        return np.zeros(count, np.uint64), np.zeros(count, np.int64)
    start = array.offset * _DECIMAL_BYTES
    words = np.frombuffer(data, np.uint64, 2 * count, start).reshape(-1, 2)
    return words[:, 0].copy(), words[:, 1].view(np.int64).copy()


def _sizes(low: UInt64s, high: Int64s) -> Int64s:
    """Return how many bytes each 128-bit number needs at least, in two's complement."""
    signed = low.view(np.int64)
    sizes = _sizes_of_words(signed)
    is_long = high != signed >> 63
    if is_long.any():
        # An upper word of 0 or -1 needs only one byte, for the sign.
        above = np.where((high == 0) | (high == -1), 1, _sizes_of_words(high))
        sizes = np.where(is_long, _WORD_BYTES + above, sizes)
    return sizes


def _sizes_of_words(signed: Int64s) -> Int64s:
    sizes = np.ones(len(signed), np.int64)
    magnitudes = signed ^ (signed >> 63)
    largest = int(magnitudes.max(initial=0))
    for size in range(1, _WORD_BYTES):
        limit = 1 << 8 * size - 1
        if largest < limit:
            break
        sizes += magnitudes >= limit
    return sizes


def _big_endian(low: UInt64s, high: Int64s) -> UInt8s:
    """Return 128-bit numbers as rows of 16 bytes."""
    return np.stack([high.view(np.uint64), low], axis=1).byteswap().view(np.uint8)


def _first_bytes(data: UInt8s, starts: Int64s, size: int) -> UInt8s:
    """Return a row of `size` bytes for each start. Bytes after the end of the data are 0."""
    if int(starts.max(initial=0)) + size > len(data):
        data = np.concatenate([data, np.zeros(size, np.uint8)])
    return np.lib.stride_tricks.sliding_window_view(data, size)[starts]

"""Generate the functions that read and write messages from the declarations of message classes.

A message is a dataclass whose annotations describe how each field is encoded::

    @dataclass(slots=True, kw_only=True)
    class PartitionProduceResponse:
        index: Int32
        error_code: Int16
        base_offset: Int64 = -1
        error_message: Annotated[str | None, Since(8), Nullable(8)] = None
        current_leader: Annotated[LeaderIdAndEpoch | None, Since(10), Tag(0)] = None

`reader(cls, version, flexible)` and `writer(...)` generate Python source for that version and
compile it, as dataclasses does for ``__init__``. Adjacent fixed-width fields are read by one
``struct`` call, and the schema is not interpreted for each message. Nested closures instead of
generated source took four times as long to read a Produce response of 64 partitions.

The rules are the same as in Kafka's schemas. Fields that a version does not contain are neither
read nor written and keep their default. Unknown tagged fields are skipped (KIP-482). A reader
raises ProtocolError, IndexError or struct.error for invalid bytes. `frames` turns all of these
exceptions into ProtocolError.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.wire import primitives
from spark_kafka_sink.wire.primitives import Buffer, Records, Writer

# Generated functions take and return messages of any class, so their type is Any.
Reader: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]
MessageWriter: TypeAlias = Callable[[Any, Writer], None]
_Compiled = TypeVar("_Compiled")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field of fixed width; `letter` is its `struct` format character."""

    letter: str


@dataclass(frozen=True, slots=True)
class Since:
    """The first version that has the field."""

    version: int


@dataclass(frozen=True, slots=True)
class Until:
    """The last version that has the field."""

    version: int


@dataclass(frozen=True, slots=True)
class Nullable:
    """The first version in which the field may be null."""

    version: int


@dataclass(frozen=True, slots=True)
class Tag:
    """The number of a tagged field. A field without a `Tag` is not tagged."""

    number: int


Bool: TypeAlias = Annotated[bool, Fixed("?")]
Int8: TypeAlias = Annotated[int, Fixed("b")]
Int16: TypeAlias = Annotated[int, Fixed("h")]
Int32: TypeAlias = Annotated[int, Fixed("i")]
Int64: TypeAlias = Annotated[int, Fixed("q")]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message in one version; wire_type: the annotated type, without None."""

    name: str
    wire_type: Any
    letter: str | None
    is_array: bool
    nullable: bool
    tag: int | None


def fields_of(cls: type, version: int) -> list[Field]:
    """Return the fields of the message class `cls` that `version` contains, in wire order."""
    hints = get_type_hints(cls, include_extras=True)
    found = (_field(f.name, hints[f.name], version) for f in dataclasses.fields(cls))
    return [field for field in found if field is not None]


def _field(name: str, hint: Any, version: int) -> Field | None:
    base, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    of_kind = {type(note): note for note in notes}
    if Since in of_kind and version < of_kind[Since].version:
        return None
    if Until in of_kind and version > of_kind[Until].version:
        return None
    base = _without_none(base)
    is_array = get_origin(base) is list
    if is_array:
        base = get_args(base)[0]
        if get_origin(base) is Annotated:
            base, *inner = get_args(base)
            of_kind |= {type(note): note for note in inner}
    return Field(
        name=name,
        wire_type=base,
        letter=of_kind[Fixed].letter if Fixed in of_kind else None,
        is_array=is_array,
        nullable=Nullable in of_kind and version >= of_kind[Nullable].version,
        tag=of_kind[Tag].number if Tag in of_kind else None,
    )


def _without_none(hint: Any) -> Any:
    if isinstance(hint, UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
    return hint


class _Source:
    """Collects the lines of one generated function, and the names that the lines use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"ProtocolError": ProtocolError}

    def name(self, value: Any, hint: str) -> str:
        """Return the name of `value` in the generated source."""
        name = f"{hint}_{len(self.names)}"
        self.names[name] = value
        return name

    def struct(self, letters: str) -> tuple[str, int]:
        compiled = struct.Struct(">" + letters)
        return self.name(compiled, "s"), compiled.size

    def primitive(
        self, verb: Literal["read", "write"], kind: str, *, flexible: bool, nullable: bool = False
    ) -> str:
        """Return the name of the function in `primitives` for one type in one encoding."""
        null = "nullable_" if nullable and verb == "read" else ""
        function = f"{verb}_{'compact_' if flexible else ''}{null}{kind}"
        self.names[function] = getattr(primitives, function)
        return function

    def compile(self, signature: str, filename: str) -> Any:
        body = "\n".join(f"    {line}" for line in self.lines)
        source = f"def {signature}:\n{body}\n"
        # The source consists of this module's templates and of field names of this package's
        # classes.
        exec(compile(source, filename, "exec"), self.names)  # noqa: S102
        return self.names[signature.split("(", maxsplit=1)[0]]


def _runs(fields: list[Field]) -> Iterator[list[Field]]:
    """Group adjacent fixed-width fields; every other field is a group by itself."""
    run: list[Field] = []
    for field in fields:
        if field.letter is not None and not field.is_array:
            run.append(field)
            continue
        if run:
            yield run
            run = []
        yield [field]
    if run:
        yield run


def _compiled_once(compile_one: Callable[..., _Compiled]) -> Callable[..., _Compiled]:
    """Cache the compiled function of each version of each class.

    functools.cache is not used, because mypy would then not know the types.
    """
    compiled: dict[tuple[type, int, bool], _Compiled] = {}

    def get(cls: type, version: int, *, flexible: bool) -> _Compiled:
        key = (cls, version, flexible)
        if key not in compiled:
            compiled[key] = compile_one(cls, version, flexible=flexible)
        return compiled[key]

    return get


# The smallest size in bytes of a value. A null or empty value consists of a length field alone; a
# UUID has no length field. The keys are the type, and whether the encoding is compact.
_MIN_BYTES = {
    ("string", False): 2, ("bytes", False): 4, ("array", False): 4, ("uuid", False): 16,
    ("string", True): 1, ("bytes", True): 1, ("array", True): 1, ("uuid", True): 16,
}  # fmt: skip
_KINDS = {str: "string", bytes: "bytes", memoryview: "bytes", Records: "bytes", UUID: "uuid"}


@_compiled_once
def reader(cls: type, version: int, *, flexible: bool) -> Reader:
    """Return a compiled ``read(buffer, position) -> (message, next position)`` for one version."""
    source = _Source()
    fields = fields_of(cls, version)
    plain = [f for f in fields if f.tag is None]
    source.lines.append(f"m = {source.name(object.__new__, 'new')}({source.name(cls, 'message')})")
    _set_defaults(source, cls, {f.name for f in plain})
    for run in _runs(plain):
        _read_run(source, run, version, flexible=flexible)
    if flexible:
        _read_tagged(source, [f for f in fields if f.tag is not None], version)
    source.lines.append("return m, pos")
    compiled: Reader = source.compile("read(buf, pos)", f"<{cls.__name__} v{version} reader>")
    return compiled


def _set_defaults(source: _Source, cls: type, read: set[str]) -> None:
    """Set defaults for the fields that this version does not contain, and for all tagged fields."""
    for field in dataclasses.fields(cls):
        if field.name in read:
            continue
        if field.default_factory is not dataclasses.MISSING:
            default = f"{source.name(field.default_factory, 'make')}()"
        else:
            default = source.name(field.default, "default")
        source.lines.append(f"m.{field.name} = {default}")


def _read_run(source: _Source, run: list[Field], version: int, *, flexible: bool) -> None:
    field = run[0]
    if field.letter is not None and not field.is_array:
        packed, size = source.struct("".join(f.letter or "" for f in run))
        targets = ", ".join(f"m.{f.name}" for f in run)
        source.lines.append(f"{targets}, = {packed}.unpack_from(buf, pos); pos += {size}")
    elif field.is_array:
        _read_array(source, field, version, flexible=flexible)
    else:
        function = _value_reader(source, field, version, flexible=flexible)
        source.lines.append(f"m.{field.name}, pos = {function}(buf, pos)")


def _read_array(source: _Source, field: Field, version: int, *, flexible: bool) -> None:
    length = source.primitive("read", "array_length", flexible=flexible, nullable=field.nullable)
    element = _min_bytes(field, version, flexible=flexible)
    source.lines.append(f"n, pos = {length}(buf, pos, {element})")
    if field.letter is not None:
        unpack = source.name(struct.unpack_from, "unpack")
        build = [
            f"m.{field.name} = list({unpack}(f'>{{n}}{field.letter}', buf, pos))",
            f"pos += {element} * n",
        ]
    else:
        function = _value_reader(source, field, version, flexible=flexible)
        build = [
            "items = []; add = items.append",
            "for _ in range(n):",
            f"    item, pos = {function}(buf, pos); add(item)",
            f"m.{field.name} = items",
        ]
    if not field.nullable:
        source.lines += build
        return
    source.lines += [f"if n == -1: m.{field.name} = None", "else:", *(f"    {b}" for b in build)]


def _min_bytes(field: Field, version: int, *, flexible: bool) -> int:
    """Return the smallest size in bytes of one value of `field`, or of one element of an array."""
    if field.letter is not None:
        return struct.calcsize(">" + field.letter)
    kind = _KINDS.get(field.wire_type)
    if kind is not None:
        return _MIN_BYTES[kind, flexible]
    tags = 1 if flexible else 0
    return tags + sum(
        _MIN_BYTES["array", flexible]
        if inner.is_array
        else _min_bytes(inner, version, flexible=flexible)
        for inner in fields_of(field.wire_type, version)
        if inner.tag is None
    )


def _value_reader(source: _Source, field: Field, version: int, *, flexible: bool) -> str:
    """Return the name of the function that reads one value of `field`, or one array element."""
    kind = _KINDS.get(field.wire_type)
    if kind is None:
        return source.name(reader(field.wire_type, version, flexible=flexible), "read_struct")
    if kind == "uuid":
        return source.primitive("read", "uuid", flexible=False)
    nullable = (field.nullable and not field.is_array) or kind == "bytes"
    return source.primitive("read", kind, flexible=flexible, nullable=nullable)


def _read_tagged(source: _Source, tagged: list[Field], version: int) -> None:
    """Read the known tagged fields. Skip unknown fields, and extra bytes in known fields."""
    varint = source.name(primitives.read_unsigned_varint, "uvarint")
    need = source.name(primitives.need, "need")
    source.lines += [
        f"n, pos = {varint}(buf, pos)",
        "for _ in range(n):",
        f"    tag, pos = {varint}(buf, pos)",
        f"    size, pos = {varint}(buf, pos)",
        f"    end = {need}(buf, pos, size)",
    ]
    for field in tagged:
        inner = _Source()
        inner.names = source.names
        _read_run(inner, [field], version, flexible=True)
        source.lines += [
            f"    if tag == {field.tag}:",
            *(f"        {line}" for line in inner.lines),
            f"        if pos > end: raise ProtocolError('{field.name} is beyond its given size')",
        ]
    source.lines.append("    pos = end")


@_compiled_once
def writer(cls: type, version: int, *, flexible: bool) -> MessageWriter:
    """Return a compiled ``write(message, writer)`` for one version of `cls`."""
    source = _Source()
    fields = fields_of(cls, version)
    source.lines.append("out = w.out")
    for run in _runs([f for f in fields if f.tag is None]):
        _write_run(source, run, version, flexible=flexible)
    if flexible:
        _write_tagged(source, cls, [f for f in fields if f.tag is not None], version)
    compiled: MessageWriter = source.compile("write(m, w)", f"<{cls.__name__} v{version} writer>")
    return compiled


def _write_run(source: _Source, run: list[Field], version: int, *, flexible: bool) -> None:
    field = run[0]
    if field.letter is not None and not field.is_array:
        packed, _ = source.struct("".join(f.letter or "" for f in run))
        values = ", ".join(f"m.{f.name}" for f in run)
        source.lines.append(f"out += {packed}.pack({values})")
    elif field.is_array:
        _write_array(source, field, version, flexible=flexible)
    else:
        source.lines.append(_write_value(source, field, f"m.{field.name}", version, flexible))


def _write_array(source: _Source, field: Field, version: int, *, flexible: bool) -> None:
    length = source.primitive("write", "array_length", flexible=flexible)
    if field.letter is not None:
        pack = source.name(struct.pack, "pack")
        each = [f"out += {pack}(f'>{{len(items)}}{field.letter}', *items)"]
    else:
        each = [
            "for item in items:",
            f"    {_write_value(source, field, 'item', version, flexible)}",
        ]
    lines = [f"{length}(out, len(items))", *each]
    source.lines.append(f"items = m.{field.name}")
    if field.nullable:
        lines = [f"if items is None: {length}(out, -1)", "else:", *(f"    {b}" for b in lines)]
    source.lines += lines


def _write_value(source: _Source, field: Field, value: str, version: int, flexible: bool) -> str:  # noqa: FBT001 - internal, always named by its callers' flag
    kind = _KINDS.get(field.wire_type)
    if kind is None:
        write = source.name(writer(field.wire_type, version, flexible=flexible), "write_struct")
        return f"{write}({value}, w)"
    if kind == "uuid":
        return f"out += {value}.bytes"
    if field.wire_type is Records:
        return f"{source.primitive('write', 'records', flexible=flexible)}(w, {value})"
    if kind == "string" and not field.nullable:
        check = source.name(_not_none, "not_none")
        value = f"{check}({value}, {field.name!r})"
    return f"{source.primitive('write', kind, flexible=flexible)}(out, {value})"


def _not_none(value: str | None, name: str) -> str:
    if value is None:
        message = f"the field {name} must not be None in this version of the protocol"
        raise ProtocolError(message)
    return value


def _write_tagged(source: _Source, cls: type, tagged: list[Field], version: int) -> None:
    """Write the tagged fields that differ from their defaults, in the order of their numbers."""
    if not tagged:
        source.lines.append("out.append(0)")
        return
    source.lines.append("tagged = []")
    varint = source.name(primitives.write_unsigned_varint, "uvarint")
    make = source.name(Writer, "Writer")
    defaults = {f.name: _default(f) for f in dataclasses.fields(cls)}
    for field in sorted(tagged, key=lambda f: f.tag or 0):
        inner = _Source()
        inner.names = source.names
        _write_run(inner, [field], version, flexible=True)
        default = source.name(defaults[field.name], "default")
        source.lines += [
            f"if m.{field.name} != {default}:",
            f"    outer, w = w, {make}(); out = w.out",
            *(f"    {line}" for line in inner.lines),
            f"    tagged.append(({field.tag}, w.out)); w = outer; out = w.out",
        ]
    source.lines += [
        f"{varint}(out, len(tagged))",
        "for tag, data in tagged:",
        f"    {varint}(out, tag); {varint}(out, len(data)); out += data",
    ]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default

"""``keyFormat``, ``valueFormat`` and their schemas: the options for keys and values with a schema.

A schema in an option may refer to other schemas by their names. `keyReferences` and
`valueReferences` list these other schemas, as the JSON that the API of schema registries uses.

If `to_kafka` makes a key or value for a format, it writes a mark into the metadata of the column.
Then the option keyFormat or valueFormat is not needed. The mark follows the column through Spark's
operations, as the mark of `layout_mark` does.

A column that `to_kafka` has converted to strings is marked, too. Avro would encode these strings
instead of the original values, and the strings of some types are not JSON.

For JSON, the mark also contains the type of the rows, and their schema is derived from this type. A
union of two DataFrames has only the mark of the first one. So each row has the number of its type
(`type_number`) beside its JSON. Tasks compare it with the number of the type in the mark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config import may_be_java_class
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import is_utf8
from spark_kafka_sink.schema_registry.schemas import SchemaReference

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType

    from spark_kafka_sink.serde.avro_plan import Plan
    from spark_kafka_sink.serde.json_schema import JsonPlan

AVRO: Final = "avro"
JSON_SR: Final = "json_sr"
_FORMATS: Final = (AVRO, JSON_SR)
COLUMNS_WITH_FORMAT: Final = ("key", "value")
FORMAT_OPTIONS: Final = (
    "keyFormat",
    "keyReferences",
    "keySchema",
    "recordName",
    "recordNamespace",
    "valueFormat",
    "valueReferences",
    "valueSchema",
)
# The formats of Java's serializers for a schema registry, by a part of the name of their class.
_OF_SERIALIZERS: Final = {"avro": AVRO, "jsonschema": JSON_SR}
# A text file may begin with this byte order mark, which is not a part of the JSON.
_BOM: Final = "\ufeff"
_MARK: Final = "pykafka.format"
_TYPE: Final = "pykafka.json.type"
_CONVERTED: Final = "pykafka.converted"
# The types whose strings are always JSON after to_kafka has converted a column. All rows of type
# void are null and stay null. float and double are not in the list, because a string may be NaN.
_JSON_AS_TEXT: Final = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "decimal"),
    *("struct", "array", "map", "variant", "void"),
)
_JSON_FIELD, _NUMBER_FIELD = "json", "type"
_NUMBERED: Final = f"struct<{_JSON_FIELD}:string,{_NUMBER_FIELD}:int>"


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The format options that the user set.

    formats, schemas, references: dictionaries by the name of the column, key or value.
    """

    formats: Mapping[str, str] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, tuple[SchemaReference, ...]] = field(default_factory=dict)
    record_name: str | None = None
    record_namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """How tasks encode a column.

    plan: how a row is encoded. prefix: the bytes before each encoded row. header: the key and value
    of a header to add to each row whose column is not null; None for no header. type_number: for a
    column of `numbered_json`, the number that each row must have; else None.
    """

    column: str
    plan: Plan | JsonPlan
    prefix: bytes = b""
    header: tuple[str, bytes] | None = None
    type_number: int | None = None


def instead_of_serializer(column: str, serializer: str) -> str:
    """Return what to do instead of setting a serializer: the end of an error message.

    column: key or value. serializer: the value of the option key.serializer or value.serializer.
    """
    cast = f"cast the {column} column to string or binary"
    if not may_be_java_class(serializer):
        return cast
    class_name = serializer.rpartition(".")[2].lower()
    for part, its_format in _OF_SERIALIZERS.items():
        if part in class_name:
            option = f"{column}Format={its_format}"
            return f"Java classes cannot run here; set {option} and schema.registry.url instead"
    return (
        f"{cast}. Java classes cannot run here; use a function of Spark, such as to_json or "
        "to_protobuf"
    )


def format_options(given: Mapping[str, str]) -> FormatOptions:
    """Check the options and return them. given: options with names in lower case.

    Raise ConfigException for an unknown format, an invalid name or invalid references.
    """
    formats, schemas, references = {}, {}, {}
    for column in COLUMNS_WITH_FORMAT:
        chosen = given.get(f"{column}format")
        if chosen is not None:
            if chosen.strip().lower() not in _FORMATS:
                message = f"option {column}Format is {chosen!r}: expected {', '.join(_FORMATS)}"
                raise ConfigException(message)
            formats[column] = chosen.strip().lower()
        schema = given.get(f"{column}schema")
        if schema is not None:
            schemas[column] = schema.removeprefix(_BOM)
        used = given.get(f"{column}references")
        if used is not None:
            references[column] = _references(f"{column}References", used.removeprefix(_BOM))
    name, namespace = given.get("recordname"), given.get("recordnamespace")
    if (name, namespace) != (None, None):
        _check_record_name(name, namespace)
    return FormatOptions(formats, schemas, references, name, namespace)


def _check_record_name(name: str | None, namespace: str | None) -> None:
    """Raise ConfigException if the name or the namespace of a record is invalid."""
    from spark_kafka_sink.serde.avro_schema import NAME_RULE, is_name  # noqa: PLC0415 - tasks do not need it

    if name is not None and not is_name(name):
        message = f"option recordName is {name!r}: expected {NAME_RULE}"
        raise ConfigException(message)
    if namespace is not None and not all(map(is_name, namespace.split("."))):
        message = (
            f"option recordNamespace is {namespace!r}: expected names with dots between them, each "
            f"of them {NAME_RULE}"
        )
        raise ConfigException(message)


def _references(option: str, text: str) -> tuple[SchemaReference, ...]:
    """Return the references in an option."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    parts = found if isinstance(found, list) else [None]
    references = [_reference(each) for each in parts]
    if None not in references:
        return tuple(each for each in references if each is not None)
    message = (
        f"option {option} is {text!r}: expected a JSON list of references, such as "
        '[{"name": "com.shop.Id", "subject": "ids", "version": 1}]'
    )
    raise ConfigException(message)


def _reference(found: object) -> SchemaReference | None:
    if not isinstance(found, dict) or set(found) != {"name", "subject", "version"}:
        return None
    name, subject, version = found["name"], found["subject"], found["version"]
    is_version = isinstance(version, int) and not isinstance(version, bool) and version > 0
    if not isinstance(name, str) or not isinstance(subject, str) or not is_version:
        return None
    are_names = all(each and is_utf8(each) for each in (name, subject))
    return SchemaReference(name, subject, version) if are_names else None


def as_metadata(chosen: str, rows: StructType | None = None) -> dict[str, Any]:
    """Return column metadata that marks a column's format. rows: for JSON, the type of the rows."""
    return {_MARK: chosen} if rows is None else {_MARK: chosen, _TYPE: _bare(rows).json()}


def as_converted(from_type: str) -> dict[str, Any]:
    """Return column metadata for a column converted to string. from_type: its original type."""
    return {_CONVERTED: from_type}


def refuse_converted(chosen: Mapping[str, str], schema: StructType) -> None:
    """Raise ConfigException for a column with a format, if `to_kafka` has converted it to string.

    For Avro, always raise it. For JSON, raise it only if the strings of the original type are not
    always JSON. chosen: the format of each column that has one.
    """
    for column in schema.fields:
        from_type = (column.metadata or {}).get(_CONVERTED)
        name, format_name = column.name, chosen.get(column.name)
        if from_type is None or format_name is None:
            continue
        if format_name == JSON_SR and from_type.partition("(")[0] in _JSON_AS_TEXT:
            continue
        arguments = to_kafka_arguments(name, format_name)
        if format_name == AVRO:
            message = (
                f"option {name}Format is {AVRO}, but to_kafka has converted the column "
                f"{name} from {from_type} to a string: call to_kafka with {arguments}; or, if "
                "Avro strings are what you want, cast the column to string before to_kafka"
            )
        else:
            message = (
                f"option {name}Format is {JSON_SR}, but to_kafka has converted the column "
                f"{name} from {from_type} to strings, which are not always JSON: call to_kafka "
                f"with {arguments}, or pass strings of JSON"
            )
        raise ConfigException(message)


def to_kafka_arguments(column: str, format_name: str) -> str:
    """Return the `to_kafka` arguments that make a column for a format, for error messages."""
    if column == "value":
        return f'value="{format_name}"'
    is_json = format_name == JSON_SR
    return f'{"a struct as key and " if is_json else ""}key_format="{format_name}"'


def numbered_json(texts: Column, rows: StructType) -> Column:
    """Return a column of structs, each with the JSON of a row and the number of the rows' type."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everywhere; tasks do not need it

    return F.struct(texts.alias(_JSON_FIELD), F.lit(type_number(rows)).alias(_NUMBER_FIELD))


def type_number(rows: StructType) -> int:
    """Return a 32-bit hash that identifies a type of rows."""
    digest = hashlib.sha256(_bare(rows).json().encode()).digest()
    return int.from_bytes(digest[:4], "big", signed=True)


def json_type(column: StructField) -> StructType | None:
    """Return the type of the rows in a column of `numbered_json`, or None for any other column."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - tasks need no types

    marked = (column.metadata or {}).get(_TYPE)
    if marked is None or column.dataType.simpleString() != _NUMBERED:
        return None
    return StructType.fromJson(json.loads(marked))


def _bare(kind: DataType) -> DataType:
    """Return a type without comments, collations and user-defined types."""
    from pyspark.sql import types as T  # noqa: N812, PLC0415 - as everywhere; tasks need no types

    if isinstance(kind, T.UserDefinedType):
        return _bare(kind.sqlType())
    if isinstance(kind, T.StructType):
        fields = [T.StructField(f.name, _bare(f.dataType), f.nullable) for f in kind.fields]
        return T.StructType(fields)
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_bare(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(_bare(kind.keyType), _bare(kind.valueType), kind.valueContainsNull)
    return T.StringType() if isinstance(kind, T.StringType) else kind


def chosen_formats(options: FormatOptions, schema: StructType) -> dict[str, str]:
    """Return the format of each column that has one, from the options and the marks.

    Raise ConfigException if the option and the mark of a column differ. Also raise it if the format
    in a mark is unknown, because a newer version of the sink made the mark.
    """
    chosen = dict(options.formats)
    for column in schema.fields:
        marked = (column.metadata or {}).get(_MARK)
        if marked is None or column.name not in COLUMNS_WITH_FORMAT:
            continue
        if marked not in _FORMATS:
            message = (
                f"to_kafka has made the column {column.name} for the format {marked}, which this "
                "version of the sink does not have: use the same version everywhere"
            )
            raise ConfigException(message)
        if chosen.setdefault(column.name, marked) != marked:
            message = (
                f"option {column.name}Format is {options.formats.get(column.name)}, but to_kafka "
                f"has made the column {column.name} for the format {marked}: use the same format"
            )
            raise ConfigException(message)
    return chosen

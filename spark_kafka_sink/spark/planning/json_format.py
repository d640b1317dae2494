"""JSON with a schema registry, for one column. Rows are JSON already; tasks add the schema id.

A column that `to_kafka` has made for this format is marked: its metadata contains the type of the
rows (see `formats`). A schema is derived from this type, or the type is checked against a schema.
Any other column of strings or bytes is not checked against a schema. It needs a schema in an option
or in the registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import types as T  # noqa: N812 - as everywhere

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.logs import masked
from spark_kafka_sink.schema_registry.schemas import JSON, SchemaReference
from spark_kafka_sink.serde.avro_schema import ReferencedSchema
from spark_kafka_sink.serde.json_references import JsonSchema
from spark_kafka_sink.serde.json_schema import (
    JSON_TYPES,
    JsonPlan,
    derive_json_schema,
    fit_json,
    parse_json_schema,
)
from spark_kafka_sink.serde.wire_format import schema_id_prefix
from spark_kafka_sink.spark.formats import (
    JSON_SR,
    ColumnEncoding,
    FormatOptions,
    json_type,
    to_kafka_arguments,
    type_number,
)
from spark_kafka_sink.spark.planning.given_schemas import (
    full_record_name,
    given_schema,
    invalid_schema,
    is_schema_in_file,
)
from spark_kafka_sink.spark.planning.spark_types import column_type

_WHAT: Final = "a JSON Schema"
_NAMES_OF_TYPES: Final = frozenset((*JSON_TYPES.values(), "null"))
_MAPS_OF_SCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS: Final = ("items", "additionalProperties", "not", "if")


class JsonFormat:
    """JSON with a schema registry, for one column; see `SchemaFormat`."""

    schema_type = JSON

    def __init__(self, column: T.StructField, options: FormatOptions) -> None:
        """Raise DataException if the rows cannot be JSON.

        They can be JSON if `to_kafka` made the column for this format, or if its type is string or
        binary.
        """
        kind, marked = column.dataType, json_type(column)
        is_text = isinstance(kind, T.BinaryType) or kind.simpleString() == "string"
        if marked is None and not is_text:
            message = (
                f"column {column.name} is of type {kind.simpleString()}, but its format json_sr "
                "needs strings or bytes of JSON: call to_kafka with "
                f"{to_kafka_arguments(column.name, JSON_SR)}, or use to_json and set a schema"
            )
            raise DataException(message)
        self._name = column.name
        self.kind = None if marked is None else column_type(marked)
        self._type_number = None if marked is None else type_number(marked)
        self._options = options
        self.is_in_file = is_schema_in_file(column.name, options)
        # Strings and bytes are not compared with a schema.
        self.needs_referenced = marked is not None

    def given(self) -> str | None:
        """Return the schema in the option, or None if it is not set.

        Raise ConfigException if the option is the path of a file, and the JSON object in the file
        contains no keyword of JSON Schema. Such a file may be, for example, a private key, which
        must not be registered.
        """
        text = given_schema(self._name, self._options, _WHAT)
        if text is not None and self.is_in_file and not _has_keyword(self._parsed(text)):
            message = (
                f"option {self._name}Schema is {masked(self._options.schemas[self._name])!r}, a "
                "file without a JSON Schema: expected a keyword of JSON Schema at the top of the "
                "object, such as type, properties or $ref"
            )
            raise ConfigException(message)
        return text

    def given_references(self) -> tuple[SchemaReference, ...]:
        """Return the references in the option."""
        return self._options.references.get(self._name, ())

    def derived(self) -> str:
        """Return a schema for the type of the rows."""
        if self.kind is None:
            # For a key, use.schema.id has an effect only if the value has no format.
            options = "keySchema" if self._name == "key" else "valueSchema or use.schema.id"
            message = (
                f"no schema can be derived from the strings or bytes in column {self._name}: call "
                f"to_kafka with {to_kafka_arguments(self._name, JSON_SR)}, or set {options}"
            )
            raise ConfigException(message)
        title = full_record_name(self._name, self._options)
        return derive_json_schema(self.kind, self._name, title)

    def given_name(self) -> str | None:
        """Return the title of the schema if the options set it, else None."""
        text = self.given()
        if text is not None:
            schema = self._parsed(text)
            title = schema.get("title") if isinstance(schema, Mapping) else None
            return title if isinstance(title, str) else None
        is_named = self._options.record_name is not None
        return full_record_name(self._name, self._options) if is_named else None

    def how_to_name(self) -> str:
        """Return how the user can set the name of the schema, for error messages."""
        if self._name in self._options.schemas:
            return f"give the schema in {self._name}Schema a title, or set {self._name}Subject"
        if self.kind is None:
            return f"set {self._name}Schema to a schema with a title, or set {self._name}Subject"
        return f"set recordName, or set {self._name}Schema to a schema with a title"

    def encoding(
        self, text: str, referenced: Sequence[ReferencedSchema] = (), schema_id: int | None = None
    ) -> ColumnEncoding:
        """Return how tasks encode the column with a schema; see `SchemaFormat.encoding`."""
        schema, plan = self._parsed(text), JsonPlan()
        if self.kind is not None:
            documents = {each.name: _parsed_referenced(each) for each in referenced}
            plan = fit_json(self.kind, schema, self._name, documents)
        prefix = b"" if schema_id is None else schema_id_prefix(schema_id)
        return ColumnEncoding(self._name, plan, prefix, type_number=self._type_number)

    def _parsed(self, text: str) -> JsonSchema:
        try:
            return parse_json_schema(text)
        except DataException as error:
            raise invalid_schema(self._name, self._options, _WHAT, error) from None


def _parsed_referenced(referenced: ReferencedSchema) -> JsonSchema:
    try:
        return parse_json_schema(referenced.text)
    except DataException as error:
        raise DataException(f"{referenced.where}: {error.message}") from None


def _has_keyword(schema: JsonSchema) -> bool:
    """Return whether a JSON object contains a known keyword of JSON Schema.

    Every JSON object is a valid schema, because unknown keywords are ignored. So an object without
    a known keyword is probably not meant as a schema.
    """
    if not isinstance(schema, Mapping):
        return True
    names = schema.get("type")
    types = names if isinstance(names, list) else [names]
    return (
        any(isinstance(each, str) and each in _NAMES_OF_TYPES for each in types)
        or any(isinstance(schema.get(each), str) for each in ("$ref", "$dynamicRef", "$schema"))
        or any(_is_map_of_schemas(schema.get(each)) for each in _MAPS_OF_SCHEMAS)
        or any(
            _is_list_of_schemas(schema.get(each))
            for each in ("allOf", "anyOf", "oneOf", "prefixItems")
        )
        or any(isinstance(schema.get(each), Mapping | bool) for each in _SCHEMAS)
        or any(isinstance(schema.get(each), list) for each in ("enum", "required", "items"))
        or "const" in schema
    )


def _is_map_of_schemas(found: object) -> bool:
    return isinstance(found, Mapping) and all(
        isinstance(each, Mapping | bool) for each in found.values()
    )


def _is_list_of_schemas(found: object) -> bool:
    return bool(found) and isinstance(found, list) and isinstance(found[0], Mapping | bool)

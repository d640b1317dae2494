"""Makes the plans with which tasks encode keys and values. The driver does this before the job.

The schema of a column comes from an option or from a schema registry, or it is derived from the
type of the column. Tasks get the plan, but not the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from pyspark.sql import types as T  # noqa: N812 - as everywhere

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.schema_registry.schemas import AVRO as AVRO_TYPE
from spark_kafka_sink.schema_registry.schemas import SchemaReference
from spark_kafka_sink.schema_registry.settings import URL_OPTION, RegistrySettings
from spark_kafka_sink.serde.avro_plan import Form, Leaf, fit
from spark_kafka_sink.serde.avro_schema import ReferencedSchema, parse_schema, schema_name
from spark_kafka_sink.serde.column_types import Kind, near_name
from spark_kafka_sink.serde.derived_avro import derive_schema, has_record
from spark_kafka_sink.serde.wire_format import schema_id_prefix
from spark_kafka_sink.spark.formats import (
    AVRO,
    COLUMNS_WITH_FORMAT,
    JSON_SR,
    ColumnEncoding,
    FormatOptions,
    chosen_formats,
    json_type,
    refuse_converted,
)
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.planning.given_schemas import (
    check_record_name,
    full_record_name,
    given_schema,
    invalid_schema,
    is_schema_in_file,
    record_name,
)
from spark_kafka_sink.spark.planning.json_format import JsonFormat
from spark_kafka_sink.spark.planning.registered_schemas import SchemaFormat, subject_of
from spark_kafka_sink.spark.planning.registry_questions import (
    RegistryQuestion,
    answers,
    inherited_login,
)
from spark_kafka_sink.spark.planning.spark_types import column_type


def with_encodings(options: SinkOptions, schema: T.StructType, *, reads_files: bool) -> SinkOptions:
    """Return the options with the encodings of the columns that have a format.

    With a schema registry, only check the options, and return them without encodings, because
    `with_registered_encodings` adds the encodings. reads_files: whether to read schemas in files.
    If False, a column whose schema is in a file is not checked against it, and gets no encoding.
    Raise ConfigException for an invalid schema or option, and DataException for a column that does
    not fit its schema.
    """
    given = options.formats
    chosen = chosen_formats(given, schema)
    _check_effects(options, chosen, schema)
    encodings = []
    for column in _columns(chosen, schema):
        schema_format = _FORMATS[chosen[column.name]](column, given)
        if not reads_files and is_schema_in_file(column.name, given):
            continue
        text = schema_format.given()
        if options.registry is None:
            encodings.append(
                schema_format.encoding(schema_format.derived() if text is None else text)
            )
            continue
        if text is not None and not schema_format.given_references():
            schema_format.encoding(text)
        if not _has_id(options.registry, column.name, chosen):
            subject_of(options.registry, column.name, options.topic, schema_format)
    return replace(options, encodings=tuple(encodings))


def encoded_columns(options: SinkOptions, schema: T.StructType) -> list[str]:
    """Return the names of the columns that tasks encode."""
    chosen = chosen_formats(options.formats, schema)
    return [column.name for column in _columns(chosen, schema)]


def adds_headers(options: SinkOptions) -> bool:
    """Return whether tasks add headers with the ids of schemas."""
    return options.registry is not None and bool(options.registry.ids_in_headers)


def with_registered_encodings(
    options: SinkOptions, schema: T.StructType, *, may_remember: bool
) -> SinkOptions:
    """Query the schema registry. Return the options with the encodings of the columns.

    The returned options contain neither registry settings nor schemas, because tasks do not need
    them. may_remember: whether a schema that was chosen before may be reused. It is reused for
    latest.cache.ttl.sec, and longer while the registry does not respond. Raise the exceptions of
    `choose_schema`.
    """
    settings = options.registry
    if settings is None:
        return replace(options, formats=FormatOptions()) if options.encodings else options
    chosen = chosen_formats(options.formats, schema)
    questions = []
    for column in _columns(chosen, schema):
        schema_format = _FORMATS[chosen[column.name]](column, options.formats)
        own = settings
        if not _has_id(settings, column.name, chosen):
            own = replace(settings, schema_id=None)
        write_id = "" if may_remember else options.write_id or ""
        login = inherited_login(own, options.producer)
        asked = RegistryQuestion(own, column.name, options.topic, schema_format, write_id, login)
        questions.append(asked)
    encodings = answers(questions, options.producer, may_remember=may_remember)
    return replace(options, encodings=tuple(encodings), formats=FormatOptions(), registry=None)


def _columns(chosen: Mapping[str, str], schema: T.StructType) -> list[T.StructField]:
    columns = {each.name: each for each in schema.fields}
    return [columns[name] for name in COLUMNS_WITH_FORMAT if name in chosen and name in columns]


def _has_id(settings: RegistrySettings, column: str, chosen: Mapping[str, str]) -> bool:
    """Return whether use.schema.id applies to a column.

    It applies to the value if the value has a format, and otherwise to the key.
    """
    return settings.schema_id is not None and (column == "value" or "value" not in chosen)


def _check_effects(options: SinkOptions, chosen: Mapping[str, str], schema: T.StructType) -> None:
    """Raise ConfigException for format options without effect, and for contradictory options."""
    given, registry = options.formats, options.registry
    refuse_converted(chosen, schema)
    columns = {each.name: each for each in schema.fields}
    for name in chosen:
        if name not in columns:
            message = (
                f"option {name}Format is set, but the data has no column {name}"
                f"{near_name(name, columns)}"
            )
            raise ConfigException(message)
    for column in COLUMNS_WITH_FORMAT:
        if column in given.schemas and column not in chosen:
            message = f"option {column}Schema has no effect: set {column}Format, or remove it"
            raise ConfigException(message)
        if column in given.references and (column not in given.schemas or registry is None):
            needed = URL_OPTION if column in given.schemas else f"{column}Schema"
            message = f"option {column}References has no effect: set {needed}, or remove it"
            raise ConfigException(message)
    derived = [name for name in chosen if name not in given.schemas]
    if not any(_has_name(columns[name], chosen[name]) for name in derived):
        for option in ("recordName", "recordNamespace"):
            if option.lower() in _names_given(given):
                message = f"option {option} has no effect, because no schema is derived: remove it"
                raise ConfigException(message)
    if registry is None:
        _check_works_without_registry(chosen)
    else:
        _check_effects_of_registry(registry, given, chosen)


def _check_works_without_registry(chosen: Mapping[str, str]) -> None:
    for name, each in chosen.items():
        if each == JSON_SR:
            plain = 'with value="json"' if name == "value" else "without key_format"
            message = (
                f"the format of column {name} is {JSON_SR}, which needs a schema registry: set "
                f"{URL_OPTION}, or remove the format, and make plain JSON by to_kafka {plain}"
            )
            raise ConfigException(message)


def _check_effects_of_registry(
    registry: RegistrySettings, given: FormatOptions, chosen: Mapping[str, str]
) -> None:
    if not chosen:
        message = f"option {URL_OPTION} has no effect: set valueFormat or keyFormat, or remove it"
        raise ConfigException(message)
    for column in COLUMNS_WITH_FORMAT:
        about_column = registry.options_of(column)
        if about_column and column not in chosen:
            message = f"option {about_column[0]} has no effect: set {column}Format, or remove it"
            raise ConfigException(message)
    for name in given.schemas:
        for option, is_set in (
            ("use.latest.version", registry.use_latest),
            ("use.schema.id", _has_id(registry, name, chosen)),
        ):
            if is_set:
                message = f"both {name}Schema and {option} choose a schema: remove one of them"
                raise ConfigException(message)


def _names_given(options: FormatOptions) -> list[str]:
    names = {"recordname": options.record_name, "recordnamespace": options.record_namespace}
    return [name for name, value in names.items() if value is not None]


_WHAT: Final = "an Avro schema"
# With a registry, if the whole schema is of type bytes (also with the logical type decimal), the
# values are written without their length, because Confluent's clients write and read them so.
_WITHOUT_LENGTH: Final = {Form.BYTES: Form.RAW, Form.DECIMAL: Form.RAW_DECIMAL}


class _AvroFormat:
    """Avro, for one column; see `SchemaFormat`."""

    schema_type = AVRO_TYPE
    needs_referenced = True

    def __init__(self, column: T.StructField, options: FormatOptions) -> None:
        self._name = column.name
        self.kind = column_type(column.dataType)
        self._options = options
        self.is_in_file = is_schema_in_file(column.name, options)

    def given(self) -> str | None:
        """Return the schema in the option, or None if it is not set."""
        return given_schema(self._name, self._options, _WHAT)

    def given_references(self) -> tuple[SchemaReference, ...]:
        """Return the references in the option."""
        return self._options.references.get(self._name, ())

    def derived(self) -> str:
        """Return a schema for the type of the column."""
        if has_record(self.kind):
            check_record_name(self._name, self._options)
        name = record_name(self._name, self._options)
        return derive_schema(self.kind, self._name, name, self._options.record_namespace or "")

    def given_name(self) -> str | None:
        """Return the full name of the Avro record if the options set it, else None."""
        text = self.given()
        if text is not None:
            with self._named_errors():
                return schema_name(text)
        is_named = self._options.record_name is not None and self.kind.kind is Kind.STRUCT
        return full_record_name(self._name, self._options) if is_named else None

    def how_to_name(self) -> str:
        """Return how the user can set the name of the Avro record, for error messages."""
        if self._name in self._options.schemas or self.kind.kind is not Kind.STRUCT:
            return f"set {self._name}Subject, because the schema has no name"
        return f"set recordName or {self._name}Schema"

    def encoding(
        self, text: str, referenced: Sequence[ReferencedSchema] = (), schema_id: int | None = None
    ) -> ColumnEncoding:
        """Return how tasks encode the column with a schema; see `SchemaFormat.encoding`."""
        with self._named_errors():
            schema = parse_schema(text, referenced)
        plan = fit(self.kind, schema, self._name)
        if schema_id is None:
            return ColumnEncoding(self._name, plan)
        if isinstance(plan, Leaf):
            plan = replace(plan, form=_WITHOUT_LENGTH.get(plan.form, plan.form))
        return ColumnEncoding(self._name, plan, schema_id_prefix(schema_id))

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Context manager: an error message about an invalid schema names the option."""
        try:
            yield
        except DataException as error:
            raise invalid_schema(self._name, self._options, _WHAT, error) from None


_FORMATS: Final[dict[str, Callable[[T.StructField, FormatOptions], SchemaFormat]]] = {
    AVRO: _AvroFormat,
    JSON_SR: JsonFormat,
}


def _has_name(column: T.StructField, chosen: str) -> bool:
    """Return whether recordName has an effect on the schema that is derived from a column."""
    if chosen == JSON_SR:
        return json_type(column) is not None
    return has_record(column_type(column.dataType))

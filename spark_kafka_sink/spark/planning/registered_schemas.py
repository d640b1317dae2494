"""Chooses the schema to write a column with, if there is a schema registry.

The column is written with the first of these schemas that exists:

1. the schema with the id in the option use.schema.id
2. the schema in the option valueSchema or keySchema, which is registered or looked up if the latest
   version is another one
3. the latest version of the subject
4. a schema that is derived from the column, which is then registered

So a derived schema never replaces a version that someone registered. Also, if a column is nullable
in one run and not in the next, no new version is registered.

The rules are the same for each format. A `SchemaFormat` derives and reads the schemas of one
format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.model import is_utf8
from spark_kafka_sink.schema_registry.schemas import (
    RegisteredSchema,
    Schema,
    SchemaReference,
    context_of,
)
from spark_kafka_sink.schema_registry.settings import RegistrySettings, SubjectNameStrategy
from spark_kafka_sink.serde.avro_schema import ReferencedSchema
from spark_kafka_sink.serde.column_types import ColumnType
from spark_kafka_sink.spark.formats import ColumnEncoding

if TYPE_CHECKING:
    from spark_kafka_sink.schema_registry.schema_registry_client import SchemaRegistryClient

_ID: Final = "use.schema.id"


class RulesException(Exception):
    """A schema has rules, such as encryption, which the sink does not support.

    Rows must not be written without the rules. So a stream must not continue with an older schema,
    as it does after other errors. Users get a DataException with the same message.
    """


class SchemaFormat(Protocol):
    """One column, and the format in which it is written.

    schema_type: the format's name in registries: AVRO or JSON. needs_referenced: whether `encoding`
    needs the schemas that the schema of the column references. is_in_file: whether the option
    keySchema or valueSchema is the path of a file.
    """

    schema_type: str
    needs_referenced: bool
    is_in_file: bool

    @property
    def kind(self) -> ColumnType | None:
        """The type to compare with schemas, None for JSON that `to_kafka` has not made."""

    def given(self) -> str | None:
        """Return the schema in the option keySchema or valueSchema, or None if it is not set."""

    def given_references(self) -> tuple[SchemaReference, ...]:
        """Return the references in the option keyReferences or valueReferences."""

    def derived(self) -> str:
        """Return a schema for the type of the column. Raise DataException if there is none."""

    def given_name(self) -> str | None:
        """Return the full name of the Avro record if the options set it, else None.

        For JSON Schema, return the title of the schema instead.
        """

    def how_to_name(self) -> str:
        """Return how the user can set the name if `given_name` returns None, for error messages."""

    def encoding(
        self, text: str, referenced: Sequence[ReferencedSchema] = (), schema_id: int | None = None
    ) -> ColumnEncoding:
        """Return how tasks encode the column with a schema.

        text: the schema. referenced: the schemas that it references, directly or indirectly. Each
        of them comes after the schemas that it references. schema_id: the id to write before each
        row, None without a registry. Raise DataException if the column does not fit the schema.
        """


@dataclass(frozen=True, slots=True)
class ChosenSchema:
    """The schema for the values of one column.

    schema_id: the id in the registry, None if the schema still has to be registered. subject: the
    subject to register the schema in, an empty string if it has an id. references: the references
    to register with the schema. referenced: as in `SchemaFormat.encoding`. guid: as in
    `RegisteredSchema`.
    """

    text: str
    schema_id: int | None
    referenced: tuple[ReferencedSchema, ...] = ()
    subject: str = ""
    references: tuple[SchemaReference, ...] = ()
    guid: str = ""


def subject_of(
    settings: RegistrySettings, column: str, topic: str | None, schema_format: SchemaFormat
) -> str:
    """Return the subject of a column.

    topic: the option `topic`, None if the rows have a topic column. Raise ConfigException if the
    subject is named after a topic or record whose name is not known.
    """
    named = settings.subject_of(column)
    if named is not None:
        return named
    strategy = settings.strategy_of(column)
    option = f"{column}.subject.name.strategy"
    if topic is None and strategy is not SubjectNameStrategy.RECORD:
        message = (
            f"{strategy.value} names the subject of column {column} after the topic, but the rows "
            f"have a topic column: set the option topic, {column}Subject, or {option} to "
            f"{SubjectNameStrategy.RECORD.value}"
        )
        raise ConfigException(message)
    record = schema_format.given_name()
    if record is None and strategy is not SubjectNameStrategy.TOPIC:
        message = (
            f"{option} is {strategy.value}, which needs the name of the record in column {column}: "
            f"{schema_format.how_to_name()}"
        )
        raise ConfigException(message)
    subject = strategy.subject(topic or "", column, record or "")
    if not is_utf8(subject):
        # Only a JSON Schema's title can cause this, because Avro refuses such names earlier.
        raise ConfigException(
            f"the subject of column {column} would be {subject!r}, which has an unpaired "
            f"surrogate: correct the title in {column}Schema, or set {column}Subject"
        )
    return subject


def choose_schema(
    client: SchemaRegistryClient,
    settings: RegistrySettings,
    column: str,
    topic: str | None,
    schema_format: SchemaFormat,
) -> ChosenSchema:
    """Query the registry, and return the schema to write a column with. Register nothing.

    Raise ConfigException or DataException if no schema can be used, and RulesException if the
    schema has rules. Raise RestClientException if a call to the registry fails.
    """
    given = schema_format.given()
    if settings.schema_id is not None:
        # The subject is not needed, and may not be known: it may only name the context of the id.
        subject = settings.subject_of(column) or ""
        found = client.schema_of_id(settings.schema_id, subject)
        if found is None:
            where = f" in the context of {column}Subject {subject!r}" if context_of(subject) else ""
            message = (
                f"option {_ID} is {settings.schema_id}: the registry has no such schema{where}"
            )
            raise ConfigException(message)
        what = f"the schema with id {settings.schema_id}"
        return _accepted(client, found, what, subject, schema_format)
    subject = subject_of(settings, column, topic, schema_format)
    if given is not None:
        schema = Schema(given, schema_format.schema_type, schema_format.given_references())
        return _written(client, settings, column, subject, schema, schema_format)
    latest = client.latest(subject)
    if latest is not None:
        _check_context(client, latest, subject, column)
        what = f"the latest version of subject {subject!r}"
        return _accepted(client, latest, what, subject, schema_format)
    if settings.use_latest:
        raise _no_latest(subject, settings, column, schema_format)
    derived = schema_format.derived()
    if not settings.auto_register:
        raise _not_registered(subject, f"it, which is {derived}")
    return ChosenSchema(derived, None, subject=subject)


def registered(
    client: SchemaRegistryClient, settings: RegistrySettings, chosen: ChosenSchema, schema_type: str
) -> ChosenSchema:
    """Register a chosen schema, and return it with its id.

    Raise RestClientException if the call to the registry fails, and RulesException if the registry
    adds rules to the schema.
    """
    schema = Schema(chosen.text, schema_type, chosen.references)
    found = client.register(chosen.subject, schema, normalize=settings.normalize)
    _check_rules(found, f"the new version of subject {chosen.subject!r}")
    return replace(chosen, schema_id=found.schema_id, guid=found.guid)


def _written(
    client: SchemaRegistryClient,
    settings: RegistrySettings,
    column: str,
    subject: str,
    schema: Schema,
    schema_format: SchemaFormat,
) -> ChosenSchema:
    """Return the schema that an option sets, after checking that the latest version has no rules.

    An earlier version with the same text may lack the rules. If the latest version has the schema,
    return it with its id. Otherwise, it still has to be registered. If auto.register.schemas is
    false, look the schema up in the registry instead, and return it with its id.
    """
    referenced = _referenced(client, schema, subject, schema_format)
    latest = client.latest(subject)
    if latest is not None and _is_in_context(client, latest, subject):
        _check_rules(latest, f"the latest version of subject {subject!r}")
        if is_same_schema(latest.schema, schema):
            return ChosenSchema(schema.text, latest.schema_id, referenced, guid=latest.guid)
    if settings.auto_register:
        return ChosenSchema(schema.text, None, referenced, subject, schema.references)
    found = latest and client.lookup(subject, schema, normalize=settings.normalize)
    if found is None:
        # Do not show the content of a file, because it may be, for example, a password.
        of_file = f"the schema in the file of option {column}Schema"
        shown = of_file if schema_format.is_in_file else f"it, which is {schema.text}"
        raise _not_registered(subject, shown)
    _check_context(client, found, subject, column)
    _check_rules(found, f"the version of subject {subject!r}")
    return ChosenSchema(schema.text, found.schema_id, referenced, guid=found.guid)


def _no_latest(
    subject: str, settings: RegistrySettings, column: str, schema_format: SchemaFormat
) -> ConfigException:
    """Return the error to raise if use.latest.version is true, but the subject does not exist.

    The message shows the derived schema, if one can be derived.
    """
    or_remove = ", or remove the option" if settings.auto_register else ""
    shown = ""
    with suppress(ConfigException, DataException):
        shown = f"; this schema fits column {column}: {schema_format.derived()}"
    message = (
        f"option use.latest.version is true, but the registry has no subject {subject!r}: "
        f"register a schema{or_remove}{shown}"
    )
    return ConfigException(message)


def _not_registered(subject: str, what: str) -> ConfigException:
    message = (
        f"the schema is not registered in subject {subject!r}, and auto.register.schemas is false: "
        f"register {what}"
    )
    return ConfigException(message)


def _accepted(
    client: SchemaRegistryClient,
    found: RegisteredSchema,
    what: str,
    subject: str,
    schema_format: SchemaFormat,
) -> ChosenSchema:
    """Return a schema of the registry, after checking that the column can be written with it.

    what: a description of the schema, for error messages. subject: as in
    `SchemaRegistryClient.referenced`.
    """
    kind = schema_format.schema_type
    if found.schema.schema_type != kind:
        message = f"{what} is of type {found.schema.schema_type}: expected {kind}"
        raise DataException(message)
    _check_rules(found, what)
    referenced = _referenced(client, found.schema, subject, schema_format)
    try:
        schema_format.encoding(found.schema.text, referenced, found.schema_id)
    except ConfigException as error:
        raise ConfigException(f"{what} is not valid: {error.message}") from None
    return ChosenSchema(found.schema.text, found.schema_id, referenced, guid=found.guid)


def _referenced(
    client: SchemaRegistryClient, schema: Schema, subject: str, schema_format: SchemaFormat
) -> tuple[ReferencedSchema, ...]:
    """Return the schemas that a schema references, in the form that `SchemaFormat` takes."""
    if not schema_format.needs_referenced:
        return ()
    found = client.referenced(schema, subject)
    return tuple(
        ReferencedSchema(each.text, str(reference), reference.name)
        for reference, each in found.items()
    )


def _check_context(
    client: SchemaRegistryClient, found: RegisteredSchema, subject: str, column: str
) -> None:
    """Raise ConfigException if a schema was found in another context than that of its subject.

    If a subject names no context, and the default context lacks it, Confluent's registry searches
    all contexts. In the default context, the id that it returns may be that of another schema.
    """
    if not _is_in_context(client, found, subject):
        message = (
            f"the registry found no schema in subject {subject!r}, but one in {found.subject!r}, "
            f"which is another context: set {column}Subject to {found.subject!r}, or register a "
            f"schema in {subject!r}"
        )
        raise ConfigException(message)


def _is_in_context(client: SchemaRegistryClient, found: RegisteredSchema, subject: str) -> bool:
    """Return whether a schema was found in the context of its subject.

    A subject that names no context is in the context of the URL. A registry may return it without
    its context.
    """
    context = context_of(subject)
    return context_of(found.subject) in {"", *({context} if context else client.contexts)}


def is_same_schema(one: Schema, other: Schema) -> bool:
    """Return whether two schemas are the same except for whitespace and the order of keys."""
    first, second = ((each.schema_type, each.references) for each in (one, other))
    return first == second and _plain(one.text) == _plain(other.text)


def _plain(text: str) -> str:
    """Return JSON in a form without differences in whitespace and the order of keys."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _check_rules(found: RegisteredSchema, what: str) -> None:
    """Raise RulesException if a schema has rules. For example, they may require encryption.

    what: a description of the schema, for error messages.
    """
    if found.has_rules:
        message = (
            f"{what} has a ruleSet, which is not supported: rows would be written without its "
            "rules, such as encryption; use a version without rules"
        )
        raise RulesException(message)

"""Chooses the schemas of a write: queries the schema registry, or uses its earlier response.

Streams and write_batch plan every micro-batch. They query the latest version of a subject again
only after latest.cache.ttl.sec. A schema that an option sets is queried once, because its id does
not change. If a query fails, or if the newest schema does not fit the rows, a stream continues with
the schema that it has, and logs a warning. For example, a query fails if the registry does not
respond, or if a file with a secret cannot be read. A batch job sends its queries once, even if two
processes plan it, or if other jobs are planned at the same time. There is one exception: if two
processes store a schema at the same moment, the job may send its queries a second time.

Several processes of the driver may query the registry for one write, one after the other. Only the
first one logs a warning: about the options of the connection if no schema is kept yet, and about a
kept schema that is still used if its kept `problem` is new.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.config import ProducerConfig, option_fields
from spark_kafka_sink.errors import ConfigException, DataException, RestClientException
from spark_kafka_sink.logs import warnings_disabled
from spark_kafka_sink.model import Secret
from spark_kafka_sink.schema_registry.schemas import Schema
from spark_kafka_sink.schema_registry.settings import RegistrySettings
from spark_kafka_sink.serde.column_types import without_nullability
from spark_kafka_sink.serde.wire_format import schema_id_header
from spark_kafka_sink.spark.formats import ColumnEncoding
from spark_kafka_sink.spark.planning.kept_schemas import (
    KeptSchema,
    keep_schema,
    newest_schema,
    question,
    schema_of_write,
)
from spark_kafka_sink.spark.planning.registered_schemas import (
    ChosenSchema,
    RulesException,
    SchemaFormat,
    choose_schema,
    is_same_schema,
    registered,
    subject_of,
)

if TYPE_CHECKING:
    from spark_kafka_sink.schema_registry.schema_registry_client import SchemaRegistryClient

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistryQuestion:
    """The values that determine which schema a column has in the registry.

    topic: the option `topic`, None if the rows have a topic column. write_id: as in `SinkOptions`;
    an empty string for a micro-batch. login: the brokers' login options, if the registry's
    credentials may come from them (`inherited_login`).
    """

    settings: RegistrySettings
    column: str
    topic: str | None
    schema_format: SchemaFormat
    write_id: str
    login: tuple[tuple[str, object], ...] = ()

    @property
    def is_about_one_schema(self) -> bool:
        """Whether the options set the schema. If so, the registry always returns the same one."""
        return self.settings.schema_id is not None or self.schema_format.given() is not None

    @property
    def subject(self) -> str | None:
        """The subject of the column, or None if use.schema.id chooses the schema."""
        if self.settings.schema_id is not None:
            return None
        return subject_of(self.settings, self.column, self.topic, self.schema_format)

    @property
    def digest(self) -> str:
        """A digest of everything on which the choice of the schema depends.

        A column that may be null has the same digest as one that may not: both fit the same schema.
        """
        own = self.settings
        connection = [
            (name, each.value if isinstance(each, Secret) else str(each))
            for name, each in (*own.connection, *self.login)
        ]
        policy = replace(own, connection=(), cache_ttl_s=0)
        asked = self.schema_format
        references = asked.given_references()
        schema = (asked.schema_type, asked.given(), references, asked.given_name())
        kind = None if asked.kind is None else without_nullability(asked.kind)
        return question(connection, policy, self.column, self.topic, schema, kind)

    def encoding(self, chosen: ChosenSchema) -> ColumnEncoding:
        """Return the encoding of the column. Raise DataException if it does not fit the schema."""
        found = self.schema_format.encoding(chosen.text, chosen.referenced, chosen.schema_id)
        if chosen.schema_id is None or self.column not in self.settings.ids_in_headers:
            return found
        if not chosen.guid:
            message = (
                f"option {self.column}.schema.id.serializer is HeaderSchemaIdSerializer, but the "
                "schema registry did not return the GUID of the schema (Confluent's registry "
                "returns it from version 8.0 on): remove the option"
            )
            raise ConfigException(message)
        header = schema_id_header(self.column, chosen.guid)
        return replace(found, prefix=b"", header=header)


def inherited_login(
    settings: RegistrySettings, config: ProducerConfig
) -> tuple[tuple[str, object], ...]:
    """Return the brokers' options ``sasl.*`` if the registry's credentials may come from them.

    This is possible if an option for the source of the credentials contains INHERIT or a reference
    (``${…}``). Otherwise, return an empty tuple.
    """
    sources = [each.value for name, each in settings.connection if name.endswith(".source")]
    if not any("INHERIT" in each.upper() or "${" in each for each in sources):
        return ()
    names = [each.name for each in option_fields() if each.name.startswith("sasl_")]
    return tuple((name, getattr(config, name)) for name in names)


def answers(
    questions: Sequence[RegistryQuestion], config: ProducerConfig, *, may_remember: bool
) -> list[ColumnEncoding]:
    """Return how tasks encode each column. Check all columns before any schema is registered.

    may_remember: whether to reuse schemas that were chosen for earlier writes. A schema that was
    already chosen for the same write is always reused. Raise ConfigException, DataException and
    RestClientException as `choose_schema`, and DataException if a schema has rules. Also raise
    ConfigException if two columns have one subject, and a schema of its own would be registered.
    """
    connection = _Connection(config)
    try:
        found = [connection.chosen(each, may_remember=may_remember) for each in questions]
        _check_subjects(questions, found)
        return [connection.encoding(*each) for each in zip(questions, found, strict=True)]
    except RulesException as error:
        raise DataException(str(error)) from None


class _Choice(NamedTuple):
    """The schema to write a column with.

    kept: the earlier schema to use if `schema` cannot be registered, None if there is none.
    """

    schema: ChosenSchema
    kept: KeptSchema | None = None


def _check_subjects(questions: Sequence[RegistryQuestion], choices: Sequence[_Choice]) -> None:
    """Raise ConfigException if a column's new schema would replace that of the other column.

    This is so if both columns have the same subject. Two schemas in options may differ.
    """
    is_given = [each.schema_format.given() is not None for each in questions]
    is_new = [each.schema.schema_id is None for each in choices]
    if len(questions) == 1 or all(is_given) or not any(is_new):
        return
    subjects = [each.subject for each in questions]
    key, value = (
        Schema(choice.schema.text, own.schema_type, own.given_references())
        for own, choice in zip((each.schema_format for each in questions), choices, strict=True)
    )
    if subjects[0] == subjects[1] and not is_same_schema(key, value):
        message = (
            f"key and value have the same subject {subjects[0]!r}, but different schemas, so one "
            "schema would be registered as a new version of the other: set keySubject or "
            "valueSubject to another subject"
        )
        raise ConfigException(message)


class _Connection:
    """Chooses the schemas of one write. It connects to the registry only if a query is needed."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._clients: dict[tuple[object, ...], SchemaRegistryClient] = {}

    def _client(self, settings: RegistrySettings) -> SchemaRegistryClient:
        found = self._clients.get(settings.connection)
        if found is None:
            from spark_kafka_sink.schema_registry.registry_connection import connect  # noqa: PLC0415 - imports urllib

            found = self._clients[settings.connection] = connect(settings, self._config)
        return found

    @contextmanager
    def _asking(self, asked: RegistryQuestion) -> Iterator[SchemaRegistryClient]:
        """Context manager: yield the client. Warn of its options only the first time.

        If a schema is kept, a process of the driver has connected with the same options before.
        """
        is_first = newest_schema(asked.digest) is None
        with nullcontext() if is_first else warnings_disabled():
            yield self._client(asked.settings)

    def chosen(self, asked: RegistryQuestion, *, may_remember: bool) -> _Choice:
        """Return the schema to write a column with, after checking that the column fits it."""
        settings = asked.settings
        ttl_s = -1 if asked.is_about_one_schema else settings.cache_ttl_s
        if may_remember:
            kept = newest_schema(asked.digest)
        else:
            # After register(spark), the user's process queries the registry first. Then the process
            # that plans the job uses the same schema.
            kept = schema_of_write(asked.digest, asked.write_id)
            ttl_s = -1
        if kept is not None and kept.is_fresh(time.time(), ttl_s):
            return _Choice(kept.chosen)
        try:
            with self._asking(asked) as client:
                found = choose_schema(
                    client, settings, asked.column, asked.topic, asked.schema_format
                )
            asked.encoding(found)
        except (RestClientException, ConfigException, DataException) as error:
            if kept is None:
                raise
            return _Choice(self._kept_on(asked, kept, error))
        if found.schema_id is None:
            return _Choice(found, kept)
        self._keep(asked, found)
        return _Choice(found)

    def encoding(self, asked: RegistryQuestion, choice: _Choice) -> ColumnEncoding:
        """Return how tasks encode a column. Register its schema first if it has no id."""
        chosen = choice.schema
        if chosen.schema_id is None:
            kind = asked.schema_format.schema_type
            try:
                with self._asking(asked) as client:
                    chosen = registered(client, asked.settings, chosen, kind)
            except RestClientException as error:
                if choice.kept is None:
                    raise
                chosen = self._kept_on(asked, choice.kept, error)
            else:
                self._keep(asked, chosen)
        return asked.encoding(chosen)

    def _kept_on(self, asked: RegistryQuestion, kept: KeptSchema, error: Exception) -> ChosenSchema:
        """Keep an earlier schema, and return it. Warn that it is still used because of `error`."""
        problem = _problem(error)
        if problem != kept.problem:
            message = (
                f"column {asked.column} is still written with the schema that has id "
                f"{kept.chosen.schema_id}, because no newer one can be used: {error}"
            )
            # Not warn_once: after a recovery, the same problem is another warning.
            logger.warning("%s", message)
        self._keep(asked, kept.chosen, problem)
        return kept.chosen

    def _keep(self, asked: RegistryQuestion, chosen: ChosenSchema, problem: str = "") -> None:
        keep_schema(asked.digest, KeptSchema(chosen, time.time(), asked.write_id, problem))


def _problem(error: Exception) -> str:
    """Return a text that identifies the reason of an error (`KeptSchema.problem`)."""
    if isinstance(error, RestClientException):
        # Its message varies while the reason stays the same, for example in the number of attempts.
        return f"{type(error).__name__}: {error.status} {error.error_code} {error.unanswered}"
    return f"{type(error).__name__}: {error}"

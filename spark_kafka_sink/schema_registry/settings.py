"""The options about a schema registry. Their names are those of Confluent's clients.

In the options of the connection, references such as ``${env:NAME}`` are replaced with their values
when the driver connects. Tasks never get these options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_kafka_sink.config import OTHER_CLIENTS, of_other_client, option_fields
from spark_kafka_sink.errors import ConfigException, name_options
from spark_kafka_sink.logs import shown_value
from spark_kafka_sink.model import LARGEST_INT32, Secret

URL_OPTION: Final = "schema.registry.url"
TLS_PREFIX: Final = "schema.registry."
CONNECTION_OPTIONS: Final = (
    URL_OPTION,
    "basic.auth.credentials.source",
    "basic.auth.user.info",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.credentials.source",
    "bearer.auth.identity.pool.id",
    "bearer.auth.issuer.endpoint.url",
    "bearer.auth.logical.cluster",
    "bearer.auth.scope",
    "bearer.auth.token",
    *(
        TLS_PREFIX + each.encode_name
        for each in option_fields()
        if each.encode_name.startswith("ssl.")
    ),
)
_STRATEGY_OPTIONS: Final = {
    "key": "key.subject.name.strategy",
    "value": "value.subject.name.strategy",
}
_ID_OPTIONS: Final = {"key": "key.schema.id.serializer", "value": "value.schema.id.serializer"}
_SUBJECT_OPTIONS: Final = {"key": "keySubject", "value": "valueSubject"}
# Options of Confluent's clients that this sink accepts and ignores.
_WITHOUT_EFFECT: Final = (
    "avro.use.logical.type.converters",
    "id.compatibility.strict",
    "latest.compatibility.strict",
)
_BOOLEANS: Final = ("auto.register.schemas", "normalize.schemas", "use.latest.version")
REGISTRY_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    *_STRATEGY_OPTIONS.values(),
    *_ID_OPTIONS.values(),
    *_SUBJECT_OPTIONS.values(),
    *_WITHOUT_EFFECT,
    *_BOOLEANS,
    "latest.cache.ttl.sec",
    "use.schema.id",
)
_PROXY: Final = "set http_proxy or https_proxy in the environment of the driver"
_LIMITS: Final = "remove it, because the time limits and retries of calls to the registry are fixed"
# Options of Confluent's clients that this sink does not have, and what to do instead.
_INSTEAD: Final = {
    "cache.capacity": "remove it, because the sink keeps each schema that it has asked for",
    "cache.latest.ttl.sec": "set latest.cache.ttl.sec",
    "http.connect.timeout.ms": _LIMITS,
    "http.read.timeout.ms": _LIMITS,
    "max.retries": _LIMITS,
    "proxy": _PROXY,
    "proxy.host": _PROXY,
    "proxy.port": _PROXY,
    "retries.max.wait.ms": _LIMITS,
    "retries.wait.ms": _LIMITS,
    "schema.id.serializer": f"set {' or '.join(_ID_OPTIONS.values())}",
    "subject.name.strategy": f"set {' or '.join(_STRATEGY_OPTIONS.values())}",
    "timeout": _LIMITS,
}
# The names of Confluent's classes, and whether each writes schema ids into headers.
_ID_SERIALIZERS: Final = {"PrefixSchemaIdSerializer": False, "HeaderSchemaIdSerializer": True}
_NEVER: Final = -1.0


class SubjectNameStrategy(Enum):
    """How the name of a subject is made. The values are the names of Confluent's classes."""

    TOPIC = "TopicNameStrategy"
    RECORD = "RecordNameStrategy"
    TOPIC_RECORD = "TopicRecordNameStrategy"

    def subject(self, topic: str, column: str, record: str) -> str:
        """Return the subject for a column of a topic.

        column: ``key`` or ``value``. record: the full name of the column's Avro record, or the
        title of its JSON Schema.
        """
        if self is SubjectNameStrategy.TOPIC:
            return f"{topic}-{column}"
        return record if self is SubjectNameStrategy.RECORD else f"{topic}-{record}"


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The options about a schema registry.

    connection: the options of the connection, as pairs of a name and a value. subjects, strategies,
    id_serializers: pairs of a column (``key`` or ``value``) and the value of its option. A column
    has no pair if its option is not set. In id_serializers, the value is True if the schema id (a
    GUID) is put into a header of each row, and False if the id is put into a prefix. cache_ttl_s:
    how many seconds the latest version of a subject is used before the registry is queried again;
    negative for no limit. schema_id: the id of the schema to write with, or None if use.schema.id
    is not set.
    """

    connection: tuple[tuple[str, Secret], ...]
    subjects: tuple[tuple[str, str], ...] = ()
    strategies: tuple[tuple[str, SubjectNameStrategy], ...] = ()
    auto_register: bool = True
    use_latest: bool = False
    normalize: bool = False
    cache_ttl_s: float = _NEVER
    schema_id: int | None = None
    id_serializers: tuple[tuple[str, bool], ...] = ()

    @property
    def ids_in_headers(self) -> tuple[str, ...]:
        """The columns whose schema id (a GUID) is put into a header of each row."""
        return tuple(column for column, is_header in self.id_serializers if is_header)

    def subject_of(self, column: str) -> str | None:
        """Return the value of the option `keySubject` or `valueSubject`, or None if it is unset."""
        return dict(self.subjects).get(column)

    def strategy_of(self, column: str) -> SubjectNameStrategy:
        """Return how the subject of a column is named."""
        return dict(self.strategies).get(column, SubjectNameStrategy.TOPIC)

    def options_of(self, column: str) -> list[str]:
        """Return the names of the options that are set and apply only to this column."""
        given = (
            (_SUBJECT_OPTIONS, self.subjects),
            (_STRATEGY_OPTIONS, self.strategies),
            (_ID_OPTIONS, self.id_serializers),
        )
        return [names[column] for names, pairs in given if column in dict(pairs)]


def registry_settings(given: Mapping[str, str]) -> RegistrySettings | None:
    """Check the options and return them. Return None if no option is set.

    given: options with names in lower case. Raise ConfigException if they are invalid.
    """
    named = {name: given[name.lower()] for name in REGISTRY_OPTIONS if name.lower() in given}
    if not named:
        return None
    if URL_OPTION not in named:
        other = next(iter(named))
        message = f"option {other} has no effect: set {URL_OPTION}, or remove {other}"
        raise ConfigException(message)
    if not named[URL_OPTION].replace(",", " ").strip():
        message = (
            f"option {URL_OPTION} is {named[URL_OPTION]!r}, which has no URL in it: set it to "
            "https://host:port, several separated by commas, or remove the option"
        )
        raise ConfigException(message)
    flags = {name: _flag(name, named.get(name)) for name in _BOOLEANS}
    return RegistrySettings(
        connection=tuple((n, Secret(named[n])) for n in CONNECTION_OPTIONS if n in named),
        subjects=tuple(
            (column, _subject(name, named[name]))
            for column, name in _SUBJECT_OPTIONS.items()
            if name in named
        ),
        strategies=tuple(
            (column, _strategy(name, named[name]))
            for column, name in _STRATEGY_OPTIONS.items()
            if name in named
        ),
        auto_register=flags["auto.register.schemas"] is not False,
        use_latest=flags["use.latest.version"] is True,
        normalize=flags["normalize.schemas"] is True,
        cache_ttl_s=_seconds("latest.cache.ttl.sec", named.get("latest.cache.ttl.sec")),
        schema_id=_schema_id("use.schema.id", named.get("use.schema.id")),
        id_serializers=tuple(
            (column, _is_header_serializer(name, named[name]))
            for column, name in _ID_OPTIONS.items()
            if name in named
        ),
    )


def of_registry_client(name: str) -> str | None:
    """Return what to do instead if `name` is an option of Confluent's clients, else None.

    name: in lower case. Java's clients accept their options also with the prefix schema.registry.
    """
    bare = name.removeprefix(TLS_PREFIX)
    advice = _INSTEAD.get(bare)
    if bare != name and bare in REGISTRY_OPTIONS:
        advice = f"set {bare}"
    if advice is not None:
        return f"is an option of Confluent's registry clients: {advice}"
    if bare == name or not bare.startswith("ssl."):
        return None
    with name_options(TLS_PREFIX.__add__):
        return of_other_client(bare)


def of_either_client(name: str) -> str | None:
    """Return what to set instead of an option that confluent-kafka uses for registry and brokers.

    Return None for other names. name: in lower case.
    """
    javas = OTHER_CLIENTS.get(name)
    if javas is None or not name.startswith("ssl."):
        return None
    (java,) = javas.names
    advice = f"; {javas.advice}" if javas.advice else ""
    return (
        f"is an option of other clients: set {TLS_PREFIX}{java} for the schema registry, or "
        f"kafka.{java} for the brokers{advice}"
    )


def _flag(name: str, value: str | None) -> bool | None:
    if value is None or value.strip().lower() in ("true", "false"):
        return None if value is None else value.strip().lower() == "true"
    raise ConfigException(f"option {name} is {shown_value(value)}: expected true or false")


def _subject(name: str, value: str) -> str:
    if not value.strip():
        raise ConfigException(f"option {name} is empty: expected the name of a subject")
    return value.strip()


def _strategy(name: str, value: str) -> SubjectNameStrategy:
    """Return the strategy with the name of a Confluent class, or with a short name like TOPIC."""
    chosen = value.strip().rpartition(".")[2]
    for each in SubjectNameStrategy:
        short = each.value.removesuffix("Strategy")
        if chosen.upper() in (each.name, each.value.upper(), short.upper()):
            return each
    names = ", ".join(each.value for each in SubjectNameStrategy)
    raise ConfigException(f"option {name} is {shown_value(value)}: expected {names}")


def _is_header_serializer(name: str, value: str) -> bool:
    """Return whether the Confluent class with this name writes schema ids into headers."""
    chosen = value.strip().rpartition(".")[2]
    if chosen in _ID_SERIALIZERS:
        return _ID_SERIALIZERS[chosen]
    raise ConfigException(
        f"option {name} is {shown_value(value)}: expected {' or '.join(_ID_SERIALIZERS)}"
    )


def _seconds(name: str, value: str | None) -> float:
    if value is None:
        return _NEVER
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds):
        return seconds
    raise ConfigException(
        f"option {name} is {shown_value(value)}: expected seconds, or -1 for no limit"
    )


def _schema_id(name: str, value: str | None) -> int | None:
    # -1 is the default of Confluent's clients.
    if value is None or value.strip() == "-1":
        return None
    if re.fullmatch(r"\s*[0-9]{1,10}\s*", value) and int(value) <= LARGEST_INT32:
        return int(value)
    raise ConfigException(f"option {name} is {shown_value(value)}: expected the id of a schema")

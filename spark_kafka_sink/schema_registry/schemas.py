"""The schemas of a schema registry, their references to other schemas, and their ids."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

AVRO: Final = "AVRO"
JSON: Final = "JSON"


# Each context of a registry has ids and subjects of its own. ":.sales:orders-value" is the subject
# orders-value of the context ".sales". The context "." is the default.
_CONTEXT_PREFIX: Final = ":."
_DEFAULT_CONTEXT: Final = "."
_CONTEXT_OF_URL: Final = re.compile(r"/contexts/(?::|%3A)?(\.[^/:%]*)(?::|%3A)?/*$", re.IGNORECASE)


def context_of(subject: str) -> str:
    """Return the context that a subject names, empty if it names none or the default one."""
    if not subject.startswith(_CONTEXT_PREFIX):
        return ""
    context = subject[1:].partition(":")[0]
    return "" if context == _DEFAULT_CONTEXT else context


def context_of_url(address: str) -> str:
    """Return the context that a registry's base URL names, empty if it names none.

    The subjects of such a URL, as ``https://registry/contexts/.sales``, are in that context.
    """
    named = _CONTEXT_OF_URL.search(address)
    return "" if named is None else context_of(f":{named[1]}:")


def in_context_of(subject: str, other: str) -> str:
    """Return `other` in the context of `subject`, unless `other` names a context itself."""
    context = context_of(subject)
    return f":{context}:{other}" if context and not other.startswith(_CONTEXT_PREFIX) else other


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A reference from one schema to another.

    name: the name by which the first schema uses the other one. subject, version: the place of the
    other schema in the registry.
    """

    name: str
    subject: str
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of subject {self.subject!r}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The text of a schema.

    schema_type: AVRO or JSON. references: the schemas that the text uses.
    """

    text: str
    schema_type: str = AVRO
    references: tuple[SchemaReference, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A registered schema, and its id in the registry.

    subject, version: empty and 0 if the registry has not returned them. has_rules: whether the
    registry has a ruleSet for the schema. Its rules may require that values are encrypted. guid: an
    empty string if the registry has not returned a valid GUID. Confluent's returns GUIDs since
    version 8.0.
    """

    schema: Schema
    schema_id: int
    subject: str = ""
    version: int = 0
    has_rules: bool = False
    guid: str = ""

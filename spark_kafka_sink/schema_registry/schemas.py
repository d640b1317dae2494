"""Schemas as a schema registry has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

AVRO: Final = "AVRO"
JSON: Final = "JSON"


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """The name by which a schema uses another schema, and where the registry has that."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a text. schema_type: AVRO or JSON."""

    text: str
    schema_type: str = AVRO
    references: tuple[SchemaReference, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id. has_rules: whether it has a ruleSet, as for encryption."""

    schema: Schema
    schema_id: int
    subject: str = ""
    version: int = 0
    has_rules: bool = False

"""Finds the schema to which a ``$ref`` in a JSON Schema refers.

A ``$ref`` is ``document#/part``. Without a document it refers to the schema that it stands in.
Other documents are those that the registry lists as references of the schema. As in Confluent's
clients, the name of a reference is the URI of its document. A document is also found by its
``$id``, and by a URI that is relative to the ``$id`` of the schema that refers to it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

# A schema, or a part of it: an object, or a boolean that accepts everything or nothing.
JsonSchema: TypeAlias = Mapping[str, Any] | bool

# The beginning of $schema since draft 2019-09. In older drafts, all keywords beside a $ref are
# ignored.
_NEW_DIALECTS: Final = "https://json-schema.org/draft/20"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, eq=False)
class JsonDocument:
    """A whole JSON Schema. uri: its ``$id`` or its name, the base of relative URIs in it."""

    schema: JsonSchema
    uri: str = ""

    @property
    def has_new_dialect(self) -> bool:
        """Whether keywords beside a ``$ref`` have an effect: they do since draft 2019-09."""
        dialect = self.schema.get("$schema") if isinstance(self.schema, Mapping) else None
        return isinstance(dialect, str) and dialect.startswith(_NEW_DIALECTS)

    @cached_property
    def has_embedded(self) -> bool:
        """Whether a schema inside has its own ``$id``, which is the base of each ``$ref`` in it."""
        return isinstance(self.schema, Mapping) and any(
            _has_id(each) for each in self.schema.values()
        )

    def part(self, pointer: str) -> JsonSchema | None:
        """Return the schema at a JSON pointer, or None if the value there is not a schema.

        Raise LookupError if nothing is there.
        """
        found: Any = self.schema
        for each in pointer.split("/")[1:]:
            key = each.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise LookupError(pointer)
        return found if isinstance(found, Mapping | bool) else None


class JsonReferences:
    """A JSON Schema, and the schemas to which it may refer.

    referenced: the schemas that the registry lists as references, by the name of the reference.
    """

    def __init__(self, schema: JsonSchema, referenced: Mapping[str, JsonSchema]) -> None:
        self.root = JsonDocument(schema, _id_of(schema))
        # A name counts before other URIs of a document.
        self._documents: dict[str, JsonDocument] = {}
        for given, each in referenced.items():
            name = given.removesuffix("#")
            own = _id_of(each)
            self._documents[name] = JsonDocument(each, _joined(name, own) if own else name)
        for name, document in list(self._documents.items()):
            self._documents.setdefault(_joined(self.root.uri, name), document)
            self._documents.setdefault(document.uri, document)
        self._documents.setdefault(self.root.uri, self.root)

    def find(self, ref: str, document: JsonDocument) -> tuple[JsonDocument, JsonSchema] | None:
        """Return the schema to which a ``$ref`` refers, and the document that has it.

        document: the document that has the ``$ref``. Return None if the ``$ref`` is an anchor, or
        names a document that is not a reference of the schema. Also return None for a ``$ref``
        without a document, if `document` has other documents embedded. Raise LookupError if the
        document does not have the part.
        """
        uri, _, fragment = ref.partition("#")
        if not uri and document.has_embedded:
            return None
        there = self._document(uri, document) if uri else document
        pointer = _percent_decoded(fragment)
        if there is None or (pointer and not pointer.startswith("/")):
            return None
        part = there.part(pointer)
        return None if part is None else (there, part)

    def _document(self, uri: str, document: JsonDocument) -> JsonDocument | None:
        joined = _joined(document.uri, uri)
        if joined == document.uri:
            return document
        return self._documents.get(joined) or self._documents.get(uri)


def _id_of(schema: JsonSchema) -> str:
    """Return the ``$id`` of a schema without its fragment, empty if there is none."""
    found = schema.get("$id") if isinstance(schema, Mapping) else None
    return found.partition("#")[0] if isinstance(found, str) else ""


def _has_id(found: object) -> bool:
    """Return whether a value in a JSON Schema, or a value inside it, has an ``$id``."""
    if isinstance(found, Mapping):
        return bool(_id_of(found)) or any(map(_has_id, found.values()))
    return isinstance(found, list) and any(map(_has_id, found))


def _joined(base: str, uri: str) -> str:
    """Return `uri`, resolved against `base` if it is relative."""
    scheme, mark, rest = base.partition("://")
    if _SCHEME.match(uri) or uri.startswith("//") or (not mark and _SCHEME.match(base)):
        return uri
    host, slash, path = rest.partition("/") if mark else ("", "", base)
    folder = posixpath.dirname(slash + path) or ("/" if mark else "")
    joined = posixpath.normpath(posixpath.join(folder, uri))
    return f"{scheme}{mark}{host}{joined}" if mark else joined


def _percent_decoded(text: str) -> str:
    def decoded(escapes: re.Match[str]) -> str:
        return bytes.fromhex(escapes[0].replace("%", "")).decode(errors="replace")

    return re.sub(r"(?:%[0-9A-Fa-f]{2})+", decoded, text)

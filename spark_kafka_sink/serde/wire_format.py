"""Where Confluent's clients store the schema id of a key or value: in a prefix, or in a header.

The prefix contains the id of the schema, and the header contains its GUID. A schema has the same
GUID in all registries, but not the same id.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

_MAGIC: Final = 0
_HEADER_MAGIC: Final = b"\x01"


def schema_id_prefix(schema_id: int) -> bytes:
    """Return the prefix of a key or value: a zero byte, and the four bytes of its schema's id."""
    return struct.pack(">bi", _MAGIC, schema_id)


def schema_id_header(column: str, guid: str) -> tuple[str, bytes]:
    """Return the header (key, value) for a column. value: the byte 1 and the GUID's 16 bytes."""
    return schema_id_header_key(column), _HEADER_MAGIC + uuid.UUID(guid).bytes


def schema_id_header_key(column: str) -> str:
    """Return the key of the header for a column. Confluent's deserializers look for it first."""
    return f"__{column}_schema_id"

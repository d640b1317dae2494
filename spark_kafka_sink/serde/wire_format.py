"""Where Confluent's clients put the id of the schema of a key or value: before it, or in a header.

The header has the GUID of the schema. It is the same in all registries, unlike the id.
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
    """Return (key, value) of a column's header. value: a byte, then the 16 bytes of the GUID."""
    return f"__{column}_schema_id", _HEADER_MAGIC + uuid.UUID(guid).bytes

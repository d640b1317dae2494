"""What Confluent's clients put before a serialized key or value: the id of its schema."""

from __future__ import annotations

import struct
from typing import Final

_MAGIC: Final = 0


def schema_id_prefix(schema_id: int) -> bytes:
    """Return the prefix of bytes by the schema with an id: a zero byte, and four of the id."""
    return struct.pack(">bi", _MAGIC, schema_id)

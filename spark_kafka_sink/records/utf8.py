"""Text that is valid UTF-8, whatever bytes a column of strings has.

Arrow and Spark take any bytes for strings; `CAST(X'FF' AS STRING)` is one. Kafka's text fields are
UTF-8, and many readers fail at anything else. Bytes that are no text become U+FFFD, as often as
Java's ``new String(bytes, UTF_8)`` has it, which Spark's own sink and Java's readers use.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

# Half a surrogate pair, also where it is cut off: Java replaces it once, Python each byte of it.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


def valid_utf8(array: pa.Array) -> pa.Array:
    """Return a string or binary array as a string array of valid UTF-8; large ones stay large.

    Nothing is copied where all of it is valid.
    """
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    kind, binary = (
        (pa.large_string(), pa.large_binary()) if is_large else (pa.string(), pa.binary())
    )
    data = array.cast(binary)
    try:
        return data.cast(kind)
    except pa.ArrowInvalid:
        encoded = data.dictionary_encode()
        texts = [replaced(text) for text in encoded.dictionary.to_pylist()]
        return pa.array(texts, kind).take(encoded.indices)


def replaced(text: bytes) -> str:
    """Return bytes as text, with U+FFFD for what is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, text).decode(errors="replace")

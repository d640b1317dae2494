"""Convert columns of strings to valid UTF-8.

Arrow and Spark accept any bytes in strings, for example those of `CAST(X'FF' AS STRING)`. Kafka's
text fields are UTF-8, and many readers fail on anything else. Invalid bytes become U+FFFD, as many
of them as Java's ``new String(bytes, UTF_8)`` makes, which Spark's own sink and Java's readers use.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

# Half of a surrogate pair, possibly cut off. Java replaces it once, Python replaces each byte.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


def valid_utf8(array: pa.Array) -> pa.Array:
    """Return a string or binary array as a string array of valid UTF-8; large types stay large.

    Nothing is copied if all of it is valid already.
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
        texts = [decode_utf8(text) for text in encoded.dictionary.to_pylist()]
        return pa.array(texts, kind).take(encoded.indices)


def decode_utf8(text: bytes) -> str:
    """Return bytes as text, with U+FFFD for invalid UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, text).decode(errors="replace")

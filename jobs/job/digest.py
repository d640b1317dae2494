"""A digest of records that does not depend on their order, computed in Spark and in Python.

The digest has the number of records, and the sum of a hash of each record. The hash is the first 60
bits of the SHA-256 of key, value and headers, which are concatenated in an unambiguous form:

    -                             a key or value that is null (if it is empty: 0:)
    5:hello                       a key or value: its length in bytes, and its bytes
    [{"key":"aA==","value":""}]   the headers, in base64; a null header has no "value"

A missing, changed, repeated or extra record changes the digest.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

_HEX_DIGITS: Final = 15  # 60 bits
_HEADERS_TYPE: Final = "array<struct<key:binary,value:binary>>"


@dataclass(slots=True)
class Digest:
    """The digest of some records. Adding a record computes one hash."""

    records: int = 0
    total: int = 0

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Add a record."""
        encoded = b",".join([_header(name, content) for name, content in headers])
        text = b"%b%b[%b]" % (_marked(key), _marked(value), encoded)
        self.records += 1
        self.total += int(hashlib.sha256(text).hexdigest()[:_HEX_DIGITS], 16)

    def __str__(self) -> str:
        return f"{self.records:,} records, digest {self.total:x}"


def of_rows(records: DataFrame) -> Digest:
    """Return the digest of a DataFrame with the sink's columns, computed by Spark alone."""
    key = F.col("key") if "key" in records.columns else F.lit(None)
    headers = F.col("headers") if "headers" in records.columns else F.lit(None)
    encoded = F.concat(
        _marked_column(key), _marked_column(F.col("value")), _headers_column(headers)
    )
    prefix = F.conv(F.substring(F.sha2(encoded, 256), 1, _HEX_DIGITS), 16, 10)
    # A decimal of 38 digits is large enough for the records of any topic.
    total = F.sum(prefix.cast("decimal(28,0)"))
    row = records.agg(F.count("*").alias("records"), total.alias("total")).collect()[0]
    return Digest(row["records"], int(row["total"] or 0))


def _marked(content: bytes | None) -> bytes:
    return b"-" if content is None else b"%d:%b" % (len(content), content)


def _header(name: str, content: bytes | None) -> bytes:
    """Return a header as Spark's to_json writes it."""
    value = b"" if content is None else b',"value":"%b"' % b64encode(content)
    return b'{"key":"%b"%b}' % (b64encode(name.encode()), value)


def _marked_column(column: Column) -> Column:
    length = F.concat(F.octet_length(column.cast("binary")).cast("string"), F.lit(":"))
    marked = F.concat(length.cast("binary"), column.cast("binary"))
    return F.coalesce(marked, F.lit("-").cast("binary"))


def _headers_column(column: Column) -> Column:
    # A function of Spark that takes a lambda would take three times as long as all the rest.
    headers = F.coalesce(column.cast(_HEADERS_TYPE), F.array().cast(_HEADERS_TYPE))
    return F.to_json(headers).cast("binary")

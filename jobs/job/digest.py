"""A digest of records that does not depend on their order, computed in Spark and in Python.

It is the number of the records and the sum, over all of them, of the first 60 bits of the SHA-256
of key, value and headers. These are concatenated in an unambiguous form:

    -              null (an empty text is 0:)
    5:hello        a length in bytes, and as many bytes
    2;             the number of headers that follow, each a name and a value

A missing, changed, repeated or extra record changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

_HEX_DIGITS: Final = 15  # 60 bits
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


@dataclass(slots=True)
class Digest:
    """The digest of some records; adding one costs a hash."""

    records: int = 0
    total: int = 0

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Add a record."""
        parts = [_marked(key), _marked(value), b"%d;" % len(headers)]
        for name, content in headers:
            parts += [_marked(name.encode()), _marked(content)]
        self.records += 1
        self.total += int(hashlib.sha256(b"".join(parts)).hexdigest()[:_HEX_DIGITS], 16)

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


def _marked_column(column: Column) -> Column:
    length = F.concat(F.octet_length(column.cast("binary")).cast("string"), F.lit(":"))
    marked = F.concat(length.cast("binary"), column.cast("binary"))
    return F.coalesce(marked, F.lit("-").cast("binary"))


def _headers_column(column: Column) -> Column:
    headers = F.coalesce(column.cast(_HEADERS_TYPE), F.array().cast(_HEADERS_TYPE))
    count = F.concat(F.size(headers).cast("string"), F.lit(";")).cast("binary")

    def append(so_far: Column, header: Column) -> Column:
        return F.concat(so_far, _marked_column(header["key"]), _marked_column(header["value"]))

    return F.aggregate(headers, count, append)

"""Adds headers to rows, after the headers that the rows already have, or removes headers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.serde.row_rules import header_lists, to_numpy


class AddedHeader(NamedTuple):
    """A header to add. rows: the indexes of the rows. values: a value for each of these rows."""

    key: str
    rows: Int64s
    values: pa.Array


def with_added_headers(
    headers: pa.Array | None, rows: int, added: Sequence[AddedHeader], unnamed: str | None = None
) -> pa.Array:
    """Return each row's headers, followed by the headers that are added to it.

    headers: the headers column, or None if there is none. rows: the number of rows. unnamed: the
    key that replaces a null header key, or None to keep the null.
    """
    of_rows, keys, values = [], [], []
    if headers is not None:
        lists = header_lists(headers)
        counts = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
        entries = lists.flatten()
        fields = {entries.type[i].name.lower(): each for i, each in enumerate(entries.flatten())}
        found = fields["key"].cast(pa.large_string())
        keys.append(found if unnamed is None else found.fill_null(unnamed))
        values.append(fields["value"].cast(pa.large_binary()))
        of_rows.append(np.repeat(np.arange(rows), counts))
    for each in added:
        keys.append(pa.repeat(pa.scalar(each.key, pa.large_string()), len(each.rows)))
        values.append(each.values.cast(pa.large_binary()))
        of_rows.append(each.rows)
    # The entries are those of the headers column, then those of each added header. A stable sort
    # orders them by row.
    numbers = np.concatenate(of_rows)
    order = pa.array(np.argsort(numbers, kind="stable"))
    entries = pa.StructArray.from_arrays(
        [pa.concat_arrays(keys).take(order), pa.concat_arrays(values).take(order)],
        ["key", "value"],
    )
    offsets = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=rows))])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), entries)


def without_headers(headers: pa.Array, keys: Sequence[str]) -> pa.Array:
    """Return each row's headers, except those with one of the keys, in a column of the same type.

    If no row has such a header, return the column itself.
    """
    lists = header_lists(headers)
    entries = lists.flatten()
    names = next(each for each in entries.type if each.name.lower() == "key")
    found = entries.field(names.name)
    removed = functools.reduce(pc.or_, [pc.equal(found, key) for key in keys])
    if not pc.any(removed).as_py():
        return headers
    is_kept = pc.invert(removed).fill_null(fill_value=True)
    counts = pc.list_value_length(lists).fill_null(0).to_numpy()
    starts = np.concatenate([[0], np.cumsum(counts)])
    kept_before = np.concatenate([[0], np.cumsum(to_numpy(is_kept))])
    offsets, kept, kind = pa.array(kept_before[starts]), entries.filter(is_kept), headers.type
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(offsets, kept, type=kind)
    offsets = offsets.cast(pa.int32())
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, *kept.flatten(), type=kind)
    return pa.ListArray.from_arrays(offsets, kept, type=kind)

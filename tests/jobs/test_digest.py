"""The digest of records: what changes it and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job import digest

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

maybe = st.none() | st.binary(max_size=4)
headers = st.lists(st.tuples(st.text(max_size=3), maybe), max_size=3)
records: st.SearchStrategy[list[Record]] = st.lists(st.tuples(maybe, maybe, headers), max_size=8)


def of(some: list[Record]) -> tuple[int, int]:
    made = digest.Digest()
    for record in some:
        made.add(*record)
    return made.records, made.total


@given(records, st.randoms(use_true_random=False))
def test_order_does_not_matter(some: list[Record], random: object) -> None:
    other = list(some)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert of(some) == of(other)


@given(records, records)
def test_other_records_have_another_digest(some: list[Record], others: list[Record]) -> None:
    same = sorted(map(repr, some)) == sorted(map(repr, others))
    assert (of(some) == of(others)) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((None, b"v", []), (b"", b"v", [])),
        ((b"k", None, []), (b"k", b"", [])),
        ((b"ab", b"c", []), (b"a", b"bc", [])),
        ((b"k", b"v", [("h", None)]), (b"k", b"v", [("h", b"")])),
        ((b"k", b"v", [("h", b"x"), ("i", None)]), (b"k", b"v", [("h", b"x")])),
        ((b"k", b"v", [("h", b"1"), ("h", b"2")]), (b"k", b"v", [("h", b"2"), ("h", b"1")])),
        ((b"-", None, []), (None, b"-", [])),
        ((b"1:x", b"", []), (b"1:", b"x", [])),
    ],
)
def test_what_looks_alike_is_told_apart(one: Record, other: Record) -> None:
    assert of([one]) != of([other])

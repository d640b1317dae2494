"""The table of docs/contributing/exactly-once-cases.md, and what a run of its tests came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from support.documents.named_tests import ROOT, cells, named_tests

DOCUMENT: Final = ROOT / "docs" / "contributing" / "exactly-once-cases.md"
_OUTCOMES: Final = ("passed", "failed", "error", "skipped")


class Case(NamedTuple):
    """A case: its number, what it is, the names of its tests, and the text of the last cell."""

    number: int
    title: str
    tests: tuple[str, ...]
    text: str


def read_cases() -> list[Case]:
    """Return the cases of the document."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    rows = (cells(line) for line in lines[2:])
    return [
        Case(int(number), title, tuple(named_tests(text)), text) for number, title, text in rows
    ]


def summary(outcomes: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield a line for each case.

    outcomes: the ids of the tests of each outcome that pytest has, as it names them.
    """
    counts: dict[str, Counter[str]] = {}
    for outcome in _OUTCOMES:
        for node_id in outcomes.get(outcome, ()):
            name = node_id.removeprefix("tests/").partition("[")[0]
            counts.setdefault(name, Counter())[outcome] += 1
    for case in read_cases():
        found: Counter[str] = sum((counts.get(name, Counter()) for name in case.tests), Counter())
        not_run = sum(name not in counts for name in case.tests)
        if found and not_run:
            found["not run"] = not_run
        result = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.items()))
        yield f"{case.number:2}  {result or 'NOT RUN':24}  {case.title}"

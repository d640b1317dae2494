"""The Markdown pages of the project: their prose, their links and their anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from support.named_tests import ROOT

README: Final = ROOT / "README.md"
PAGES: Final = (README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md")))

_FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
# Headings, rows of tables, quotations and images.
_NO_PROSE: Final = re.compile(r"^ *(#|\||>|!\[).*$", re.MULTILINE)
_ITEM: Final = re.compile(r"^ *(-|\d+\.) ", re.MULTILINE)
# A full stop inside of a word, as in `df.write` or 1.38x, ends no sentence.
_END: Final = re.compile(r"[.?!](?=\W*(?:\s|$))|\n\s*\n")


def sentences(text: str) -> list[str]:
    """Return the sentences of a page, without code, headings, tables, quotations and images.

    An item of a list begins a sentence.
    """
    prose = _NO_PROSE.sub("", _FENCE.sub("\n\n", text))
    prose = re.sub(r"\]\([^)]*\)", "]", _ITEM.sub("\n\n", prose))
    return [each for each in _END.split(prose) if re.search(r"\w", each)]


def words_per_sentence(text: str) -> float:
    """Return the average number of words in the sentences of a page."""
    counts = [len(re.findall(r"\S*\w\S*", each)) for each in sentences(text)]
    return sum(counts) / len(counts)


def python_blocks(text: str) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\]\([^)]*\)", "]", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        same = sum(1 for each in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each))
        found.add(f"{anchor}-{same}" if same else anchor)
    return found


def broken_links(page: Path) -> Iterator[str]:
    """Return the links of a page to files or anchors of the project that do not exist."""
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            yield link

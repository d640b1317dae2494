"""The Markdown pages of the project: their links, their anchors and their blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Final

from support.documents.named_tests import ROOT

README: Final = ROOT / "README.md"
PAGES: Final = (
    *(README, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"),
    *sorted((ROOT / "docs").glob("**/*.md")),
)

# The pages for users, by what a reader wants; the others are for contributors.
USER_PAGES: Final = tuple(
    page
    for part in ("tutorials", "how-to", "reference", "explanation")
    for page in sorted((ROOT / "docs" / part).glob("*.md"))
)

_FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PICTURE: Final = re.compile(r"!\[[^\]]*\]\([^)\s]+\)")
_PARAGRAPH_END: Final = re.compile(r"\n\s*\n|\n(?=\s*(?:- |\d+\. ))")
_BULLET: Final = re.compile(r"\A\s*(?:- |\d+\. )")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9`*])")


def fences(text: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block of a page, in their order."""
    return [
        (language, dedent(block))
        for language, block in re.findall(
            r"^ *```([^\n]*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL
        )
    ]


def blocks(text: str, *languages: str) -> list[str]:
    """Return the blocks of a page in one of these languages."""
    return [block for language, block in fences(text) if language in languages]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\]\([^)]*\)", "]", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        same = sum(1 for each in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each))
        found.add(f"{anchor}-{same}" if same else anchor)
    return found


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page's paragraphs and lists.

    Headings, tables, pictures and blocks of code have none. Of a link, only its text counts. A
    line that ends without a mark is no sentence but a list of names or links; a colon ends a
    sentence that introduces a block.
    """
    text = _LINK.sub(lambda link: link[0][1:].partition("](")[0], _PICTURE.sub("", text))
    for paragraph in _PARAGRAPH_END.split(_FENCE.sub("", text)):
        if paragraph.lstrip().startswith(("|", "#", "<")):
            continue
        for sentence in _SENTENCE_END.split(" ".join(_BULLET.sub("", paragraph, 1).split())):
            if sentence.rstrip("*`)").endswith((".", "!", "?", ":")):
                yield sentence


def links(page: Path) -> Iterator[str]:
    """Yield the links of a page to files or anchors of the project."""
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if not re.match(r"[a-z]+:", link):
            yield link


def external_links(text: str) -> list[str]:
    """Return the links of a page to other sites. URLs in code are no links."""
    return re.findall(r"https?:[^\s)>]*", _CODE.sub("", _FENCE.sub("", text)))


def broken_links(page: Path) -> Iterator[str]:
    """Return the links of a page to files or anchors of the project that do not exist."""
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            yield link

"""Read properties files as java.util.Properties does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_BLANK: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
# The name ends at the first blank, "=" or ":" that has no backslash before it.
_PAIR: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "r": "\r", "n": "\n", "f": "\f"}


def properties(text: str) -> dict[str, str]:
    """Return the properties in a text.

    If a name occurs several times, its last value wins. A property with an empty name is dropped.
    Raise ValueError for an invalid escape. Its message does not show the text.
    """
    found = {}
    for line in _logical_lines(text):
        pair = _PAIR.fullmatch(line)
        if pair is not None:
            found[_unescaped(pair[1])] = _unescaped(pair[2])
    found.pop("", None)
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines that are neither empty nor comments.

    A line that ends in an odd number of backslashes is combined with the next line.
    """
    line = ""
    for natural in _LINE_END.split(text):
        part = natural.lstrip(_BLANK)
        if not line and part.startswith(("#", "!")):
            continue
        is_continued = (len(part) - len(part.rstrip("\\"))) % 2 == 1
        line += part[:-1] if is_continued else part
        if not is_continued and line:
            yield line
            line = ""
    if line:
        yield line


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_meaning, text)
    # Two escapes may be the halves of a surrogate pair.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _meaning(escape: re.Match[str]) -> str:
    letter = escape[1]
    if len(letter) > 1:
        return chr(int(letter[1:], 16))
    if letter == "u":
        raise ValueError(r"a \u is not followed by four hexadecimal digits")
    return _ESCAPED.get(letter, letter)

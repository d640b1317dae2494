"""Finds words that this project does not use: in names, docstrings, comments, messages, documents.

::

    PYTHONPATH=tests:jobs python -m support.house.words [--list] [--shrink]

``allowed_words.toml`` has how often each rule is still broken in each room. More is an error, and
``--shrink`` lowers the numbers to what there is: they never rise. ``--list`` prints every place.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[3]
ALLOWED: Final = Path(__file__).with_name("allowed_words.toml")
_CODE: Final = ("spark_kafka_sink", "jobs", "benchmarks", "tests")
_TEXTS: Final = (
    *("*.md", "docs/**/*.md", "*.toml", "tests/**/*.toml", "jobs/**/*.toml", "conf/*"),
    *("jobs/*.ipynb", "jobs/**/*.yml", "Makefile"),
)
_HAVE_DOCSTRINGS: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# Parts of names that a Kafka or Spark developer would not guess.
_NAMES: Final = frozenset(
    (
        *("anew", "hear", "heard", "hears", "judge", "judged", "judges", "judging"),
        *("leave", "leaves", "leaving", "tell", "tells", "told", "turn", "turned", "turns"),
        *("unsaid", "unsay", "wanted", "wants", "whoever", "whole", "wholly"),
    )
)
_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# How a docstring does not begin: it says what a function does in the words of everybody.
_BEGINS: Final = re.compile(r"(Give(?! up)|Gives|Say|Says|Tell|Tells|Have|Has|See to)\b")
_NAME_IN_TOML: Final = re.compile(r'name = "([^"]+)"')
_PHRASES: Final = re.compile(
    r"\banew\b|\b(?:is|are|was|were|be|been) told\b|\brefused with a sentence\b|\bwhat becomes of\b"
    r"|\bbecomes of\b|\bcame of it\b|\bwhoever\b|\bin vain\b|\bnobody knows\b|\bis heard of\b"
    r"|\bheard of\b|\blet go of\b|\btells? of\b|\bsee to it\b|\bby the way that\b"
    # A clause as the subject of a sentence. A question may begin so, and so may the first sentence,
    # which may be a name: "What a broker returns."
    r"|(?-i:\bWhatever\b|(?<=[.!])\s+(?:What|Who)\b(?![^.!?]*\?))",
    re.IGNORECASE,
)


class Found(NamedTuple):
    """A place where a rule is broken."""

    rule: str
    path: str
    line: int
    text: str

    @property
    def room(self) -> str:
        """Where it is: a room of the package, or another folder at the top."""
        parts = Path(self.path).parts
        if len(parts) > 2 and parts[0] == "spark_kafka_sink":
            return parts[1]
        return parts[0]


def found_in_code(path: str, source: str) -> Iterator[Found]:
    """Yield the places of a module."""
    tree = ast.parse(source)
    if _is_forbidden(stem := Path(path).stem):
        yield Found("name", path, 1, stem)
    texts: set[int] = set()
    for node in ast.walk(tree):  # a statement comes before the texts in it
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in texts:
                yield from _phrases("message", path, node.lineno, node.value)
            continue
        for line, name in _names(node):
            if _is_forbidden(name):
                yield Found("name", path, line, name)
        for text in _docstrings(node):
            texts.add(id(text))
            yield from _in_docstring(path, text, is_first=isinstance(node, _HAVE_DOCSTRINGS))
    yield from _in_comments(path, source)


def _in_comments(path: str, source: str) -> Iterator[Found]:
    # Reading tokens takes longer than all else, and few modules have such a comment.
    if any(_PHRASES.search(line, line.find("#")) for line in source.splitlines() if "#" in line):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield from _phrases("comment", path, token.start[0], token.string)


def found_in_text(path: str, text: str) -> Iterator[Found]:
    """Yield the places of a page or of settings. In TOML, what `name` is set to is a name."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from _phrases("document", path, number, line)
        name = _NAME_IN_TOML.fullmatch(line) if path.endswith(".toml") else None
        if name is not None and _is_forbidden(name[1]):
            yield Found("name", path, number, name[1])


def _is_forbidden(name: str) -> bool:
    """Return whether a name has a forbidden part; a test's name is a sentence, so it may."""
    parts = {part.lower() for part in _PART.findall(name)}
    return not _NAMES.isdisjoint(parts) and not name.startswith("test_")


def _in_docstring(path: str, text: ast.Constant, *, is_first: bool) -> Iterator[Found]:
    value = str(text.value)
    if is_first and _BEGINS.match(value):
        yield Found("begins", path, text.lineno, value.split("\n", 1)[0])
    yield from _phrases("docstring", path, text.lineno, value)


def _names(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names that a node makes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield node.lineno, name
        case ast.arg(arg=name) | ast.alias(asname=str(name)):
            yield node.lineno, name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield node.lineno, name
        case (
            ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.MatchMapping(rest=str(name))
        ):
            yield node.lineno, name


def _docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else ():
        match statement:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                yield text


def _phrases(rule: str, path: str, line: int, text: str) -> Iterator[Found]:
    for match in _PHRASES.finditer(text):
        at = line + text.count("\n", 0, match.start())
        yield Found(rule, path, at, match[0])


def found_everywhere() -> Iterator[Found]:
    """Yield the places of the whole project."""
    own = {Path(__file__), ROOT / "tests" / "repository" / "test_house.py"}  # they name the words
    for folder in _CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path not in own and "__pycache__" not in path.parts:
                yield from found_in_code(str(path.relative_to(ROOT)), path.read_text())
    for pattern in _TEXTS:
        for path in sorted(ROOT.glob(pattern)):
            if not path.is_relative_to(ROOT / "docs" / "benchmarks"):
                yield from found_in_text(str(path.relative_to(ROOT)), path.read_text())


def counts(found: list[Found]) -> dict[str, Counter[str]]:
    """Return how often each rule is broken, by room."""
    made: dict[str, Counter[str]] = {}
    for each in found:
        made.setdefault(each.rule, Counter())[each.room] += 1
    return made


def allowed() -> dict[str, dict[str, int]]:
    """Return how often each rule may be broken, by room."""
    return tomllib.loads(ALLOWED.read_text())


def too_many(found: list[Found], limits: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for each room in which a rule is broken more often than before."""
    return [
        f"{rule} in {room}: {count} places, {limits.get(rule, {}).get(room, 0)} allowed, such as "
        + ", ".join(
            f"{one.path}:{one.line} ({one.text})"
            for one in [each for each in found if (each.rule, each.room) == (rule, room)][-3:]
        )
        for rule, rooms in sorted(counts(found).items())
        for room, count in sorted(rooms.items())
        if count > limits.get(rule, {}).get(room, 0)
    ]


def shrunk(found: list[Found], limits: Mapping[str, Mapping[str, int]]) -> str:
    """Return the text of the allow-list with each number lowered to what there is."""
    now = counts(found)
    lines = ["# How often each rule of words.py is still broken, by room. The numbers only shrink."]
    for rule, rooms in sorted(limits.items()):
        left = {
            room: least
            for room, limit in sorted(rooms.items())
            if (least := min(limit, now.get(rule, Counter())[room]))
        }
        if left:
            lines += ["", f"[{rule}]", *(f'"{room}" = {least}' for room, least in left.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print what is new, or all; 1 if there is more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every place")
    parser.add_argument("--shrink", action="store_true", help="lower the numbers to what there is")
    given = parser.parse_args()
    found = list(found_everywhere())
    if given.list:
        for each in found:
            print(f"{each.path}:{each.line}: {each.rule}: {each.text}")
    if given.shrink:
        ALLOWED.write_text(shrunk(found, allowed()))
    problems = too_many(found, allowed())
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

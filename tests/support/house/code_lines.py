"""Counts the modules and the lines of code of spark_kafka_sink, room by room.

::

    PYTHONPATH=tests:jobs python -m support.house.code_lines [COMMIT …]

A line of code is not blank and is not a part of a comment, a docstring or an import. Without a
commit, it counts the working copy; with commits, what git has of each.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

_ROOT: Final = Path(__file__).parents[3]
_PACKAGE: Final = "spark_kafka_sink"
_FLAT: Final = "(flat)"
_NO_CODE: Final = frozenset(
    (
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    )
)
_HAVE_DOCSTRINGS: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return how many lines of code a module has."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out.update(_lines(node))
        elif isinstance(node, _HAVE_DOCSTRINGS) or hasattr(node, "body"):
            left_out.update(line for text in _texts(node) for line in _lines(text))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - left_out)


def _texts(node: ast.AST) -> Iterator[ast.Expr]:
    """Yield the docstrings in a body: of its owner, and of attributes."""
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else ():
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                yield statement


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def working_copy() -> dict[str, str]:
    """Return the package's modules as they are on the disk, by their paths."""
    return {
        str(path.relative_to(_ROOT)): path.read_text()
        for path in sorted((_ROOT / _PACKAGE).rglob("*.py"))
    }


def at(commit: str) -> dict[str, str]:
    """Return the package's modules of a commit, by their paths."""
    names = _git("ls-tree", "-r", "--name-only", commit, f"{_PACKAGE}/").splitlines()
    return {name: _git("show", f"{commit}:{name}") for name in names if name.endswith(".py")}


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True
    ).stdout


def by_room(modules: Mapping[str, str]) -> tuple[Counter[str], Counter[str]]:
    """Return the number of modules, and of lines of code, of each room."""
    counts: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path, source in modules.items():
        folders = PurePosixPath(path).parts[1:-1]
        room = "/".join(folders[:2]) if folders else _FLAT
        if source.strip():  # a folder's empty __init__ is no module that anybody reads
            counts[room] += 1
        lines[room] += code_lines(source)
    return counts, lines


def report(modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a table."""
    counts, lines = by_room(modules)
    yield f"{'room':24} {'modules':>8} {'code lines':>11}"
    for room in sorted(lines):
        yield f"{room:24} {counts[room]:8,} {lines[room]:11,}"
    yield f"{'all':24} {counts.total():8,} {lines.total():11,}"


def main(commits: Iterable[str]) -> None:
    """Print the counts of each commit, or of the working copy."""
    for commit in commits:
        print(_git("log", "-1", "--format=%h %cs %s", commit).strip())
        print("\n".join(report(at(commit))) + "\n")
    if not commits:
        print("\n".join(report(working_copy())))


if __name__ == "__main__":
    main(sys.argv[1:])

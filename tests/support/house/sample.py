"""Draws docstrings, messages and sentences of documents by a seed, for a reader who is new here.

::

    PYTHONPATH=tests:jobs python -m support.house.sample SEED [--pages]

It prints 40 docstrings, 20 messages and 20 sentences, each with its place; with ``--pages``, 60
sentences of README and of the pages for users instead. The reader marks what had to be read twice.
The same seed draws the same places from the same commit.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Final

from support.documents import pages
from support.house.words import ROOT

_DOCSTRINGS, _MESSAGES, _SENTENCES = 40, 20, 20
_SENTENCES_OF_PAGES: Final = 60
_HAVE_DOCSTRINGS: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# A message to a user is a sentence, not a name, a pattern or a piece of one.
_FEWEST_WORDS: Final = 6
_Drawn = tuple[str, str]


@cache
def _modules() -> list[tuple[str, ast.Module]]:
    paths = sorted((ROOT / "spark_kafka_sink").rglob("*.py"))
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths]


def docstrings() -> Iterator[_Drawn]:
    """Yield the docstrings of the package, and where they are."""
    for path, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, _HAVE_DOCSTRINGS) and (text := ast.get_docstring(node)):
                line = getattr(node, "lineno", 1)
                name = getattr(node, "name", "the module")
                yield f"{path}:{line} {name}", text


def messages() -> Iterator[_Drawn]:
    """Yield the sentences in the package's code that are no docstrings."""
    for path, tree in _modules():
        texts = {
            id(statement.value)
            for node in ast.walk(tree)
            for statement in _body(node)
            if isinstance(statement, ast.Expr)
        }
        inside = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in texts | inside:
                text = _text(node)
                if len(text.split()) >= _FEWEST_WORDS:
                    yield f"{path}:{node.lineno}", text


def _body(node: ast.AST) -> list[ast.stmt]:
    body = getattr(node, "body", None)
    return body if isinstance(body, list) else []


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    """Return the text of a string, with the expressions of an f-string in braces."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(
        f"{{{ast.unparse(part.value)}}}"
        if isinstance(part, ast.FormattedValue)
        else str(getattr(part, "value", ""))
        for part in node.values
    )


def sentences(of: Iterable[Path] = pages.PAGES) -> Iterator[_Drawn]:
    """Yield the sentences of documents, and where they are."""
    for page in of:
        if page.name != "CHANGELOG.md" and "benchmarks" not in page.parts:
            for sentence in pages.sentences(page.read_text()):
                if len(sentence.split()) >= _FEWEST_WORDS:
                    yield str(page.relative_to(ROOT)), sentence


def main(argv: Sequence[str] | None = None) -> None:
    """Print what a seed draws."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("--pages", action="store_true", help="60 sentences for users alone")
    given = parser.parse_args(argv)
    random = Random(given.seed)
    print(f"seed {given.seed}")
    parts = [
        ("Docstrings", _DOCSTRINGS, docstrings),
        ("Messages", _MESSAGES, messages),
        ("Sentences of documents", _SENTENCES, sentences),
    ]
    if given.pages:
        of_users = partial(sentences, (pages.README, *pages.USER_PAGES))
        parts = [("Sentences of the pages for users", _SENTENCES_OF_PAGES, of_users)]
    for heading, count, of in parts:
        print(f"\n== {heading}")
        for number, (place, text) in enumerate(random.sample(list(of()), count), 1):
            print(f"\n{number}. [{place}]\n{text}")


if __name__ == "__main__":
    main()

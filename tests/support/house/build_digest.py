"""Computes the digest in spark/worker.py that distinguishes builds of the same version.

::

    PYTHONPATH=tests:jobs python -m support.house.build_digest [--write]

The driver, the tasks and the committing process pass pickled objects to each other. The digest is
one of the fields of their classes: the writers, the commit messages, and each class that is found
in the annotations of another one.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_PACKAGE: Final = "spark_kafka_sink"
_ROOT: Final = Path(__file__).parents[3]
PLACE: Final = _ROOT / _PACKAGE / "spark" / "worker.py"
COMMAND: Final = "PYTHONPATH=tests:jobs python -m support.house.build_digest --write"
_LINE: Final = re.compile(r'^_FIELDS: Final = "[0-9a-f]*"$', re.MULTILINE)
# All classes of these modules are pickled.
_MODULES: Final = (f"{_PACKAGE}.spark.writer", f"{_PACKAGE}.spark.report")


class _Name(NamedTuple):
    module: str
    name: str


class _Module(NamedTuple):
    """The classes, the type aliases and the imported names of a module."""

    classes: dict[str, ast.ClassDef]
    aliases: dict[str, ast.expr]
    imports: dict[str, _Name]


@cache
def _module(name: str) -> _Module:
    path = _ROOT.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = _Module({}, {}, {})
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef():
                found.classes[node.name] = node
            case ast.ImportFrom(module=str(where)) if where.startswith(_PACKAGE):
                found.imports.update({a.asname or a.name: _Name(where, a.name) for a in node.names})
            case ast.Assign(targets=[ast.Name(id=alias)], value=value):
                found.aliases[alias] = value
            case ast.AnnAssign(target=ast.Name(id=alias), value=ast.expr() as value):
                found.aliases[alias] = value
            case _:
                pass
    return found


def _types(node: ast.ClassDef) -> Iterator[ast.expr]:
    """Generate the bases of a class, and the annotations of its fields and constructor."""
    yield from node.bases
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            yield each.annotation
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            arguments = (node for node in ast.walk(each.args) if isinstance(node, ast.arg))
            yield from (given.annotation for given in arguments if given.annotation)


def _reached(start: _Name) -> Iterator[_Name]:
    """Generate the names in the types of a class or an alias."""
    module = _module(start.module)
    if start.name in module.classes:
        types = list(_types(module.classes[start.name]))
    else:
        types = [module.aliases[start.name]] if start.name in module.aliases else []
    for each in types:
        for node in ast.walk(each):
            if isinstance(node, ast.Name):
                yield module.imports.get(node.id, _Name(start.module, node.id))


def pickled_classes() -> dict[_Name, ast.ClassDef]:
    """Return the classes whose instances are pickled, in the order of their names."""
    ahead = [_Name(module, name) for module in _MODULES for name in _module(module).classes]
    seen = set(ahead)
    while ahead:
        here = ahead.pop()
        # A package may pass a name on.
        passed_on = _module(here.module).imports.get(here.name)
        for other in (*_reached(here), *([] if passed_on is None else [passed_on])):
            if other not in seen:
                seen.add(other)
                ahead.append(other)
    found = {each: _module(each.module).classes.get(each.name) for each in sorted(seen)}
    return {each: node for each, node in found.items() if node is not None}


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Generate the fields of a class with their types, in their order.

    They are annotated in the class, members of an Enum, or attributes that methods set.
    """
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            yield f"{ast.unparse(each.target)}: {ast.unparse(each.annotation)}"
        elif isinstance(each, ast.Assign):
            yield ast.unparse(each)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield ast.unparse(inner)


def digest() -> str:
    """Return the digest of the code."""
    lines = []
    for (module, name), node in pickled_classes().items():
        lines += [f"{module}.{name}", *_fields(node)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def written(text: str) -> str:
    """Return the text of spark/worker.py with the digest of the code."""
    return _LINE.sub(f'_FIELDS: Final = "{digest()}"', text)


def main() -> None:
    """Print the digest, or write it to spark/worker.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write it to {PLACE.name}")
    if parser.parse_args().write:
        PLACE.write_text(written(PLACE.read_text()))
    else:
        print(digest())


if __name__ == "__main__":
    main()

"""Draws the rooms of spark_kafka_sink from its import graph, for docs/contributing/house.md.

::

    PYTHONPATH=tests:jobs python -m support.house.rooms [--write]

An arrow goes from a room to one that it imports. An arrow that follows from two others is left out.
The modules that every room uses are one node.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import grimp

PAGE: Final = Path(__file__).parents[3] / "docs" / "contributing" / "house.md"
BEGIN: Final = "<!-- made by tests/support/house/rooms.py: begin -->\n"
END: Final = "<!-- made by tests/support/house/rooms.py: end -->\n"
_PACKAGE: Final = "spark_kafka_sink"
_ROOMS_INSIDE: Final = frozenset(("spark",))
_COMMON: Final = (
    *("config", "backoff", "metrics", "logs"),
    *("model", "errors", "error_codes"),
)
_COMMON_ROOM: Final = "what all use"
_Graph = Mapping[str, frozenset[str]]


def room(module: str) -> str | None:
    """Return the room of a module; None for a package that only has rooms."""
    parts = module.split(".")[1:]
    if parts in ([], ["spark"]):
        return None
    if parts[0] in _COMMON:
        return _COMMON_ROOM
    return "/".join(parts[:2]) if parts[0] in _ROOMS_INSIDE and len(parts) > 1 else parts[0]


def rooms() -> _Graph:
    """Return the rooms, and which others each imports."""
    graph = grimp.build_graph(_PACKAGE, exclude_type_checking_imports=True)
    imports: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        if (here := room(module)) is not None:
            others = map(room, graph.find_modules_directly_imported_by(module))
            imports[here].update(other for other in others if other not in (None, here))
    return {here: frozenset(there) for here, there in imports.items()}


def reduced(imports: _Graph) -> Iterator[tuple[str, str]]:
    """Yield the arrows that do not follow from others, in order."""
    for here, there in sorted(imports.items()):
        for other in sorted(there):
            ways = (way for way in there if way != other)
            if not any(_reaches(imports, way, other) for way in ways):
                yield here, other


def _reaches(imports: _Graph, start: str, end: str) -> bool:
    seen, ahead = {start}, [start]
    while ahead:
        for other in imports.get(ahead.pop(), frozenset()):
            if other == end:
                return True
            if other not in seen:
                seen.add(other)
                ahead.append(other)
    return False


def picture() -> str:
    """Return the diagram, in the language of Mermaid."""
    imports = rooms()
    names = {name: f"r{number}" for number, name in enumerate(sorted(imports))}
    lines = ["```mermaid", "flowchart TD"]
    for name in sorted(imports):
        what = "<br/>".join(_COMMON) if name == _COMMON_ROOM else name
        lines.append(f'    {names[name]}["{what}"]')
    lines += [f"    {names[here]} --> {names[there]}" for here, there in reduced(imports)]
    return "\n".join([*lines, "```\n"])


def with_picture(text: str) -> str:
    """Return a page with its picture made again."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + "\n" + picture() + "\n" + END + rest.partition(END)[2]


def main() -> None:
    """Print the picture, or write it to the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write it to {PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(with_picture(PAGE.read_text()))
    else:
        print(picture())


if __name__ == "__main__":
    main()

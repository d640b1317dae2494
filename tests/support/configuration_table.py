"""docs/configuration.md, made of the tables of `config.py`; run as a program, it writes the file.

What an option does stands as a string behind its field, where who changes the field sees it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from spark_kafka_sink import config
from spark_kafka_sink.config import NO_EFFECT, NOT_YET, OFF_ONLY, REFUSED, option_fields
from spark_kafka_sink.spark.options import SINK_DEFAULTS

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "configuration.md"

_HEAD: Final = """\
# Configuration of the producer

Every option of the Java producer, by its name: for `KafkaProducer({…})` as written here, for
`df.write.format("pykafka")` with `kafka.` before it. Names, meanings and defaults are the Java
client's (Kafka 4.x); where the sink's default is another, it stands first. Times are in
milliseconds, sizes in bytes.

This file is made of the tables in `spark_kafka_sink/config.py`, and a test fails when it is stale;
`PYTHONPATH=tests python -m support.configuration_table` writes it anew.

## Offered

| option | default | what it does |
|---|---|---|
"""


def descriptions() -> dict[str, str]:
    """Give the strings behind the fields of `ProducerConfig`, by the fields' names.

    Raises KeyError where a field has none.
    """
    tree = ast.parse(Path(config.__file__).read_text())
    (cls,) = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "ProducerConfig"
    ]
    found = {}
    for field, text in zip(cls.body, cls.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def render() -> str:
    """Give the text of the document."""
    return _HEAD + "".join(_offered()) + "".join(
        [
            *_table("Off only", "These can be set to `false`, and to nothing else.", OFF_ONLY),
            *_table("Without effect", "These are read, with a warning.", NO_EFFECT),
            *_table("Refused", "", REFUSED),
            "\n## Not there yet\n\nThese are refused with a sentence that says so.\n\n",
            *(f"- `{name}`\n" for name in sorted(NOT_YET)),
        ]
    )  # fmt: skip


def _offered() -> Iterator[str]:
    texts = descriptions()
    for field in sorted(option_fields(), key=lambda f: f.encode_name):
        name = field.encode_name
        default = _default(name, field.default)
        yield f"| `{name}` | {default} | {texts[field.name]} |\n"


def _default(name: str, java: object) -> str:
    if java is msgspec.NODEFAULT:
        return "required"
    if name == "client.id":
        return f"`{SINK_DEFAULTS[name]}`; Java: `producer-1`, `producer-2`, …"
    written = _written(java)
    if name in SINK_DEFAULTS:
        return f"{_written(SINK_DEFAULTS[name])}; Java: {written}"
    return written


def _written(value: object) -> str:
    if value is None:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(title: str, text: str, rows: Mapping[str, str]) -> Iterator[str]:
    yield f"\n## {title}\n\n"
    if text:
        yield f"{text}\n\n"
    yield "| option | why |\n|---|---|\n"
    for name in sorted(rows):
        yield f"| `{name}` | {rows[name]} |\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render())

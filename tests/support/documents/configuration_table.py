"""Generate docs/reference/configuration.md from the tables of `config.py`.

As a program, write the file. The string after a field of `ProducerConfig` describes the option.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from spark_kafka_sink import config
from spark_kafka_sink.config import NO_EFFECT, NOT_YET, OFF_ONLY, REFUSED, option_fields
from spark_kafka_sink.spark.exactly_once import TRANSACTION_TIMEOUT_MS
from spark_kafka_sink.spark.options import SINK_DEFAULTS

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"

# Options that the Java client of 4.3 does not have, and later ones do.
LATER: Final = (
    "bootstrap.resolve.timeout.ms",
    "buffer.memory.allocation.strategy",
    "client.rack",
    "metadata.cluster.check.enable",
    "partitioner.rack.aware",
    "sasl.oauthbearer.allow.unverified.audience",
    "sasl.oauthbearer.allow.unverified.issuer",
)
_HEAD: Final = f"""\
# Configuration of the producer

This page lists every option of the Java producer. `KafkaProducer({{…}})` takes the names as they
are on this page; `df.write.format("pykafka")` takes them with the prefix `kafka.`. Names, meanings
and defaults are those of the Java client (Kafka 4.4.0). Times are in milliseconds, sizes in bytes.
The Java client of Kafka 4.3.1 does not have {len(LATER)} of these options yet:
{", ".join(f"`{name}`" for name in LATER)}.

## Defaults that differ from Java's

A task of Spark usually sends many rows. So these defaults differ from the Java client's:

| option | default of the sink | default of the Java client |
|---|---|---|
"""
_OFFERED: Final = f"""
With [exactlyOnce](../explanation/exactly-once.md), the default of `transaction.timeout.ms` is
`{TRANSACTION_TIMEOUT_MS}`.

## Offered

If the sink's default differs from the Java client's default, the sink's default comes first.

| option | default | what it does |
|---|---|---|
"""
# Explanations of some of the sink's defaults.
_NOTES: Final[Mapping[str, str]] = {
    "linger.ms": " (the end of the input flushes anyway)",
    "send.buffer.bytes": " (the operating system decides)",
}
_JAVAS_CLIENT_ID: Final = "`producer-1`, `producer-2`, …"


def descriptions() -> dict[str, str]:
    """Return the strings after the fields of `ProducerConfig`, by the fields' names."""
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
    """Return the text of the document."""
    return "".join(
        [
            *(_HEAD, *_other_defaults()),
            *(_OFFERED, *_offered()),
            *_table("Off only", "You can set these options only to `false`.", OFF_ONLY),
            *_table("Without effect", "These options only cause a warning.", NO_EFFECT),
            *_table("Refused", "The producer rejects these options.", REFUSED),
            "\n## Not there yet\n\nThese options are not supported yet, and are rejected.\n\n",
            *(f"- `{name}`\n" for name in sorted(NOT_YET)),
        ]
    )  # fmt: skip


def _other_defaults() -> Iterator[str]:
    java = {field.encode_name: field.default for field in option_fields()}
    for name, value in SINK_DEFAULTS.items():
        theirs = _JAVAS_CLIENT_ID if name == "client.id" else _written(java[name])
        yield f"| `{name}` | {_written(value)}{_NOTES.get(name, '')} | {theirs} |\n"


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
        return f"`{SINK_DEFAULTS[name]}`; Java: {_JAVAS_CLIENT_ID}"
    written = _written(java)
    if name in SINK_DEFAULTS:
        return f"{_written(SINK_DEFAULTS[name])}; Java: {written}"
    return written


def _written(value: object) -> str:
    if value == ():
        return "``"
    if value is None:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(title: str, text: str, rows: Mapping[str, str]) -> Iterator[str]:
    yield f"\n## {title}\n\n{text}\n\n"
    yield "| option | why |\n|---|---|\n"
    for name in sorted(rows):
        yield f"| `{name}` | {rows[name]} |\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render())

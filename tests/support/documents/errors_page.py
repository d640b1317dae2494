"""Generate docs/reference/errors.md, the catalogue of errors; as a script, write the page.

::

    PYTHONPATH=tests:jobs python -m support.documents.errors_page
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from spark_kafka_sink import errors
from spark_kafka_sink.errors import (
    ERROR_CODES,
    ApiException,
    ApplicationRecoverableException,
    Cause,
    ErrorCode,
    InvalidConfigurationException,
    RetriableException,
    TransactionAbortableException,
)
from support.documents.error_catalogue import CATALOGUE, Entry
from support.documents.error_messages import KINDS, messages, sites
from support.documents.warning_catalogue import WARNINGS

PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"
COMMAND: Final = "PYTHONPATH=tests:jobs python -m support.documents.errors_page"


def page() -> str:
    """Return the text of docs/reference/errors.md."""
    lines = [_HEAD]
    for section, entries in CATALOGUE.items():
        lines += [f"## {section}", ""]
        for entry in entries:
            lines += [*_lines(entry, messages_of(entry), kinds_of(entry)), ""]
    lines += [_WARNINGS]
    for entry in WARNINGS:
        lines += [*_lines(entry, messages_of(entry, are_warnings=True), []), ""]
    return "\n".join([*lines, _CODES, *_code_rows()]) + "\n"


def messages_of(entry: Entry, *, are_warnings: bool = False) -> list[str]:
    """Return the messages of an entry, each once."""
    found: dict[str, None] = {}
    for place in entry.places:
        name, _, words = place.partition("~")
        texts = messages(name, are_warnings=are_warnings)
        found |= dict.fromkeys(text for text in texts if words in text)
    return list(found)


def kinds_of(entry: Entry) -> list[str]:
    """Return the classes of the exceptions of an entry that the code names there."""
    places = {place.partition("~")[0] for place in entry.places}
    found = {site.kind for site in sites() if site.place in places} & KINDS
    found |= {cause.kind.__name__ for place, cause in shared_causes().items() if place in places}
    return sorted(found)


def shared_causes() -> dict[str, Cause]:
    """Return the causes that several parts of the package name with the same message."""
    return {f"errors.py:{n}": each for n, each in vars(errors).items() if isinstance(each, Cause)}


def listed_codes() -> list[ErrorCode]:
    """Return the error codes that have an exception of their own, besides those of bugs."""
    return [row for row in ERROR_CODES.values() if row.kind is not ApiException]


def _lines(entry: Entry, texts: Sequence[str], kinds: Sequence[str]) -> Iterator[str]:
    yield f"### {entry.title}"
    yield ""
    yield from (f"- {_code(text)}" for text in texts)
    yield ""
    yield f"**Cause:** {entry.cause}"
    yield ""
    yield f"**What to do:** {entry.what_to_do}"
    if kinds:
        yield ""
        yield f"**Exception:** {', '.join(f'`{kind}`' for kind in kinds)}."


def _code(text: str) -> str:
    text = text.strip("; ")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _code_rows() -> Iterator[str]:
    for row in listed_codes():
        cause = (row.kind.__doc__ or "").partition("\n")[0]
        name = row.kind.__name__
        yield f"| {row.code} | `{row.name}` | `{name}` | {cause} | {_advice(row)} |"


# What to do about an error code without advice, by the class of its exception.
_BY_CLASS: Final = {
    RetriableException: "Retriable: the sink retries within `retries` and `delivery.timeout.ms`.",
    ApplicationRecoverableException: "Run the job again. Create another `KafkaProducer`.",
    InvalidConfigurationException: "Change the setting, the permission or the data.",
    TransactionAbortableException: "Abort the transaction, and begin a new one.",
    ApiException: "See the message and the log of the broker.",
}


def _advice(row: ErrorCode) -> str:
    if row.advice is not None:
        text = re.sub(r"\{(.+?)\}", r"`\1`", row.advice)
        return f"{text[0].upper()}{text[1:]}."
    return next(text for kind, text in _BY_CLASS.items() if issubclass(row.kind, kind))


_HEAD: Final = f"""\
# Errors

This page lists the errors of the sink that a user can cause, and at its end the
[warnings](#warnings-and-lines-on-stderr). Search for words of the message.
`…` stands for a detail, such as the name of an option. In Spark, the names of the producer's
options begin with `kafka.`.

The exceptions of the sink are classes of `spark_kafka_sink.errors`. There is one exception: if a
module is missing or too old, Python's `ImportError` or `ModuleNotFoundError` is raised. If a task
fails, Spark raises its own exception, which contains a Python traceback. The last line of this
traceback is the message of the sink.
After `register(spark)`, this message is also the last line of Spark's exception.

The traceback shows the frames of the sink only if the option `fullTraceback` is `true`.
It always shows the frames of your own code.

`{COMMAND}` makes this page.
"""
_WARNINGS: Final = """\
## Warnings and lines on stderr

The sink logs these messages as warnings or errors, or prints them on stderr, and raises no
exception. Lines of the process that commits begin with `pykafka:`. The page about the
[report](report.md) describes the lines about written rows.
"""
_CODES: Final = """\
## Error codes of brokers

A broker returns a code for a request that it refuses.
Error messages show the name and the number of the code.

| code | name | exception | cause | what to do |
|---|---|---|---|---|"""


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())

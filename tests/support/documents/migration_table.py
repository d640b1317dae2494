"""Generate docs/reference/spark-sink-options.md from the code's tables.

As a program, write the tables of the page. Its first paragraphs are written by hand.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from spark_kafka_sink.config import NO_EFFECT, NOT_YET, OFF_ONLY, REFUSED, option_fields
from spark_kafka_sink.spark import options
from spark_kafka_sink.spark.options import SINK_DEFAULTS

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "reference" / "spark-sink-options.md"
BEGIN: Final = "<!-- made by tests/support/documents/migration_table.py: begin -->\n"
END: Final = "<!-- made by tests/support/documents/migration_table.py: end -->\n"

# Defaults of the client in Spark 4.2 (kafka-clients 3.9) that differ from those of Kafka 4.
DEFAULTS_OF_3_9: Final[Mapping[str, object]] = {
    "client.rack": None,
    "config.providers": None,  # no option of its producer, but of all its clients
    "linger.ms": 0,
    "metadata.recovery.rebootstrap.trigger.ms": None,
    "metadata.recovery.strategy": "none",
    "partitioner.rack.aware": None,
    **dict.fromkeys(
        (
            "sasl.oauthbearer.assertion.algorithm",
            "sasl.oauthbearer.assertion.claim.aud",
            "sasl.oauthbearer.assertion.claim.exp.seconds",
            "sasl.oauthbearer.assertion.claim.iss",
            "sasl.oauthbearer.assertion.claim.jti.include",
            "sasl.oauthbearer.assertion.claim.nbf.seconds",
            "sasl.oauthbearer.assertion.claim.sub",
            "sasl.oauthbearer.assertion.file",
            "sasl.oauthbearer.assertion.private.key.file",
            "sasl.oauthbearer.assertion.private.key.passphrase",
            "sasl.oauthbearer.assertion.template.file",
            "sasl.oauthbearer.client.credentials.client.id",
            "sasl.oauthbearer.client.credentials.client.secret",
            "sasl.oauthbearer.jwt.retriever.class",
            "sasl.oauthbearer.scope",
        )
    ),
}
_KNOWN_THERE: Final[Mapping[str, str]] = {"topic": "the topic of all rows; trimmed"}
# How Spark handles its own options with a Python sink.
_OF_SPARK: Final[Mapping[str, str]] = {
    "asyncprogresstrackingenabled": "if it is true, Spark rejects the query, so remove it",
    "asyncprogresstrackingcheckpointintervalms": "no effect without `asyncProgressTrackingEnabled`",
}
# Options that accept other values than Java's, or that are new in Kafka 4.
_NOTES: Final[Mapping[str, str]] = {
    "partitioner.class": (
        "the Java client's own by name; for other classes, `module.Name` of a Python callable"
    ),
    "sasl.client.callback.handler.class": (
        "only Amazon MSK's handler for AWS_MSK_IAM, by its class name"
    ),
    "sasl.kerberos.keytab": "new, with sasl.kerberos.principal in place of sasl.jaas.config",
    "sasl.kerberos.principal": "new, in place of sasl.jaas.config",
    "sasl.login.callback.handler.class": (
        "only Kafka's handlers for OAUTHBEARER and Amazon MSK's, by their class names"
    ),
    "sasl.oauthbearer.jwt.retriever.class": (
        "the Java client's own by name; for other classes, `module.Name` of a Python callable"
    ),
    "sasl.password": "new, with sasl.username in place of sasl.jaas.config",
    "sasl.username": "new, with sasl.password in place of sasl.jaas.config",
    "ssl.cipher.suites": "empty: the suites that Python's module ssl enables, which are fewer",
    "ssl.enabled.protocols": "only TLSv1.2 and TLSv1.3; older versions beside them have no effect",
    "ssl.protocol": "only TLSv1.3, TLSv1.2 and TLS",
}


def render() -> str:
    """Return the generated part."""
    return "".join(
        [
            *_table("Options of the sink and of Spark", ("Spark's own sink", "here"), _own()),
            *_list_of(
                "New options", "Spark's own sink ignores them. See [Options](options.md).", _new()
            ),
            *_list_of(
                "Options of Spark's source",
                "Spark's own sink ignores them. This sink also ignores them, and logs a warning.",
                options._SOURCE_ONLY.values(),
            ),
            *_table(
                "Producer settings with another default",
                ("Spark's own sink (kafka-clients 3.9)", "here"),
                _other_defaults(),
            ),
            *_list_of(
                "Producer settings that mean the same",
                "Their defaults are the same, too: see [Configuration](configuration.md).",
                _same(),
            ),
            *_table("Producer settings with other values, or new here", ("here",), _noted()),
            *_table("Producer settings that the sink refuses", ("why",), _refused()),
            *_list_of(
                "Producer settings that are not supported",
                "They are rejected. [Configuration](configuration.md#refused) gives the reasons.",
                _kafka_names([*REFUSED, *NOT_YET]),
            ),
            *_list_of(
                "Producer settings that can only be off",
                "See [Configuration](configuration.md#off-only).",
                _kafka_names(OFF_ONLY),
            ),
            *_list_of(
                "Producer settings without effect",
                "See [Configuration](configuration.md#without-effect).",
                _kafka_names(NO_EFFECT),
            ),
            "\n",
        ]
    )


def with_table(text: str) -> str:
    """Return the document with a new generated part."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + render() + END + rest.split(END)[1]


def _own() -> Iterator[tuple[str, ...]]:
    for lower, name in sorted(options._OWN.items()):
        if lower in _KNOWN_THERE:
            yield name, _KNOWN_THERE[lower], "the same"
    for lower, name in sorted(options._SPARKS.items()):
        yield name, "of Spark itself", _OF_SPARK.get(lower, "the same")
    here = "rejected, and the error suggests a similar name; ignored with `unknownOptions=warn`"
    yield "any other", "ignored", here


def _new() -> Iterator[str]:
    yield from (name for lower, name in options._OWN.items() if lower not in _KNOWN_THERE)
    yield f"{options._TOPIC_CONFIG}<name>"


def _other_defaults() -> Iterator[tuple[str, ...]]:
    for name, default, there in _settings():
        here = SINK_DEFAULTS.get(name, default)
        if there != here:
            java = "`producer-1`, `producer-2`, …" if name == "client.id" else _written(there)
            yield f"kafka.{name}", java, _written(here)


def _same() -> Iterator[str]:
    for name, default, there in _settings():
        is_default = there == SINK_DEFAULTS.get(name, default)
        if is_default and f"kafka.{name}" not in options._REFUSED and name not in _NOTES:
            yield f"kafka.{name}"


def _noted() -> Iterator[tuple[str, ...]]:
    for name, note in sorted(_NOTES.items()):
        yield f"kafka.{name}", note


def _refused() -> Iterator[tuple[str, ...]]:
    for name in options._REFUSED:
        yield name, str(options._refusal(name, ""))


def _kafka_names(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if f"kafka.{name}" not in options._REFUSED:
            yield f"kafka.{name}"


def _settings() -> Iterator[tuple[str, object, object]]:
    """Yield name, default of Kafka 4 and default of kafka-clients 3.9."""
    for field in sorted(option_fields(), key=lambda each: each.encode_name):
        name = field.encode_name
        yield name, field.default, DEFAULTS_OF_3_9.get(name, field.default)


def _written(value: object) -> str:
    if value == ():
        return "``"
    if value is None:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    heads = ["option", *columns]
    yield f"\n## {title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n"
    for name, *cells in rows:
        quoted = name if name == "any other" else f"`{name}`"
        yield f"| {' | '.join([quoted, *cells])} |\n"


def _list_of(title: str, about: str, names: Iterable[str]) -> Iterator[str]:
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    yield f"\n## {title}\n\n{about}\n\n"
    yield textwrap.fill(listed or "None.", 156, break_on_hyphens=False, break_long_words=False)
    yield "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))

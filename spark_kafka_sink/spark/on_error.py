"""The options onError, deadLetterTopic and deadLetterPath: what becomes of rows that are bad.

A bad row is one that can never become a record of its topic (see `serde.bad_rows`). Everything else
that goes wrong fails the task whatever these options say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import masked
from spark_kafka_sink.model import TOPIC_NAME
from spark_kafka_sink.spark.local_path import local_path

# What deadLetterPath has to be.
DEAD_LETTER_FOLDER: Final = (
    "a folder on a filesystem that the driver and every executor have mounted, as "
    "/shared/dead-letters or file:///shared/dead-letters"
)
BAD_ROW_OPTIONS: Final = ("onError", "deadLetterTopic", "deadLetterPath")


class OnError(Enum):
    """What is done about bad rows, by the value of the option."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "deadLetter"


@dataclass(frozen=True, slots=True)
class BadRowPolicy:
    """What becomes of bad rows; with DEAD_LETTER one of topic and path is set, else none."""

    on_error: OnError = OnError.FAIL
    topic: str | None = None
    path: Path | None = None


FAIL_ON_BAD_ROWS: Final = BadRowPolicy()


def bad_row_policy(given: Mapping[str, str], topic: str | None, acks: str) -> BadRowPolicy:
    """Check the three options. Raises ConfigException.

    given: options by their names in lower case; topic: where good rows go, None for a column; acks:
    the producer's, since with 0 brokers do not say which rows they refuse.
    """
    on_error = _on_error(given.get("onerror", OnError.FAIL.value))
    if on_error is not OnError.FAIL and acks == "0":
        message = (
            f"onError={on_error.value} needs answers of the brokers, found kafka.acks=0, with "
            "which rows that they refuse are lost in silence: set kafka.acks to all or 1"
        )
        raise ConfigException(message)
    targets = {name: given[name.lower()] for name in BAD_ROW_OPTIONS[1:] if name.lower() in given}
    if on_error is not OnError.DEAD_LETTER:
        for name in targets:
            message = (
                f"option {name} has no effect with onError={on_error.value}: "
                "set onError to deadLetter, or remove it"
            )
            raise ConfigException(message)
        return BadRowPolicy(on_error)
    if len(targets) != 1:
        message = (
            "onError=deadLetter needs one of the options deadLetterTopic and deadLetterPath, "
            f"found {'both' if targets else 'neither'}"
        )
        raise ConfigException(message)
    if "deadLetterPath" in targets:
        return BadRowPolicy(on_error, path=_path(targets["deadLetterPath"]))
    return BadRowPolicy(on_error, topic=_topic(targets["deadLetterTopic"].strip(), topic))


def _on_error(value: str) -> OnError:
    for known in OnError:
        if value.strip().lower() == known.value.lower():
            return known
    names = ", ".join(known.value for known in OnError)
    message = f"option onError is {value!r}: expected one of {names}"
    raise ConfigException(message)


def _topic(value: str, topic: str | None) -> str:
    if TOPIC_NAME.match(value) is None:
        message = (
            f"option deadLetterTopic is {value!r}: expected a topic name, which has 1 to 249 of "
            "the characters a-z A-Z 0-9 . _ -"
        )
        raise ConfigException(message)
    if value == topic:
        message = (
            f"option deadLetterTopic is {value}, where the good rows go as well: name another topic"
        )
        raise ConfigException(message)
    return value


def _path(value: str) -> Path:
    elsewhere = "which is not a mounted filesystem"
    path = local_path("deadLetterPath", value, elsewhere, DEAD_LETTER_FOLDER)
    found = "not an absolute path" if not path.is_absolute() else "a file" if path.is_file() else ""
    if found:
        shown = masked(str(path))
        message = f"option deadLetterPath is {shown}, {found}: expected {DEAD_LETTER_FOLDER}"
        raise ConfigException(message)
    return path

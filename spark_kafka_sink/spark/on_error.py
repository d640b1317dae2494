"""``onError``, ``deadLetterTopic`` and ``deadLetterPath``: the options for bad rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import TOPIC_NAME
from spark_kafka_sink.spark.local_path import absolute_path

# A description of valid values of deadLetterPath, for error messages.
DEAD_LETTER_FOLDER: Final = (
    "a folder, such as /shared/dead-letters or file:///shared/dead-letters, on a filesystem that "
    "the driver and every executor have mounted"
)
BAD_ROW_OPTIONS: Final = ("onError", "deadLetterTopic", "deadLetterPath")


class OnError(Enum):
    """What to do with bad rows: the values of the option `onError`."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "deadLetter"


@dataclass(frozen=True, slots=True)
class BadRowPolicy:
    """What to do with bad rows.

    topic, path: with DEAD_LETTER, one of them is set. Otherwise both are None.
    """

    on_error: OnError = OnError.FAIL
    topic: str | None = None
    path: Path | None = None


FAIL_ON_BAD_ROWS: Final = BadRowPolicy()


def bad_row_policy(given: Mapping[str, str], topic: str | None, acks: str) -> BadRowPolicy:
    """Check the options of this module and return them. Raise ConfigException if they are invalid.

    given: options with names in lower case. topic: the topic of good rows, None for a topic column.
    acks: the option kafka.acks. If it is 0, brokers do not report the rows that they refuse.
    """
    on_error = _on_error(given.get("onerror", OnError.FAIL.value))
    if on_error is not OnError.FAIL and acks == "0":
        message = (
            f"onError={on_error.value} needs responses of the brokers, but kafka.acks is 0, so "
            "refused rows are lost silently: set kafka.acks to all or 1"
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
            f"option deadLetterTopic is {value}, which is also the topic of good rows: use another "
            "topic"
        )
        raise ConfigException(message)
    return value


def _path(value: str) -> Path:
    elsewhere = "which is not a mounted filesystem"
    return absolute_path("deadLetterPath", value, elsewhere, DEAD_LETTER_FOLDER)

"""Paths in options: ``/a/b``, or the same behind ``file:``; nothing is opened here."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.masking import masked

# What stands before the path in file:/a, file:///a and file://localhost/a, and its likes.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://(?:localhost)?(?=/))?(?=/)")

_LONGEST_NAME: Final = 255
_SHOWN: Final = 60


def local_path(option: str, value: str, elsewhere: str, expected: str) -> Path:
    """Give the path that an option names. Raises ConfigException.

    elsewhere: what is to be said of a path with another scheme or of another host; expected: of
    what it should be.
    """
    scheme = _SCHEME.match(value)
    path = value if scheme is None else value[scheme.end() :]
    is_of_a_host = scheme is not None and scheme[0].endswith(":") and path.startswith("//")
    if is_of_a_host or (scheme is not None and scheme[1].lower() != "file"):
        found = f"{masked(value)!r}, {elsewhere}"
    elif not value.strip():
        found = "empty"
    elif "\0" in path or any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.split("/")):
        found = f"{masked(value)[:_SHOWN]!r}…, which has a NUL or a name too long for a filesystem"
    else:
        return Path(path)
    message = f"option {option} is {found}: expected {expected}"
    raise ConfigException(message)

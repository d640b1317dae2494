"""Masks Kafka's secrets in the DEBUG logs of Spark's Python client.

Classic sessions log each call to the JVM, including the names and values of options. Spark Connect
sessions log each request.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Final

_LOGGERS: Final = ("py4j.clientserver", "py4j.java_gateway", "pyspark.sql.connect.logging")
_MASKED: Final = "*** (a log message that contains the name of a secret option is not shown)"

_adding: Final = threading.Lock()


class _SecretsFilter(logging.Filter):
    """Masks log messages that contain the name of a secret option."""

    def __init__(self, names: str) -> None:
        super().__init__()
        self._names = re.compile(names)

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record's message if necessary. Return True, so that every record is logged."""
        try:
            is_secret = self._names.search(record.getMessage()) is not None
        except Exception:  # noqa: BLE001 - whatever it is, handlers report it
            return True
        if is_secret:
            record.msg, record.args = _MASKED, ()
        return True


def mask_client_logs(names: str) -> None:
    """Mask each log message in which the regular expression `names` finds a secret option's name.

    A second call changes nothing.
    """
    with _adding:  # several threads may call `register` at once
        for name in _LOGGERS:
            found = logging.getLogger(name)
            if not any(isinstance(each, _SecretsFilter) for each in found.filters):
                found.addFilter(_SecretsFilter(names))

"""A logging handler as a user may have one, which calls a function of the test."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Handler(logging.Handler):
    """Calls a function for each message that contains certain words."""

    def __init__(self, words: str, call: Callable[[], object]) -> None:
        super().__init__()
        self._words, self._call = words, call
        self.lines: list[str] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a message."""
        line = record.getMessage()
        if self._words in line:
            self.lines.append(line)
            self.came.set()
            self._call()


@contextmanager
def handling(words: str, call: Callable[[], object] = lambda: None) -> Iterator[Handler]:
    """Attach a handler for messages of all levels."""
    logger, handler = logging.getLogger("spark_kafka_sink"), Handler(words, call)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)

"""A handler of the log as a user may have one: it does whatever a test says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Handler(logging.Handler):
    """Calls a function for each line that has some words."""

    def __init__(self, words: str, call: Callable[[], object]) -> None:
        super().__init__()
        self._words, self._call = words, call
        self.lines: list[str] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a line."""
        line = record.getMessage()
        if self._words in line:
            self.lines.append(line)
            self.came.set()
            self._call()


@contextmanager
def handling(words: str, call: Callable[[], object] = lambda: None) -> Iterator[Handler]:
    """Have lines of all levels come to a handler."""
    logger, handler = logging.getLogger("spark_kafka_sink"), Handler(words, call)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)

"""``warn_once``: a warning that a process gives once.

A stream is planned anew for every micro-batch, and would say the same for weeks; so would whoever
makes one producer after the other. ``unsaid`` is for who does beforehand what will be done again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Final

_is_unsaid: Final[ContextVar[bool]] = ContextVar("is_unsaid", default=False)


def warn_once(logger: logging.Logger, message: str) -> None:
    """Log a warning, unless this process has logged it lately."""
    if not _is_unsaid.get():
        _warn(logger, message)


@contextmanager
def unsaid() -> Iterator[None]:
    """Have `warn_once` say nothing in this thread for a while, and not count it as said."""
    before = _is_unsaid.set(True)
    try:
        yield
    finally:
        _is_unsaid.reset(before)


@lru_cache(maxsize=128)
def _warn(logger: logging.Logger, message: str) -> None:
    logger.warning("%s", message)

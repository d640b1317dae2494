"""``warn_once``: a warning that a process gives once.

A stream is planned anew for every micro-batch, and would say the same for weeks; so would whoever
makes one producer after the other. ``unsaid`` is for who does beforehand what will be done again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

_is_unsaid: Final[ContextVar[bool]] = ContextVar("is_unsaid", default=False)


def warn_once(logger: logging.Logger, message: str, subject: str | None = None) -> None:
    """Log a warning, unless this process has logged it lately.

    subject: what the warning is about, where its words differ each time; one is logged for it.
    """
    if not _is_unsaid.get():
        _warn(logger, _Warning(message, subject or message))


@contextmanager
def unsaid() -> Iterator[None]:
    """Have `warn_once` say nothing in this thread for a while, and not count it as said."""
    before = _is_unsaid.set(True)
    try:
        yield
    finally:
        _is_unsaid.reset(before)


@dataclass(frozen=True, slots=True)
class _Warning:
    message: str = field(compare=False)
    subject: str


@lru_cache(maxsize=128)
def _warn(logger: logging.Logger, warning: _Warning) -> None:
    logger.warning("%s", warning.message)

"""What goes into logs and messages: a warning once in a process, and no secret.

A stream is planned for every micro-batch, and would log the same warning for weeks. ``unsaid``
keeps `warn_once` quiet for a plan that is made again later.
"""

from __future__ import annotations

import logging
import re
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


# A path of this machine, as /a/b@c, is left whole: it has none. A scheme is worth showing.
_CREDENTIALS: Final = re.compile(r"(?!/[^/])([\w+.-]+://)?.*@", re.DOTALL)


def masked(value: str) -> str:
    """Give a value with ``***`` in place of what stands before its last ``@``."""
    found = _CREDENTIALS.match(value)
    return value if found is None else f"{found[1] or ''}***@{value[found.end() :]}"


def without_path(error: BaseException) -> str:
    """Give what an error says; an OSError names the path whole, and is told without."""
    return str(getattr(error, "strerror", None) or error)

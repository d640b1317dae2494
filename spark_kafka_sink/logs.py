"""What goes into logs and messages: a warning once in a process, and no secret.

A handler of the user's may raise anything. `safe_logging` keeps that from whoever has to go on.

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
_never_raises: Final[ContextVar[bool]] = ContextVar("never_raises", default=False)


@contextmanager
def safe_logging() -> Iterator[None]:
    """Log something, and drop what a handler raises.

    What is no Exception, as KeyboardInterrupt, is dropped only after `never_raise_from_logging`:
    elsewhere it is the caller's.
    """
    try:
        yield
    except Exception:  # noqa: BLE001, S110 - there is no better place to log it
        pass
    except BaseException:
        if not _never_raises.get():
            raise


def never_raise_from_logging() -> None:
    """Have `safe_logging` drop whatever a handler raises in this thread from here on."""
    _never_raises.set(True)


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

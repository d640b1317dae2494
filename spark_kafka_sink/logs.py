"""Logging: warn once per process, mask secrets, and ignore exceptions of logging handlers.

A user's logging handler may raise anything. `safe_logging` protects code that must not stop.

A streaming query plans a write for every micro-batch and would log the same warning for weeks. So a
process logs a warning once. Two processes may make the same checks of a write. Then one of them
makes the checks inside `warnings_disabled`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

_warnings_disabled: Final[ContextVar[bool]] = ContextVar("warnings_disabled", default=False)
_never_raises: Final[ContextVar[bool]] = ContextVar("never_raises", default=False)


@contextmanager
def safe_logging() -> Iterator[None]:
    """Context manager: ignore exceptions that logging handlers raise in the block.

    A BaseException that is not an Exception, such as KeyboardInterrupt, is ignored only in threads
    that have called `never_raise_from_logging`.
    """
    try:
        yield
    except Exception:  # noqa: BLE001, S110 - there is no better place to log it
        pass
    except BaseException:
        if not _never_raises.get():
            raise


def never_raise_from_logging() -> None:
    """Make `safe_logging` ignore every exception in this thread from now on."""
    _never_raises.set(True)


def warn_once(logger: logging.Logger, message: str, subject: str | None = None) -> None:
    """Log a warning, unless this process logged the same warning recently.

    subject: identifies the warning if its text varies. Only one warning per subject is logged.
    """
    if not _warnings_disabled.get():
        _warn(logger, _Warning(message, subject or message))


def warn_once_now(
    logger: logging.Logger, message: str, subject: str, addresses: Iterable[str]
) -> None:
    """Log a warning about servers, unless this was done before for `subject` and all `addresses`.

    A process logs only a limited number of such warnings. The warning is logged even inside
    `warnings_disabled`, because the user must see it while the current call waits. If that call
    times out, no later call would log the warning.
    """
    new = {(subject, each) for each in addresses} - _warned_of
    if new and len(_warned_of) < _MOST_WARNED_OF:
        _warned_of.update(new)
        logger.warning("%s", message)


_warned_of: Final[set[tuple[str, str]]] = set()
_MOST_WARNED_OF: Final = 100


@contextmanager
def warnings_disabled() -> Iterator[None]:
    """Context manager: `warn_once` logs nothing in the block, but can log the warning after it."""
    before = _warnings_disabled.set(True)
    try:
        yield
    finally:
        _warnings_disabled.reset(before)


@dataclass(frozen=True, slots=True)
class _Warning:
    message: str = field(compare=False)
    subject: str


@lru_cache(maxsize=128)
def _warn(logger: logging.Logger, warning: _Warning) -> None:
    logger.warning("%s", warning.message)


# A local path (/a/b@c) contains no credentials and is not masked. The scheme of a URL is shown.
_CREDENTIALS: Final = re.compile(r"(?!/[^/])([\w+.-]+://)?.*@", re.DOTALL)


# Except for long paths, no valid value that is shown in a message is longer than this.
_LONGEST_SHOWN: Final = 256


def may_be_key(value: str) -> bool:
    """Return whether an option's value may be a private key or a token, set there by mistake."""
    lines = value.strip().splitlines()
    return "-----BEGIN" in value or len(lines) > 1 or len(value) > _LONGEST_SHOWN


def shown_value(value: object) -> str:
    """Return an option's value in quotes for a message, or only its length if it may be a key."""
    text = value if isinstance(value, str) else repr(value)
    if may_be_key(text):
        return f"a text of {len(text)} characters, which is not shown"
    return repr(value)


def unless_key(value: str) -> str:
    """Return the result of `masked`, or only ``***`` if the value may be a key."""
    return "***" if may_be_key(value) else masked(value)


def masked(value: str) -> str:
    """Replace the text before the last ``@`` of a value by ``***``, but keep a URL's scheme."""
    found = _CREDENTIALS.match(value)
    return value if found is None else f"{found[1] or ''}***@{value[found.end() :]}"


def without_path(error: BaseException) -> str:
    """Return the message of an error. The path in an OSError is omitted, as it may be secret."""
    return str(getattr(error, "strerror", None) or error)

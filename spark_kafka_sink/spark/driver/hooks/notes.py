"""Record the method calls of a classic writer.

A classic writer passes everything to the JVM at once and cannot return it, so the calls of its
methods are recorded. Spark Connect's writers keep everything in a plan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql.utils import to_str

_MARK: Final = "_pykafka_hooked"
_NEW: Final = "new"
_NOTE: Final = "_pykafka_"


def _last(_before: object, found: object) -> object:
    return found


class Note(NamedTuple):
    """A note of a method call, taken when the method has returned: rejected calls are not noted.

    name: of the note; value: makes it from the method's arguments, None changes nothing; join:
    combines the earlier note and this one.
    """

    method: str
    name: str
    value: Callable[..., object]
    join: Callable[[Any, Any], object] = _last


def is_first_time(writer_class: Any) -> bool:
    """Return whether a class of writers has no hooks yet; from now on it has."""
    if hasattr(writer_class, _MARK):
        return False
    setattr(writer_class, _MARK, True)
    return True


def take_notes(writer_class: Any, notes: Iterable[Note]) -> None:
    """Take notes of all writers of a class that are made from now on."""
    init = writer_class.__init__

    @functools.wraps(init)
    def noting_init(writer: Any, *args: Any, **kwargs: Any) -> None:
        init(writer, *args, **kwargs)
        note(writer, _NEW, value=True)

    writer_class.__init__ = noting_init
    for each in notes:
        setattr(writer_class, each.method, _noting(getattr(writer_class, each.method), each))


def _noting(method: Any, taken: Note) -> Any:
    @functools.wraps(method)
    def noting(writer: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = method(writer, *args, **kwargs)
        if (found := taken.value(*args, **kwargs)) is not None:
            note(writer, taken.name, taken.join(noted(writer, taken.name), found))
        return result

    return noting


def note(writer: Any, name: str, value: object) -> None:
    """Set a note."""
    setattr(writer, _NOTE + name, value)


def noted(writer: Any, name: str, default: Any = None) -> Any:
    """Return the last note of a name."""
    return getattr(writer, _NOTE + name, default)


def is_all_noted(writer: Any) -> bool:
    """Return whether a writer has taken notes since it was made."""
    return bool(noted(writer, _NEW, default=False))


def join_options(before: Mapping[str, str] | None, given: Mapping[str, object]) -> dict[str, str]:
    """Return options with names in lower case and values as Spark hands them over; the last wins.

    An option whose value is None is ignored.
    """
    joined = dict(before or {})
    for name, value in given.items():
        text = to_str(value)
        if text is not None:
            joined[name.lower()] = text
    return joined

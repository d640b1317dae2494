"""Record the method calls of a classic writer.

A classic writer passes every setting to the JVM immediately, and the setting cannot be read back.
So the calls of its methods are recorded as notes. A note is a named value that is stored with the
writer. The writers of Spark Connect need no notes, because they keep all settings in a plan.
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
    """How to record the calls of one writer method. A call that raises is not recorded.

    name: the name of the note. value: makes the note from the arguments of the method; if it
    returns None, the earlier note is kept. join: combines the earlier note and the new note.
    """

    method: str
    name: str
    value: Callable[..., object]
    join: Callable[[Any, Any], object] = _last


def is_first_time(writer_class: Any) -> bool:
    """Return whether a writer class has no hooks yet, and mark the class as hooked."""
    if hasattr(writer_class, _MARK):
        return False
    setattr(writer_class, _MARK, True)
    return True


def is_hooked(writer: object) -> bool:
    """Return whether a writer has the hooks of `register`."""
    return hasattr(writer, _MARK)


def take_notes(writer_class: Any, notes: Iterable[Note]) -> None:
    """From now on, record the method calls of each new writer of a class."""
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
    """Attach a note to a writer. It replaces any earlier note of the same name."""
    setattr(writer, _NOTE + name, value)


def noted(writer: Any, name: str, default: Any = None) -> Any:
    """Return a writer's note with this name, or `default` if there is none."""
    return getattr(writer, _NOTE + name, default)


def is_all_noted(writer: Any) -> bool:
    """Return whether the method calls of a writer were recorded from its creation on."""
    return bool(noted(writer, _NEW, default=False))


def join_options(before: Mapping[str, str] | None, given: Mapping[str, object]) -> dict[str, str]:
    """Return the options of `before` and `given`, with names in lower case and strings as values.

    given: new options, which replace those of the same name in `before`. An option with the value
    None is ignored. Values become the strings that Spark makes of them.
    """
    joined = dict(before or {})
    for name, value in given.items():
        text = to_str(value)
        if text is not None:
            joined[name.lower()] = text
    return joined

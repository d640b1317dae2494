"""What the hooks of `register` into ``save()`` of a batch and ``start()`` of a stream share.

A classic writer hands everything to the JVM at once, which does not tell it again, so what is told
is noted on the way. Spark Connect's writers collect everything in a plan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql.utils import to_str

from spark_kafka_sink.errors import ConfigException

# Each with columns; in this order they are named.
_LAYOUTS: Final = ("partitionBy", "clusterBy", "bucketBy", "sortBy")
_MARK: Final = "_pykafka_hooked"
_NEW: Final = "new"
_NOTE: Final = "_pykafka_"
_OPTIONS: Final = "options"


def is_first_time(writer_class: Any) -> bool:
    """Tell whether a class of writers has no hooks yet; from now on it has."""
    if hasattr(writer_class, _MARK):
        return False
    setattr(writer_class, _MARK, True)
    return True


def note_making(writer_class: Any) -> None:
    """Have classic writers made from now on be known as such: of older ones, not all is noted."""
    init = writer_class.__init__

    @functools.wraps(init)
    def noting_init(writer: Any, *args: Any, **kwargs: Any) -> None:
        init(writer, *args, **kwargs)
        take_note(writer, _NEW, found=True)

    writer_class.__init__ = noting_init


def is_noted(writer: Any) -> bool:
    """Tell whether all that a classic writer was told is noted."""
    return bool(note(writer, _NEW, default=False))


def note_calls(writer_class: Any, told: Mapping[str, Callable[..., object]]) -> None:
    """Have methods of classic writers leave a note of what they are told, by the method's name.

    told: makes the note of the arguments; None leaves things as they were.
    """
    for name, note_of in told.items():
        note_after(writer_class, name, name, note_of)


def note_options(writer_class: Any) -> None:
    """Have ``option()`` and ``options()`` of classic writers note what they are given."""
    note_after(writer_class, "option", _OPTIONS, lambda key, value: {key: value}, join_options)
    note_after(writer_class, "options", _OPTIONS, lambda **options: options, join_options)


def note_after(
    writer_class: Any,
    method_name: str,
    name: str,
    note_of: Callable[..., object],
    join: Callable[[Any, Any], object] = lambda _before, found: found,
) -> None:
    """Have a method leave a note by a name when it has returned: what Spark refuses was not told.

    note_of: makes the note of the arguments, None for none; join: of the note before and this one.
    """
    method = getattr(writer_class, method_name)

    @functools.wraps(method)
    def noting(writer: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = method(writer, *args, **kwargs)
        if (found := note_of(*args, **kwargs)) is not None:
            take_note(writer, name, join(note(writer, name), found))
        return result

    setattr(writer_class, method_name, noting)


def join_options(before: Mapping[str, str] | None, given: Mapping[str, object]) -> dict[str, str]:
    """Give options with names in lower case and values as Spark hands them over; the last wins.

    None is no value, and takes none back.
    """
    joined = dict(before or {})
    for name, value in given.items():
        text = to_str(value)
        if text is not None:
            joined[name.lower()] = text
    return joined


def noted_options(writer: Any) -> dict[str, str]:
    """Give the options that were noted."""
    return dict(note(writer, _OPTIONS, {}))


def take_note(writer: Any, name: str, found: object) -> None:
    """Note something of a writer."""
    setattr(writer, _NOTE + name, found)


def note(writer: Any, name: str, default: Any = None) -> Any:
    """Give what was noted last."""
    return getattr(writer, _NOTE + name, default)


def has_columns(*columns: Any) -> bool:
    """Tell whether there are any, given one by one or as a list."""
    return columns not in ((), ([],), ((),))


def noted_layouts(writer: Any) -> dict[str, object]:
    """Give what was noted of columns by which files would be laid out, by the method's name."""
    return {name: note(writer, name) for name in _LAYOUTS}


def refuse_layouts(told: Mapping[str, object], given: Any) -> None:
    """Raise ConfigException where there are columns by which files would be laid out.

    told: what a writer was told, by the method's name; given: partitionBy of the call that ends it
    all, in whose place an empty list puts none, and None what was told.
    """
    if given is not None:
        told = {**told, "partitionBy": has_columns(given)}
    names = [name for name in _LAYOUTS if told.get(name)]
    if names:
        several = len(names) > 1
        message = (
            f"{' and '.join(names)} {'are' if several else 'is'} about files, and a topic has "
            f"none: remove {'them' if several else 'it'}. "
            "The partition of a row comes from its key, or from the column partition"
        )
        raise ConfigException(message)


def enter_thread(writer: Any) -> None:
    """Make a classic writer's session the one of this thread, as Spark's createDataFrame does.

    Spark looks for Python data sources in it, and a thread that is new has none.
    """
    session = writer._spark  # noqa: SLF001 - there is no public way
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001 - as above

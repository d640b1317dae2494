"""Ignores options with the value None, as Spark 4.3 does; for writers of older versions.

There, ``option(name, None)`` of a classic writer passes null to the JVM. The write to a Python sink
then fails with a NullPointerException, which names no option. With Spark Connect, a batch loses an
earlier value of the option, and a stream raises a TypeError. Delete this module when the sink
requires Spark 4.3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.driver.hooks.notes import note, noted

# The note with the names of the options that are null in the JVM: by their names in lower case, as
# the user wrote them.
_NULLS: Final = "nulls"


class _Settings(Protocol):
    @property
    def format(self) -> str: ...


def ignore_none(writer_class: Any, read: Callable[[Any], _Settings], sink: str) -> None:
    """From now on, ignore options with the value None if the format of their writer is the sink's.

    Null may have a meaning for other formats. So if the format is another one or not set yet, Spark
    gets null. If the writer then writes to the sink, `refuse_nulls` refuses that. read: returns the
    settings of a writer. sink: the sink's format.
    """
    if _ignores_none(writer_class):
        return
    option, options = writer_class.option, writer_class.options

    @functools.wraps(option)
    def option_unless_none(writer: Any, /, key: str, value: Any) -> Any:
        if value is None and read(writer).format.lower() == sink:
            return writer
        result = option(writer, key, value)
        _note_nulls(writer, {key: value})
        return result

    @functools.wraps(options)
    def options_unless_none(writer: Any, /, **given: Any) -> Any:
        if read(writer).format.lower() == sink:
            given = {name: value for name, value in given.items() if value is not None}
        # Not writer.option: in a subclass of the user, that may call options.
        result = options(writer, **given)
        _note_nulls(writer, given)
        return result

    writer_class.option, writer_class.options = option_unless_none, options_unless_none


def _note_nulls(writer: Any, given: Mapping[str, object]) -> None:
    """Record which of the given options are null in the JVM, and which are not any more."""
    nulls = dict(noted(writer, _NULLS, {}))
    for name, value in given.items():
        if value is None:
            nulls[name.lower()] = name
        else:
            nulls.pop(name.lower(), None)
    note(writer, _NULLS, nulls)


def _ignores_none(writer_class: Any) -> bool:
    """Return whether Spark's own ``option(name, None)`` does nothing.

    It is called without a writer, so it fails if it uses the writer.
    """
    try:
        writer_class.option(None, "", None)
    except Exception:  # noqa: BLE001 - such as an AttributeError, because None is no writer
        return False
    return True


def refuse_nulls(writer: Any) -> None:
    """Raise ConfigException if an option of a classic writer is null in the JVM."""
    name = next(iter(noted(writer, _NULLS, {}).values()), None)
    if name is not None:
        message = (
            f'option {name} is None, and was set before .format("pykafka"). With Spark before 4.3, '
            "set it after the format, so that it is ignored, or omit it"
        )
        raise ConfigException(message)

"""What a stream is refused for before it starts: the continuous trigger, and a layout of files.

Spark starts a continuous query on a Python sink and drops every row: it hands them over one by one,
and a Python sink takes only batches. Nothing of it reaches the sink until an epoch is to be
committed, and an error there does not end the query (`commit` raises it nevertheless, so that no
epoch counts as done). What ``partitionBy`` and ``clusterBy`` say reaches no Python sink of a stream
at all, while a batch job with them is refused. The one place that knows of all this in time is the
stream's writer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from spark_kafka_sink.errors import ConfigException

REFUSAL: Final = (
    "the continuous trigger loses every row of a Python data source: Spark hands it no rows then. "
    'Use .trigger(processingTime="1 second") or .trigger(availableNow=True)'
)
_MARK: Final = "_pykafka_hooked"
_NOTE: Final = "_pykafka_"


class _Told(NamedTuple):
    """What a writer was told; layout: partitionBy or clusterBy, if there are columns for it."""

    format: str
    is_continuous: bool
    layout: str | None


def _has_columns(*columns: Any) -> bool:
    """Tell whether there are any, given one by one or as a list."""
    return columns not in ((), ([],), ((),))


# What is noted of the calls of a classic writer's methods.
_NOTED: Final[Mapping[str, Callable[..., object]]] = {
    "format": lambda source: source,
    "trigger": lambda **given: given.get("continuous") is not None,
    "partitionBy": _has_columns,
    "clusterBy": _has_columns,
}


def check_starts(name: str, *, is_connect: bool) -> None:
    """From now on have ``start()`` of a stream to the format `name` refuse what is lost in silence.

    It raises ConfigException. A classic writer that is older than this is left alone: what it was
    told is known to the JVM only.
    """
    if is_connect:
        from pyspark.sql.connect.streaming.readwriter import (  # noqa: PLC0415 - needs grpc
            DataStreamWriter as ConnectWriter,
        )

        _hook_start(ConnectWriter, name)
        return
    from pyspark.sql.streaming.readwriter import DataStreamWriter  # noqa: PLC0415 - as its twin

    if not hasattr(DataStreamWriter, _MARK):
        for method, told in _NOTED.items():
            _note(DataStreamWriter, method, told)
    _hook_start(DataStreamWriter, name)


def _note(writer_class: Any, name: str, told: Callable[..., object]) -> None:
    """Have a method of writers leave a note of what it is told."""
    method = getattr(writer_class, name)

    @functools.wraps(method)
    def noting(writer: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(writer, _NOTE + name, told(*args, **kwargs))
        return method(writer, *args, **kwargs)

    setattr(writer_class, name, noting)


def _hook_start(writer_class: Any, name: str) -> None:
    if hasattr(writer_class, _MARK):
        return
    start = writer_class.start

    @functools.wraps(start)
    def checking_start(
        writer: Any,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        outputMode: str | None = None,  # noqa: N803 - Spark's name
        partitionBy: Any = None,  # noqa: N803 - Spark's name
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        told = _told(writer)
        if (format or told.format).lower() == name:
            _check(told if not partitionBy else told._replace(layout="partitionBy"))
        return start(writer, path, format, outputMode, partitionBy, *args, **kwargs)

    writer_class.start = checking_start
    setattr(writer_class, _MARK, True)


def _check(told: _Told) -> None:
    if told.is_continuous:
        raise ConfigException(REFUSAL)
    if told.layout is not None:
        message = (
            f"{told.layout} is about files, and a topic has none: remove it. "
            "The partition of a row comes from its key, or from the column partition"
        )
        raise ConfigException(message)


def _told(writer: Any) -> _Told:
    plan = getattr(writer, "_write_proto", None)
    if plan is None:
        notes = {name: getattr(writer, _NOTE + name, None) for name in _NOTED}
        return _Told(
            notes["format"] or "",
            bool(notes["trigger"]),
            next((name for name in ("partitionBy", "clusterBy") if notes[name]), None),
        )
    layout = (
        "partitionBy" if plan.partitioning_column_names
        else "clusterBy" if plan.clustering_column_names
        else None
    )  # fmt: skip
    return _Told(plan.format, plan.HasField("continuous_checkpoint_interval"), layout)

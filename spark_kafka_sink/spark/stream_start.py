"""What a stream is refused for before it starts: the continuous trigger, and a layout of files.

Spark starts a continuous query on a Python sink and drops every row: it hands them over one by one,
and a Python sink takes only batches. Nothing of it reaches the sink until an epoch is to be
committed, and an error there does not end the query (`commit` raises it nevertheless, so that no
epoch counts as done). What ``partitionBy`` and ``clusterBy`` say reaches no Python sink of a stream
at all. The one place that knows of all this in time is the writer of the stream. It starts in any
thread, too: without the hook Spark finds no Python data source in a new one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.writer_hooks import (
    enter_thread,
    has_columns,
    is_first_time,
    note,
    note_calls,
    noted_layouts,
    refuse_layouts,
)

REFUSAL: Final = (
    "the continuous trigger loses every row of a Python data source: Spark hands it no rows then. "
    'Use .trigger(processingTime="1 second") or .trigger(availableNow=True)'
)


class _Told(NamedTuple):
    """What a writer was told; layouts: by name, whether there are columns for it."""

    format: str
    is_continuous: bool
    layouts: Mapping[str, object]


# What is noted of the calls of a classic writer's methods.
_NOTED: Final[Mapping[str, Callable[..., object]]] = {
    "format": lambda source: source,
    "trigger": lambda **given: given.get("continuous") is not None,
    "partitionBy": has_columns,
    "clusterBy": has_columns,
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

        if is_first_time(ConnectWriter):
            _hook_start(ConnectWriter, name)
        return
    from pyspark.sql.streaming.readwriter import DataStreamWriter  # noqa: PLC0415 - as its twin

    if is_first_time(DataStreamWriter):
        note_calls(DataStreamWriter, _NOTED)
        _hook_start(DataStreamWriter, name)


def _hook_start(writer_class: Any, name: str) -> None:
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
        plan = getattr(writer, "_write_proto", None)
        told = _told_of_notes(writer) if plan is None else _told_of_plan(plan)
        if (format or told.format).lower() == name:
            if told.is_continuous:
                raise ConfigException(REFUSAL)
            refuse_layouts(told.layouts, partitionBy)
            if plan is None:
                enter_thread(writer)
        return start(writer, path, format, outputMode, partitionBy, *args, **kwargs)

    writer_class.start = checking_start


def _told_of_notes(writer: Any) -> _Told:
    return _Told(
        note(writer, "format", ""),
        note(writer, "trigger", default=False),
        noted_layouts(writer),
    )


def _told_of_plan(plan: Any) -> _Told:
    columns = {
        "partitionBy": plan.partitioning_column_names,
        "clusterBy": plan.clustering_column_names,
    }
    return _Told(plan.format, plan.HasField("continuous_checkpoint_interval"), columns)

"""What a stream is refused for before it starts.

That is the continuous trigger, a layout of files, and whatever the sink itself would say of the
first micro-batch, after the shuffles before its write (`look_ahead`).

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
from spark_kafka_sink.spark.driver.hooks.worker_failures import explain_query, explained
from spark_kafka_sink.spark.driver.hooks.writers import (
    enter_thread,
    has_columns,
    is_first_time,
    is_noted,
    join_options,
    note,
    note_after,
    note_calls,
    note_making,
    note_options,
    noted_layouts,
    noted_options,
    refuse_layouts,
)
from spark_kafka_sink.spark.planning.datasource import look_at_options, look_at_stream
from spark_kafka_sink.spark.writer import CONTINUOUS_REFUSAL


class _Told(NamedTuple):
    """What a writer was told.

    layouts: by name, whether there are columns for it; options: by name in lower case, None where
    not all is known.
    """

    format: str
    is_continuous: bool
    layouts: Mapping[str, object]
    options: Mapping[str, str] | None


# In place of the format, where rows go to a function of the user's.
_USERS_OWN: Final = ""
# What is noted of the calls of a classic writer's methods.
_NOTED: Final[Mapping[str, Callable[..., object]]] = {
    "format": lambda source: source,
    "trigger": lambda **given: given.get("continuous") is not None,
    "partitionBy": has_columns,
    "clusterBy": has_columns,
}


def check_starts(name: str, *, is_connect: bool) -> None:
    """From now on have ``start()`` of a stream to the format `name` refuse what cannot be written.

    It raises ConfigException for what Spark would lose in silence, and whatever else stands against
    the first micro-batch. A classic writer that is older than this is left alone: what it was told
    is known to the JVM only.
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
        note_making(DataStreamWriter)
        note_calls(DataStreamWriter, _NOTED)
        note_options(DataStreamWriter)
        for method in ("foreach", "foreachBatch"):
            note_after(DataStreamWriter, method, "format", lambda *_: _USERS_OWN)
        _hook_start(DataStreamWriter, name)


def _hook_start(writer_class: Any, name: str) -> None:
    start = writer_class.start

    @functools.wraps(start)
    def checking_start(
        writer: Any,
        /,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        outputMode: str | None = None,  # noqa: N803 - Spark's name
        partitionBy: Any = None,  # noqa: N803 - Spark's name
        queryName: str | None = None,  # noqa: N803 - Spark's name
        **options: Any,
    ) -> Any:
        plan = getattr(writer, "_write_proto", None)
        told = _told_of_notes(writer) if plan is None else _told_of_plan(plan)
        if (format or told.format).lower() != name:
            return start(writer, path, format, outputMode, partitionBy, queryName, **options)
        if told.is_continuous:
            raise ConfigException(CONTINUOUS_REFUSAL)
        refuse_layouts(told.layouts, partitionBy)
        if plan is None:
            enter_thread(writer)
        if told.options is not None:
            look = _look if plan is None else _look_from_client
            look(writer, join_options(told.options, options))
        session = writer._spark if plan is None else None  # noqa: SLF001 - no public way
        with explained(session):
            query = start(writer, path, format, outputMode, partitionBy, queryName, **options)
        explain_query(query, session)
        return query

    writer_class.start = checking_start


def _look(writer: Any, options: Mapping[str, str]) -> None:
    look_at_stream(writer._df.schema, options)  # noqa: SLF001 - there is no public way


def _look_from_client(writer: Any, options: Mapping[str, str]) -> None:
    """Look at options and columns; what is around the client is not what the server sees."""
    from pyspark.sql.connect.dataframe import DataFrame  # noqa: PLC0415 - needs grpc

    plan, session = writer._write_stream._child, writer._session  # noqa: SLF001 - there is no public way
    look_at_options(DataFrame(plan, session).schema, options)


def _told_of_notes(writer: Any) -> _Told:
    return _Told(
        note(writer, "format", ""),
        note(writer, "trigger", default=False),
        noted_layouts(writer),
        noted_options(writer) if is_noted(writer) else None,
    )


def _told_of_plan(plan: Any) -> _Told:
    columns = {
        "partitionBy": plan.partitioning_column_names,
        "clusterBy": plan.clustering_column_names,
    }
    goes_to_function = plan.HasField("foreach_batch") or plan.HasField("foreach_writer")
    return _Told(
        _USERS_OWN if goes_to_function else plan.format,
        plan.HasField("continuous_checkpoint_interval"),
        columns,
        join_options(None, plan.options),
    )

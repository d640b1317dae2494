"""What ``save()`` of a batch does after `register`: append, or refuse what a topic cannot do.

Spark's default save mode is "error if the target exists". For the data sources of its V2 interface,
to which every Python data source belongs, it refuses that mode in the JVM before any code of the
source runs, so ``df.write.format("pykafka").save()`` could never work. Appending is the only thing
that can be done to a topic, so ``save()`` appends here: for this format, and only where the user
named no mode. Modes that are named, and layouts of files, are refused here, since what Spark says
of them names nothing, or advises another mode that is refused as well. Other formats are untouched.
Saves work in any thread, too: without the hook Spark finds no Python data source in a new one. And
what stands against the write is found at once, where Spark itself would ask the sink only after the
shuffles before it (`look_ahead`).

A classic writer that is older than the hook may have been given a mode that nobody noted (its JVM
half cannot tell "error" from nothing), columns and options: what was not noted is left to Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.driver.hooks.worker_failures import explained
from spark_kafka_sink.spark.driver.hooks.writers import (
    enter_thread,
    has_columns,
    is_first_time,
    is_noted,
    join_options,
    note,
    note_calls,
    note_making,
    note_options,
    noted_layouts,
    noted_options,
    refuse_layouts,
)
from spark_kafka_sink.spark.planning.datasource import look_ahead, look_at_options
from spark_kafka_sink.spark.writer import BATCH_ID, mode_refusal


class _Told(NamedTuple):
    """What a writer was told; is_known: whether mode None means that there was none.

    layouts: by name, whether there are columns for it; options: with names in lower case.
    """

    format: str
    mode: str | None
    is_known: bool
    layouts: Mapping[str, object]
    options: Mapping[str, str]


class _Hooks(Protocol):
    """How the two kinds of DataFrameWriter keep what they are told."""

    def told(self, writer: Any) -> _Told: ...

    def set_mode(self, writer: Any, mode: str | None) -> None: ...

    def enter_thread(self, writer: Any) -> None: ...

    def look(self, writer: Any, options: Mapping[str, str]) -> None: ...


class _Connect:
    """Spark Connect's writer collects everything in a plan; None is no mode."""

    def told(self, writer: Any) -> _Told:
        plan = writer._write  # noqa: SLF001 - there is no public way
        columns = {
            "partitionBy": plan.partitioning_cols,
            "clusterBy": plan.clustering_cols,
            "bucketBy": plan.bucket_cols,
            "sortBy": plan.sort_cols,
        }
        return _Told(
            plan.source or "",
            plan.mode,
            is_known=True,
            layouts=columns,
            options=join_options(None, plan.options),
        )

    def set_mode(self, writer: Any, mode: str | None) -> None:
        writer._write.mode = mode  # noqa: SLF001 - there is no public way

    def enter_thread(self, writer: Any) -> None:
        """Do nothing: a plan knows its session."""

    def look(self, writer: Any, options: Mapping[str, str]) -> None:
        """Look at options and columns; what is around the client is not what the server sees."""
        from pyspark.sql.connect.dataframe import DataFrame  # noqa: PLC0415 - needs grpc

        frame = DataFrame(writer._df, writer._spark)  # noqa: SLF001 - there is no public way
        look_at_options(frame.schema, options)


# What is noted of the calls of a classic writer's methods; mode(None) changes nothing.
_NOTED: Final[Mapping[str, Callable[..., object]]] = {
    "format": lambda source: source,
    "mode": lambda saveMode: saveMode,  # noqa: N803 - Spark's name
    "partitionBy": has_columns,
    "clusterBy": has_columns,
    # Both need columns, and Spark refuses them without.
    "bucketBy": lambda *_, **__: True,
    "sortBy": lambda *_, **__: True,
}


class _Classic:
    """The classic writer's notes; one that was made before the hooks were has not all of them."""

    def __init__(self, writer_class: Any) -> None:
        note_making(writer_class)
        note_calls(writer_class, _NOTED)
        note_options(writer_class)

    def told(self, writer: Any) -> _Told:
        return _Told(
            note(writer, "format", ""),
            note(writer, "mode"),
            is_known=is_noted(writer),
            layouts=noted_layouts(writer),
            options=noted_options(writer),
        )

    def set_mode(self, writer: Any, mode: str | None) -> None:
        # ErrorIfExists is what the JVM's writer has when nothing was said.
        writer._jwrite = writer._jwrite.mode(mode or "errorifexists")  # noqa: SLF001 - no public way

    def enter_thread(self, writer: Any) -> None:
        enter_thread(writer)

    def look(self, writer: Any, options: Mapping[str, str]) -> None:
        look_ahead(writer._df.schema, options)  # noqa: SLF001 - there is no public way


def hook_save(name: str, *, is_connect: bool) -> None:
    """From now on have ``save()`` to the format `name` append, and refuse what it cannot do.

    It raises ConfigException for a mode that is named and is not append, and for layouts of files,
    and what `look_ahead` raises.
    """
    if is_connect:
        from pyspark.sql.connect.readwriter import DataFrameWriter as ConnectWriter  # noqa: PLC0415 - needs grpc

        if is_first_time(ConnectWriter):
            _hook(ConnectWriter, name, _Connect())
        return
    from pyspark.sql.readwriter import DataFrameWriter  # noqa: PLC0415 - as its twin above

    if is_first_time(DataFrameWriter):
        _hook(DataFrameWriter, name, _Classic(DataFrameWriter))


def _hook(writer_class: Any, name: str, hooks: _Hooks) -> None:
    save = writer_class.save

    @functools.wraps(save)
    def appending_save(
        writer: Any,
        /,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        mode: str | None = None,
        partitionBy: Any = None,  # noqa: N803 - Spark's name
        **options: Any,
    ) -> None:
        told = hooks.told(writer)
        if (format or told.format).lower() != name:
            save(writer, path, format, mode, partitionBy, **options)
            return
        named = told.mode if mode is None else mode
        if named is not None and str(named).lower() != "append":
            raise ConfigException(mode_refusal(str(named)))
        refuse_layouts(told.layouts, partitionBy)
        hooks.enter_thread(writer)
        given = join_options(told.options, options)
        # write_batch has looked already.
        if told.is_known and BATCH_ID not in given:
            hooks.look(writer, given)
        with explained(writer._spark):  # noqa: SLF001 - there is no public way
            if named is not None or not told.is_known:
                save(writer, path, format, mode, partitionBy, **options)
                return
            hooks.set_mode(writer, "append")
            try:
                save(writer, path, format, mode, partitionBy, **options)
            finally:
                hooks.set_mode(writer, None)

    writer_class.save = appending_save

"""Hooks into ``save()`` of a batch and ``start()`` of a stream, which `register` installs.

`WRITERS` is the table of Spark's writers. It lists the method calls to record, and the checks
before a write to the sink begins. Writes to other formats are not changed.

A ``save()`` without a mode appends. Spark's default save mode is "error if the target exists". For
Python data sources, the JVM refuses that mode before it calls the source. So without the hook,
``df.write.format("pykafka").save()`` always fails. Modes other than append are refused here. So are
partitionBy, clusterBy, bucketBy and sortBy, because they are about files. Spark's own messages
about them name no cause, or advise a mode that is also refused, or Spark ignores them (in streams).

A stream with the continuous trigger is refused. Spark would start the query and drop every row,
because this trigger passes rows to a sink one by one and a Python sink takes only batches. The sink
would notice this only at the commit of an epoch, and an error there does not end the query. Output
mode update is refused, too, because Spark's own message about it does not say what to do.

The sink's own checks run immediately, before the shuffles of the job. The hooks also make writes
work in a new thread, which lacks the active session that Spark needs to find data sources.

The settings of a classic writer that was created before `register` are not checked here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple

from pyspark.sql.types import StructType

from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.spark import micro_batch
from spark_kafka_sink.spark.driver.hooks.delegation_token_renewal import renewing_token
from spark_kafka_sink.spark.driver.hooks.failed_writes import new_write_id, reporting_error
from spark_kafka_sink.spark.driver.hooks.none_options import ignore_none, refuse_nulls
from spark_kafka_sink.spark.driver.hooks.notes import (
    Note,
    is_all_noted,
    is_first_time,
    join_options,
    note,
    noted,
    take_notes,
)
from spark_kafka_sink.spark.driver.hooks.queries import remember_stream
from spark_kafka_sink.spark.driver.hooks.session_settings import (
    cancelling,
    options_of_session,
    refuse_speculation,
    trace_options,
)
from spark_kafka_sink.spark.driver.hooks.worker_failures import explained
from spark_kafka_sink.spark.exactly_once import is_off
from spark_kafka_sink.spark.options import has_full_traceback
from spark_kafka_sink.spark.planning.datasource import (
    check_batch_write,
    check_options_and_columns,
    check_options_and_columns_of_stream,
    check_stream_write,
)
from spark_kafka_sink.spark.tracebacks import shorten
from spark_kafka_sink.spark.writer import TRIGGER_REFUSALS, mode_refusal

# ruff: noqa: SLF001 - Spark has no public way to read a writer's settings


UPDATE_REFUSAL: Final = (
    "Spark cannot write to a Python sink in output mode update. Write each micro-batch in "
    'foreachBatch: .outputMode("update").foreachBatch(functools.partial('
    "spark_kafka_sink.write_batch, options={…})), where options are the options of this write"
)


class Write(NamedTuple):
    """The settings of a writer.

    mode: None if the user set no mode. is_known: whether all settings are known. layouts: for each
    method such as partitionBy, whether it was called with columns. options: with names in lower
    case. query_name, output_mode: of a streaming query, None if they are not set.
    """

    format: str
    mode: str | None
    trigger: str | None
    layouts: Mapping[str, object]
    options: Mapping[str, str]
    is_known: bool
    query_name: str | None = None
    output_mode: str | None = None

    def joined(self, given: Mapping[str, Any], options: Mapping[str, Any]) -> Write:
        """Return the settings. Arguments of ``save()`` or ``start()`` replace earlier settings."""
        mode, columns = given.get("mode"), given.get("partitionBy")
        # An empty list removes the columns of an earlier call.
        layouts = {} if columns is None else {"partitionBy": _has_columns(columns)}
        return self._replace(
            format=given.get("format") or self.format,
            mode=self.mode if mode is None else mode,
            layouts={**self.layouts, **layouts},
            options=join_options(self.options, options),
            query_name=given.get("queryName") or self.query_name,
            output_mode=given.get("outputMode") or self.output_mode,
        )


def _has_columns(*columns: Any) -> bool:
    """Return whether the arguments contain any column, as separate arguments or as a list."""
    return columns not in ((), ([],), ((),))


def _always(*_: Any, **__: Any) -> bool:
    return True


# The format of a write whose rows go to a function of the user.
_USER_FUNCTION: Final = ""


def _to_function(*_: Any, **__: Any) -> str:
    return _USER_FUNCTION


_NOTES: Final = (
    Note("format", "format", lambda source: source),
    Note("partitionBy", "partitionBy", _has_columns),
    Note("clusterBy", "clusterBy", _has_columns),
    Note("option", "options", lambda key, value: {key: value}, join_options),
    Note("options", "options", lambda **options: options, join_options),
)
_BATCH_NOTES: Final = (
    *_NOTES,
    # mode(None) changes nothing, as in Spark.
    Note("mode", "mode", lambda saveMode: saveMode),  # noqa: N803 - Spark's name
    # Both methods need columns, and Spark refuses calls without them.
    Note("bucketBy", "bucketBy", _always),
    Note("sortBy", "sortBy", _always),
)
_STREAM_NOTES: Final = (
    *_NOTES,
    Note("trigger", "trigger", lambda **given: next(k for k, v in given.items() if v is not None)),
    Note("outputMode", "output_mode", lambda outputMode: outputMode),  # noqa: N803 - Spark's name
    Note("queryName", "query_name", lambda queryName: queryName),  # noqa: N803 - Spark's name
    Note("foreach", "format", _to_function),
    Note("foreachBatch", "format", _to_function),
)
# The note with the options that the hook has added to the write.
_HANDED_ON: Final = "handed_on"
# The methods that are about files, in the order in which messages name them.
_LAYOUTS: Final = ("partitionBy", "clusterBy", "bucketBy", "sortBy")


def _noted_write(writer: Any) -> Write:
    return Write(
        format=noted(writer, "format", ""),
        mode=noted(writer, "mode"),
        trigger=noted(writer, "trigger"),
        layouts={name: noted(writer, name) for name in _LAYOUTS},
        options=noted(writer, "options", {}),
        is_known=is_all_noted(writer),
        query_name=noted(writer, "query_name"),
        output_mode=noted(writer, "output_mode"),
    )


def _planned_batch(writer: Any) -> Write:
    plan = writer._write
    columns = {
        "partitionBy": plan.partitioning_cols,
        "clusterBy": plan.clustering_cols,
        "bucketBy": plan.bucket_cols,
        "sortBy": plan.sort_cols,
    }
    return Write(
        format=plan.source or "",
        mode=plan.mode,
        trigger=None,
        layouts=columns,
        options=join_options(None, plan.options),
        is_known=True,
    )


def _planned_stream(writer: Any) -> Write:
    plan = writer._write_proto
    columns = {
        "partitionBy": plan.partitioning_column_names,
        "clusterBy": plan.clustering_column_names,
    }
    goes_to_function = plan.HasField("foreach_batch") or plan.HasField("foreach_writer")
    return Write(
        format=_USER_FUNCTION if goes_to_function else plan.format,
        mode=None,
        trigger=plan.WhichOneof("trigger"),
        layouts=columns,
        options=join_options(None, plan.options),
        is_known=True,
        query_name=plan.query_name or None,
        output_mode=plan.output_mode or None,
    )


# -- checks ---------------------------------------------------------------------------------------


def _refuse_mode(write: Write) -> None:
    if write.mode is not None and str(write.mode).lower() != "append":
        raise ConfigException(mode_refusal(str(write.mode)))


def _refuse_trigger(write: Write) -> None:
    if write.trigger in TRIGGER_REFUSALS:
        raise ConfigException(TRIGGER_REFUSALS[write.trigger])


def _refuse_update(write: Write) -> None:
    if write.output_mode is not None and write.output_mode.lower() == "update":
        raise ConfigException(UPDATE_REFUSAL)


def _refuse_layouts(write: Write) -> None:
    names = [name for name in _LAYOUTS if write.layouts.get(name)]
    if names:
        several = len(names) > 1
        message = (
            f"{' and '.join(names)} {'are' if several else 'is'} about files, and a topic has "
            f"none: remove {'them' if several else 'it'}. "
            "The partition of a row comes from its key, or from the column partition"
        )
        raise ConfigException(message)


def _look_at_batch(schema: StructType, options: Mapping[str, str]) -> None:
    if not micro_batch.is_of_write_batch(options):  # it has made the checks
        check_batch_write(schema, options)


def _look_at_batch_options(schema: StructType, options: Mapping[str, str]) -> None:
    if not micro_batch.is_of_write_batch(options):
        check_options_and_columns(schema, options)


# -- the inside of Spark's writers -----------------------------------------------------------------


def _schema_of_plan(plan: Any, session: Any) -> StructType:
    from pyspark.sql.connect.dataframe import DataFrame  # noqa: PLC0415 - needs grpc

    return DataFrame(plan, session).schema


def _set_mode(writer: Any, mode: str | None) -> None:
    # ErrorIfExists is the JVM writer's default mode.
    writer._jwrite = writer._jwrite.mode(mode or "errorifexists")


def _set_mode_of_plan(writer: Any, mode: str | None) -> None:
    writer._write.mode = mode


def _enter_thread(session: Any) -> None:
    """Make a classic session the active session of this thread, as createDataFrame does."""
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


# -- the table ------------------------------------------------------------------------------------


class SparkWriter(NamedTuple):
    """One class of Spark's writers, and the method that starts its write.

    module: imported only to hook its writer, because the modules of Spark Connect need grpc.
    method, parameters: the method that starts a write, and its parameters except options.
    notes: the calls to record, None for Spark Connect. write: returns the settings of a writer.
    checks: functions that raise ConfigException for invalid settings. schema: returns the schema of
    the rows. look: checks whether rows with a schema can be written. For Spark Connect, only their
    options and columns: the client may not reach the cluster or the server's files.
    set_mode: sets the save mode of a writer, None for streams.
    """

    module: str
    name: str
    method: str
    parameters: tuple[str, ...]
    notes: tuple[Note, ...] | None
    write: Callable[[Any], Write]
    checks: tuple[Callable[[Write], None], ...]
    schema: Callable[[Any], StructType]
    look: Callable[[StructType, Mapping[str, str]], None]
    set_mode: Callable[[Any, str | None], None] | None


_SAVE: Final = ("path", "format", "mode", "partitionBy")
_START: Final = ("path", "format", "outputMode", "partitionBy", "queryName")

WRITERS: Final = (
    SparkWriter(
        "pyspark.sql.readwriter",
        "DataFrameWriter",
        "save",
        parameters=_SAVE,
        notes=_BATCH_NOTES,
        write=_noted_write,
        checks=(_refuse_mode, _refuse_layouts),
        schema=lambda writer: writer._df.schema,
        look=_look_at_batch,
        set_mode=_set_mode,
    ),
    SparkWriter(
        "pyspark.sql.connect.readwriter",
        "DataFrameWriter",
        "save",
        parameters=_SAVE,
        notes=None,
        write=_planned_batch,
        checks=(_refuse_mode, _refuse_layouts),
        schema=lambda writer: _schema_of_plan(writer._df, writer._spark),
        look=_look_at_batch_options,
        set_mode=_set_mode_of_plan,
    ),
    SparkWriter(
        "pyspark.sql.streaming.readwriter",
        "DataStreamWriter",
        "start",
        parameters=_START,
        notes=_STREAM_NOTES,
        write=_noted_write,
        checks=(_refuse_trigger, _refuse_update, _refuse_layouts),
        schema=lambda writer: writer._df.schema,
        look=check_stream_write,
        set_mode=None,
    ),
    SparkWriter(
        "pyspark.sql.connect.streaming.readwriter",
        "DataStreamWriter",
        "start",
        parameters=_START,
        notes=None,
        write=_planned_stream,
        checks=(_refuse_trigger, _refuse_update, _refuse_layouts),
        schema=lambda writer: _schema_of_plan(writer._write_stream._child, writer._session),
        look=check_options_and_columns_of_stream,
        set_mode=None,
    ),
)


# Several threads may call `register` at once. Each returns only when the hooks are installed.
_hooking: Final = threading.Lock()


def hook_writers(name: str, *, is_connect: bool) -> None:
    """Patch Spark's writers for writes to the format `name`, as the module's docstring describes.

    is_connect: whether to patch the writers of Spark Connect, instead of the classic writers.
    """
    for kind in WRITERS:
        if (kind.notes is None) is not is_connect:
            continue
        writer_class = getattr(import_module(kind.module), kind.name)
        with _hooking:
            if is_first_time(writer_class):
                ignore_none(writer_class, kind.write, name)
                if kind.notes is not None:
                    take_notes(writer_class, kind.notes)
                setattr(writer_class, kind.method, _hooked(writer_class, kind, name))


def _hooked(writer_class: Any, kind: SparkWriter, name: str) -> Any:
    method = getattr(writer_class, kind.method)

    @functools.wraps(method)
    def hooked(writer: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(kind.parameters, args, strict=False))
        options: dict[str, Any] = {}
        for argument, value in kwargs.items():
            (given if argument in kind.parameters else options)[argument] = value
        write = kind.write(writer).joined(given, options)
        if write.format.lower() != name:
            return method(writer, *args, **kwargs)
        kwargs = {argument: value for argument, value in kwargs.items() if value is not None}
        session = None if kind.notes is None else writer._spark
        before = noted(writer, _HANDED_ON, {})
        try:
            write, handed_on = _checked(kind, writer, session, write)
        except KafkaException as error:
            if not has_full_traceback(write.options):
                shorten(error)
            raise
        gone = cancelling(before, write.options)
        with _of_micro_batch(kind, session, write, gone) as of_micro_batch:
            write = write._replace(options=join_options(write.options, of_micro_batch))
            if _has_nothing_to_write(kind, session, write):
                return None
            kwargs |= handed_on | of_micro_batch
            # Note them after all checks, because a refused writer keeps its last call's options.
            note(writer, _HANDED_ON, handed_on | of_micro_batch)
            with (
                reporting_error(write.options, has_lines=micro_batch.has_batch_id(write.options)),
                explained(session),
                renewing_token({} if kind.set_mode is None else write.options, writer),
                _appending(writer, kind, write),
            ):
                query = method(writer, *args, **kwargs)
        if query is not None:
            remember_stream(query, write.options)
        return query

    return hooked


def _checked(
    kind: SparkWriter, writer: Any, session: Any, write: Write
) -> tuple[Write, dict[str, str]]:
    """Check a write. Return two things: the write with added options, and the added options alone.

    `_hand_on` makes the added options. session: the classic session, None for Spark Connect. Raise
    an exception if the rows cannot be written.
    """
    for check in kind.checks:
        check(write)
    if session is not None:
        refuse_nulls(writer)
        _enter_thread(session)
    if not write.is_known:
        return write, {}
    # If a writer is used again (new query name or micro-batch), drop the options added before.
    before = join_options(None, noted(writer, _HANDED_ON, {}))
    own = {name: text for name, text in write.options.items() if before.get(name) != text}
    write = write._replace(options=own)
    handed_on = _hand_on(kind, writer, write)
    write = write._replace(options=join_options(write.options, handed_on))
    kind.look(kind.schema(writer), write.options)
    return write, handed_on


def _hand_on(kind: SparkWriter, writer: Any, write: Write) -> dict[str, str]:
    """Return the options to add to the write."""
    own = write.options
    found: dict[str, str] = {}
    if not micro_batch.is_of_write_batch(own):  # it has added the options of the session
        is_stream = kind.set_mode is None
        session = writer._session if is_stream and kind.notes is None else writer._spark
        refuse_speculation(session, own)
        found |= options_of_session(session, own, is_stream=is_stream, query_name=write.query_name)
        if kind.notes is not None and is_off(own) and _is_own_job(kind, session, write):
            found |= micro_batch.option_of_save(session.sparkContext.getLocalProperty)
    found |= trace_options(own)
    if kind.notes is not None:  # a client of Spark Connect cannot reach the reports
        found |= new_write_id()
    return found


@contextmanager
def _of_micro_batch(
    kind: SparkWriter, session: Any, write: Write, gone: dict[str, str]
) -> Iterator[dict[str, str]]:
    """Yield the options that describe the micro-batch of a ``save()``; see `save_of_micro_batch`.

    session: None with Spark Connect, where a function of foreachBatch does not know its query.
    gone: options that cancel an earlier micro-batch. Raise ConfigException for a second save.
    """
    if is_off(write.options) or not _is_own_job(kind, session, write):
        yield gone
        return
    from spark_kafka_sink.spark.driver.saves import save_of_micro_batch  # noqa: PLC0415 - most writes do not need it

    with save_of_micro_batch(write.options, session) as found:
        yield gone | found


def _is_own_job(kind: SparkWriter, session: Any, write: Write) -> bool:
    """Return whether the program, not `write_batch`, calls ``save()``; False with Spark Connect."""
    is_batch = kind.method == "save" and session is not None and write.is_known
    return is_batch and not micro_batch.has_batch_id(write.options)


def _has_nothing_to_write(kind: SparkWriter, session: Any, write: Write) -> bool:
    """Return whether a job's txnVersion is already written. session: None with Spark Connect."""
    if is_off(write.options) or not _is_own_job(kind, session, write):
        return False
    from spark_kafka_sink.spark.driver.hooks.written_versions import is_written  # noqa: PLC0415 - most writes do not need it

    return is_written(write.options)


@contextmanager
def _appending(writer: Any, kind: SparkWriter, write: Write) -> Iterator[None]:
    """Set the mode append during one ``save()``, if no mode was set."""
    if kind.set_mode is None or write.mode is not None or not write.is_known:
        yield
        return
    kind.set_mode(writer, "append")
    try:
        yield
    finally:
        kind.set_mode(writer, None)

"""``register(spark)``: the sink by name, the bare ``save()``, and nothing lost or shown.

Spark's default save mode is "error if the target exists". For the data sources of its V2 interface,
to which every Python data source belongs, it refuses that mode in the JVM before any code of the
source runs, so ``df.write.format("pykafka").save()`` could never work. Appending is the only thing
that can be done to a topic, so `register` makes ``save()`` append: for this format, and only where
the user named no mode. Modes that are named keep their meaning, and other formats are untouched.
Saves work in any thread, too: without the hook Spark finds no Python data source in a new one.
A classic writer that was made before `register` was called may have been given a mode that nobody
noted (its JVM half cannot tell "error" from nothing), so it is left to Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.redaction import mask_secrets
from spark_kafka_sink.spark.stream_start import check_starts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK = "_pykafka_hooked"


class _Hooks(Protocol):
    """How the two kinds of DataFrameWriter keep a mode."""

    def may_have_mode(self, writer: Any) -> bool: ...

    def format_of(self, writer: Any) -> str | None: ...

    def set_mode(self, writer: Any, mode: str | None) -> None: ...

    def enter_thread(self, writer: Any) -> None: ...


class _Connect:
    """Spark Connect's writer collects everything in a plan; None is no mode."""

    def may_have_mode(self, writer: Any) -> bool:
        return writer._write.mode is not None  # noqa: SLF001 - there is no public way

    def format_of(self, writer: Any) -> str | None:
        return cast("str | None", writer._write.source)  # noqa: SLF001 - there is no public way

    def set_mode(self, writer: Any, mode: str | None) -> None:
        writer._write.mode = mode  # noqa: SLF001 - there is no public way

    def enter_thread(self, writer: Any) -> None:
        """Do nothing: a plan knows its session."""


class _Classic:
    """The classic writer hands everything to the JVM at once; what is given is noted on the way.

    `_pykafka_mode` is what mode() was given, None before; a writer without it was made before the
    hooks were, and nobody knows.
    """

    def __init__(self, writer_class: Any) -> None:
        init, mode, source_format = writer_class.__init__, writer_class.mode, writer_class.format

        def noting_init(writer: Any, *args: Any, **kwargs: Any) -> None:
            init(writer, *args, **kwargs)
            writer._pykafka_mode = None  # noqa: SLF001 - our own mark

        def noting_mode(writer: Any, saveMode: str | None) -> Any:  # noqa: N803 - Spark's name
            if saveMode is not None:
                writer._pykafka_mode = saveMode  # noqa: SLF001 - our own mark
            return mode(writer, saveMode)

        def noting_format(writer: Any, source: str) -> Any:
            writer._pykafka_format = source  # noqa: SLF001 - our own mark
            return source_format(writer, source)

        for hook, hooked in (
            (noting_init, init),
            (noting_mode, mode),
            (noting_format, source_format),
        ):
            hook.__doc__ = hooked.__doc__
        writer_class.__init__ = noting_init
        writer_class.mode, writer_class.format = noting_mode, noting_format

    def may_have_mode(self, writer: Any) -> bool:
        return getattr(writer, "_pykafka_mode", "unknown") is not None

    def format_of(self, writer: Any) -> str | None:
        return cast("str | None", getattr(writer, "_pykafka_format", None))

    def set_mode(self, writer: Any, mode: str | None) -> None:
        # ErrorIfExists is what the JVM's writer has when nothing was said.
        writer._jwrite = writer._jwrite.mode(mode or "errorifexists")  # noqa: SLF001 - no public way

    def enter_thread(self, writer: Any) -> None:
        """Make the writer's session the one of this thread, as Spark's createDataFrame does.

        Spark looks for Python data sources in it, and a thread that is new has none.
        """
        session = writer._spark  # noqa: SLF001 - there is no public way
        session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001 - as above


def register(spark: SparkSession) -> None:
    """Make ``format("pykafka")`` known to a session, and let its bare ``save()`` append.

    From then on the session masks Kafka's secrets where Spark itself shows options.

    For classic sessions and Spark Connect; calling it again is harmless. Call it before
    ``df.write``: a classic writer that is older keeps Spark's meaning of a bare save. After
    ``pip install`` the name is known without it; ``save()`` then needs ``.mode("append")``.
    """
    spark.dataSource.register(KafkaDataSource)
    writer_class, is_connect = _writer_class(spark)
    if not hasattr(writer_class, _MARK):
        hooks: _Hooks = _Connect() if is_connect else _Classic(writer_class)
        _hook_save(writer_class, hooks)
        setattr(writer_class, _MARK, True)
    check_starts(KafkaDataSource.name(), is_connect=is_connect)
    mask_secrets(spark)


def _writer_class(spark: SparkSession) -> tuple[Any, bool]:
    if ".connect." in type(spark).__module__:
        from pyspark.sql.connect.readwriter import DataFrameWriter as ConnectWriter  # noqa: PLC0415 - needs grpc

        return ConnectWriter, True
    from pyspark.sql.readwriter import DataFrameWriter  # noqa: PLC0415 - as its twin above

    return DataFrameWriter, False


def _hook_save(writer_class: Any, hooks: _Hooks) -> None:
    save = writer_class.save

    def appending_save(
        writer: Any,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        mode: str | None = None,
        partitionBy: Any = None,  # noqa: N803 - Spark's name
        **options: Any,
    ) -> None:
        source = format or hooks.format_of(writer)
        is_ours = source is not None and source.lower() == KafkaDataSource.name()
        if is_ours:
            hooks.enter_thread(writer)
        if not is_ours or mode is not None or hooks.may_have_mode(writer):
            save(writer, path, format, mode, partitionBy, **options)
            return
        hooks.set_mode(writer, "append")
        try:
            save(writer, path, format, mode, partitionBy, **options)
        finally:
            hooks.set_mode(writer, None)

    appending_save.__doc__ = save.__doc__
    writer_class.save = appending_save

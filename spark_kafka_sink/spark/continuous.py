"""The continuous trigger, refused before a stream starts.

Spark starts a continuous query on a Python sink and drops every row: it hands them over one by one,
and a Python sink takes only batches. Nothing of it reaches the sink until an epoch is to be
committed, and an error there does not end the query (`commit` raises it nevertheless, so that no
epoch counts as done). The one place that knows the trigger in time is the stream's writer.
"""

from __future__ import annotations

from typing import Any, Final

from spark_kafka_sink.errors import ConfigException

REFUSAL: Final = (
    "the continuous trigger loses every row of a Python data source: Spark hands it no rows then. "
    'Use .trigger(processingTime="1 second") or .trigger(availableNow=True)'
)
_MARK: Final = "_pykafka_hooked"


def refuse_continuous(name: str, *, is_connect: bool) -> None:
    """Have ``start()`` of a stream to the format `name` refuse the continuous trigger, from now on.

    It raises ConfigException. A classic writer that is older than this is left alone: its trigger
    and format are known to the JVM only.
    """
    if is_connect:
        from pyspark.sql.connect.streaming.readwriter import (  # noqa: PLC0415 - needs grpc
            DataStreamWriter as ConnectWriter,
        )

        _hook_start(ConnectWriter, name)
        return
    from pyspark.sql.streaming.readwriter import DataStreamWriter  # noqa: PLC0415 - as its twin

    if not hasattr(DataStreamWriter, _MARK):
        _note_trigger_and_format(DataStreamWriter)
    _hook_start(DataStreamWriter, name)


def _note_trigger_and_format(writer_class: Any) -> None:
    trigger, source_format = writer_class.trigger, writer_class.format

    def noting_trigger(writer: Any, **kwargs: Any) -> Any:
        writer._pykafka_continuous = kwargs.get("continuous")  # noqa: SLF001 - our own mark
        return trigger(writer, **kwargs)

    def noting_format(writer: Any, source: str) -> Any:
        writer._pykafka_format = source  # noqa: SLF001 - our own mark
        return source_format(writer, source)

    noting_trigger.__doc__, noting_format.__doc__ = trigger.__doc__, source_format.__doc__
    writer_class.trigger, writer_class.format = noting_trigger, noting_format


def _hook_start(writer_class: Any, name: str) -> None:
    if hasattr(writer_class, _MARK):
        return
    start = writer_class.start

    def checking_start(
        writer: Any,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        known_format, continuous = _known(writer)
        if continuous and (format or known_format).lower() == name:
            raise ConfigException(REFUSAL)
        return start(writer, path, format, *args, **kwargs)

    checking_start.__doc__ = start.__doc__
    writer_class.start = checking_start
    setattr(writer_class, _MARK, True)


def _known(writer: Any) -> tuple[str, bool]:
    """Give a writer's format, and whether its trigger is continuous."""
    plan = getattr(writer, "_write_proto", None)
    if plan is not None:
        return plan.format, plan.HasField("continuous_checkpoint_interval")
    return (
        getattr(writer, "_pykafka_format", ""),
        getattr(writer, "_pykafka_continuous", None) is not None,
    )

"""OpenTelemetry traces of writes (option ``openTelemetry``): a span for a job and for each task.

The process that plans a job starts the job's span and chooses its ids. The process that commits the
job ends the span, with the same ids. Tasks start child spans of it. If a process has no tracer
provider, the sink makes one from the environment variables OTEL_*. Errors in tracing never fail a
write.

This is the only module that imports opentelemetry, and only if the option is set.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import warn_once
from spark_kafka_sink.spark.report import CommitReport, JobTrace, SinkCommitMessage, merged

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from spark_kafka_sink.task_producer import DeliveryProgress

logger = logging.getLogger(__name__)

_SCOPE: Final = "spark_kafka_sink"
# The scope of the tracer whose spans have the ids that the planning process has chosen.
_JOB_SCOPE: Final = "spark_kafka_sink.job"
_JOB: Final = "pykafka write"
_TASK: Final = "pykafka task"
# The packages of the OTLP exporters, by their entry points.
_PACKAGES: Final = {
    f"otlp_proto_{protocol}": f"opentelemetry-exporter-otlp-proto-{protocol}"
    for protocol in ("http", "grpc")
}
_FLUSH_MS: Final = 10_000
# Held while a span gets the ids of its job, because threads share the tracer of a scope.
_choosing_ids: Final = threading.Lock()
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def check_installed() -> None:
    """Raise ConfigException if OpenTelemetry or its OTLP exporter is not installed here.

    An exporter is needed only if the program has not set a tracer provider.
    """
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        message = (
            "option openTelemetry is true, but opentelemetry-sdk is not installed: expected it on "
            "the driver and on every executor; run pip install opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http"
        )
        raise ConfigException(message)
    if not _has_no_provider():
        return
    for exporter, point in _exporters().items():
        # Only OTLP exporters are checked. If a different one is missing, the others still work.
        if point is None and exporter in _PACKAGES:
            message = f"option openTelemetry is true, but {_without_exporter(exporter)}"
            raise ConfigException(message)


def checked_traceparent(text: str) -> str:
    """Return the value of the option `traceparent`. Raise ConfigException if it is invalid."""
    if not _TRACEPARENT.fullmatch(text.strip()):
        message = (
            f"option traceparent is {text!r}: expected a traceparent of the W3C Trace Context, "
            "such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        )
        raise ConfigException(message)
    return text.strip()


def current_traceparent() -> str | None:
    """Return the traceparent of the current span in this process, or None if there is none."""
    from opentelemetry import trace  # noqa: PLC0415 - only with openTelemetry

    context = trace.get_current_span().get_span_context()
    return _traceparent(trace.get_current_span()) if context.is_valid else None


def begin_job(parent: str, topic: str | None) -> JobTrace | None:
    """Start the span of a job as a child of `parent`. If that fails, log a warning and return None.

    parent: the traceparent of the parent span, an empty string if there is none. topic: as in
    `JobTrace`.
    """
    try:
        tracer = _provider().get_tracer(_SCOPE)
        started_ns = time.time_ns()
        span = tracer.start_span(_JOB, _below(parent), start_time=started_ns)
        return JobTrace(_traceparent(span), parent, started_ns, topic)
    except Exception as error:  # noqa: BLE001 - the write matters more than its trace
        _warn(error)
        return None


def end_job(job: JobTrace, report: CommitReport) -> None:
    """End the span of a job with the counts of its report, and export it."""
    try:
        _end_job(job, report)
    except Exception as error:  # noqa: BLE001 - the write matters more than its trace
        _warn(error)


def _end_job(job: JobTrace, report: CommitReport) -> None:
    from opentelemetry.trace import SpanKind, StatusCode  # noqa: PLC0415 - only with openTelemetry

    provider = _provider()
    tracer = provider.get_tracer(_JOB_SCOPE)
    with _choosing_ids:
        tracer.id_generator = _ChosenIds(job.traceparent)  # the attribute of the SDK
        span = tracer.start_span(
            _JOB, _below(job.parent), kind=SpanKind.PRODUCER, start_time=job.started_ns
        )
    found = {
        "messaging.system": "kafka",
        **_destination({partition.topic for partition in report.partitions}, job),
        "pykafka.complete": report.complete,
        "pykafka.tasks": report.tasks,
        "pykafka.unreported_tasks": report.unreported_tasks,
        "pykafka.rows": report.rows,
        "pykafka.bad_rows": 0 if report.bad_rows is None else report.bad_rows.rows,
        "pykafka.bytes": report.bytes,
        "pykafka.compressed_bytes": report.compressed_bytes,
        "pykafka.retries": report.retries,
        "pykafka.throttle_ms": report.throttle_ms,
        "pykafka.query_id": report.query_id,
        "pykafka.batch_id": report.batch_id,
    }
    span.set_attributes({name: value for name, value in found.items() if value is not None})
    if not report.complete:
        span.set_status(StatusCode.ERROR, report.summary())
    span.end()
    provider.force_flush(_FLUSH_MS)


def keep_trace(folder: Path, stream: object, job: JobTrace | None) -> None:
    """Store the span of a micro-batch in the driver's folder, for the commit or the abort.

    The commit messages of tasks contain the span, too. But Spark may abort a micro-batch before any
    task has sent a commit message. Planning the next micro-batch of the stream replaces the span,
    or removes it if `job` is None. stream: an object that identifies the stream; its repr must be
    the same in each process.
    """
    path = folder / _file_of(stream)
    with suppress(OSError):  # then the micro-batch may end with a different span
        if job is None:
            path.unlink(missing_ok=True)
            return
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(astuple(job)), "utf-8")
        partial.replace(path)


def kept_trace(folder: Path, stream: object) -> JobTrace | None:
    """Return the span of the stream's newest micro-batch, or None if none is stored."""
    try:
        return JobTrace(*json.loads((folder / _file_of(stream)).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _file_of(stream: object) -> str:
    return f".pykafka-trace-{hashlib.sha256(repr(stream).encode()).hexdigest()[:32]}"


class TaskSpan:
    """The span of a task. If `span` is None, the methods do nothing."""

    def __init__(self, span: Span | None, job: JobTrace) -> None:
        self._span = span
        self._job = job

    def add(self, message: SinkCommitMessage) -> None:
        """Add the counts of a task that has succeeded."""
        if self._span is None:
            return
        partitions = merged([message.partitions])
        topics = {partition.topic for partition in partitions}
        self._span.set_attributes(
            {
                **_destination(topics, self._job),
                "messaging.batch.message_count": message.report.rows,
                "pykafka.rows": message.report.rows,
                "pykafka.bad_rows": message.bad_rows.rows,
                "pykafka.bytes": sum(each.bytes for each in partitions),
                "pykafka.compressed_bytes": sum(each.compressed_bytes for each in partitions),
                "pykafka.retries": sum(each.retries for each in partitions),
                "pykafka.throttle_ms": message.throttle_ms,
            }
        )

    def add_skipped(self, rows: int | None) -> None:
        """Add the counts of a task whose rows an earlier write has already written.

        rows: the number of rows that the task has read, None if it has not counted them.
        """
        if self._span is not None:
            read = {} if rows is None else {"pykafka.skipped_rows": rows}
            self._span.set_attributes({"pykafka.rows": 0, **read})

    @contextmanager
    def of_failure(self, progress: Callable[[], DeliveryProgress]) -> Iterator[None]:
        """Context manager: if the task fails in it, add the counts of acknowledged records."""
        try:
            yield
        except BaseException:
            if self._span is not None:
                try:
                    found = progress()
                    counts = {"pykafka.rows": found.records, "pykafka.bytes": found.bytes}
                    self._span.set_attributes(counts)
                except Exception as error:  # noqa: BLE001 - the task has its own error
                    _warn(error)
            raise


@contextmanager
def task_span(job: JobTrace, task: int, attempt: int) -> Iterator[TaskSpan]:
    """Run a task in a child span of the span of its job, and export the span at the end.

    task, attempt: Spark's numbers of the task and the attempt. User code that runs in the task gets
    this span as the current span.
    """
    try:
        begun = _begin_task(job, task, attempt)
    except Exception as error:  # noqa: BLE001 - the write matters more than its trace
        _warn(error)
        begun = None
    if begun is None:
        yield TaskSpan(None, job)
        return
    from opentelemetry import trace  # noqa: PLC0415 - only with openTelemetry

    provider, span = begun
    try:
        with trace.use_span(span, end_on_exit=True):
            yield TaskSpan(span, job)
    finally:
        try:
            provider.force_flush(_FLUSH_MS)
        except Exception as error:  # noqa: BLE001 - the write matters more than its trace
            _warn(error)


def _begin_task(job: JobTrace, task: int, attempt: int) -> tuple[TracerProvider, Span]:
    from opentelemetry import trace  # noqa: PLC0415 - only with openTelemetry
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - as above

    provider = _provider()
    if _has_no_provider():
        trace.set_tracer_provider(provider)  # for the user's code in the task
    span = provider.get_tracer(_SCOPE).start_span(
        _TASK,
        _below(job.traceparent),
        kind=SpanKind.PRODUCER,
        attributes={
            "messaging.system": "kafka",
            **_destination(set(), job),
            "spark.task.partition": task,
            "spark.task.attempt": attempt,
        },
    )
    return provider, span


def _destination(topics: set[str], job: JobTrace) -> dict[str, str]:
    """Return the attribute that names the topics of the written rows.

    If no rows were written, it names the topic in the job's `topic` option. Without that option,
    return no attribute.
    """
    names = sorted(topics) or ([] if job.topic is None else [job.topic])
    return {"messaging.destination.name": ",".join(names)} if names else {}


def _has_no_provider() -> bool:
    """Return whether this process has no tracer provider."""
    from opentelemetry import trace  # noqa: PLC0415 - only with openTelemetry

    return isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _provider() -> TracerProvider:
    """Return the tracer provider of this process. If none is set, return one made from OTEL_*.

    This function does not set the provider, because the user's program may set one later.
    """
    from opentelemetry import trace  # noqa: PLC0415 - only with openTelemetry

    if _has_no_provider():
        return _made_provider()
    found: TracerProvider = trace.get_tracer_provider()  # or a class with the same methods
    return found


@cache
def _made_provider() -> TracerProvider:
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - only with openTelemetry
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above

    made = TracerProvider()
    for exporter, point in _exporters().items():
        if point is None:
            _warn_of(_without_exporter(exporter), exporter)
            continue
        try:
            made.add_span_processor(BatchSpanProcessor(point.load()()))
        except Exception as error:  # noqa: BLE001 - the other exporters work
            _warn(error)
    return made


def _exporters() -> dict[str, EntryPoint | None]:
    """Return the exporters that OTEL_TRACES_EXPORTER names; None for each that is not installed."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import

    named = _environment("OTEL_TRACES_EXPORTER", "otlp").split(",")
    names = [_exporter(name.strip()) for name in named]
    installed = {point.name: point for point in entry_points(group="opentelemetry_traces_exporter")}
    return {name: installed.get(name) for name in names if name not in ("", "none")}


def _without_exporter(exporter: str) -> str:
    """Return the message about an exporter that is not installed."""
    package = _PACKAGES.get(exporter)
    what_to_do = (
        "expected the name of an installed exporter in OTEL_TRACES_EXPORTER"
        if package is None
        else f"run pip install {package} on the driver and on every executor, or set "
        "OTEL_EXPORTER_OTLP_PROTOCOL to the protocol of the exporter that you have"
    )
    return (
        f"no exporter {exporter} of OpenTelemetry is installed for {sys.executable}: {what_to_do}"
    )


def _exporter(name: str) -> str:
    """Return the name of the entry point of an exporter.

    name: a name from OTEL_TRACES_EXPORTER. The name ``otlp`` means the exporter over gRPC or over
    HTTP. OTEL_EXPORTER_OTLP_TRACES_PROTOCOL chooses between them. If it is not set,
    OTEL_EXPORTER_OTLP_PROTOCOL does.
    """
    if name != "otlp":
        return name
    general = _environment("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    protocol = _environment("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", general)
    return "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"


def _environment(name: str, default: str) -> str:
    """Return an environment variable, or `default` if it is not set or empty.

    OpenTelemetry's specification treats an empty variable as not set.
    """
    return os.environ.get(name) or default


def _traceparent(span: Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _below(traceparent: str) -> Context:
    """Return a context whose current span is that of `traceparent`.

    The context is empty if `traceparent` is an empty string.
    """
    from opentelemetry.context import Context  # noqa: PLC0415 - only with openTelemetry
    from opentelemetry.trace import (  # noqa: PLC0415 - as above
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    if not traceparent:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    context = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )
    return set_span_in_context(NonRecordingSpan(context), Context())


class _ChosenIds:
    """An id generator of the SDK that returns the ids of a traceparent."""

    def __init__(self, traceparent: str) -> None:
        _, self._trace_id, self._span_id, self._flags = traceparent.split("-")

    def generate_trace_id(self) -> int:
        return int(self._trace_id, 16)

    def generate_span_id(self) -> int:
        return int(self._span_id, 16)

    def is_trace_id_random(self) -> bool:
        return bool(int(self._flags, 16) & 2)


def _warn(error: Exception) -> None:
    said = f"{type(error).__name__}: {error}"
    warn_once(logger, f"the trace of a write could not be exported: {said}", "openTelemetry")


def _warn_of(missing: str, exporter: str) -> None:
    warn_once(logger, f"a trace is not exported: {missing}", f"openTelemetry {exporter}")

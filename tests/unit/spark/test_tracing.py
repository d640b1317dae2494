"""Jobs and tasks have spans, which the processes of Spark export on their own."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql.types import StructType
from support.spark.otlp_receiver import OtlpReceiver, otlp_receiver

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark import tracing
from spark_kafka_sink.spark.driver.hooks import session_settings
from spark_kafka_sink.spark.driver.hooks.session_settings import trace_options
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.planning.datasource import (
    KafkaDataSource,
    check_options_and_columns,
    check_options_and_columns_of_stream,
)
from spark_kafka_sink.spark.report import JobTrace

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OpenTelemetry is missing")
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
SCHEMA = StructType().add("value", "string")

PLAN = """
import pickle, sys
from spark_kafka_sink.spark.tracing import begin_job
print(pickle.dumps(begin_job(sys.argv[1], sys.argv[2] or None)).hex())
"""
TASK = """
import pickle, sys, time
from opentelemetry import trace
from support.pure.partition_counts import counts_of
from spark_kafka_sink.spark.report import *
from spark_kafka_sink.spark.tracing import task_span

part = PartitionReport(topic="t", partition=0, records=5, bytes=50, batches=1,
    compressed_bytes=20, retries=2, first_offset=0, last_offset=4)
message = SinkCommitMessage(report=TaskReport(task=3, attempt=1, host="h", rows=5, seconds=1.0),
    started_at=0.0, throttle_ms=7, bad_rows=BadRowsReport(on_error="fail"), expired_rows=[],
    partitions=counts_of(part), dead_letters=counts_of())
job = pickle.loads(bytes.fromhex(sys.argv[1]))
with task_span(job, 3, 1) as span:
    with trace.get_tracer("user").start_as_current_span("of the user"):
        span.add(message)
try:
    with task_span(job, 4, 0):
        raise ValueError("a broken task")
except ValueError:
    print(pickle.dumps(message).hex())
"""
COMMIT = """
import pickle, sys
from spark_kafka_sink.spark.committing.job_commit import commit_report, failure_report
from spark_kafka_sink.spark.tracing import end_job
job, message = (pickle.loads(bytes.fromhex(text)) for text in sys.argv[1:])
end_job(job, commit_report([message]))
end_job(job, failure_report([message, None]))
"""

# All of them in one process.
ALL = f"""
import contextlib, io, sys
def run(script, *arguments):
    sys.argv[1:] = arguments
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(script, {{}})
    return printed.getvalue().strip()
job = run({PLAN!r}, sys.argv[1], "")
run({COMMIT!r}, job, run({TASK!r}, job))
print("ended")
"""


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """A collector."""
    with otlp_receiver() as found:
        yield found


def check(given: dict[str, str]) -> SinkOptions:
    """Check options as the process does that plans a write."""
    options, _ = KafkaDataSource(given).check(SCHEMA)
    return options


def _path() -> dict[str, str]:
    """Return the environment in which a process finds the modules of the tests."""
    return {"PYTHONPATH": os.pathsep.join(sys.path)}


def run(script: str, *arguments: str, **environment: str) -> str:
    """Run a script in a process of its own, and return what it prints."""
    command = [sys.executable, "-c", script, *arguments]
    found = subprocess.run(
        command, env=os.environ | _path() | environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr, found.stderr
    return found.stdout.strip()


def test_a_job_and_its_tasks_are_one_trace_from_three_processes(receiver: OtlpReceiver) -> None:
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    job = run(PLAN, PARENT, "", **where)
    message = run(TASK, job, **where)
    run(COMMIT, job, message, **where)
    complete, failed = receiver.named("pykafka write")
    written, broken = receiver.named("pykafka task")
    (of_user,) = receiver.named("of the user")
    _, trace_id, parent, _ = PARENT.split("-")
    assert {span.trace_id for span in receiver.spans} == {trace_id}
    assert complete.parent == parent
    assert {span.parent for span in (written, broken)} == {complete.span_id}
    assert of_user.parent == written.span_id
    assert written.attributes["pykafka.rows"] == complete.attributes["pykafka.rows"] == 5
    assert written.attributes["spark.task.partition"] == 3
    assert written.attributes["pykafka.retries"] == 2
    assert (complete.attributes["pykafka.complete"], complete.is_error) == (True, False)
    assert (failed.attributes["pykafka.unreported_tasks"], failed.is_error) == (1, True)
    assert (written.is_error, broken.is_error) == (False, True)
    assert complete.duration_ns > written.duration_ns, "a job lasts from its plan to its commit"


# The source is slow, so another thread appends the rows in time, and runs the user's partitioner.
SLOW = """
import pickle, sys, threading
import pyarrow as pa
from opentelemetry import trace
from spark_kafka_sink.spark.tasks.task import append_coalesced
from spark_kafka_sink.spark.tracing import task_span

is_appended = threading.Event()

def append(batch, since):
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        trace.get_tracer("user").start_span(thread.name).end()
        is_appended.set()

def slow_source():
    while not is_appended.wait(0.1):
        yield pa.record_batch({"value": [b"x"]})

with task_span(pickle.loads(bytes.fromhex(sys.argv[1])), 0, 0):
    append_coalesced(slow_source(), append, 8 << 20, 0.05)
"""


def test_user_code_has_the_span_of_the_task_while_the_source_is_slow(
    receiver: OtlpReceiver,
) -> None:
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    run(SLOW, run(PLAN, PARENT, "", **where), **where)
    (task,) = receiver.named("pykafka task")
    of_user = receiver.named("pykafka-linger")
    assert {span.parent for span in of_user} == {task.span_id}


# Spark plans, runs and aborts micro-batches: several streams at once, of which no task reports.
STREAMS = """
import os, pickle, sys
from pathlib import Path
from pyspark.sql.types import StructType
from spark_kafka_sink.spark import session
from spark_kafka_sink.spark.planning import datasource

datasource._checked_micro_batch = lambda options, schema: options  # there is no broker
session.driver_folder = lambda: Path(sys.argv[1])
SCHEMA = StructType().add("value", "string")

def broken():
    raise ValueError("a broken source")
    yield

def planned(**own):
    source = datasource.KafkaDataSource({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t",
        "openTelemetry": "true", "quiet": "true", **own})
    writer = source.streamWriter(SCHEMA, overwrite=True)
    return pickle.loads(pickle.dumps(source)), pickle.loads(pickle.dumps(writer))

# The first stream was restarted.
given = [{"checkpointLocation": each} for each in "aab"] + [{"queryName": each} for each in "ab"]
streams = [planned(**each) for each in given][1:]
for _, writer in streams:
    try:
        writer.write(broken())
    except ValueError:
        pass
for source, _ in streams:
    source.streamWriter(SCHEMA, overwrite=True).abort([None, None], 7)
print("ended", flush=True)
os._exit(0)  # as a worker of Spark ends
"""


def test_a_micro_batch_of_which_no_task_has_reported_is_the_parent_of_its_tasks(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    assert run(STREAMS, str(tmp_path), **where) == "ended"
    jobs, tasks = receiver.named("pykafka write"), receiver.named("pykafka task")
    assert len(jobs) == 4
    assert [(job.trace_id, job.span_id) for job in jobs] == [(t.trace_id, t.parent) for t in tasks]
    assert all(job.duration_ns > task.duration_ns for job, task in zip(jobs, tasks, strict=True))
    assert all(span.is_error for span in jobs + tasks)


@pytest.mark.parametrize("content", ["", "[", "[1]"])
def test_a_kept_span_that_cannot_be_read_is_none(content: str, tmp_path: Path) -> None:
    job = JobTrace("00-trace-span-01", PARENT, 5, "t")
    assert tracing.kept_trace(tmp_path, "stream") is None
    tracing.keep_trace(tmp_path / "missing", "stream", job)
    tracing.keep_trace(tmp_path, "stream", job)
    assert tracing.kept_trace(tmp_path, "stream") == job
    assert tracing.kept_trace(tmp_path, "other") is None
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert tracing.kept_trace(tmp_path, "stream") is None


# All ways to write rows exactly once that were written before.
REPLAYED = """
import os, pickle, sys
from dataclasses import replace
import pyarrow as pa
from spark_kafka_sink.commit.log_record import StreamMark
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.micro_batch import BATCH_ID, QUERY_ID, MicroBatch
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tracing import begin_job
from spark_kafka_sink.spark.writer import *
from support.pure.planned_run import PLAN, RECORD
from support.spark.played_tasks import in_task

def options(topic):
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "openTelemetry": "true"}
    how = ExactlyOnce(Mode.TWO_PHASE, "p", app_id="app", version=7)
    found = replace(sink_options(given), topic=topic, exactly_once=how, quiet=True)
    return replace(found, trace=begin_job("", topic))

plan = replace(PLAN, record=replace(RECORD, streams=(StreamMark("q", 6, 2, "old run"),)))
again = MicroBatch("q", 6, "new run")
of_stream = ExactlyOnceStreamWriter(options("stream"), plan)
for writer in (
    of_stream,
    ExactlyOnceMicroBatchWriter(options("saved"), plan, again, is_written=True),
    ExactlyOnceWriter(options("version"), RECORD),
    ExactlyOnceWriter(options(None), RECORD),
):
    rows = pa.record_batch({"value": [b"x"] * 2})
    with in_task(3, properties={QUERY_ID: "q", BATCH_ID: "6"}):
        message = writer.write(iter([rows]))
    if writer is of_stream:  # the commit has another writer
        ExactlyOnceStreamWriter(options("stream")).commit([message], 6)
    else:
        pickle.loads(pickle.dumps(writer)).commit([message])
print("ended", flush=True)
os._exit(0)  # as a worker of Spark ends
"""


def test_tasks_whose_rows_were_written_before_belong_to_the_span_of_their_job(
    receiver: OtlpReceiver,
) -> None:
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    assert run(REPLAYED, **where) == "ended"
    jobs, tasks = receiver.named("pykafka write"), receiver.named("pykafka task")
    topics = [span.attributes.get("messaging.destination.name") for span in jobs]
    assert topics == ["stream", "saved", "version", None]
    assert [task.parent for task in tasks] == [job.span_id for job in jobs]
    counts = ("pykafka.complete", "pykafka.rows", "pykafka.tasks")
    assert {tuple(job.attributes[name] for name in counts) for job in jobs} == {(True, 0, 1)}
    assert not any(span.is_error for span in jobs + tasks)
    assert [task.attributes["pykafka.rows"] for task in tasks] == [0] * 4
    # The rows of a version are counted only if a topic column may have others.
    read = [task.attributes.get("pykafka.skipped_rows") for task in tasks]
    assert read == [2, 2, None, 2]


# A program without a tracer provider, whose version is written. It may set one later.
SKIPPED = """
import sys
from contextlib import contextmanager
from opentelemetry import trace
from support.pure.planned_run import RECORD
from spark_kafka_sink.spark.driver.hooks import written_versions
from spark_kafka_sink.spark.planning import written_version

written_version._record = lambda *_: RECORD
given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "exactlyOnce": "true",
    "txnAppId": "app", "txnVersion": "7", "openTelemetry": "true", "quiet": "true"}
for more in ({"traceparent": sys.argv[1]}, {"openTelemetry": "false"}):
    assert written_versions.is_written(given | more)
assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
"""


def test_a_job_that_register_skips_has_a_span_and_leaves_the_programs_provider_alone(
    receiver: OtlpReceiver,
) -> None:
    run(SKIPPED, PARENT, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint)
    (job,) = receiver.spans
    _, trace_id, parent, _ = PARENT.split("-")
    assert (job.name, job.trace_id, job.parent) == ("pykafka write", trace_id, parent)
    assert (job.attributes["pykafka.complete"], job.attributes["pykafka.tasks"]) == (True, 0)


FAIL = """
import pickle, sys
from spark_kafka_sink.spark.committing.job_commit import failure_report
from spark_kafka_sink.spark.tracing import end_job, task_span
job = pickle.loads(bytes.fromhex(sys.argv[1]))
try:
    with task_span(job, 0, 0):
        raise ValueError("a broken task")
except ValueError:
    end_job(job, failure_report([None]))
"""


@pytest.mark.parametrize("topic", ["t", None])
def test_a_job_and_a_task_that_fail_name_the_option_topic_if_it_is_set(
    receiver: OtlpReceiver, topic: str | None
) -> None:
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    run(FAIL, run(PLAN, PARENT, topic or "", **where), **where)
    for name in ("pykafka write", "pykafka task"):
        (span,) = receiver.named(name)
        assert span.is_error
        assert span.attributes.get("messaging.destination.name") == topic


def test_a_trace_that_is_not_sampled_is_not_exported(receiver: OtlpReceiver) -> None:
    where = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0",
    }
    assert run(ALL, "", **where) == "ended"
    assert receiver.spans == []


@pytest.mark.parametrize(
    "environment",
    [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}],
    ids=lambda given: next(iter(given)),
)
def test_otel_can_be_off(environment: Mapping[str, str]) -> None:
    assert run(ALL, PARENT, **environment) == "ended"


ACCEPTED = f"""
from pyspark.sql.types import StructType
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
given = {GIVEN | {"openTelemetry": "true"}}
KafkaDataSource(given).check(StructType().add("value", "string"))
"""


@pytest.mark.parametrize("given", [None, "", "grpc"])
def test_an_empty_variable_of_otel_is_one_that_is_not_set(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        monkeypatch.setenv(name, "")
    if given is None:
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL", raising=False)
    else:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", given)
    assert list(tracing._exporters()) == [f"otlp_proto_{given or 'http'}"]


def test_an_unknown_exporter_is_named_and_the_others_export(receiver: OtlpReceiver) -> None:
    environment = {
        "OTEL_TRACES_EXPORTER": "otlp, nothing_of_that_name",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
    }
    command = [sys.executable, "-c", ACCEPTED + ALL, PARENT]
    found = subprocess.run(
        command, env=os.environ | _path() | environment, capture_output=True, text=True, check=True
    )
    assert found.stderr.splitlines() == [
        "a trace is not exported: no exporter nothing_of_that_name of OpenTelemetry is installed "
        f"for {sys.executable}: expected the name of an installed exporter in OTEL_TRACES_EXPORTER"
    ]
    assert len(receiver.named("pykafka task")) == 2


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_otlp_exporter_that_is_not_installed_is_named_with_its_package(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console,otlp")
    name = "http/protobuf" if protocol == "http" else protocol
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", name)
    every = importlib.metadata.entry_points

    def others(group: str) -> list[importlib.metadata.EntryPoint]:
        return [point for point in every(group=group) if not point.name.startswith("otlp")]

    monkeypatch.setattr(importlib.metadata, "entry_points", others)
    with pytest.raises(ConfigException) as refused:
        check(GIVEN | {"openTelemetry": "true"})
    package = f"opentelemetry-exporter-otlp-proto-{protocol}"
    assert str(refused.value) == (
        f"option openTelemetry is true, but no exporter otlp_proto_{protocol} of OpenTelemetry is "
        f"installed for {sys.executable}: run pip install {package} on the driver and on every "
        "executor, or set OTEL_EXPORTER_OTLP_PROTOCOL to the protocol of the exporter that you "
        "have"
    )
    # A program with a provider of its own exports its spans elsewhere.
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    assert check(GIVEN | {"openTelemetry": "true"}).traceparent == ""


def test_beside_an_exporter_that_cannot_start_the_others_export(tmp_path: Path) -> None:
    of_package = tmp_path / "broken-1.dist-info" / "entry_points.txt"
    of_package.parent.mkdir()
    of_package.write_text("[opentelemetry_traces_exporter]\nbroken = no_such_module:Exporter\n")
    path = os.pathsep.join((str(tmp_path), *sys.path))
    job = run(PLAN, PARENT, "", OTEL_TRACES_EXPORTER="none")
    printed = run(TASK, job, OTEL_TRACES_EXPORTER="broken,console", PYTHONPATH=path)
    assert '"name": "pykafka task"' in printed


def test_the_option_is_off_and_its_parent_is_checked() -> None:
    assert sink_options(GIVEN).traceparent is None
    on = GIVEN | {"openTelemetry": "true"}
    assert sink_options(on).traceparent == ""
    assert sink_options(on | {"traceparent": f" {PARENT} "}).traceparent == PARENT
    with pytest.raises(ConfigException, match="traceparent is 'x': expected a traceparent of the"):
        sink_options(on | {"traceparent": "x"})
    with pytest.raises(ConfigException, match="traceparent has no effect: set openTelemetry"):
        sink_options(GIVEN | {"traceparent": PARENT})


def test_opentelemetry_is_needed_where_a_write_is_planned_and_not_on_a_connect_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda _: None)
    on = GIVEN | {"openTelemetry": "true"}
    for check_here in (KafkaDataSource(on).check, KafkaDataSource(on).check_stream):
        with pytest.raises(ConfigException, match="run pip install opentelemetry-sdk"):
            check_here(SCHEMA)
    assert check(GIVEN).traceparent is None, "others do not need it"
    check_options_and_columns(SCHEMA, on)
    check_options_and_columns_of_stream(SCHEMA, on)


def test_the_current_span_of_the_users_process_goes_with_the_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from opentelemetry import context, trace

    on = {"opentelemetry": "True"}
    assert trace_options(on) == {}, "there is no span"
    token = context.attach(tracing._below(PARENT))
    try:
        assert trace.get_current_span().get_span_context().is_valid
        assert trace_options(on) == {"traceparent": PARENT}
        assert trace_options(on | {"traceparent": "of the user"}) == {}
        assert trace_options({}) == {}
        monkeypatch.setattr(session_settings, "find_spec", lambda _: None)
        assert trace_options(on) == {}, "the error about it comes with the options"
    finally:
        context.detach(token)


LOADED = """
import sys
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tasks import task
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_who_does_not_ask_for_traces_imports_nothing_of_them() -> None:
    assert run(LOADED) == "[]"


def test_the_span_of_a_micro_batch_is_not_that_of_the_next_one(tmp_path: Path) -> None:
    kept = JobTrace(PARENT, "", 1, "t")
    tracing.keep_trace(tmp_path, "stream", kept)
    assert tracing.kept_trace(tmp_path, "stream") == kept
    tracing.keep_trace(tmp_path, "stream", None)
    assert tracing.kept_trace(tmp_path, "stream") is None
    tracing.keep_trace(tmp_path, "stream", None)

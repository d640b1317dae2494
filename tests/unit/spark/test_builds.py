"""A task refuses a writer that another build of the sink has pickled."""

from __future__ import annotations

import io
import pickle
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.util import handle_worker_exception

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark import worker
from spark_kafka_sink.spark import writer as writer_module
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.writer import (
    KafkaArrowWriter,
    KafkaStreamArrowWriter,
    MicroBatchWriter,
)

OPTIONS = {"kafka.bootstrap.servers": "b:1", "topic": "t", "onError": "skip"}
OLDER = "0.0.9 (fields 00000000)"
WRITERS: list[Callable[[SinkOptions], KafkaArrowWriter | KafkaStreamArrowWriter]] = [
    KafkaArrowWriter,
    KafkaStreamArrowWriter,
    lambda options: MicroBatchWriter(options, 7),
]


def unpickle(content: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    """Unpickle bytes in a new Python process, as the process of a task does."""
    (folder / "content").write_bytes(content)
    script = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    command = [sys.executable, "-c", script, str(folder / "content")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def hide_a_module(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next import of the sink find that a module is missing."""
    monkeypatch.setattr(worker, "NEEDED", {**worker.NEEDED, "missing_module": "1"})
    for name in [each for each in sys.modules if each.startswith(package)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, worker.__name__, worker)


@pytest.mark.parametrize("is_other_build", [False, True])
def test_an_error_before_the_options_are_unpickled_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, *, is_other_build: bool
) -> None:
    options = {**OPTIONS, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
    credentials = {"kafka.sasl.username": "alice", "kafka.sasl.password": "hunter2"}
    if is_other_build:
        monkeypatch.setattr(writer_module, "build", lambda: OLDER)
    content = pickle.dumps(KafkaArrowWriter(sink_options({**options, **credentials})))
    if not is_other_build:
        hide_a_module("spark_kafka_sink.spark", monkeypatch)
    monkeypatch.setenv("SPARK_TRACEBACK_WITH_LOCALS", "1")  # as Spark 4.3 does
    worker_output = io.BytesIO()
    try:
        CPickleSerializer().loads(content)  # type: ignore[no-untyped-call] # it has no types
    except (ConfigException, ImportError) as error:
        handle_worker_exception(error, worker_output)
    text = worker_output.getvalue().decode(errors="replace")
    assert (OLDER if is_other_build else "No module named 'missing_module'") in text
    assert "hunter2" not in text


class OfAnotherBuild:
    """An object whose class the process of a task cannot import."""


@pytest.mark.parametrize("is_newer", [False, True])
def test_another_build_is_refused_before_its_classes_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_newer: bool
) -> None:
    ours = worker.build()
    theirs = ours.replace("fields ", "fields f") if is_newer else OLDER
    writer = KafkaArrowWriter(sink_options(OPTIONS))
    writer.of_another_build = OfAnotherBuild()  # type: ignore[attr-defined] # that is the point
    monkeypatch.setattr(writer_module, "build", lambda: theirs)
    content = pickle.dumps(writer)
    monkeypatch.undo()
    done = unpickle(content, tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"spark_kafka_sink.errors.ConfigException: the spark-kafka-sink of {sys.executable} on "
        f"{platform.node()} is {ours}, but that of the driver is {theirs}: install the "
        "same one on the driver and on all executors"
    )


@pytest.mark.parametrize("make", WRITERS)
def test_the_same_build_gets_what_the_driver_has_pickled(
    make: Callable[[SinkOptions], KafkaArrowWriter | KafkaStreamArrowWriter], tmp_path: Path
) -> None:
    options = sink_options(OPTIONS)
    content = pickle.dumps(make(options))
    assert unpickle(content, tmp_path).returncode == 0
    copy = pickle.loads(content)
    assert type(copy) is type(make(options))
    assert vars(copy) == vars(make(options))
    assert copy._unpacked() == options

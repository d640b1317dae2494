"""A task refuses a writer that another build of the sink has pickled."""

from __future__ import annotations

import pickle
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kafka_sink.spark import worker
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.writer import (
    KafkaArrowWriter,
    KafkaStreamArrowWriter,
    MicroBatchWriter,
)

OPTIONS = {"kafka.bootstrap.servers": "b:1", "topic": "t", "onError": "skip"}
OLDER = "0.0.9 (build 00000000)"
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


class OfAnotherBuild:
    """An object whose class the process of a task cannot import."""


@pytest.mark.parametrize("is_newer", [False, True])
def test_another_build_is_refused_before_its_classes_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_newer: bool
) -> None:
    theirs = worker.BUILD.replace("build ", "build f") if is_newer else OLDER
    writer = KafkaArrowWriter(sink_options(OPTIONS))
    writer.of_another_build = OfAnotherBuild()  # type: ignore[attr-defined] # that is the point
    monkeypatch.setattr(worker, "BUILD", theirs)
    content = pickle.dumps(writer)
    monkeypatch.undo()
    done = unpickle(content, tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"spark_kafka_sink.errors.ConfigException: the spark-kafka-sink of {sys.executable} on "
        f"{platform.node()} is {worker.BUILD}, but that of the driver is {theirs}: install the "
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

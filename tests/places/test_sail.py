"""Sail, an engine in Rust for programs of Spark Connect: batch jobs write to Kafka.

If a test of an error of Sail fails, Sail has changed: change docs/how-to/places.md, too.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.sail import Sail
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long(reason="it needs an environment with Sail"),
]

PROGRAM: Final = Path(__file__).parents[1] / "support" / "spark" / "sail_job.py"
NUMBERS: Final = sorted(str(number).encode() for number in range(100))


class Job:
    """Runs a case of `sail_job` on a topic of its own."""

    def __init__(self, python: Path, kafka: KafkaCluster, topic: str, folder: Path) -> None:
        self._python, self._kafka, self.topic, self._folder = python, kafka, topic, folder

    def run(self, case: str) -> str:
        """Return what the program prints to stdout and stderr."""
        path = self._folder / "rows.parquet"
        keys = pa.array([f"a key of more than twelve bytes {number}" for number in range(100)])
        table = pa.table({"key": keys, "value": pa.array(NUMBERS)})
        if case.startswith("dictionaries"):
            columns = [each.dictionary_encode() for each in table.columns]
            table = pa.table(columns, table.column_names)
        pq.write_table(table, path)
        ended = subprocess.run(
            [self._python, "-P", PROGRAM, self._kafka.bootstrap, self.topic, path, case],
            cwd=self._folder,
            env={n: v for n, v in os.environ.items() if "PYTHON" not in n},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=250,
        )
        return ended.stdout

    @property
    def bootstrap(self) -> str:
        """The address of the brokers."""
        return self._kafka.bootstrap

    def sail(self) -> Sail:
        """Return Sail as the benchmark runs it."""
        return Sail(self._python)

    def values(self) -> list[bytes]:
        """Return the values of the topic, sorted."""
        records = read_with_confluent(self._kafka.bootstrap, self.topic)
        return sorted(record.value or b"" for record in records)


@pytest.fixture
def job(
    kafka: KafkaCluster,
    new_topic: NewTopic,
    tmp_path: Path,
    need_python_of: Callable[[str], Path],
) -> Job:
    return Job(need_python_of("sail"), kafka, new_topic(3), tmp_path)


@pytest.mark.parametrize("case", ["parquet", "dictionaries", "views", "repartitioned"])
def test_a_batch_job_writes_every_row_once(job: Job, case: str) -> None:
    said = job.run(case)
    assert "\nwritten\n" in said, said
    assert "pykafka: wrote 100 rows (" in said
    assert job.values() == NUMBERS


def test_all_columns_become_parts_of_the_record(job: Job, kafka: KafkaCluster) -> None:
    said = job.run("columns")
    assert "\nwritten\n" in said, said
    records = read_with_confluent(kafka.bootstrap, job.topic)
    assert sorted(record.value or b"" for record in records) == NUMBERS
    assert {(r.partition, r.headers, r.timestamp_ms) for r in records} == {
        (1, (("of", b"x"),), 1_767_323_045_000)
    }


def test_the_benchmark_writes_the_rows_of_several_files(job: Job, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for first in (0, 50):
        table = pa.table({"value": pa.array(NUMBERS[first : first + 50])})
        pq.write_table(table, tmp_path / "rows" / f"{first}.parquet")
    with job.sail() as sail:
        sail.write(
            tmp_path / "rows", {"kafka.bootstrap.servers": job.bootstrap, "topic": job.topic}
        )
        with pytest.raises(RuntimeError, match="topic option required when no 'topic' attribute"):
            sail.write(tmp_path / "rows", {"kafka.bootstrap.servers": job.bootstrap})
    assert job.values() == NUMBERS


def test_after_a_read_of_several_files_sail_rejects_the_commit(job: Job) -> None:
    said = job.run("files")
    assert "Missing write result for partition 1" in said
    assert "\nwritten\n" not in said
    assert job.values() == sorted(2 * NUMBERS)


def test_after_a_shuffle_sail_rejects_the_commit_though_the_rows_are_written(job: Job) -> None:
    said = job.run("shuffled")
    assert "Invalid partition id" in said
    assert "\nwritten\n" not in said
    assert job.values() == NUMBERS


@pytest.mark.exactly_once
def test_exactly_once_is_refused(job: Job) -> None:
    said = job.run("exactly once")
    assert "exactlyOnce is set, but this engine (Sail) does not pass the numbers" in said
    assert job.values() == []


def test_an_error_of_the_driver_is_the_sinks_sentence(job: Job) -> None:
    said = job.run("no value")
    assert "Required attribute 'value' not found" in said
    assert job.values() == []


def test_an_error_of_a_task_ends_with_the_sinks_sentence(job: Job) -> None:
    # The server may log that it ends before or after the client's exception.
    said = [line for line in job.run("no partition").splitlines() if " INFO sail" not in line]
    assert said[-1].endswith(
        "Write failed for partition 0: External error: Python error: [KafkaArrowWriter::write] "
        "DataException: row 0 of task 0: Invalid partition: -2. Partition number should always be "
        "non-negative or null."
    )
    assert job.values() == []


def test_a_stream_of_files_is_a_batch_job_that_writes_every_row_at_each_start(job: Job) -> None:
    said = job.run("stream of files")
    assert "\nwritten\n" in said, said
    assert job.values() == sorted(2 * NUMBERS)


def test_sail_refuses_another_stream_and_shows_the_options(job: Job) -> None:
    said = job.run("stream of a rate")
    assert "unsupported extension node for streaming: PythonWriteNode" in said
    assert f'("topic", "{job.topic}")' in said
    assert job.values() == []


def test_sail_refuses_foreach_batch(job: Job) -> None:
    said = job.run("stream of foreachBatch")
    assert "missing argument: Python UDF output type" in said
    assert job.values() == []

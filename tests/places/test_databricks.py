"""Databricks runtimes, by their Python halves: a write goes through their worker modules.

The wheels of `databricks-connect` have these modules. The JVM's half and the cluster are not here.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import committed_values, read_with_confluent
from support.spark import databricks_workers

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long(reason="it needs an environment with Databricks' Python for each runtime"),
]

RUNTIMES: Final = ("16.4", "17.3")
PROGRAM: Final = Path(databricks_workers.__file__)
TASKS: Final = 2
ROWS: Final = 1000
SCHEMA: Final = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "key", "type": "string", "nullable": True, "metadata": {}},
            {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
        ],
    }
)
EXPECTED: Final = sorted(f"value-{number}" for number in range(TASKS * ROWS))


class Steps(NamedTuple):
    """Runs the steps of a write with the Python of a runtime."""

    python: Path
    folder: Path

    def run(self, step: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a step in a process of its own."""
        return subprocess.run(
            [self.python, "-P", PROGRAM, step, self.folder, *arguments],
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )

    def must(self, step: str, *arguments: str) -> str:
        """Run a step that must succeed; return what it prints to stderr."""
        ended = self.run(step, *arguments)
        assert ended.returncode == 0, ended.stderr[-5000:]
        return ended.stderr


@pytest.fixture(params=RUNTIMES)
def steps(
    request: pytest.FixtureRequest, tmp_path: Path, need_python_of: Callable[[str], Path]
) -> Steps:
    """The steps of a write on a runtime, whose rows are in files."""
    python = need_python_of(f"databricks-{request.param}")
    for number in range(TASKS):
        texts = [f"value-{number * ROWS + row}" for row in range(ROWS)]
        columns = {
            "key": pa.array([text[-2:] for text in texts]),
            "value": pa.array([text.encode() for text in texts]),
        }
        table = pa.table(columns)
        with pa.ipc.new_stream(tmp_path / f"rows-{number}.arrow", table.schema) as sink:
            sink.write_table(table, max_chunksize=300)
    return Steps(python, tmp_path)


def prepare(
    steps: Steps,
    kafka: KafkaCluster,
    topic: str,
    more: dict[str, str] | None = None,
    *,
    is_stream: bool = False,
) -> None:
    """Write down what is written, and let the runtime find the data source."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, **(more or {})}
    write = {"schema": SCHEMA, "options": options, "is_stream": is_stream}
    (steps.folder / "write.json").write_text(json.dumps(write))
    steps.must("lookup")


@pytest.mark.parametrize("is_stream", [False, True], ids=["batch", "stream"])
def test_every_row_is_written_and_the_commit_prints_the_report(
    kafka: KafkaCluster, new_topic: NewTopic, steps: Steps, *, is_stream: bool
) -> None:
    topic = new_topic(3)
    prepare(steps, kafka, topic, is_stream=is_stream)
    steps.must("plan")
    for number in range(TASKS):
        steps.must("task", str(number))
    said = steps.must("commit")
    assert f"{TASKS * ROWS} rows" in said.replace(",", "")
    records = read_with_confluent(kafka.bootstrap, topic)
    assert sorted((r.value or b"").decode() for r in records) == EXPECTED
    assert {((r.value or b"")[-2:], r.key) for r in records} == {(r.key, r.key) for r in records}


@pytest.mark.exactly_once
@pytest.mark.parametrize("is_stream", [False, True], ids=["batch", "stream"])
def test_rows_of_exactly_once_are_visible_after_the_commit_alone(
    kafka: KafkaCluster, new_topic: NewTopic, steps: Steps, *, is_stream: bool
) -> None:
    topic = new_topic(3)
    more = {"exactlyOnce": "true", "txnAppId": topic}
    if is_stream:
        more["checkpointLocation"] = str(steps.folder / "checkpoint")
    else:
        more["txnVersion"] = "1"
    prepare(steps, kafka, topic, more, is_stream=is_stream)
    steps.must("plan")
    for number in range(TASKS):
        steps.must("task", str(number))
    assert read_with_confluent(kafka.bootstrap, topic) == []
    steps.must("commit")
    assert committed_values(kafka.bootstrap, topic) == EXPECTED


def test_an_error_of_the_driver_is_the_sinks_sentence(
    kafka: KafkaCluster, new_topic: NewTopic, steps: Steps
) -> None:
    prepare(steps, kafka, new_topic(1), {"kafka.acks": "2"})
    ended = steps.run("plan")
    assert ended.returncode != 0
    assert "acks" in ended.stderr

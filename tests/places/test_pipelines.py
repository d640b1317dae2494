"""Declarative Pipelines: the example in jobs/pipeline runs with `spark-pipelines`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent

EXAMPLE: Final = Path(__file__).parents[2] / "jobs" / "pipeline"
SPEC: Final = "spark-pipeline.yml"
TIMEOUT_S: Final = 600

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.timeout(2 * TIMEOUT_S),
    pytest.mark.long(reason="it needs an environment with the newest Spark and its pipelines"),
]


def run(python: Path, project: Path) -> str:
    """Run the pipeline as a user does; return what it prints."""
    where = "import pyspark; print(pyspark.__path__[0])"
    found = subprocess.run([python, "-P", "-c", where], capture_output=True, text=True, check=True)
    home = found.stdout.strip()
    environment = {name: text for name, text in os.environ.items() if "PYTHON" not in name}
    environment |= {"SPARK_HOME": home, "PYSPARK_PYTHON": str(python)}
    ended = subprocess.run(
        [f"{home}/bin/spark-pipelines", "run", "--spec", project / SPEC],
        cwd=project,
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stdout[-5000:]
    return ended.stdout


def add_flights(folder: Path, first: int, last: int) -> None:
    """Add a file with flights to the pipeline's source."""
    folder.mkdir(exist_ok=True)
    rows = (json.dumps({"carrier": "UA", "flight": number}) for number in range(first, last))
    (folder / f"{first}.json").write_text("\n".join(rows))


def replace(path: Path, example: str, ours: str) -> None:
    """Replace a text of the example."""
    text = path.read_text()
    assert text.count(example) == 1, example
    path.write_text(text.replace(example, ours))


def test_each_run_of_the_example_writes_the_files_that_are_new(
    kafka: KafkaCluster,
    new_topic: NewTopic,
    tmp_path: Path,
    need_python_of: Callable[[str], Path],
) -> None:
    python, topic = need_python_of("declarative-pipelines"), new_topic(3)
    project, incoming = tmp_path / "pipeline", tmp_path / "incoming"
    shutil.copytree(EXAMPLE, project)
    replace(project / SPEC, "file:///tmp/flights-pipeline", f"file://{tmp_path / 'storage'}")
    flow = project / "transformations" / "to_kafka.py"
    replace(flow, "127.0.0.1:9092", kafka.bootstrap)
    replace(flow, '"topic": "flights"', f'"topic": "{topic}"')
    replace(flow, "file:///data/incoming", f"file://{incoming}")
    for first, last in ((0, 100), (100, 150)):
        add_flights(incoming, first, last)
        said = run(python, project)
        assert f"pykafka: wrote {last - first} rows (" in said, said[-5000:]
    records = read_with_confluent(kafka.bootstrap, topic)
    written = [json.loads(record.value or b"") for record in records]
    assert sorted(each["flight"] for each in written) == list(range(150))
    assert {record.key for record in records} == {b"UA"}

"""The session of a notebook: a cell of the docs, typed into an interactive Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.spark.spark_processes import plain_environment

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long(reason="it starts Spark in a Python of its own, for one write"),
]

DEPLOYMENT = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"


def test_the_cell_of_the_docs_in_an_interactive_session(
    kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    _, _, section = DEPLOYMENT.read_text().partition("\n## Notebooks\n")
    cell = section.split("```")[1].removeprefix("python\n")
    for example, ours in (("localhost:9092", kafka.bootstrap), ('"events"', f'"{topic}"')):
        assert cell.count(example) == 1
        cell = cell.replace(example, ours)
    typed = f"exec({cell!r})\nspark.stop()\nprint('ended')\n"
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=typed,
        cwd=tmp_path,
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ended" in done.stdout, done.stderr[-5000:]
    values = [int(r.value or b"") for r in read_with_confluent(kafka.bootstrap, topic)]
    assert sorted(values) == list(range(100))

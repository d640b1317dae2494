"""Mode `single` from Spark's own processes: applications whose jobs and streams are the cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.spark import complete_modes, single_jobs, single_streams

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.exactly_once]


def run(program: ModuleType, *arguments: str) -> tuple[dict[str, list[Any]], str]:
    """Run an application; return what its cases came to, and what it said on stderr."""
    folders = [str(complete_modes.__path__[0]), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    done = subprocess.run(
        [sys.executable, str(program.__file__), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_jobs_of_spark_write_each_version_once(cluster: KafkaCluster, new_topic: NewTopic) -> None:
    topic, log = new_topic(8), new_topic(1, {"cleanup.policy": "compact"})
    found, said = run(single_jobs, cluster.bootstrap, topic, log)
    counts = {name: rows for name, (rows, _) in found.items()}
    assert counts == {
        "200 rows": 200,
        "again": 200,
        "some empty tasks": 202,
        "no rows": 202,
        "rows for the version without rows": 202,
        "a task fails": 202,
        "and the job runs again": 402,
    }, found
    failed = {name: error for name, (_, error) in found.items() if error is not None}
    assert set(failed) == {"a task fails"}, failed
    for line in (
        "skipped: version 1 of application cases was written",
        "skipped: version 3 of application cases was written",
        "nothing of it is visible",
        "committed version 4 of application cases, exactlyOnce=single",
    ):
        assert line in said


def test_streams_of_spark_write_each_micro_batch_once(
    cluster: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topics = new_topic(4), new_topic(4)
    log = new_topic(1, {"cleanup.policy": "compact"})
    found, said = run(single_streams, cluster.bootstrap, *topics, log, str(tmp_path))
    assert found == {
        "two micro-batches": [20, 0, None],
        "the last one again": [20, 0, None],
        "two by a function": [20, 20, None],
        "the last one by it again": [20, 20, None],
        "another one": [30, 20, None],
        "another one by the function": [30, 30, None],
    }
    assert said.count("skipped: micro-batch 1 of query") == 2

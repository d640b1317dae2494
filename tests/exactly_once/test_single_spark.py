"""Mode `single` from Spark's own processes: one application whose jobs are the cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.spark import complete_modes, single_jobs

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.exactly_once]


def test_jobs_of_spark_write_each_version_once(cluster: KafkaCluster, new_topic: NewTopic) -> None:
    topic, log = new_topic(8), new_topic(1, {"cleanup.policy": "compact"})
    folders = [str(Path(str(complete_modes.__path__[0]))), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [*folders, *sys.path]))}
    done = subprocess.run(
        [sys.executable, single_jobs.__file__, cluster.bootstrap, topic, log],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
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
        "committed version 4 of application cases in one transaction",
    ):
        assert line in done.stderr

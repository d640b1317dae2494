"""Both modes with Spark Connect: a job, a stream and a function of foreachBatch, each again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.spark import exactly_once_over_connect
from support.spark.spark_processes import connect_server

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.exactly_once,
    pytest.mark.long(reason="it starts a server of Spark Connect"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of Spark Connect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        with connect_server(tmp_path_factory.mktemp("connect")) as remote:
            yield remote


def test_jobs_and_streams_over_connect_write_each_row_once(
    server: str, cluster: KafkaCluster, mode: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, str(exactly_once_over_connect.__file__)),
            *(server, mode, cluster.bootstrap, str(tmp_path)),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    job = Counter(map(str, range(100)))
    lines = Counter(f"{file}.{line}" for file in (1, 2) for line in range(10))
    assert {case: (Counter(values), error) for case, (values, error) in found.items()} == {
        "a job": (job, None),
        "the job again": (job, None),
        "a stream": (job + lines, None),
        "its last micro-batch again": (job + lines, None),
        "a function": (job + lines + lines, None),
        "its last micro-batch by the function again": (job + lines + lines, None),
    }, done.stderr[-3000:]

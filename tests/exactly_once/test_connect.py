"""Both modes over Spark Connect: a job, a stream and a function of foreachBatch, each again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "a job": [100, None],
        "the job again": [100, None],
        "a stream": [120, None],
        "its last micro-batch again": [120, None],
        "a function": [140, None],
        "its last micro-batch by the function again": [140, None],
    }, done.stderr[-3000:]

"""``make bench``: one Kafka node, and the benchmark job on it.

The broker, Spark and its workers share this machine, so only the ratios of one run mean anything.
The broker's logs are in memory where there is room: a disk that is still busy with the rows of one
contender would slow the next one.
All arguments are the job's (jobs/bench.py --help), but for ``--conf name=value``, which is Spark's.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from support import fetch_kafka
from support.kafka_cluster import KafkaCluster
from support.own_broker import memory_with_room
from support.spark_processes import SPARK_SUBMIT, environment

_ROOT: Final = Path(__file__).parents[2]
_JOB: Final = _ROOT / "jobs" / "bench.py"
# Logs of two topics, what is still to be deleted, and Spark's own memory.
_ROOM_BYTES: Final = 16 * 1024**3
_OUTPUT: Final = _ROOT / "docs" / "benchmarks"

# What the job lets brokers delete is deleted soon, so that no disk fills up.
_BROKER_SETTINGS: Final = {
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}
_SPARK_SETTINGS: Final = (
    "spark.ui.enabled=false",
    "spark.ui.showConsoleProgress=false",
    "spark.log.level=ERROR",
    "spark.driver.bindAddress=127.0.0.1",
)


def main() -> int:
    """Start what the job needs, and run it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--conf", action="append", default=[])
    known, given = parser.parse_known_args()
    if {"--list", "--help", "-h"} & set(given):
        return _submit(given)
    if not fetch_kafka.fetch(fetch_kafka.NEWEST):
        print(fetch_kafka.missing(), file=sys.stderr)
        return 2
    libs = fetch_kafka.libs(fetch_kafka.NEWEST)
    # The room is for the usual rows.
    memory = None if "--scale" in given else memory_with_room(_ROOM_BYTES)
    folder = Path(tempfile.mkdtemp(prefix="spark-kafka-sink-bench-", dir=memory))
    cluster = KafkaCluster(libs, folder, 1, _BROKER_SETTINGS)
    try:
        cluster.start()
        job = ["--bootstrap", cluster.bootstrap, "--broker-pid", str(cluster.pid(1))]
        job += ["--kafka-libs", str(libs), "--output", str(_OUTPUT)]
        job += ["--about", "settings of Spark", ", ".join(known.conf) or "none"]
        job += ["--about", "the broker's logs", "on disk" if memory is None else "in memory"]
        return _submit([*job, *given], known.conf)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _submit(job: list[str], settings: Sequence[str] = ()) -> int:
    jars = fetch_kafka.jvm_sink()
    submit = [str(SPARK_SUBMIT), "--master", "local[2]", "--driver-memory", "4g"]
    submit += ["--jars", ",".join(map(str, jars))] if jars else []
    for setting in (*_SPARK_SETTINGS, *settings):
        submit += ["--conf", setting]
    command = [*submit, str(_JOB), *job]
    return subprocess.run(command, env=environment(), cwd=_ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""``make bench``: one Kafka node, and the benchmark job for each cell, one after another.

The broker, Spark and its workers share this machine, so only the ratios of one run mean anything.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support import fetch_kafka
from support.kafka_cluster import KafkaCluster
from support.spark_processes import SPARK_SUBMIT, environment

_JOB = Path(__file__).parents[2] / "jobs" / "bench.py"

# Rows, bytes of a value: about a second or more of work each on two cores.
_CELLS = {"100B": (3_000_000, 100), "1KB": (500_000, 1000), "10KB": (60_000, 10_000)}

# What was written is deleted as it goes, so that no disk fills up.
_SETTINGS = {
    "log.retention.bytes": "1000000000",
    "log.segment.bytes": "268435456",
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}


def main() -> int:
    """Run the cells."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--cells", nargs="+", choices=_CELLS, default=["100B"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="append the results to this file")
    args, more = parser.parse_known_args()
    if not fetch_kafka.fetch(fetch_kafka.NEWEST):
        print(fetch_kafka.missing(), file=sys.stderr)
        return 2
    jars = fetch_kafka.jvm_sink()
    folder = Path(tempfile.mkdtemp(prefix="spark-kafka-sink-bench-"))
    cluster = KafkaCluster(fetch_kafka.libs(fetch_kafka.NEWEST), folder, 1, _SETTINGS)
    try:
        cluster.start()
        for cell in args.cells:
            rows, value_bytes = _CELLS[cell]
            job = [str(_JOB), "--bootstrap", cluster.bootstrap, "--rows", str(rows)]
            job += ["--value-bytes", str(value_bytes), "--rounds", str(args.rounds), *more]
            job += ["--broker-pid", str(cluster.pid(1))]
            job += ["--json", str(args.json)] if args.json else []
            submit = [str(SPARK_SUBMIT), "--master", "local[2]", "--driver-memory", "4g"]
            submit += ["--jars", ",".join(map(str, jars))] if jars else []
            for setting in (
                "spark.ui.enabled=false",
                "spark.ui.showConsoleProgress=false",
                "spark.log.level=ERROR",
                "spark.driver.bindAddress=127.0.0.1",
            ):
                submit += ["--conf", setting]
            done = subprocess.run([*submit, *job], env=environment(), check=False)
            if done.returncode != 0:
                return done.returncode
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The processes in which Spark plans and commits a job start anew for it, and import little."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.writer import KafkaArrowWriter

# With these, importing takes four times as long.
HEAVY = ("numpy", "pyarrow", "lz4", "crc32c", "spark_kafka_sink.kafka_producer")
OPTIONS = "{'kafka.bootstrap.servers': 'b:1', 'topic': 't', 'kafka.compression.type': '%s'}"

PLAN = """
import pickle
from pyspark.sql.types import BinaryType, StructType
from spark_kafka_sink.producer.feature_level import check_feature_level
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.preflight import check_partitioner
from spark_kafka_sink.spark.writer import KafkaArrowWriter, KafkaStreamArrowWriter
from spark_kafka_sink.wire.versions import NodeApiVersions

options, _ = KafkaDataSource(%s).check(StructType().add("value", BinaryType()))
check_partitioner(options)
versions = NodeApiVersions({key: (0, 13) for key in range(80)})
check_feature_level("b", versions, options.producer, has_headers=True)
for kind in (KafkaArrowWriter, KafkaStreamArrowWriter):
    pickle.dumps(kind(options))
"""
COMMIT = """
import pickle
from spark_kafka_sink.spark.commit import SinkCommitMessage
writer = pickle.loads({!r})
writer.commit([])
"""


def heavy_imports(script: str) -> str:
    """Run a script in a new process; give what it printed, and the heavy modules it imported."""
    script += f"\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_who_plans_a_job_imports_nothing_that_tasks_need(codec: str) -> None:
    assert heavy_imports(PLAN % (OPTIONS % codec)) == "[]\n"


def test_who_commits_a_job_imports_nothing_that_tasks_need() -> None:
    options = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
    pickled = pickle.dumps(KafkaArrowWriter(options))
    assert heavy_imports(COMMIT.format(pickled)).splitlines()[-1] == "[]"

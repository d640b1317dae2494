"""New processes in which Spark plans and commits import little of the sink."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.writer import KafkaArrowWriter, KafkaStreamArrowWriter, MicroBatchWriter

# With these, importing takes four times as long.
HEAVY = ("numpy", "pyarrow", "lz4", "crc32c", "spark_kafka_sink.kafka_producer")
# How many modules and packages of this project a task's process imports. Lower it with the code.
MOST_OF_A_TASK = 139
OPTIONS = "{'kafka.bootstrap.servers': 'b:1', 'topic': 't', 'kafka.compression.type': '%s'}"

PLAN = """
import pickle
from pyspark.sql.types import BinaryType, StructType
from spark_kafka_sink.producer.feature_level import check_feature_level
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.planning.preflight import check_partitioner
from spark_kafka_sink.spark.writer import KafkaArrowWriter, KafkaStreamArrowWriter
from spark_kafka_sink.wire.versions import NodeApiVersions

options_given = %s
options, _ = KafkaDataSource(options_given).check(StructType().add("value", BinaryType()))
avro = {**options_given, "valueFormat": "avro"}
KafkaDataSource(avro).check(StructType().add("value", StructType().add("id", BinaryType())))
registered = {**avro, "schema.registry.url": "http://localhost:8081"}
KafkaDataSource(registered).check(StructType().add("value", StructType().add("id", BinaryType())))
assert "urllib.request" not in sys.modules.keys() - of_spark
check_partitioner(options)
versions = NodeApiVersions({key: (0, 13) for key in range(80)})
check_feature_level("b", versions, options.producer, has_headers=True)
for kind in (KafkaArrowWriter, KafkaStreamArrowWriter):
    pickle.dumps(kind(options))
"""
COMMIT = """
import pickle
pickle.loads({!r}).commit({})
"""


def imports(script: str, names: Sequence[str] | str) -> str:
    """Run a script in a new process, and return its last line: the modules it imported.

    names: the modules that are looked for, or an expression that returns them.
    Modules that Spark itself imports do not count: 4.1 imports numpy.
    """
    before = "import sys\nimport pyspark.sql.datasource\nof_spark = set(sys.modules)\n"
    found = f"[name for name in {names} if name in sys.modules.keys() - of_spark]"
    script = f"{before}{script}\nprint({found})"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1]


def test_who_plans_a_job_imports_nothing_that_tasks_need() -> None:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    assert imports("".join(PLAN % (OPTIONS % codec) for codec in codecs), HEAVY) == "[]"


WRITERS: dict[str, tuple[Callable[[SinkOptions], object], str]] = {
    "batch": (KafkaArrowWriter, "[]"),
    "micro-batch": (lambda options: MicroBatchWriter(options, 1), "[]"),
    "stream": (KafkaStreamArrowWriter, "[], 1"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_who_commits_a_job_imports_not_even_what_options_are(kind: str) -> None:
    make, arguments = WRITERS[kind]
    pickled = pickle.dumps(make(sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})))
    names = (*HEAVY, "msgspec", "spark_kafka_sink.spark.options")
    assert imports(COMMIT.format(pickled, arguments), names) == "[]"


@pytest.mark.parametrize(
    "name", ["planning.run_plan", "committing.exactly_once_commit", "replays", "kept_plans"]
)
def test_who_plans_or_commits_exactly_once_imports_neither_arrow_nor_numpy(name: str) -> None:
    script = f"import spark_kafka_sink.spark.{name}"
    assert (
        imports(script, ("numpy", "pyarrow", "pandas", "spark_kafka_sink.kafka_producer")) == "[]"
    )


def test_a_task_without_formats_and_tls_imports_nothing_of_either() -> None:
    names = ("spark_kafka_sink.serde.avro_encoder", "pyarrow.json", "urllib.request", "botocore")
    script = "import pyspark.worker; import spark_kafka_sink.spark.tasks.task"
    assert imports(script, (*names, "spark_kafka_sink.network.tls")) == "[]"


def test_a_task_imports_nothing_that_plans_or_commits() -> None:
    needed = (
        "pyspark.worker",
        "spark_kafka_sink.spark.writer",
        "spark_kafka_sink.spark.tasks.task",
    )
    script = f"import {', '.join(needed)}"
    ours = "[n for n in sys.modules if n.partition('.')[0] == 'spark_kafka_sink']"
    found = ast.literal_eval(imports(script, ours))
    others = (
        "spark_kafka_sink.spark.committing",
        "spark_kafka_sink.spark.planning",
        "spark_kafka_sink.schema_registry.registry_connection",
        "spark_kafka_sink.schema_registry.schema_registry_client",
    )
    assert [name for name in found if name.startswith(others)] == []
    assert len(found) <= MOST_OF_A_TASK, found

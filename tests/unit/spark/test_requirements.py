"""Without pyspark, or with an old one, the functions that need it raise a clear error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.programs.pythons import PYSPARK, modules_without, run_with

NEED_SPARK = (
    "KafkaDataSource",
    "atomic_layout",
    "last_reports",
    "register",
    "to_kafka",
    "write_batch",
)
NEED_NO_SPARK = (
    "KafkaProducer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RecordMetadata",
    "errors",
)
WHAT_TO_DO = (
    'pip install "path/to/spark-kafka-sink[spark]" with the path of your clone, or run your '
    "program with the Python that your cluster's Spark brings"
)
# Each statement's error, as a user reads it.
ERRORS = """
import sys
for statement in sys.argv[1:]:
    try:
        exec(statement)
    except ImportError as error:
        print(f"{type(error).__name__}: {error} ({error.name})")
"""


@pytest.fixture(scope="module")
def without_pyspark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all modules but pyspark."""
    return modules_without(tmp_path_factory.mktemp("no-pyspark") / "modules", *PYSPARK)


def test_what_needs_pyspark_says_how_to_get_it(without_pyspark: Path) -> None:
    statements = [f"from spark_kafka_sink import {name}" for name in NEED_SPARK]
    statements += [f"import spark_kafka_sink; spark_kafka_sink.{name}" for name in NEED_SPARK]
    statements.append("import pyspark_pykafka")
    done = run_with(without_pyspark, ERRORS, statements)
    sentence = (
        f"ModuleNotFoundError: No module named 'pyspark' for {sys.executable}: spark-kafka-sink "
        "does not install it by itself, because a cluster brings its own. "
        f"Run {WHAT_TO_DO} (pyspark)"
    )
    assert done.stdout.splitlines() == [sentence] * len(statements), done.stderr


def test_the_rest_needs_no_pyspark(without_pyspark: Path) -> None:
    statements = [f"from spark_kafka_sink import {name}" for name in NEED_NO_SPARK]
    done = run_with(without_pyspark, "\n".join([*statements, "print('imported')"]))
    assert done.stdout == "imported\n", done.stderr


def test_an_old_pyspark_is_named_with_its_version(tmp_path: Path) -> None:
    modules = modules_without(tmp_path / "modules", *PYSPARK)
    package = modules / "pyspark" / "sql"
    package.mkdir(parents=True)
    (modules / "pyspark" / "__init__.py").write_text('__version__ = "3.5.1"\n')
    (package / "__init__.py").touch()
    done = run_with(modules, ERRORS, ["from spark_kafka_sink import register"])
    assert done.stdout == (
        f"ImportError: the pyspark of {sys.executable} is 3.5.1, but spark-kafka-sink needs 4.0 "
        f"or newer. Run {WHAT_TO_DO} (pyspark)\n"
    ), done.stderr

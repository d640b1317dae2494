"""Without pyspark, or with a module that is too old, the error says what to do."""

from __future__ import annotations

import platform
import sys
import tomllib
from pathlib import Path

import pytest
from support.documents.named_tests import ROOT
from support.programs.pythons import PYSPARK, modules_without, run_with

from spark_kafka_sink.spark.worker import NEEDED

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


@pytest.mark.parametrize(
    ("name", "version", "oldest"), [("pyarrow", "15.0.2", "19"), ("lz4", "4.0.2", "4.3")]
)
def test_a_task_names_an_old_module_with_its_version_and_its_machine(
    name: str, version: str, oldest: str, tmp_path: Path
) -> None:
    # As if the runtime of the cluster had brought this version.
    old = f"import {name}\n{name}.__version__ = {version!r}\n"
    modules = modules_without(tmp_path / "modules")
    done = run_with(
        modules, old + ERRORS, ["from spark_kafka_sink.spark.tasks.task import write_task"]
    )
    assert done.stdout == (
        f"ImportError: the {name} of {sys.executable} on {platform.node()} is {version}, but "
        f"spark-kafka-sink needs {oldest} or newer: install a newer {name} there with pip, or "
        f"ship an environment that has one by --archives ({name})\n"
    ), done.stderr


def test_the_oldest_versions_are_those_that_pip_knows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] != []
    assert sorted(project["dependencies"]) == sorted(
        f"{name}>={oldest}" for name, oldest in NEEDED.items()
    )

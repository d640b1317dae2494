"""The Python of local mode's workers, and the messages on one that cannot run the sink."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession
from support.programs.pythons import modules_without

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.driver.worker_python import choose_worker_python

DRIVER = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
# A Python that has nothing but its own library, and one that has what is installed here.
BARE = f'exec {sys.executable} -S "$@"'
GOOD = f'exec {sys.executable} "$@"'


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name no Python, in a folder that has no checkout of the sink."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)


def python(folder: Path, script: str, name: str = "python3") -> str:
    """Write a Python that runs a shell script, and records each start."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho started >> {folder}/starts\n{script}\n")
    path.chmod(0o755)
    return str(path)


def workers_run(
    python_exec: str = "python3",
    settings: dict[str, str] | None = None,
    master: str = "local[2]",
    shipped: list[str] | None = None,
) -> str:
    """Return the Python that the workers of such a context run in the end."""
    context = SimpleNamespace(
        master=master,
        pythonExec=python_exec,
        environment={},
        _python_includes=shipped,
        getConf=lambda: settings or {},
    )
    choose_worker_python(cast("SparkSession", SimpleNamespace(sparkContext=context)))
    return str(context.pythonExec)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[*,4]"])
def test_without_a_word_of_the_user_it_is_the_drivers(master: str) -> None:
    assert workers_run(master=master) == sys.executable


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://h:7077", "yarn", "k8s://h"])
def test_on_a_cluster_nothing_is_chosen(master: str) -> None:
    assert workers_run(master=master) == "python3"


def test_pyspark_python_is_obeyed_also_if_it_was_set_after_spark_had_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = python(tmp_path, GOOD)
    monkeypatch.setenv("PYSPARK_PYTHON", good)
    assert workers_run(good) == good
    assert workers_run() == good


def test_the_setting_is_obeyed_also_where_spark_leaves_it_out(tmp_path: Path) -> None:
    good = python(tmp_path, GOOD)
    assert workers_run(settings={"spark.pyspark.python": good}) == good


def test_a_python_for_the_driver_alone_leaves_the_workers_sparks_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python(tmp_path, GOOD)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    settings = {"spark.pyspark.driver.python": sys.executable}
    assert workers_run(settings=settings) == "python3"


def test_a_python_is_asked_once(tmp_path: Path) -> None:
    good = python(tmp_path, GOOD)
    assert [workers_run(good), workers_run(good)] == [good, good]
    assert (tmp_path / "starts").read_text() == "started\n"


def test_a_module_that_is_installed_after_the_failure_is_found(tmp_path: Path) -> None:
    version = "{}.{}".format(*sys.version_info)
    named = python(tmp_path, f"echo {version}; echo msgspec")
    with pytest.raises(ConfigException, match="which has no module msgspec"):
        workers_run(named)
    python(tmp_path, f"echo {version}")
    assert workers_run(named) == named


def test_the_drivers_python_is_not_asked_under_whatever_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = python(tmp_path, "exit 1", "python3.11")
    (tmp_path / "python").symlink_to(driver)
    monkeypatch.setattr(sys, "executable", driver)
    assert workers_run(str(tmp_path / "python")) == str(tmp_path / "python")
    assert not (tmp_path / "starts").exists()


def test_the_python_of_another_environment_is_asked_though_it_is_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = python(tmp_path, "exit 1")
    monkeypatch.setattr(sys, "executable", driver)
    (tmp_path / "venv").mkdir()
    other = tmp_path / "venv" / "python3"
    other.symlink_to(driver)
    with pytest.raises(ConfigException, match="cannot be started"):
        workers_run(str(other))


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (BARE, "has no module spark_kafka_sink, numpy, pyarrow, crc32c, lz4, msgspec"),
        ("echo 2.7; echo 'ImportError: no find_spec' >&2; exit 1", "is Python 2.7"),
        (
            "echo 'python3: not installed' >&2; exit 127",
            "cannot be started (python3: not installed)",
        ),
        ("exit 1", "cannot be started (it printed nothing)"),
    ],
    ids=["lacks all", "old", "broken", "silent"],
)
def test_a_python_that_cannot_run_the_sink_is_one_sentence(
    tmp_path: Path, script: str, problem: str
) -> None:
    named = python(tmp_path, script)
    with pytest.raises(ConfigException) as refused:
        workers_run(named)
    assert str(refused.value) == (
        f"Spark's workers would run {named}, which {problem}. The driver runs {DRIVER}: set "
        "PYSPARK_PYTHON to that before the Spark session starts"
    )


def test_a_python_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigException, match=r"which cannot be started \(No such file or"):
        workers_run(str(tmp_path / "none"))


def test_what_spark_ships_to_workers_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = python(tmp_path, BARE)
    modules_without(tmp_path / "shipped.zip")
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    assert workers_run(bare, shipped=["shipped.zip"]) == bare


def test_the_python_path_of_workers_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = python(tmp_path, BARE)
    monkeypatch.setenv("PYTHONPATH", str(modules_without(tmp_path / "modules")))
    assert workers_run(bare) == bare

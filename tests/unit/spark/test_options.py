"""The files that a job has shipped, as options name them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkFiles

from spark_kafka_sink.network import option_values
from spark_kafka_sink.spark.local_path import shipped_path


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory of an executor."""
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(option_values, "_finders", [shipped_path])
    return tmp_path


def test_a_file_in_the_working_directory_is_shipped(folder: Path) -> None:
    (folder / "alice.keytab").touch()
    assert option_values.shipped("alice.keytab") == str(folder / "alice.keytab")


@pytest.mark.parametrize(
    "name",
    [
        "launch_container.sh",
        ".launch_container.sh.crc",
        "container_tokens",
        ".container_tokens.crc",
        "default_container_executor.sh",
        "default_container_executor_session.sh",
        "yarn_provided.keystore",
    ],
)
def test_a_file_of_yarn_s_own_is_not_shipped(folder: Path, name: str) -> None:
    (folder / name).touch()
    assert option_values.shipped(name) is None

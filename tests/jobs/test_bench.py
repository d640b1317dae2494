"""The benchmark as a user starts it: small numbers, and its output."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.spark.job_server import ROOT, TIMEOUT_S, command

from .conftest import SubmitAll


@pytest.mark.long(reason="it measures three cells of the benchmark in a minute")
@pytest.mark.kafka
@pytest.mark.spark
def test_cells_of_every_kind_are_measured_and_reported(
    submit_all: SubmitAll, kafka: KafkaCluster, tmp_path: Path
) -> None:
    cells = ("100B-lz4", "cold", "stream")
    arguments = ["--bootstrap", kafka.bootstrap, "--scale", "0.001", "--rounds", "1"]
    arguments += ["--warm-up", "1"]
    arguments += ["--output", str(tmp_path), "--contenders", "R0", "R1", "R1c", "R2t", "R6"]
    (ended,) = submit_all([command("benchmarks/run.py", *arguments, "--cells", *cells)])
    assert ended.code == 0, ended.output
    report = json.loads((tmp_path / "results.json").read_text())
    about, found = report["about"], report["cells"]
    assert about["kafka-python"] == metadata.version("kafka-python")
    assert about["kafka-clients of Spark's own sink"] == "none"
    assert about["processor of the driver's machine"]
    assert found.keys() == set(cells)
    for name, cell in found.items():
        results = {result["name"]: result for result in cell["results"]}
        ours = results["R1"]
        assert ours["rows"] == cell["cell"]["rows"]
        assert ours["log_bytes"] > 0
        for contender in ("R1",) if name == "cold" else ("R0", "R1"):
            assert results[contender]["not_run"] is None
            (measurement,) = results[contender]["measurements"]
            assert measurement["seconds"] > 0
            assert measurement["after"] in results
        has_codec = name == "100B-lz4"
        assert (results["R1c"]["not_run"] is None) == has_codec
        assert len(results["R1c"]["measurements"]) == has_codec
        assert results["R2t"]["not_run"] == "its jars are not on Spark's class path (--jars)"
        assert results["R6"]["not_run"] is not None
    small, raw = (found["100B-lz4"]["results"][n]["log_bytes"] for n in (1, 0))
    assert small == pytest.approx(raw, rel=0.3)  # batches of other sizes, the same rows and codec
    assert "R2t not run: its jars are not on Spark's class path" in ended.output
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert "| R1 |" in (tmp_path / "results.md").read_text()


def test_wrong_names_are_told_with_the_right_ones_before_spark_is_started() -> None:
    ended = subprocess.run(
        [sys.executable, "benchmarks/run.py", "--bootstrap", "h:1", "--cells", "1GB"],
        cwd=ROOT,
        env={"PATH": ""},  # and so without Java
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("run.py: --cells 1GB is not one of 100B, 100B-lz4, ")
    assert ended.stderr.count("\n") == 1

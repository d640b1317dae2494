"""The benchmark with Spark's own sink and functions: they are measured beside this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers import fetch_kafka
from support.spark.peer import THEIRS, Sink
from support.spark.spark_processes import SPARK_SUBMIT, environment

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240


@pytest.mark.long(reason="it measures five contenders in three cells")
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.skipif(not fetch_kafka.takes_jvm_sink(), reason="not the Spark of Spark's own sink")
@pytest.mark.parametrize("sink", [THEIRS], indirect=True)
def test_the_ratio_to_the_tuned_jvm_sink_is_measured_in_one_run(sink: Sink, tmp_path: Path) -> None:
    jars = ",".join(map(str, fetch_kafka.spark_jars()))
    command: list[str | Path] = [SPARK_SUBMIT, "--master", "local[2]", "--jars", jars]
    command += ["--properties-file", ROOT / "conf" / "spark-defaults.conf"]
    command += [ROOT / "benchmarks/run.py"]
    command += ["--bootstrap", sink.bootstrap, "--output", tmp_path, "--cells", "100B"]
    command += ["avro-flat", "avro-nested", "--contenders", "R1", "R2", "R2t", "R1j", "R3a"]
    command += ["--scale", "0.001", "--rounds", "1"]
    command += ["--warm-up", "1"]
    done = subprocess.run(
        command,
        env=environment(sys.executable),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads((tmp_path / "results.json").read_text())["cells"]
    took_part = {
        "100B": {"R1", "R2", "R2t"},
        "avro-flat": {"R1", "R1j", "R3a"},
        "avro-nested": {"R1", "R1j", "R3a"},
    }
    assert cells.keys() == took_part.keys()
    for name, cell in cells.items():
        results = {result["name"]: result for result in cell["results"]}
        for contender, result in results.items():
            assert result["rows"] == cell["cell"]["rows"]
            if contender not in took_part[name]:
                assert result["not_run"] is not None
                continue
            assert result["not_run"] is None
            (measured,) = result["measurements"]
            assert measured["seconds"] > 0
    table = (tmp_path / "results.md").read_text()
    assert "| R2t |" in table

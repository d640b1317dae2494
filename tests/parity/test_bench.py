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


@pytest.mark.long(reason="it measures three contenders in turn")
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.skipif(not fetch_kafka.takes_jvm_sink(), reason="not the Spark of Spark's own sink")
@pytest.mark.parametrize("sink", [THEIRS], indirect=True)
@pytest.mark.parametrize(
    ("cells", "contenders"),
    [
        (("100B",), ("R1", "R2", "R2t")),
        (("avro-flat", "avro-nested"), ("R1", "R1j", "R3a")),
    ],
    ids=("bytes", "avro"),
)
def test_ratios_to_what_is_spark_s_own_are_measured_in_one_run(
    sink: Sink, tmp_path: Path, cells: tuple[str, ...], contenders: tuple[str, ...]
) -> None:
    jars = ",".join(map(str, fetch_kafka.spark_jars()))
    command: list[str | Path] = [SPARK_SUBMIT, "--master", "local[2]", "--jars", jars]
    command += ["--properties-file", ROOT / "conf" / "spark-defaults.conf"]
    command += [ROOT / "benchmarks/run.py"]
    command += ["--bootstrap", sink.bootstrap, "--output", tmp_path, "--cells", *cells]
    command += ["--contenders", *contenders, "--scale", "0.001", "--rounds", "1"]
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
    found = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert found.keys() == set(cells)
    for cell in found.values():
        results = {result["name"]: result for result in cell["results"]}
        assert results.keys() == set(contenders)
        for result in results.values():
            assert result["rows"] == cell["cell"]["rows"]
            (measured,) = result["measurements"]
            assert measured["seconds"] > 0
    table = (tmp_path / "results.md").read_text()
    assert f"| {contenders[-1]} |" in table

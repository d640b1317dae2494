"""The notebook jobs/tour.ipynb: its cells run as they are, on the tests' broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.spark.job_server import ROOT, TIMEOUT_S

NOTEBOOK: Final = ROOT / "jobs" / "tour.ipynb"
BROKER: Final = "127.0.0.1:9092"
# It starts Spark twice, and other tests run beside it.
TOUR_S: Final = 2 * TIMEOUT_S


def cells(kind: str) -> list[str]:
    """Return the sources of the cells of a kind."""
    notebook = json.loads(NOTEBOOK.read_text())
    return ["".join(each["source"]) for each in notebook["cells"] if each["cell_type"] == kind]


def test_the_notebook_has_no_outputs_of_an_earlier_run() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    code = [each for each in notebook["cells"] if each["cell_type"] == "code"]
    assert {(str(each["outputs"]), each["execution_count"]) for each in code} == {("[]", None)}


@pytest.mark.long(reason="it writes the flights six times, and reads them back")
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(TOUR_S + 60)
def test_the_cells_of_the_notebook_run_as_they_are(kafka: KafkaCluster, tmp_path: Path) -> None:
    program = "\n\n".join(cells("code"))
    assert program.count(BROKER) == 1
    (tmp_path / "tour.py").write_text(program.replace(BROKER, kafka.bootstrap))
    ended = subprocess.run(
        [sys.executable, "tour.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "MPLBACKEND": "Agg",
            "PYTHONPATH": str(NOTEBOOK.parent),  # where Jupyter runs the notebook
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=TOUR_S,
    )
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout
    for line in (
        "336,776 records, as many as flights: True",
        "336,776 records",
        "the job ended by SIGKILL",
        "0 records are visible",
        "336,776 records are visible, each once: True",
        "336,776 records went over TLS",
    ):
        assert f"{line}\n" in said
    (uncommitted,) = re.findall(r"^([\d,]+) records are in Kafka$", said, re.MULTILINE)
    # The four tasks have almost as many rows as each other.
    assert int(uncommitted.replace(",", "")) > 168_000, "two of four tasks have ended"
    assert re.search(r"^0 rows .*version 1 of .*tour-once-\w+' was written at ", said, re.MULTILINE)

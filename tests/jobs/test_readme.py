"""README.md: its Python blocks run as they are, in an empty folder, as a newcomer runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.documents import pages

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

BLOCKS = pages.python_blocks(pages.README.read_text())
QUICK_START = BLOCKS[0]
BROKER = "127.0.0.1:9092"
ROWS = ['1 {"id":1,"name":"Ada"}', '2 {"id":2,"name":"Grace"}', '3 {"id":3,"name":"Edsger"}']
TIMEOUT_S = 200
# What activating this environment puts on the PATH.
ACTIVATED = Path(sys.executable).parent


def run_as_a_newcomer(block: str, kafka: KafkaCluster, folder: Path) -> str:
    """Run a block as a program, on the tests' broker; return what it printed.

    Nobody has set a Python for Spark's workers or a Spark, and no environment is activated. The JVM
    starts with less work than a user's, and listens on loopback only, as those of all tests.
    """
    assert block.count(BROKER) == 1
    (folder / "quickstart.py").write_text(block.replace(BROKER, kafka.bootstrap))
    unset = ("PYSPARK_", "PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR", "VIRTUAL_ENV")
    environment = {name: each for name, each in os.environ.items() if not name.startswith(unset)}
    path = environment["PATH"].split(os.pathsep)
    environment["PATH"] = os.pathsep.join(each for each in path if Path(each) != ACTIVATED)
    ended = subprocess.run(
        [sys.executable, "quickstart.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs_as_it_is(kafka: KafkaCluster, tmp_path: Path, block: str) -> None:
    printed = run_as_a_newcomer(block, kafka, tmp_path)
    if block == QUICK_START:
        assert sorted(printed.splitlines()) == ROWS


def test_the_readme_shows_what_the_quick_start_prints() -> None:
    assert "```\n{}\n```".format("\n".join(ROWS)) in pages.README.read_text()

"""README.md and the tutorials: their programs run as they are, as a newcomer runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.registry_server import registry_server
from support.documents import pages
from support.documents.named_tests import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

BROKER = "127.0.0.1:9092"
REGISTRY = "http://127.0.0.1:8080/apis/ccompat/v7"
TIMEOUT_S = 250
# What activating this environment puts on the PATH.
ACTIVATED = Path(sys.executable).parent
TUTORIALS = ROOT / "docs" / "tutorials"
# Each program, in the order in which a newcomer runs them: the page, and the number of its block.
PROGRAMS = {
    "quickstart.py": (pages.README, 0),
    "batch.py": (TUTORIALS / "batch.md", 0),
    "read.py": (TUTORIALS / "batch.md", 1),
    "stream.py": (TUTORIALS / "stream.md", 0),
    "add.sh": (TUTORIALS / "stream.md", 1),
    "stream.py again": (TUTORIALS / "stream.md", 0),
    "exactly_once.py": (TUTORIALS / "exactly-once.md", 0),
    "plain_avro.py": (TUTORIALS / "avro.md", 0),
    "registry_avro.py": (TUTORIALS / "avro.md", 1),
    "read_avro.py": (TUTORIALS / "avro.md", 2),
    "stream_avro.py": (TUTORIALS / "avro.md", 3),
    "read_avro.py again": (TUTORIALS / "avro.md", 2),
}
# One process, so that Spark starts once. The first program finds it as it is in a new process.
RUN_ALL = """
import runpy, subprocess, sys
for name in sys.argv[1:]:
    print("==", name, flush=True)
    file = name.removesuffix(" again")
    if file.endswith(".sh"):
        subprocess.run(["sh", "-e", file], check=True)
    else:
        runpy.run_path(file, run_name="__main__")
    sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def printed(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run all programs in one folder, on the tests' broker; return the lines that each printed.

    The tests' own schema registry stands for Apicurio Registry.
    Nobody has set a Python for Spark's workers or a Spark, and no environment is activated. The JVM
    starts with less work than a user's, and listens on loopback only, as those of all tests.
    """
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "run_all.py").write_text(RUN_ALL)
    unset = ("PYSPARK_", "PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR", "VIRTUAL_ENV")
    environment = {name: each for name, each in os.environ.items() if not name.startswith(unset)}
    path = environment["PATH"].split(os.pathsep)
    environment["PATH"] = os.pathsep.join(each for each in path if Path(each) != ACTIVATED)
    with registry_server() as registry:
        for name, (page, number) in PROGRAMS.items():
            block = pages.blocks(page.read_text(), "python", "sh")[number]
            assert block.count(BROKER) == (0 if name.endswith(".sh") else 1)
            block = block.replace(BROKER, kafka.bootstrap).replace(REGISTRY, registry.url)
            (folder / name.removesuffix(" again")).write_text(block)
        ended = subprocess.run(
            [sys.executable, "run_all.py", *PROGRAMS],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    parts = re.split(r"^== (.+)\n", ended.stdout, flags=re.MULTILINE)[1:]
    return {name: text.splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("program", [name for name in PROGRAMS if not name.endswith(".sh")])
def test_a_program_prints_what_its_page_shows(printed: dict[str, list[str]], program: str) -> None:
    page, _ = PROGRAMS[program]
    lines = printed[program]
    if program == "quickstart.py":
        lines = sorted(lines)  # the page says that the rows come in any order
    assert lines
    assert "\n```text\n{}\n```\n".format("\n".join(lines)) in page.read_text()


@pytest.mark.parametrize(
    "page", [pages.README, *sorted(TUTORIALS.glob("*.md"))], ids=lambda page: page.name
)
def test_every_program_of_a_page_is_run(page: Path) -> None:
    blocks = pages.blocks(page.read_text(), "python", "sh")
    assert {number for each, number in PROGRAMS.values() if each == page} == set(range(len(blocks)))

"""Ctrl-C in a run of the tests: the brokers that it has started end with it."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest
from support.brokers.processes import listened_to, marked_processes, press_ctrl_c, wait_for_line
from support.programs.inner_tests import TESTS, options

TIMEOUT_S = 120
# Nothing is written to the pipe. The stdout of a pytest-xdist worker is lost.
WAITS_FOR_EVER = """
import os, sys, pytest

@pytest.mark.kafka
def test_waits(old_kafka):
    end, _ = os.pipe()
    print("\\nwaiting", file=sys.stderr, flush=True)
    os.read(end, 1)
"""


@pytest.mark.kafka
@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
@pytest.mark.long(reason="it runs pytest in pytest, with a broker; only who writes tests gains")
@pytest.mark.parametrize(
    "workers", [pytest.param(("-n", "2"), id="by workers"), pytest.param((), id="alone")]
)
def test_ctrl_c_in_the_middle_of_a_test_leaves_no_broker_and_no_file(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    test, scratch = tmp_path / "test_waits.py", tmp_path / "scratch"
    test.write_text(WAITS_FOR_EVER)
    scratch.mkdir()
    name, value = "INTERRUPTED_TEST", uuid.uuid4().hex
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        *options(tmp_path),
        *workers,
        test,
    ]
    env = os.environ | {name: value, "PYTHONPATH": str(TESTS), "TMPDIR": str(scratch)}
    with listened_to(command, cwd=TESTS.parent, env=env) as run:
        wait_for_line(run, "waiting\n")
        running = " ".join(marked_processes(f"{name}={value}"))
        said = press_ctrl_c(run, TIMEOUT_S)
    assert "kafka.Kafka" in running
    assert marked_processes(f"{name}={value}") == []
    assert list(scratch.glob("spark-kafka-sink-tests-*")) == []
    assert run.returncode == pytest.ExitCode.INTERRUPTED, said
    assert "KeyboardInterrupt" in said

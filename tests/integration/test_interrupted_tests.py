"""Ctrl-C in a run of the tests: the brokers that it has started end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from support.inner_tests import TESTS, options
from support.processes import dying_with_parent, marked_processes

TIMEOUT_S = 120
# Nobody writes into the pipe. What a worker of pytest-xdist says on stdout, nobody hears.
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
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "by workers"])
def test_ctrl_c_in_the_middle_of_a_test_leaves_no_broker_and_no_file(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    test, scratch = tmp_path / "test_waits.py", tmp_path / "scratch"
    test.write_text(WAITS_FOR_EVER)
    scratch.mkdir()
    name, value = "INTERRUPTED_TEST", uuid.uuid4().hex
    with subprocess.Popen(
        dying_with_parent(
            [sys.executable, "-m", "pytest", "-s", *options(tmp_path), *workers, test]
        ),
        cwd=TESTS.parent,
        env=os.environ | {name: value, "PYTHONPATH": str(TESTS), "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stdout is not None
        try:
            before = []
            for text in run.stdout:
                before.append(text)
                if text == "waiting\n":
                    break
            else:
                pytest.fail(f"the tests ended before one waited:\n{''.join(before)}")
            running = " ".join(marked_processes(f"{name}={value}"))
            os.killpg(run.pid, signal.SIGINT)
            said, _ = run.communicate(timeout=TIMEOUT_S)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    assert "kafka.Kafka" in running
    assert marked_processes(f"{name}={value}") == []
    assert list(scratch.glob("spark-kafka-sink-tests-*")) == []
    assert run.returncode == pytest.ExitCode.INTERRUPTED, said
    assert "KeyboardInterrupt" in said

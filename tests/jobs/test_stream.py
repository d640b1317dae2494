"""stream.py: both modes, stopped and started again from their checkpoints."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.processes import listened_to, press_ctrl_c, wait_for_line
from support.oracles.readers import create_topic, read_with_confluent
from support.spark.job_server import ROOT, TIMEOUT_S, Ended, command

from .conftest import RunMany

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

MODES = ("writeStream", "foreachBatch")
PER_FILE = 200


def write_file(path: Path, number: int) -> Path:
    first = number * PER_FILE
    rows = ({"id": n, "name": f"name {n}"} for n in range(first, first + PER_FILE))
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def ids(bootstrap: str, topic: str) -> Counter[int]:
    """Count how often each row is in a topic."""
    return Counter(
        json.loads(record.value or b"")["id"] for record in read_with_confluent(bootstrap, topic)
    )


class Runs(NamedTuple):
    """The results of the runs of one mode."""

    first: str
    second: Ended
    third: Ended
    verified: Ended


@pytest.fixture(scope="module")
def runs(
    run_many: RunMany, kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Runs]:
    """For each mode: a run over two files, one over a third and a fourth, one over nothing new.

    The first run ends when it has nothing more to do, or, by foreachBatch, by Ctrl-C.
    """
    folders = {mode: tmp_path_factory.mktemp(mode) for mode in MODES}
    columns = {mode: arguments(mode, kafka, folders[mode] / "in") for mode in MODES}
    stream = {mode: [*columns[mode], "--mode", mode, "--files-per-batch", "1"] for mode in MODES}
    for mode, folder in folders.items():
        stream[mode] += ["--checkpoint", str(folder / "checkpoint")]
    running = [*command("jobs/stream.py", *stream["foreachBatch"]), "--interval", "0 seconds"]
    with listened_to(running, cwd=ROOT) as process:
        ended = run_many([["stream.py", *stream["writeStream"]]])[0]
        assert ended.code == 0, ended.output
        first = {"writeStream": ended.output, "foreachBatch": interrupt(process, after=2)}
    made = {}
    for mode in MODES:
        for number in range(2, 4):
            write_file(folders[mode] / "in" / f"{number}.json", number)
        again = ["stream.py", *stream[mode]]
        made[mode] = Runs(first[mode], *run_many([again, again, ["verify.py", *columns[mode]]]))
    return made


def arguments(mode: str, kafka: KafkaCluster, files: Path) -> list[str]:
    """Make a topic and a folder with two files; return the arguments that name them."""
    files.mkdir()
    for number in range(2):
        write_file(files / f"{number}.json", number)
    create_topic(kafka.bootstrap, f"stream-{mode}", 3)
    columns = ["--source", str(files), "--format", "json", "--key", "id", "--headers", "name"]
    return [*columns, "--bootstrap", kafka.bootstrap, "--topic", f"stream-{mode}"]


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_goes_on_where_its_checkpoint_says(
    runs: dict[str, Runs], kafka: KafkaCluster, mode: str
) -> None:
    _, second, third, verified = runs[mode]
    assert second.code == 0, second.output
    assert third.code == 0, third.output
    assert second.lines[-1] == "wrote 400 rows in 2 micro-batches"
    assert third.lines[-1] == "wrote 0 rows in 0 micro-batches"
    assert ids(kafka.bootstrap, f"stream-{mode}") == Counter(range(4 * PER_FILE))
    assert verified.code == 0, verified.output


@pytest.mark.parametrize("mode", MODES)
def test_every_micro_batch_has_its_line(runs: dict[str, Runs], mode: str) -> None:
    said = runs[mode].first + runs[mode].second.output
    lines = [line for line in said.splitlines() if line.startswith("micro-batch")]
    progress = [line.rpartition(" rows in ")[0] for line in lines]
    assert progress == [f"micro-batch {number}: 200" for number in range(4)]


def test_ctrl_c_ends_a_stream_without_a_stack_trace(runs: dict[str, Runs]) -> None:
    assert "py4j" not in runs["foreachBatch"].first


def interrupt(process: subprocess.Popen[str], after: int) -> str:
    """Wait for some micro-batches, press Ctrl-C, and return the stream's output."""
    said = wait_for_line(process, f"micro-batch {after - 1}:") + press_ctrl_c(process, TIMEOUT_S)
    assert process.returncode == 128 + signal.SIGINT
    return said

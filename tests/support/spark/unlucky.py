"""Runs `unlucky_job.py`, and counts duplicates."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from support.brokers import processes
from support.oracles.readers import read_with_confluent, wait_for_transactions
from support.spark.spark_processes import SPARK_SUBMIT
from support.spark.unlucky_job import ROWS

JOB = Path(__file__).with_name("unlucky_job.py")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one case: the number of its runs, and of records that are there more than once.

    attempts: of the tasks that reached the failure, as task-attempt. failed: the error of a save
    that failed and was then repeated; empty if none failed.
    """

    attempts: set[str]
    stages: int
    duplicates: int
    failed: str


def run_unlucky_job(
    conf: dict[str, str],
    bootstrap: str,
    topics: dict[str, str],
    folder: Path,
    env: dict[str, str],
    options: dict[str, str] | None = None,
) -> dict[str, Outcome]:
    """Run the cases of `topics`, and check each for at-least-once and for its report.

    options: more options of the write.
    """
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    cases = [f"{case}={topic}" for case, topic in topics.items()]
    command: list[str | Path] = [SPARK_SUBMIT, *settings, JOB, bootstrap, folder]
    command += [json.dumps(options or {}), *cases]
    log = folder / "log"
    job = processes.start(command, log=log, cwd=folder, env=env)
    try:
        assert job.wait() == 0, log.read_text()[-5000:]
    finally:
        processes.kill(job)
    outcomes = {}
    lines = (line for line in log.read_text().splitlines() if line.startswith('{"case":'))
    for said in map(json.loads, lines):
        case = said["case"]
        wait_for_transactions(bootstrap, topics[case])
        found = Counter(
            int((record.value or b"").split(b":", 1)[0])
            for record in read_with_confluent(bootstrap, topics[case])
        )
        assert set(found) == set(range(ROWS)), f"{case}: rows are missing"
        assert json.loads((folder / f"{case}.json").read_text())["rows"] == ROWS
        twice = found.total() - ROWS
        print(f"{case}: attempts {said['attempts']}, stages {said['stages']}, {twice} duplicates")
        outcomes[case] = Outcome(set(said["attempts"]), said["stages"], twice, said["failed"])
    assert outcomes.keys() == topics.keys()
    return outcomes

"""``make bench``: the benchmark's job, with a new Spark application and a new broker for each cell.

Earlier work of a JVM changes its later speed, for Spark's own sink more than for this one: after
cells of other sizes and codecs it took up to twice the time. Therefore cells share nothing, and
their order does not matter. Broker, Spark and workers share this machine, so only the ratios within
one cell are meaningful. The broker's logs are in memory if there is room, because a disk that still
writes one contender's rows would slow down the next.

Every application has the settings of conf/spark-defaults.conf, which are recommended to users.

All arguments are the job's (benchmarks/run.py --help), except ``--conf name=value``, which is
Spark's, and ``--resume``, which skips the cells that are in the output's results.json already.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import run
from job import kafka_jars, running
from support.brokers import fetch_kafka
from support.brokers.own_broker import memory_with_room, tls_broker_in
from support.documents import checkout
from support.programs import places
from support.programs.matrix import CellFailedError
from support.spark.spark_processes import SPARK_SUBMIT, environment

from bench.cells import CELLS, FIRST_WARM_UPS, SAIL
from bench.report import BEGUN, print_targets, write_report
from bench.results import Measured, read_results

_ROOT: Final = Path(__file__).parents[2]
_JOB: Final = _ROOT / "benchmarks" / "run.py"
_DEFAULTS: Final = "conf/spark-defaults.conf"
# Logs of two topics, files to be deleted, and Spark's own memory.
_ROOM_BYTES: Final = 16 * 1024**3
_OUTPUT: Final = _ROOT / "docs" / "benchmarks"

_HEAP: Final = "4g"  # all of it from the start, because a growing heap is collected at every size
_SPARK_SETTINGS: Final = (
    "spark.ui.enabled=false",
    "spark.ui.showConsoleProgress=false",
    "spark.log.level=ERROR",
    "spark.driver.bindAddress=127.0.0.1",
    f"spark.driver.extraJavaOptions=-Xms{_HEAP}",
)


def main() -> int:
    """Measure the cells one by one; write the report after each."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--resume", action="store_true")
    own, given = parser.parse_known_args()
    if {"--list", "--help", "-h"} & set(given):
        print("make bench takes --conf NAME=VALUE, which is Spark's, and --resume, too")
        return run.main(given)
    job = run.parser().parse_args(given)
    output, conditions = job.output or _OUTPUT, _conditions(job, own.conf)
    measured, about = _measured_before(output, conditions) if own.resume else ({}, {})
    left = [name for name in run.chosen(job) if name not in measured]
    try:
        kafka_jars.fetch(kafka_jars.KAFKA)
        kafka_jars.fetch(kafka_jars.SPARK_KAFKA)
        kafka_jars.fetch(kafka_jars.SPARK_AVRO)
    except kafka_jars.JarsError as error:
        raise running.JobError(str(error)) from None
    usual = [word for word in given if word != "--all"]
    usual += [word for item in conditions.items() for word in ("--about", *item)]
    usual += _with_sail(job, left)
    started, worst = time.monotonic(), 0
    for number, name in enumerate(left, 1):
        elapsed_s = time.monotonic() - started
        print(f"cell {number} of {len(left)}, {name}, after {elapsed_s:.0f} s", flush=True)
        with tempfile.TemporaryDirectory(prefix="bench-results-") as folder:
            arguments = [*usual, "--cells", name, "--output", folder]
            code = _run(arguments, own.conf, has_usual_rows=job.scale <= 1)
            found, about_it = read_results(Path(folder))
        if not found:
            return code or 1
        worst = max(worst, code)
        about = agreed(about, about_it, resumed=own.resume and number == 1)
        measured = _in_order(measured | found)
        write_report(output, measured, about)
    print_targets(measured, about)
    return worst


def _with_sail(job: argparse.Namespace, cells: Sequence[str]) -> list[str]:
    """Return the arguments for Sail, whose environment is made if a cell needs it.

    It is empty if no cell needs Sail, or if this machine cannot have it. The reason is printed.
    """
    needs_it = SAIL in job.contenders and any(CELLS[name].parquet for name in cells)
    if not needs_it or job.sail_python is not None:
        return []
    try:
        with tempfile.TemporaryDirectory(prefix="bench-wheel-") as folder:
            python = places.make_python("sail", places.build_wheel(folder))
    except CellFailedError as error:
        print(f"{SAIL} is not run: {error}", flush=True)
        return []
    return ["--sail-python", str(python)]


def _measured_before(
    output: Path, conditions: dict[str, str]
) -> tuple[dict[str, Measured], dict[str, Any]]:
    """Return the existing results. Raise JobError if they were measured with other settings."""
    measured, about = read_results(output)
    for what, here in conditions.items():
        if measured and (there := about.get(what)) != here:
            message = f"--resume: {output} has cells of other {what}, {there!r} and not {here!r}"
            raise running.JobError(message)
    return measured, about


def agreed(about: dict[str, Any], about_it: dict[str, Any], *, resumed: bool) -> dict[str, Any]:
    """Return the facts common to all cells. Raise JobError if this cell's differ."""
    if not about:
        return about_it
    begun = BEGUN
    for what, there in about.items():
        if what != begun and (here := about_it.get(what)) != there:
            message = f"{what}: {here!r} now, {there!r} for the cells before; begin a new report"
            raise running.JobError(message)
    return about | {begun: f"{about[begun]}, then {about_it[begun]}"} if resumed else about


def _conditions(job: argparse.Namespace, settings: Sequence[str]) -> dict[str, str]:
    """Return the facts that must be the same for all cells of a report."""
    warm_up_s = FIRST_WARM_UPS * job.warm_up  # every cell is an application's first
    rounds = f"{job.rounds} rounds after {warm_up_s:g} s, {job.scale:g} times the rows"
    against = "" if job.before is None else f", R1b of {checkout.commit(job.before)}"
    return {
        "commit": checkout.commit(),
        "Kafka": fetch_kafka.NEWEST,
        "settings of Spark": ", ".join([_DEFAULTS, *settings]),
        "rounds": f"{rounds}, {' '.join(job.contenders)}{against}",
    }


def _in_order(cells: dict[str, Measured]) -> dict[str, Measured]:
    return {name: cells[name] for name in CELLS if name in cells}


def _run(arguments: Sequence[str], settings: Sequence[str], *, has_usual_rows: bool) -> int:
    """Run the job with a broker of its own, and return its exit code."""
    memory = memory_with_room(_ROOM_BYTES) if has_usual_rows else None
    with tls_broker_in(memory) as cluster:
        job = ["--tls-bootstrap", cluster.tls_bootstrap, "--tls-truststore", str(cluster.ca)]
        job += ["--bootstrap", cluster.bootstrap, "--broker-pid", str(cluster.pid(1))]
        job += ["--kafka-libs", str(fetch_kafka.libs(fetch_kafka.NEWEST))]
        job += ["--about", "the broker's logs", "on disk" if memory is None else "in memory"]
        return _submit([*job, *arguments], settings)


def _submit(job: Sequence[str], settings: Sequence[str]) -> int:
    jars = ",".join(map(str, fetch_kafka.spark_jars()))
    submit = [str(SPARK_SUBMIT), "--master", "local[2]", "--driver-memory", _HEAP]
    submit += ["--properties-file", _DEFAULTS, "--jars", jars]
    for setting in (*_SPARK_SETTINGS, *settings):
        submit += ["--conf", setting]
    command = [*submit, str(_JOB), *job]
    return subprocess.run(command, env=environment(), cwd=_ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(running.run(main, "make bench"))

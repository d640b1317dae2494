"""``make bench``: its messages on arguments, and on cells that were measured already."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from bench.cells import CONTENDERS
from bench.each_cell import agreed, main
from job import running
from job.running import JobError
from support.brokers import fetch_kafka
from support.documents import checkout

ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """The end of a run of `make bench`."""

    returncode: int
    stdout: str
    stderr: str


Bench = Callable[..., Ended]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs ``make bench`` in this process."""
    monkeypatch.chdir(ROOT)

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["make bench", *map(str, arguments)])
        capsys.readouterr()
        code = running.run(main, "make bench")
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A folder with the results that are kept, as if of this checkout."""
    contenders = " ".join(CONTENDERS)
    kept = ROOT / "docs" / "benchmarks" / "reported" / "results.json"
    found = json.loads(kept.read_text())
    found["about"] |= {
        "commit": checkout.commit(),
        "Kafka": fetch_kafka.NEWEST,
        "settings of Spark": "conf/spark-defaults.conf",
        "rounds": f"5 rounds after 60 s, 1 times the rows, {contenders}",
    }
    (tmp_path / "results.json").write_text(json.dumps(found))
    return tmp_path


def test_cells_that_are_measured_are_left_out(bench: Bench, measured: Path) -> None:
    before = (measured / "results.json").read_text()
    done = bench("--cells", "100B", "1KB", "--resume", "--output", measured)
    assert done.returncode == 0, done.stderr
    assert "cell 1 of" not in done.stdout
    assert "rows/s to R2t" in done.stdout
    assert (measured / "results.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--conf", "spark.a=b"),
            "other settings of Spark, 'conf/spark-defaults.conf' and not "
            "'conf/spark-defaults.conf, spark.a=b'",
        ),
        (("--rounds", "3"), "other rounds, '5 rounds after 60 s, "),
        (("--contenders", "R1", "R2t"), "other rounds, "),
    ],
)
def test_cells_that_were_measured_otherwise_are_not_added_to(
    bench: Bench, measured: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = bench("--resume", "--output", measured, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"make bench: --resume: {measured} has cells of {says}")


def test_cells_of_another_commit_are_not_added_to(bench: Bench, measured: Path) -> None:
    file = measured / "results.json"
    file.write_text(file.read_text().replace(checkout.commit(), "0123456789"))
    done = bench("--resume", "--output", measured)
    assert done.returncode == 2
    start = f"make bench: --resume: {measured} has cells of other commit, '0123456789' and not '"
    assert done.stderr.startswith(start)


def test_a_cell_that_found_another_machine_is_not_of_the_report() -> None:
    before = {"PySpark": "4.2.0", "processors": 2, "begun": "2026-11-23 10:00"}
    now = before | {"begun": "2026-11-23 12:00"}
    assert agreed({}, now, resumed=False) == now
    assert agreed(before, now, resumed=False) == before
    both = before | {"begun": "2026-11-23 10:00, then 2026-11-23 12:00"}
    assert agreed(before, now, resumed=True) == both
    with pytest.raises(JobError, match=r"^processors: 4 now, 2 for the cells before"):
        agreed(before, now | {"processors": 4}, resumed=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"about": {}, "cells": []}',
        '{"about": {}, "cells": {"100B": {}}}',
        '{"about": {}, "cells": {"100B": {"results": [{"name": 1}], "cell": {}}}}',
    ],
)
def test_a_file_that_is_no_report_is_told(bench: Bench, tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    done = bench("--resume", "--output", tmp_path)
    assert done.returncode == 2
    start = f"make bench: {tmp_path}/results.json is not a report of this release's benchmark ("
    assert done.stderr.startswith(start)
    assert "cell 1 of" not in done.stdout


def test_a_wrong_cell_is_told_before_any_is_measured(bench: Bench) -> None:
    done = bench("--cells", "100B", "1GB")
    assert done.returncode == 2
    assert done.stderr.startswith("make bench: --cells 1GB is not one of 100B, 100B-lz4, ")
    assert "cell 1 of" not in done.stdout

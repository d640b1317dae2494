"""Targets of the benchmark, and the documents' tables of its results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.cells import CELLS, Cell
from bench.meter import Usage
from bench.results import Measured, read_results, write_results
from bench.rounds import Measurement, Result
from bench.targets import reached

ROOT = Path(__file__).parents[2]


def measured(cell: Cell, **seconds: list[float]) -> Measured:
    """Return a cell in which each contender took these seconds in each round.

    Python was busy for as long, and the broker for half of it.
    """

    def timed(took: float) -> Measurement:
        return Measurement(took, Usage(0.0, took, took / 2), None)

    results = {
        name: Result(name, 1000, measurements=[timed(took) for took in each])
        for name, each in seconds.items()
    }
    return Measured(cell, results)


def test_a_target_is_met_by_the_median_of_the_rounds() -> None:
    cell = CELLS["100B"]
    cells = {"100B": measured(cell, R1=[1.0, 1.0, 3.0], R2t=[2.0, 2.5, 3.0], R2=[2.9] * 3)}
    found = {one.target.what: one for one in reached(cells, cores=2)}
    assert found.keys() == {"rows/s to R2t", "rows/s to R2", "CPU a row to R2t"}
    tuned = found["rows/s to R2t"]
    assert (tuned.figure.median, tuned.figure.low, tuned.figure.high) == (2.0, 1.0, 2.5)
    assert tuned.is_met
    assert not found["rows/s to R2"].is_met
    assert found["CPU a row to R2t"].is_met
    assert tuned.bound is None


def test_over_tls_a_sink_is_compared_with_its_peer_and_with_itself() -> None:
    cell = CELLS["10KB-tls"]
    took = {"R1": [1.0, 1.0, 1.0], "R2": [4.0] * 3, "R2t": [2.0, 2.0, 3.0]}
    over_tls = {"R1s": [2.0, 2.0, 2.0], "R2s": [3.0, 2.0, 1.0], "R2ts": [4.4, 3.6, 6.6]}
    found = {
        one.target.what: one
        for one in reached({"10KB-tls": measured(cell, **took, **over_tls)}, cores=2)
    }
    assert found.keys() == {
        "rows/s over TLS, R1s to R2s",
        "rows/s over TLS, R1s to R2ts, to the same without TLS",
    }
    to_peer = found["rows/s over TLS, R1s to R2s"]
    assert (to_peer.figure.low, to_peer.figure.median, to_peer.figure.high) == (0.5, 1.0, 1.5)
    assert to_peer.is_met
    to_plain = found["rows/s over TLS, R1s to R2ts, to the same without TLS"].figure
    # In the rounds: 2.2 / 2, 1.8 / 2 and 3.3 / 3.
    assert (to_plain.low, to_plain.median, to_plain.high) == pytest.approx((0.9, 1.1, 1.1))
    lacking = measured(cell, **took, R1s=[2.0] * 3, R2s=[3.0] * 3)
    assert len(list(reached({"10KB-tls": lacking}, cores=2))) == 1


def test_a_free_sink_pays_for_the_hop_and_for_sending_on_all_cores() -> None:
    cell = CELLS["100B"]
    cells = {"100B": measured(cell, R1=[4.0], R2t=[4.0], R1h=[1.0], R0=[3.0], R2=[2.0])}
    found = {one.target.what: one.bound for one in reached(cells, cores=2)}
    # Four seconds of work, and one of the broker, as with R2, on two cores.
    expected = {"rows/s to R2t": 1.6, "rows/s to R0": 1.2, "rows/s to R2": 0.8}
    assert found == pytest.approx(expected | {"CPU a row to R2t": 1.0})
    packed = CELLS["100B-lz4"]
    cells = {"100B-lz4": measured(packed, R1=[4.0], R2t=[6.0], R1h=[1.0], R0=[3.0], R1c=[1.0])}
    (packed_one,) = reached(cells, cores=2)
    assert packed_one.bound == pytest.approx(2.0 / (1.0 + 3.0 + 1.0 + 1.5) * 6.0)
    elsewhere = reached(cells, cores=None)
    assert {one.bound for one in elsewhere} == {None}


def test_what_one_machine_s_cpu_decides_is_not_told_of_a_cluster() -> None:
    cell = CELLS["100B"]
    cells = {"100B": measured(cell, R1=[1.0], R2t=[2.0], R0=[1.0], R3=[4.0])}

    def claims(cores: int | None) -> set[str]:
        return {one.target.what for one in reached(cells, cores)}

    here = {"CPU a row to R2t", "CPU a row to R3", "rows/s to R0"}
    assert claims(2) - claims(None) == here
    assert claims(None) == {"rows/s to R2t", "rows/s to R3"}


@pytest.mark.parametrize("log_bytes", [94, 96, 104, 106])
def test_a_codec_s_rows_are_to_be_as_small_as_the_others_and_not_smaller(log_bytes: int) -> None:
    one = measured(CELLS["1KB-zstd"], R1=[1.0], R2t=[2.0])
    one.results["R1"].log_bytes, one.results["R2t"].log_bytes = log_bytes, 100
    _, size = reached({"1KB-zstd": one}, cores=2)
    assert size.target.text == "0.95x to 1.05x"
    assert size.is_met == (95 <= log_bytes <= 105)


def test_cells_of_other_rows_say_nothing_of_a_target() -> None:
    cell = CELLS["1KB"]
    cells = {"100B": measured(cell, R1=[1.0], R2t=[2.0])}
    assert not list(reached(cells, cores=2))


def test_a_loss_by_partitions_is_told_by_the_round() -> None:
    cell = CELLS["100B-100p"]
    cells = {"100B-100p": measured(cell, R1=[1.0, 2.0, 4.0], R1p=[0.9, 1.9, 1.0])}
    (found,) = reached(cells, cores=2)
    assert (found.figure.median, found.figure.low, found.figure.high) == (0.9, 0.25, 0.95)
    assert found.is_met


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    cells = {
        name: measured(CELLS[name], R1=[1.0, 0.9], R2t=[2.0, 2.5]) for name in ("100B", "cold")
    }
    assert read_results(tmp_path) == ({}, {})
    write_results(tmp_path, cells, {"Spark": "4.2.0"})
    assert read_results(tmp_path) == (cells, {"Spark": "4.2.0"})


def test_the_documents_have_the_figures_of_the_results_that_are_kept() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bench.figures", "--check"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["benchmarks", "tests", "jobs"])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr

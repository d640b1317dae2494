"""The files that the benchmark ships to Spark's workers are enough for its contenders there."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from bench import contenders, sail
from bench.cells import CELLS, CONTENDERS, SAIL, TUNED, Cell
from bench.contenders import NotRunError, Setting, Tls, write_of
from bench.worker_contenders import SOURCES


def test_workers_find_the_contenders_in_what_is_shipped() -> None:
    archive = contenders._worker_archive()
    code = (
        f"import pickle; print([each.name() for each in pickle.loads({pickle.dumps(SOURCES)!r})])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(archive)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([each.name() for each in SOURCES])


TLS = Tls("localhost:1", Path("/ca.pem"))


def setting(cell: Cell, tls: Tls | None = TLS) -> Setting:
    """Return the input of contenders; its session answers whatever it is asked."""
    anything: Any = mock.MagicMock()
    return Setting(
        spark=anything, cell=cell, sample=anything, bootstrap="localhost:2", topics=anything,
        registry="", kafka_libs=None, before=None, tls=tls,
    )  # fmt: skip


def options_of(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, str]]:
    """Return the format and the options by which a contender writes the cell with TLS."""
    found: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(contenders, "_spark_writer", lambda *given: found.append(given))
    write_of(name, setting(CELLS["1KB-tls"]))
    return found[0]


def test_both_sinks_have_the_same_options_of_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    options = functools.partial(options_of, monkeypatch=monkeypatch)
    tls = {
        "kafka.bootstrap.servers": "localhost:1",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
    }
    tuned = {f"kafka.{name}": value for name, value in TUNED.items()}
    for plain, over, kind in (("R1", "R1s", "pykafka"), ("R2", "R2s", "kafka")):
        assert options(plain) == (
            kind,
            {"kafka.bootstrap.servers": "localhost:2", "kafka.compression.type": "none"},
        )
        assert options(over) == (kind, options(plain)[1] | tls)
    assert options("R2t") == ("kafka", options("R2")[1] | tuned)
    assert options("R2ts") == ("kafka", options("R2s")[1] | tuned)


def test_cells_with_tls_are_for_what_is_compared_over_it() -> None:
    over = {each.over_tls for each in CONTENDERS.values()} - {None}
    assert over == {"R1", "R2", "R2t"}
    for name, contender in CONTENDERS.items():
        if contender.over_tls is not None:
            with pytest.raises(NotRunError, match="it is for cells with TLS"):
                write_of(name, setting(CELLS["1KB"]))
            with pytest.raises(NotRunError, match="--tls-bootstrap"):
                write_of(name, setting(CELLS["1KB-tls"], None))
        elif name not in over:
            with pytest.raises(NotRunError, match="it is not compared over TLS"):
                write_of(name, setting(CELLS["1KB-tls"]))


def test_cells_of_avro_are_for_what_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(contenders, "_spark_writer", lambda *given: found.append(given))
    monkeypatch.setattr(contenders, "_avro_schema", lambda _: '"long"')
    flat = CELLS["avro-flat"]
    for name, contender in CONTENDERS.items():
        if contender.avro:
            with pytest.raises(NotRunError, match="it is for cells of Avro"):
                write_of(name, setting(CELLS["1KB"]))
        elif name not in ("R1", "R1h", "noop"):
            with pytest.raises(NotRunError):
                write_of(name, setting(flat))
    write_of("R1", setting(flat))
    (kind, options) = found[0]
    assert (kind, options["valueFormat"]) == ("pykafka", "avro")
    assert "schema.registry.url" in options


def test_cells_from_parquet_are_for_what_reads_rows_in_the_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contenders, "_spark_writer", lambda *_: None)
    cell = CELLS["1KB-parquet"]
    for name in CONTENDERS:
        if name in ("R1", "R1h", "noop", "R2", "R2t"):
            write_of(name, setting(cell))
        else:
            with pytest.raises(NotRunError):
                write_of(name, setting(cell))
    with pytest.raises(NotRunError, match="it is for cells that are read from Parquet"):
        write_of(SAIL, setting(CELLS["1KB"]))


PROGRAM = """
import json, os, sys
for name in ("MASTER", "PYSPARK_GATEWAY_PORT", "PYTHONPATH", "SPARK_HOME"):
    assert name not in os.environ
for line in sys.stdin:
    path, options = json.loads(line)
    if options["topic"] == "end":
        sys.exit(3)
    print(json.dumps(None if path == "/rows" else f"no file {path}"), flush=True)
"""


def test_sail_writes_the_file_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(sail, "_PROGRAM", program)
    for name in ("MASTER", "PYSPARK_GATEWAY_PORT", "PYTHONPATH", "SPARK_HOME"):
        monkeypatch.setenv(name, "of the benchmark")
    here = replace(setting(CELLS["1KB-parquet"]), parquet=Path("/rows"))
    with pytest.raises(NotRunError, match="--sail-python is not a Python with pysail"):
        write_of(SAIL, here)
    frame: Any = None
    with sail.Sail(Path(sys.executable)) as process:
        write_of(SAIL, replace(here, sail=process))(frame, "t", 1)
        with pytest.raises(RuntimeError, match="no file /others"):
            write_of(SAIL, replace(here, sail=process, parquet=Path("/others")))(frame, "t", 1)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="has ended with exit code 3"):
                write_of(SAIL, replace(here, sail=process))(frame, "end", 1)

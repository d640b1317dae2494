"""Spark's Python is compiled once, also by two runs of the tests that begin at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from support.spark.job_server import ROOT, TIMEOUT_S

COMPILE = """
import sys
from pathlib import Path
from support.spark.compiled_spark import compile_archives
print("ready", flush=True)
sys.stdin.readline()
compile_archives(Path(sys.argv[1]))
"""
MODULES = 300


def test_several_that_compile_at_once_make_one_whole_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as archive:
        for number in range(MODULES):
            archive.writestr(f"m/module_{number}.py", f"def f(x):\n    return x + {number}\n" * 20)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILE, str(tmp_path)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": "tests:jobs"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = "".join(process.communicate(timeout=TIMEOUT_S)[0] for process in processes)
    waits = f"waiting for another process that compiles {tmp_path} …"
    assert set(said.splitlines()) <= {waits, "compiling pyspark.zip …"}
    assert said.count("compiling") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pyspark.zip"]
    with zipfile.ZipFile(tmp_path / "pyspark.zip") as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert sorted(names) == sorted(
        f"m/module_{number}.{suffix}" for number in range(MODULES) for suffix in ("py", "pyc")
    )

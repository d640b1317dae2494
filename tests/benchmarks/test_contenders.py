"""What the benchmark ships to Spark's workers is enough for its contenders there."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

from bench import contenders
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

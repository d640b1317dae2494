"""Commits of streams that wait until a program lets them go on, in the processes of its Spark.

The processes know the folder by an environment variable. They change the sink as they load it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from support.spark.changed_modules import change_when_loaded

VARIABLE: Final = "HELD_COMMITS"
_MODULE: Final = "spark_kafka_sink.spark.committing.exactly_once_commit"
_FUNCTION: Final = "commit_micro_batch"
_IN_TIME_S: Final = 120.0


def _places() -> tuple[Path, Path]:
    folder = Path(os.environ[VARIABLE])
    return folder / "hold", folder / "held"


@contextmanager
def held_commits() -> Iterator[Callable[[], bool]]:
    """Hold the next commit; yield the function that tells whether one is held."""
    hold, held = _places()
    held.unlink(missing_ok=True)
    hold.touch()
    try:
        yield held.exists
    finally:
        hold.unlink()


def _wait() -> None:
    hold, held = _places()
    if not hold.exists():
        return
    held.touch()
    deadline = time.monotonic() + _IN_TIME_S
    while hold.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def _hold(module: ModuleType) -> None:
    commit = getattr(module, _FUNCTION)

    def wait_and_commit(*given: object) -> object:
        _wait()
        return commit(*given)

    setattr(module, _FUNCTION, wait_and_commit)


def hold_commits() -> None:
    """Let this process hold commits, if the variable is set."""
    if VARIABLE in os.environ:
        change_when_loaded(_MODULE, _hold)

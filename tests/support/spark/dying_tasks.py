"""Tasks of the sink that are killed at their end, in the Python workers of Spark.

The workers know the folder by an environment variable. `unlucky_job` puts a file there, whose name
is the point at which a task dies, and whose text is the misfortune. The first task that reaches the
point takes the file away.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from support.spark.changed_modules import change_when_loaded

VARIABLE: Final = "DYING_TASKS"
_MODULE: Final = "spark_kafka_sink.spark.tasks.task"


def _reach(point: str) -> None:
    waiting = Path(os.environ[VARIABLE]) / point
    taken = waiting.with_name(f"{point}.{os.getpid()}")
    try:
        waiting.rename(taken)
    except FileNotFoundError:
        return
    from support.spark.unlucky_job import MISFORTUNES

    MISFORTUNES[taken.read_text()]()


def _change(module: ModuleType) -> None:
    rows, write_task = module.TaskRows, module.write_task
    finish = rows.finish

    # The transaction has been left, and the dead letters are still to be completed.
    def die_and_finish(*given: Any) -> Any:  # noqa: ANN401 - as the sink's own
        _reach("acknowledged")
        return finish(*given)

    def write_and_die(*given: Any) -> Any:  # noqa: ANN401 - likewise
        message = write_task(*given)
        _reach("returns")
        return message

    rows.finish = die_and_finish
    module.write_task = write_and_die  # type: ignore[attr-defined]


def die_at_the_end() -> None:
    """Let the tasks of this process die where a program says so, if the variable is set."""
    if VARIABLE in os.environ:
        change_when_loaded(_MODULE, _change)

"""The progress of a write as logs show it: tasks, then the commit, or micro-batches."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
import stream
from job import progress
from support.spark.job_server import TIMEOUT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress


class Stage(NamedTuple):
    """Spark's information about a running stage."""

    numTasks: int  # noqa: N815 - Spark's names
    numCompletedTasks: int  # noqa: N815
    numFailedTasks: int = 0  # noqa: N815


class _Script:
    """A Spark with scripted stages, one list for each look."""

    def __init__(self, looks: list[list[Stage]]) -> None:
        self.looks = looks
        self.number = -1
        self.ended = threading.Event()

    @property
    def sparkContext(self) -> _Script:  # noqa: N802 - Spark's name
        return self

    def statusTracker(self) -> _Script:  # noqa: N802 - Spark's name
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's name
        self.number += 1
        if self.number == len(self.looks):
            self.ended.set()
        return list(range(len(self._now)))

    def getStageInfo(self, stage: int) -> Stage:  # noqa: N802 - Spark's name
        return self._now[stage]

    @property
    def _now(self) -> list[Stage]:
        return self.looks[min(self.number, len(self.looks) - 1)]


def shown(capsys: pytest.CaptureFixture[str], *looks: list[Stage]) -> list[str]:
    """Return the lines that are printed for the given stages, without times and repetitions."""
    spark = _Script(list(looks))
    with progress.shown(cast("SparkSession", cast("Any", spark)), "writing"):
        assert spark.ended.wait(TIMEOUT_S)
    lines = [re.sub(r"[\d.]+ s$", "T", line) for line in capsys.readouterr().out.splitlines()]
    return list(dict.fromkeys(lines))


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is written, wherever the tests are run."""
    monkeypatch.setattr(progress, "_on_terminal", lambda: False)


def test_a_commit_is_shown_after_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, [], [Stage(4, 1)], [Stage(4, 3, 1)], [], []) == [
        "writing: 1 of 4 tasks done, T",
        "writing: 3 of 4 tasks done, 1 failed, T",
        "writing: committing …, T",
        "writing: ended after T",
    ]


def test_a_gap_between_stages_is_no_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, [Stage(4, 3)], [], [Stage(2, 0)]) == [
        "writing: 3 of 4 tasks done, T",
        "writing: 0 of 2 tasks done, T",
        "writing: ended after T",
    ]


def test_nothing_is_committed_before_the_first_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, [], [], []) == ["writing: ended after T"]


class _MicroBatch(NamedTuple):
    """Spark's progress of a micro-batch."""

    batchId: int  # noqa: N815 - Spark's names
    numInputRows: int  # noqa: N815

    @property
    def durationMs(self) -> dict[str, int]:  # noqa: N802
        return {"triggerExecution": 2000}


def test_a_micro_batch_with_rows_is_shown_and_counted_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    total = stream.Total()
    recent = [_MicroBatch(0, 1000), _MicroBatch(1, 0), _MicroBatch(2, 5)]
    for seen in (recent[:1], recent, recent[1:]):
        for each in seen:
            total.add(cast("StreamingQueryProgress", each))
    assert capsys.readouterr().out.splitlines() == [
        "micro-batch 0: 1,000 rows in 2.0 s",
        "micro-batch 2: 5 rows in 2.0 s",
    ]
    assert (total.rows, total.batches) == (1005, 2)

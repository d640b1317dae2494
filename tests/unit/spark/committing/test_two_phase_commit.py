"""What the driver prints when it aborts a run of mode `two-phase`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.pure.planned_run import DECIDED, FINE, OWNER, PLAN, RECORD
from support.pure.scripted_machine import kind_of

from spark_kafka_sink.commit.log_record import CommitRecord, LogReading
from spark_kafka_sink.commit.questions import Answer, Ended, LogRead, ReadLog, Reply
from spark_kafka_sink.spark.committing import two_phase_commit
from spark_kafka_sink.spark.options import sink_options

OPTIONS = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
IS_COMMITTED = f"the write of {OWNER} failed after the decision to commit it, so it IS committed"


class Client:
    """The commit client: printed: what stderr had when each EndTxn(commit) came."""

    def __init__(self, script: dict[Any, list[Reply]], capsys: pytest.CaptureFixture[str]) -> None:
        self._script = FINE | script
        self._capsys = capsys
        self._now = 0.0
        self.printed: list[str] = []

    def now(self) -> float:
        """Return the time."""
        return self._now

    def level(self, _: float) -> int:
        """Return the transaction.version."""
        return 2

    def run(self, begun: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        """Answer every question of a machine."""
        machine, questions = begun
        asked = list(questions)
        while machine.outcome is None:
            ask = asked.pop(0).ask
            if kind_of(ask) == "commit":
                self.printed.append(self._capsys.readouterr().err)
            machine, more = step(machine, Answer(ask, self._script[kind_of(ask)][0]), self._now)
            asked += more
        return machine


@pytest.mark.parametrize(
    ("error", "record", "lines"), [(48, DECIDED, 1), (90, DECIDED, 1), (90, RECORD, 0)]
)
def test_an_abort_of_a_decided_run_prints_a_line_before_it_commits_the_rest(
    error: int,
    record: CommitRecord,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=error)],
        ReadLog: [LogRead(LogReading(record, 3), end=4)],
    }
    client = Client(script, capsys)

    @contextmanager
    def lent(*_: object) -> Iterator[Client]:
        yield client

    monkeypatch.setattr(two_phase_commit, "commit_client", lent)
    assert two_phase_commit.abort_run(OPTIONS, PLAN, ()) == IS_COMMITTED
    said = (
        f"pykafka: the commit log has the decision to commit the write of {OWNER}, so its "
        "transactions are committed now, which takes at most 900000 ms\n"
    )
    assert "".join(client.printed) == said * lines
    assert client.printed[:1] == [said] * lines

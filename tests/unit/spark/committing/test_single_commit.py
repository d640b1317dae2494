"""What the driver prints when it aborts a run of mode `single`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.pure.planned_run import OWNER, PLAN, PRODUCER, RAISED, RECORD
from support.pure.scripted_machine import run

from spark_kafka_sink.commit.log_record import CommitRecord, LogReading
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    EMPTY,
    ONGOING,
    Described,
    DescribeTransaction,
    Ended,
    LogRead,
    ReadLog,
    Reply,
)
from spark_kafka_sink.errors import TimeoutException
from spark_kafka_sink.spark.committing import single_commit
from spark_kafka_sink.spark.options import sink_options

OPTIONS = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
IS_COMMITTED = "failed after its transaction had ended: it IS committed"
SUPERSEDED = "was superseded by a newer run"
TIMED_OUT = "timed out: the brokers aborted it after 900000 ms, and no row is visible"
NOT_KNOWN = "; the next run finds out whether it is committed"
MAY_BE_EITHER = f"{SUPERSEDED}, or the brokers aborted it after 900000 ms{NOT_KNOWN}"

OWN, OTHERS = RECORD, replace(RECORD, run="run 2")
DENIED = LogRead(error=29)
BY_TIMEOUT = Described(COMPLETE_ABORT, RAISED)
BY_NEXT_RUN = Described(EMPTY, RAISED)
OF_NEXT_RUN = Described(ONGOING, replace(PRODUCER, epoch=PRODUCER.epoch + 2))
NO_COORDINATOR = Described(error=53)


def read(record: CommitRecord | None) -> LogRead:
    """Return the reply that has this record."""
    return LogRead(LogReading(record, 3), end=4)


class Client:
    """The commit client of the process, with replies that the test has written down."""

    def __init__(self, script: Mapping[Any, Sequence[Reply]], level: int) -> None:
        self._script = script
        self._level = level

    def now(self) -> float:
        """Return the time."""
        return 0.0

    def level(self, _: float) -> int:
        """Return the transaction.version."""
        return self._level

    def run(self, begun: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        """Answer every question of a machine."""
        machine, _ = run(begun, step, self._script)
        return machine


def lend(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a client the one of the process."""

    @contextmanager
    def lent(*_: object) -> Iterator[Client]:
        yield client

    monkeypatch.setattr(single_commit, "commit_client", lent)


@pytest.mark.parametrize(
    ("level", "error", "log", "described", "said"),
    [
        (2, 0, DENIED, BY_TIMEOUT, "was aborted: no row is visible"),
        (2, 48, read(OWN), BY_TIMEOUT, IS_COMMITTED),
        (1, 48, read(OWN), BY_TIMEOUT, IS_COMMITTED),
        (2, 48, DENIED, BY_TIMEOUT, f"failed after its transaction had ended{NOT_KNOWN}"),
        # A coordinator answers in one way after a timeout and after another run has begun: at level
        # 1, and in Kafka 4.0 also at level 2. At level 1 also after the epoch was raised by the
        # commit.
        (2, 90, read(OTHERS), BY_NEXT_RUN, SUPERSEDED),
        (2, 90, read(OTHERS), BY_TIMEOUT, MAY_BE_EITHER),
        (1, 90, read(OWN), BY_NEXT_RUN, IS_COMMITTED),
        (1, 90, read(None), BY_TIMEOUT, TIMED_OUT),
        (1, 90, read(OTHERS), BY_TIMEOUT, TIMED_OUT),
        (1, 90, read(OTHERS), BY_NEXT_RUN, SUPERSEDED),
        (1, 90, read(None), OF_NEXT_RUN, SUPERSEDED),
        (1, 90, DENIED, BY_TIMEOUT, MAY_BE_EITHER),
        (1, 90, read(None), NO_COORDINATOR, MAY_BE_EITHER),
    ],
)
def test_an_abort_says_what_became_of_the_write(
    level: int,
    error: int,
    log: LogRead,
    described: Described,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=error)],
        ReadLog: [log],
        DescribeTransaction: [described],
    }
    lend(Client(script, level), monkeypatch)
    result = single_commit.abort_run(OPTIONS, PLAN)
    assert result.line == f"the write of {OWNER} {said}"
    assert result.is_committed == (said == IS_COMMITTED)


@pytest.mark.parametrize(
    ("error", "may_be_open"), [(0, False), (48, False), (90, False), (53, True)]
)
def test_a_transaction_without_rows_is_spoken_of_only_if_it_may_be_open(
    error: int, monkeypatch: pytest.MonkeyPatch, *, may_be_open: bool
) -> None:
    lend(Client({"abort": [Ended(error=error)]}, 1), monkeypatch)
    said = single_commit.end_unused(OPTIONS, PLAN)
    assert (said is not None) == may_be_open
    if said is not None:
        assert "could not be aborted now" in said
        assert "the brokers abort it within 900000 ms" in said


def test_an_abort_without_a_response_does_not_say_that_the_run_is_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class SilentClient(Client):
        def level(self, _: float) -> int:
            message = "no broker has answered"
            raise TimeoutException(message)

    for client in (Client({"abort": [Ended(error=53)]}, 2), SilentClient({}, 2)):
        lend(client, monkeypatch)
        line = single_commit.abort_run(OPTIONS, PLAN).line
        assert "could not be aborted now" in line
        assert line.endswith("had begun, the next run finds out whether it is committed")

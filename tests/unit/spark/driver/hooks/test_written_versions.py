"""Whether a version is written already, as `save()` asks before it starts a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.pure.planned_run import DECIDED, RECORD

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.log_record import CommitRecord, LogReading
from spark_kafka_sink.commit.questions import Answer, LogRead, Reply, Unanswered
from spark_kafka_sink.spark.driver.hooks import written_versions

GIVEN = {
    "kafka.bootstrap.servers": "b:1", "topic": "t", "exactlyOnce": "true", "txnAppId": "flights",
}  # fmt: skip
CLOSED = Unanswered(13, "connection lost")


class Client:
    """The commit client of the process; the last reply is repeated, each after a second."""

    def __init__(self, replies: list[Reply]) -> None:
        self._replies = replies
        self._now = 0.0

    def now(self) -> float:
        """Return the time."""
        return self._now

    def run(self, begun: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        """Answer every question of a machine."""
        machine, questions = begun
        while machine.outcome is None:
            (question,) = questions
            self._now += 1.0
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
            machine, questions = step(machine, Answer(question.ask, reply), self._now)
        return machine


def logged(record: CommitRecord) -> LogRead:
    """Return the reply that has a record."""
    return LogRead(LogReading(record, 3), end=4)


def lend(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a client the one of the process."""

    @contextmanager
    def lent(*_: object) -> Iterator[Client]:
        yield client

    monkeypatch.setattr(written_versions, "commit_client", lent)


@pytest.mark.parametrize(
    ("version", "replies", "is_written"),
    [
        ("7", [logged(RECORD)], True),
        ("8", [logged(RECORD)], False),
        ("7", [logged(DECIDED)], False),
        ("7", [LogRead()], False),
        # The broker has closed the connection of a client that was idle.
        ("7", [CLOSED, logged(RECORD)], True),
        ("7", [CLOSED], False),
        ("7", [LogRead(error=29)], False),
    ],
)
def test_a_version_is_written_if_the_log_says_so(
    version: str,
    replies: list[Reply],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_written: bool,
) -> None:
    lend(Client(list(replies)), monkeypatch)
    assert written_versions.is_written(GIVEN | {"txnVersion": version}) == is_written


def test_the_first_job_does_not_wait_for_a_log_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client([LogRead(error=codes.UNKNOWN_TOPIC_OR_PARTITION)])
    lend(client, monkeypatch)
    assert not written_versions.is_written(GIVEN | {"txnVersion": "7"})
    assert client.now() == 1.0, "one request"

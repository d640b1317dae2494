"""Whether a version is written already, as `save()` asks before it starts a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest
from pyspark.sql.types import StringType, StructType
from support.pure.planned_run import DECIDED, RECORD

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.admin import TopicDescription
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.commit.log_record import CommitRecord, LogReading
from spark_kafka_sink.commit.questions import Answer, LogRead, Reply, Unanswered
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.driver.hooks import written_versions
from spark_kafka_sink.spark.planning import preflight, written_version
from spark_kafka_sink.spark.planning.datasource import check_batch_write

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

    monkeypatch.setattr(written_version, "commit_client", lent)


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


@pytest.mark.parametrize("quiet", ["true", "false"])
@pytest.mark.parametrize(
    ("version", "is_new", "is_refused"),
    [("7", True, True), ("7", False, False), ("8", True, False)],
)
def test_a_written_version_of_a_topic_that_was_deleted_is_not_skipped_in_silence(
    version: str, monkeypatch: pytest.MonkeyPatch, quiet: str, *, is_new: bool, is_refused: bool
) -> None:
    class Admin:
        brokers: tuple[()] = ()
        acls = Acls()

        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def topics(self, names: list[str], _: object) -> dict[str, TopicDescription]:
            return {name: TopicDescription(name, 1, 1, None, is_new=is_new) for name in names}

        def topic_configs(self, *_: object) -> dict[str, str]:
            return {}

    monkeypatch.setattr(preflight, "KafkaAdmin", Admin)
    lend(Client([logged(RECORD)]), monkeypatch)
    schema = StructType().add("value", StringType())
    options = GIVEN | {"txnVersion": version, "createTopics": "true", "quiet": quiet}
    if not is_refused:
        check_batch_write(schema, options)
        return
    with pytest.raises(ConfigException) as refused:
        check_batch_write(schema, options)
    assert str(refused.value) == (
        "topic t did not exist and was created now, but version 7 of txnAppId 'flights' was "
        "written at 1970-01-01T00:00:00.001+00:00, with 5 rows: the topic was deleted with these "
        "rows. To write them again, use a new txnVersion, or for write_batch a new txnAppId. If "
        "the topic may stay empty, run the job again"
    )

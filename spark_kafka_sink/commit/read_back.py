"""Read the commit log once more between the write of a record and its commit.

A broker may not know yet that it is no longer the leader of the log, for example if it has lost its
connections to the other brokers but not to this client. Then it returns an old end of the log. A
plan that was made from such a response does not know the newest record, and would write that
record's version twice. But a record that was acknowledged with acks=all is on every in-sync
replica. So the log is read again until the record that was just written is found. If another run
has committed a record in between, this run does not commit.
"""

from __future__ import annotations

from spark_kafka_sink.commit.log_record import CommitRecord
from spark_kafka_sink.commit.names import Owner
from spark_kafka_sink.commit.questions import LogRead, Question
from spark_kafka_sink.commit.steps import PAUSE_S, Failure, FailureKind, Received
from spark_kafka_sink.commit.verdicts import Verdict


def again(at: Received, offset: int, deadline: float) -> tuple[Question, ...]:
    """Return the request, to be sent again, if the broker's log ends at or before `offset`.

    Return () if the log contains `offset`, if it could not be read, or if the deadline has passed.
    """
    is_old = isinstance(at.reply, LogRead) and at.found is Verdict.DONE and at.reply.end <= offset
    if not is_old or at.now >= deadline:
        return ()
    return (Question(at.ask, PAUSE_S, looks_up=True),)


def check(
    at: Received, owner: Owner, run: str, offset: int, followed: CommitRecord | None
) -> Failure | None:
    """Check that the owner's record at `offset` follows the record that the plan read.

    Return None if it does, else a failure.

    run: the name of the run in the record at `offset`. followed: the record that the plan read,
    or None if the owner had no record.
    """
    if not isinstance(at.reply, LogRead) or at.found is not Verdict.DONE:
        return at.failure(f"the commit log record of {owner} could not be read")
    reading = at.reply.reading
    if at.reply.end <= offset:
        sentence = (
            f"the commit log record of {owner} was written, but the broker that was asked does not "
            "have it yet: it may no longer be the leader of the commit log"
        )
        return Failure(FailureKind.NO_ANSWER, sentence)
    if reading.undecided is None or reading.undecided.run != run:
        sentence = (
            f"the transaction of {owner} was aborted before its record was committed: by a newer "
            "run, or because of its timeout"
        )
        return Failure(FailureKind.TIMED_OUT, sentence)
    if reading.record == followed and reading.newer_format is None:
        return None
    sentence = (
        f"another run of {owner} has written a record to the commit log, and this run was planned "
        "without that record: run it again"
    )
    return Failure(FailureKind.SUPERSEDED, sentence)

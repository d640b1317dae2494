"""What a user reads of outcomes that both modes have."""

from __future__ import annotations

import shlex

import pytest
from support.pure.planned_run import OWNER, RUN

from spark_kafka_sink.commit.names import ANY_TOPIC, Owner, checked_owner
from spark_kafka_sink.commit.outcomes import Undecided, accept_torn, not_aborted_now
from spark_kafka_sink.commit.steps import Failure, FailureKind
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.recover import _parser


def test_a_commit_whose_result_is_unknown_says_that_the_next_run_finds_out() -> None:
    failure = Failure(FailureKind.NO_ANSWER, "EndTxn has no answer from the coordinator")
    error = Undecided(failure).exception(OWNER)
    assert type(error) is KafkaException
    assert str(error) == (
        f"it is not known whether the write of {OWNER} is committed: EndTxn has no answer from the "
        "coordinator; run it again: it writes the rows only if they are not committed"
    )


def test_an_abort_that_failed_says_when_the_brokers_do_it() -> None:
    assert not_aborted_now(RUN, KafkaException("nobody answers")) == (
        f"the write of {OWNER} could not be aborted now (nobody answers); the brokers abort it "
        "within 900000 ms, and read_committed consumers may have to wait until then"
    )


@pytest.mark.parametrize(
    ("owner", "log"),
    [
        (OWNER, "__pykafka_commits"),
        (checked_owner("team", "it's a job; $HOME", ANY_TOPIC), "commits"),
    ],
)
def test_the_command_that_accepts_lost_rows_names_their_owner_in_any_shell(
    owner: Owner, log: str
) -> None:
    command = accept_torn(owner, log)
    assert "*" not in command.replace("'*'", "")
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "spark_kafka_sink.recover"]
    given = _parser().parse_args(words[3:])
    assert given.accept_torn
    assert (given.txn_id_prefix, given.app_id, given.topic) == owner
    assert given.commit_log_topic == log

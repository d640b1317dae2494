"""What a user reads of outcomes that both modes have."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from support.pure.planned_run import DECIDED, OWNER, RUN

from spark_kafka_sink.commit.attempts import AttemptTransaction, WrittenPartition
from spark_kafka_sink.commit.log_record import DecidedTransaction
from spark_kafka_sink.commit.names import ANY_TOPIC, Owner, TaskSlot, checked_owner
from spark_kafka_sink.commit.outcomes import (
    LostTransaction,
    Torn,
    Undecided,
    accept_torn,
    not_aborted_now,
    recover_command,
)
from spark_kafka_sink.commit.steps import Failure, FailureKind
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
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
        (checked_owner("-team", "-nightly", "-t"), "-commits"),
    ],
)
def test_the_commands_that_are_printed_name_one_owner_in_any_shell(owner: Owner, log: str) -> None:
    accept = accept_torn(owner, log)
    abort = recover_command([f"--abort={owner.app_id}"], owner, log)
    for command in (accept, abort):
        assert "*" not in command.replace("'--topic=*'", "")
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "spark_kafka_sink.recover"]
        given = _parser().parse_args(words[3:])
        assert given.accept_torn == (command == accept)
        app_id = given.app_id if given.accept_torn else given.abort
        assert (given.txn_id_prefix, app_id, given.topic) == owner
        assert given.commit_log_topic == log


# Two tasks, and each wrote 100 records to each of 12 partitions.
WRITTEN = tuple(WrittenPartition(TopicPartition("t", n), 100, 50, 149, 99) for n in range(12))
ATTEMPTS = tuple(
    AttemptTransaction(TaskSlot(task, 0), ProducerIdAndEpoch(9, task), WRITTEN) for task in range(2)
)
LOST = tuple(
    LostTransaction(
        DecidedTransaction(TaskSlot(task, 0), each.producer, TopicPartition("t", 0), 50), 100
    )
    for task, each in enumerate(ATTEMPTS)
)
TORN = Torn(replace(DECIDED, transactions=tuple(each.transaction for each in LOST)), LOST)
OTHERS = ", and what these tasks wrote to other partitions; if they are needed, write them again;"


def test_the_first_lost_rows_that_are_named_are_those_of_different_tasks() -> None:
    error = TORN.exception(RUN, ATTEMPTS)
    assert (
        "so that rows are lost: 100 records of task 0 in t-0 from offset 50 on, 100 records of "
        "task 1 in t-0 from offset 50 on, 100 records of task 0 in t-1 from offset 50 on, "
    ) in str(error)
    assert " in t-4 from offset 50 on and 14 more; if they are needed, write " in str(error)
    assert len(set(error.lost)) == 24
    assert sum(each.records for each in error.lost) == 2400


def test_lost_rows_that_the_commit_log_cannot_name_are_told() -> None:
    error = TORN.exception(RUN)
    assert f"100 records of task 1 in t-0 from offset 50 on{OTHERS}" in str(error)
    assert [each.task for each in error.lost] == [0, 1]
    some = TORN.exception(RUN, ATTEMPTS[:1])
    assert f" and 3 more{OTHERS}" in str(some)
    assert {each.task for each in some.lost} == {0, 1}

"""A task of mode single that checks its partitions: what it asks, and what it says."""

from __future__ import annotations

import pytest
from support.pure.planned_run import PARTITION, PLAN, PRODUCER, RAISED
from support.pure.scripted_machine import run

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import single_check
from spark_kafka_sink.commit.outcomes import Clear
from spark_kafka_sink.commit.questions import ActiveProducer, DescribeProducers, ProducersDescribed
from spark_kafka_sink.commit.steps import FailureKind
from spark_kafka_sink.model import TopicPartition


def test_a_task_whose_partitions_nobody_has_written_to_may_write() -> None:
    other = ProducersDescribed((ActiveProducer(RAISED, 7, 1), ActiveProducer(PRODUCER, -1, -1)))
    begun = single_check.begin(PLAN, (PARTITION, TopicPartition("t", 1)), deadline=60.0)
    machine, asked = run(begun, single_check.step, {DescribeProducers: [other]})
    assert (machine.outcome, len(asked)) == (Clear(), 2)
    assert single_check.begin(PLAN, (), deadline=60.0).machine.outcome == Clear()


def test_a_task_after_an_attempt_that_has_written_fails() -> None:
    begun = single_check.begin(PLAN, (PARTITION,), deadline=60.0)
    taken = ProducersDescribed((ActiveProducer(PRODUCER, 0, 4),))
    machine, _ = run(begun, single_check.step, {DescribeProducers: [taken]})
    assert machine.outcome.kind is FailureKind.CONFLICT
    assert "another attempt of this task has written to t-0" in machine.outcome.sentence


@pytest.mark.parametrize("error", [codes.UNKNOWN_TOPIC_OR_PARTITION, codes.NOT_LEADER_OR_FOLLOWER])
def test_a_partition_that_is_new_to_its_leader_is_looked_up_again(error: int) -> None:
    script = {DescribeProducers: [ProducersDescribed(error=error), ProducersDescribed()]}
    begun = single_check.begin(PLAN, (PARTITION,), deadline=60.0)
    machine, asked = run(begun, single_check.step, script)
    assert machine.outcome == Clear()
    assert [each.looks_up for each in asked] == [False, True]
    script = {DescribeProducers: [ProducersDescribed(error=error)]}
    machine, asked = run(begun, single_check.step, script)
    assert f"({error})" in machine.outcome.sentence
    assert len(asked) == 60

"""How a task of mode `single` checks its partitions before its first record.

No other attempt may have written to these partitions in this transaction, for two reasons. Brokers
cannot abort the rows of one attempt and keep those of all others. Also, a broker may take batches
of the second attempt for duplicates of the first attempt's batches (see `guards`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_kafka_sink.commit import guards
from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.commit.outcomes import Clear
from spark_kafka_sink.commit.questions import (
    Answer,
    Ask,
    DescribeProducers,
    ProducersDescribed,
    Question,
)
from spark_kafka_sink.commit.steps import Failure, FailureKind, Step, received
from spark_kafka_sink.commit.trees import TreeSet
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Checking:
    """The state of a task's check of its partitions. waiting: the requests without a reply yet."""

    plan: Plan
    deadline: float
    waiting: TreeSet[Ask]
    outcome: Clear | Failure | None = None


def begin(plan: Plan, partitions: tuple[TopicPartition, ...], *, deadline: float) -> Step[Checking]:
    """Begin to check a task's partitions.

    Return the state machine, with its first requests to the leaders of the partitions.
    """
    asks = tuple(DescribeProducers(each) for each in partitions)
    machine = Checking(plan, deadline, TreeSet.of(asks), None if asks else Clear())
    return Step(machine, tuple(map(Question, asks)))


def step(machine: Checking, answer: Answer, now: float) -> Step[Checking]:
    """Return the state machine after a reply, with the next requests to send to brokers."""
    if answer.ask not in machine.waiting or not isinstance(answer.ask, DescribeProducers):
        return Step(machine)
    at = received(*answer, now)
    if at.asks_again and now < machine.deadline:
        return Step(machine, (at.again(),))
    partition = answer.ask.partition
    if not isinstance(at.reply, ProducersDescribed) or at.found is not Verdict.DONE:
        failure = at.failure(f"it is not known whether another attempt wrote to {partition}")
        return Step(replace(machine, outcome=failure))
    if guards.is_taken(at.reply.producers, machine.plan.producer):
        sentence = (
            f"another attempt of this task has written to {partition}; in mode single the rows of "
            "one attempt cannot be undone alone, so the job fails and no row is visible: "
            "run it again, or use exactlyOnce=two-phase"
        )
        return Step(replace(machine, outcome=Failure(FailureKind.CONFLICT, sentence)))
    waiting = machine.waiting.without(answer.ask)
    return Step(replace(machine, waiting=waiting, outcome=None if waiting else Clear()))

"""Machines of exactly once, with answers that a test has written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_kafka_sink.commit.questions import (
    ActiveProducer,
    Answer,
    Ask,
    DescribeProducers,
    EndTxn,
    ProducersDescribed,
    Question,
    Reply,
)
from spark_kafka_sink.commit.steps import FailureKind, Step
from spark_kafka_sink.model import ProducerIdAndEpoch

# The replies to the asks of each class, in order; the last one is repeated.
Script = Mapping[Any, Sequence[Reply]]


def kind_of(ask: Ask) -> Any:  # noqa: ANN401 - a class, or one of two strings
    """Return what a script calls an ask: its class, or "commit" or "abort"."""
    if isinstance(ask, EndTxn):
        return "commit" if ask.commit else "abort"
    return type(ask)


def kinds(asked: Sequence[Question]) -> list[Any]:
    """Return what was asked, as a script calls it."""
    return [kind_of(question.ask) for question in asked]


def check_old_leaders_are_asked_again(
    commit: Callable[[Script], tuple[Any, list[Question]]],
    producer: ProducerIdAndEpoch,
    held: Sequence[Reply],
    committed: object,
) -> None:
    """Check that a commit asks a leader again that lacks some of five records from offset 20 on.

    commit: runs a commit with a script, for at least ten seconds while a leader lacks records.
    held: the replies of a leader that has the records. committed: the outcome then.
    """
    old: list[Reply] = [
        ProducersDescribed(),
        ProducersDescribed((ActiveProducer(producer, -1, -1),)),
        ProducersDescribed((ActiveProducer(producer, 2, 20),)),
    ]
    outcome, asked = commit({DescribeProducers: [*old, *held]})
    assert outcome == committed
    again = [each for each in asked if isinstance(each.ask, DescribeProducers)]
    assert [each.looks_up for each in again] == [False, True, True, True]
    for lacks in old:
        outcome, asked = commit({DescribeProducers: [lacks]})
        assert outcome.kind is FailureKind.LOST
        assert 8 <= kinds(asked).count(DescribeProducers) <= 10
    # No old state has other records.
    others = ProducersDescribed((ActiveProducer(producer, 4, 19),))
    outcome, asked = commit({DescribeProducers: [others]})
    assert outcome.kind is FailureKind.LOST
    assert kinds(asked).count(DescribeProducers) == 1


def run(
    begun: Step[Any],
    step: Callable[[Any, Answer, float], Step[Any]],
    script: Script,
    now: float = 0.0,
    seconds: float = 1.0,
) -> tuple[Any, list[Question]]:
    """Run a machine to its end; return it, and all questions in order.

    Each answer comes `seconds` after the one before.
    """
    left = {kind: list(replies) for kind, replies in script.items()}
    machine, questions = begun
    asked, open_questions = list(questions), list(questions)
    while machine.outcome is None:
        question = open_questions.pop(0)
        replies = left[kind_of(question.ask)]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        now += seconds
        machine, more = step(machine, Answer(question.ask, reply), now)
        asked += more
        open_questions += more
        assert len(asked) < 1000, "it does not end"
    return machine, asked

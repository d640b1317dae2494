"""One request to a broker. It is sent again until a reply needs no retry.

Brokers close idle connections after some minutes. So the first request of an idle client may get no
response. If brokers do not know the partition of a request, it is not sent again: the partition is
the commit log, which does not exist before the first write of any application.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.questions import Answer, Ask, Question, Reply
from spark_kafka_sink.commit.steps import Step, received


@dataclass(frozen=True, slots=True)
class Asking:
    """The state of one request. outcome: the reply that needs no retry, or None before it."""

    ask: Ask
    deadline: float
    outcome: Reply | None = None


def begin(ask: Ask, *, deadline: float) -> Step[Asking]:
    """Return the state machine that sends one request, and this request."""
    return Step(Asking(ask, deadline), (Question(ask),))


def step(machine: Asking, answer: Answer, now: float) -> Step[Asking]:
    """Return the state machine after a reply, with the request if it has to be sent again."""
    if answer.ask != machine.ask:
        return Step(machine)
    at = received(*answer, now)
    is_missing = answer.reply.error == codes.UNKNOWN_TOPIC_OR_PARTITION
    if at.asks_again and not is_missing and now < machine.deadline:
        return Step(machine, (at.again(),))
    return Step(replace(machine, outcome=answer.reply))

"""What brokers reply to requests of a commit client, each sent once."""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafka_sink.commit.questions import Ask, Question, Reply
from spark_kafka_sink.commit_client import CommitClient


def replies_to(client: CommitClient, asks: Iterable[Ask]) -> list[Reply]:
    """Send requests, and return the replies to all of them in the same order."""
    asked = list(asks)
    client.ask(Question(ask) for ask in asked)
    found: dict[Ask, Reply] = {}
    while len(found) < len(set(asked)):
        found.update(client.answers())
    return [found[ask] for ask in asked]

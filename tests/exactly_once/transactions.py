"""What the brokers have of an application's transactions, for tests to wait for and to check."""

from __future__ import annotations

import time
from collections.abc import Callable

from support.pure.broker_replies import replies_to

from spark_kafka_sink.commit.questions import (
    ONGOING,
    Ask,
    Described,
    DescribeTransaction,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
    Reply,
)
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.model import ProducerIdAndEpoch

IN_TIME_S = 60.0
_PAUSE_S = 0.05
# A coordinator that loads, or moves, or still writes markers.
_NOT_NOW = (14, 15, 16, 51)


def wait_until(is_so: Callable[[], bool], what: str, in_time_s: float = IN_TIME_S) -> None:
    """Wait until something is so. Raise TimeoutError that says what it was."""
    deadline = time.monotonic() + in_time_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(_PAUSE_S)


def answer(client: CommitClient, ask: Ask) -> Reply:
    """Ask until the coordinator can answer."""
    found: list[Reply] = []

    def is_answered() -> bool:
        found[:] = replies_to(client, [ask])
        return found[0].error not in _NOT_NOW

    wait_until(is_answered, f"no answer to {ask}")
    return found[0]


def described(client: CommitClient, transactional_id: str) -> Described:
    """Return the state of a transaction."""
    found = answer(client, DescribeTransaction(transactional_id))
    assert isinstance(found, Described)
    return found


def next_epoch(
    client: CommitClient, transactional_id: str, timeout_ms: int = 60_000
) -> ProducerIdAndEpoch:
    """Fence everybody who has an id; return its next epoch."""
    found = answer(client, InitProducerId(transactional_id, timeout_ms))
    assert isinstance(found, Initialized)
    assert found.error == 0, found
    return found.producer


def open_transactions(client: CommitClient, topic: str, prefix: str = "pykafka/") -> list[str]:
    """Return the ids of the open transactions of owners whose target is a topic."""
    found = answer(client, ListTransactions(prefix))
    assert isinstance(found, Listed)
    ids = (each.transactional_id for each in found.transactions)
    return sorted(each for each in ids if each.split("/")[2] == topic)


def wait_for_timeouts(client: CommitClient, topic: str, timeout_ms: int) -> None:
    """Wait until the brokers have aborted all transactions of owners whose target is a topic."""
    is_over = lambda: open_transactions(client, topic) == []  # noqa: E731 - it is short
    wait_until(is_over, f"transactions are open in {topic}", IN_TIME_S + timeout_ms / 1000)


def wait_for_end(client: CommitClient, transactional_id: str) -> str:
    """Wait until a transaction is neither open nor ending; return its state."""
    found: list[str] = []

    def is_over() -> bool:
        found[:] = [described(client, transactional_id).state]
        return found[0] != ONGOING and not found[0].startswith("Prepare")

    wait_until(is_over, f"{transactional_id} does not end")
    return found[0]

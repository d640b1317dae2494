"""What a coordinator answers to EndTxn in each state of a transaction, on real brokers.

`commit.verdicts` says what each answer means. These are the answers that it rests on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import pytest
from conftest import NewTopic

from exactly_once.transactions import answer, next_epoch, wait_for_end
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.questions import Added, AddPartitions, Ended, EndTxn
from spark_kafka_sink.commit.verdicts import END_TXN_1, END_TXN_2
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.exactly_once,
    pytest.mark.long(reason="it asks brokers what the table of verdicts says, state by state"),
]

ONCE_MS: Final = 60_000
SOON_MS: Final = 1_000


class Transaction:
    """A transaction of a test: its id, and the producer id and epoch it is ended with."""

    def __init__(self, client: CommitClient, partition: TopicPartition, version: int) -> None:
        self.client = client
        self.partition = partition
        self.version = version
        self.transactional_id = f"pykafka/{partition.topic}/t"
        self.producer = ProducerIdAndEpoch(-1, -1)

    def begin(self, timeout_ms: int = ONCE_MS) -> None:
        """Take an epoch, and add a partition."""
        self.producer = next_epoch(self.client, self.transactional_id, timeout_ms)
        ask = AddPartitions(self.transactional_id, self.producer, (self.partition,))
        added = answer(self.client, ask)
        # Brokers learn of a new topic one after the other.
        while isinstance(added, Added) and added.error == codes.UNKNOWN_TOPIC_OR_PARTITION:
            added = answer(self.client, ask)
        assert added == Added()

    def end(self, *, commit: bool, version: int | None = None) -> int:
        """End it, and wait until that is over; return the error."""
        ask = EndTxn(self.transactional_id, self.producer, commit, version or self.version)
        found = answer(self.client, ask)
        assert isinstance(found, Ended)
        if found.error == 0:
            wait_for_end(self.client, self.transactional_id)
        return found.error


def ongoing(transaction: Transaction) -> None:
    transaction.begin()


def committed(transaction: Transaction) -> None:
    transaction.begin()
    assert transaction.end(commit=True) == 0


def committed_by_version_4(transaction: Transaction) -> None:
    transaction.begin()
    assert transaction.end(commit=True, version=END_TXN_1) == 0


def aborted(transaction: Transaction) -> None:
    transaction.begin()
    assert transaction.end(commit=False) == 0


def timed_out(transaction: Transaction) -> None:
    transaction.begin(SOON_MS)
    assert wait_for_end(transaction.client, transaction.transactional_id) == "CompleteAbort"


def fenced(transaction: Transaction) -> None:
    transaction.begin()
    next_epoch(transaction.client, transaction.transactional_id)


def empty(transaction: Transaction) -> None:
    transaction.producer = next_epoch(transaction.client, transaction.transactional_id)


def of_another_producer(transaction: Transaction) -> None:
    transaction.begin()
    transaction.producer = ProducerIdAndEpoch(transaction.producer.producer_id + 1, 0)


def unknown(transaction: Transaction) -> None:
    transaction.producer = ProducerIdAndEpoch(1, 0)


class Expected(NamedTuple):
    """The errors of a commit and of an abort, at level 1 and at level 2."""

    commit: tuple[int, int]
    abort: tuple[int, int]


EXPECTED: Final[dict[Callable[[Transaction], None], Expected]] = {
    ongoing: Expected((0, 0), (0, 0)),
    committed: Expected((0, 0), (48, 48)),
    # A retry has to have the version of the first request, and an abort in another proves nothing.
    committed_by_version_4: Expected((0, 48), (48, 0)),
    aborted: Expected((48, 48), (0, 0)),
    timed_out: Expected((90, 48), (90, 0)),
    fenced: Expected((90, 90), (90, 90)),
    empty: Expected((48, 48), (48, 0)),
    of_another_producer: Expected((49, 49), (49, 49)),
    unknown: Expected((49, 49), (49, 49)),
}


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("state", EXPECTED, ids=lambda state: state.__name__)
def test_the_answer_to_end_txn(
    client: CommitClient,
    new_topic: NewTopic,
    state: Callable[[Transaction], None],
    *,
    commit: bool,
) -> None:
    level = client.level(client.now() + 30)
    version = END_TXN_2 if level == 2 else END_TXN_1
    transaction = Transaction(client, TopicPartition(new_topic(1), 0), version)
    state(transaction)
    expected = EXPECTED[state].commit if commit else EXPECTED[state].abort
    assert transaction.end(commit=commit) == expected[level - 1]

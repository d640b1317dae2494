"""Random calls, responses and failures in any order: the state machine stays within its table.

A call either raises a KafkaException or returns a result, a fatal error ends every wait, and once
responses are successful again, every wait ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from support.pure.pure_transactions import GROUP, OFFSETS, PureTransactions
from support.pure.transaction_answers import COORDINATOR, versions_of

from spark_kafka_sink.errors import ERROR_CODES, KafkaException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.transactions.requests import (
    TransactionalRequest,
    TransactionalResult,
)
from spark_kafka_sink.producer.transactions.state import TRANSITIONS, TransactionState

S = TransactionState
# Codes that end the producer come seldom, or no history would get far.
_CODES = [0] * 30 + [14, 15, 16, 51, 120, 59, 30] * 2 + [*ERROR_CODES]


class History:
    """One random history; everything that callers wait for is in `waiting`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.transactions = PureTransactions(
            self.random.choice([0, 1, 2]), self.random.choice([2, 5, 5, 5])
        )
        self.in_flight: TransactionalRequest | None = None
        self.waiting: list[TransactionalResult] = []
        self.acknowledges = True

    def step(self) -> None:
        """Do one of the things that can happen."""
        manager = self.transactions.manager
        calls: list[Callable[[], object]] = [
            manager.initialize,
            manager.begin,
            manager.begin_commit,
            manager.begin_abort,
            lambda: manager.send_offsets(OFFSETS, GROUP),
            lambda: manager.may_send(TopicPartition("t", self.random.randrange(4))),
        ]
        others = [
            self.send, self.send, self.send, self.answer, self.answer, self.answer, self.lose,
            self.lose_node, self.upgrade, self.fail_batch, self.acknowledge,
        ]  # fmt: skip
        if self.random.random() < 0.4:
            self.call(self.random.choice(calls))
        else:
            self.random.choice(others)()

    def call(self, ask: Callable[[], object]) -> None:
        """Make a call, which may be rejected."""
        try:
            result = ask()
        except KafkaException:
            return
        if isinstance(result, TransactionalResult) and result not in self.waiting:
            self.waiting.append(result)

    def acknowledge(self) -> None:
        """Let callers take note of what their calls came to."""
        for result in self.waiting:
            result.is_acknowledged = result.is_acknowledged or result.is_done

    def send(self) -> None:
        """Send what is due."""
        self.transactions.now += self.random.random()
        incomplete = self.random.random() < 0.1
        request = self.transactions.manager.due(self.transactions.now, has_incomplete=incomplete)
        if request is not None:
            assert self.in_flight is None, "two requests in flight"
            self.transactions.manager.queue.sent()
            self.in_flight = request

    def answer(self) -> None:
        """Answer what is in flight with some code."""
        if self.in_flight is not None:
            request, self.in_flight = self.in_flight, None
            self.transactions.answer(request, self.random.choice(_CODES))

    def lose(self) -> None:
        """Lose what is in flight."""
        if self.in_flight is not None:
            request, self.in_flight = self.in_flight, None
            self.transactions.lose(request)

    def lose_node(self) -> None:
        """Lose the connection to the coordinator."""
        self.lose()
        self.transactions.manager.queue.coordinators.node_down(COORDINATOR)

    def upgrade(self) -> None:
        """Let the cluster finalize another version, rarely."""
        if self.random.random() < 0.1:
            versions = versions_of(self.random.choice([1, 2]))
            versions.finalized_features_epoch = 11
            self.transactions.manager.queue.coordinators.node_ready(COORDINATOR, versions)

    def fail_batch(self) -> None:
        """Fail a batch, if there can be one."""
        if self.transactions.state in (S.IN_TRANSACTION, S.COMMITTING, S.ABORTING):
            self.transactions.fail_a_batch()

    def settle(self) -> None:
        """Answer all that is left, without errors."""
        if self.in_flight is not None:
            request, self.in_flight = self.in_flight, None
            self.transactions.answer(request)
        self.transactions.now += 100.0
        self.transactions.run()


def _reachable(state: TransactionState) -> Iterator[set[TransactionState]]:
    """Yield the states within zero, one and two transitions: those reachable in one step."""
    found = {state}
    for _ in range(3):
        yield found
        found = found | {to for each in found for to in TRANSITIONS[each]}


@pytest.mark.parametrize("block", range(10))
def test_random_histories_stay_within_the_table_and_every_wait_ends(block: int) -> None:
    seen: set[TransactionState] = set()
    for seed in range(block * 200, block * 200 + 200):
        history = History(seed)
        manager = history.transactions.manager
        for _ in range(120):
            *_, allowed = _reachable(manager.state)
            history.step()
            assert manager.state in allowed, f"seed {seed}"
            failed = manager.state in (S.ABORTABLE_ERROR, S.FATAL_ERROR)
            # An abort keeps the error that it is for until it is done.
            assert failed <= (manager.error is not None), f"seed {seed}"
            if manager.state is S.FATAL_ERROR:
                assert all(result.is_done for result in history.waiting), f"seed {seed}"
            seen.add(manager.state)
        history.settle()
        assert all(result.is_done for result in history.waiting), f"seed {seed}"
        waits = (S.INITIALIZING, S.COMMITTING, S.ABORTING)
        assert manager.state not in waits, f"seed {seed}"
    assert seen == set(TransactionState)

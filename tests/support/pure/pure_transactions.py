"""The state machine of a transactional producer: the test is sender, coordinator and clock."""

from __future__ import annotations

from random import Random

import pytest

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.producer.error_actions import Action, Call
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.requests import (
    TransactionalRequest,
    TransactionalResult,
)
from spark_kafka_sink.producer.transactions.state import TransactionState
from spark_kafka_sink.records.compression import NO_COMPRESSION
from support.pure.transaction_answers import COORDINATOR, TransactionCoordinator, versions_of

EVERY_VERSION = pytest.mark.parametrize("version", [0, 1, 2], ids="transaction.version={}".format)
PARTITION = TopicPartition("t", 0)
GROUP = ConsumerGroupMetadata("group", 3, "member", "instance")
OFFSETS = {TopicPartition("read", 1): OffsetAndMetadata(42, "so far")}


class PureTransactions:
    """A TransactionManager; version: the cluster's transaction.version, 0 for none."""

    def __init__(self, version: int = 2, init_producer_id: int = 5) -> None:
        self.sequences = Sequences(is_transactional=True)
        backoff = ExponentialBackoff(0.1, 1.0)
        self.manager = TransactionManager("tid", 60_000, self.sequences, backoff, Random(1))
        self.coordinator = TransactionCoordinator()
        self.now = 0.0
        self.manager.queue.coordinators.node_ready(
            COORDINATOR, versions_of(version, init_producer_id)
        )

    @property
    def state(self) -> TransactionState:
        """The state of the producer."""
        return self.manager.state

    def take(self, *, has_incomplete: bool = False) -> TransactionalRequest:
        """Return the request that is due, and record that it was sent."""
        request = self.manager.due(self.now, has_incomplete=has_incomplete)
        assert request is not None, "no request is due"
        self.manager.queue.sent()
        return request

    def take_until(self, call: Call) -> TransactionalRequest:
        """Answer requests until one of kind `call` is due, and return it."""
        while (request := self.take()).call is not call:
            self.answer(request)
        return request

    def answer(self, request: TransactionalRequest, code: int = 0) -> None:
        """Answer a request with an error code."""
        response = self.coordinator.answer(request, code)
        self.manager.answered(request, response, COORDINATOR, self.now)

    def lose(self, request: TransactionalRequest, code: int = 13) -> None:
        """Fail a request because its connection was lost."""
        self.manager.request_failed(request, code, "connection lost", self.now)

    def run(self) -> list[TransactionalRequest]:
        """Answer all requests that are due, and return them."""
        answered = []
        while (request := self.manager.due(self.now, has_incomplete=False)) is not None:
            self.manager.queue.sent()
            self.answer(request)
            answered.append(request)
        return answered

    def finish(self, result: TransactionalResult) -> list[Call]:
        """Answer requests until a call is finished; return the kinds of the requests."""
        calls = [request.call for request in self.run()]
        assert result.is_done
        assert result.error is None
        result.is_acknowledged = True
        return calls

    def ready(self) -> PureTransactions:
        """Initialize the producer."""
        self.finish(self.manager.initialize())
        return self

    def begun(self) -> PureTransactions:
        """Initialize the producer and begin a transaction."""
        self.ready().manager.begin()
        return self

    def writing(self) -> PureTransactions:
        """Initialize, begin and add a partition to the transaction."""
        self.begun().manager.may_send(PARTITION)
        self.run()
        assert self.manager.may_send(PARTITION)
        return self

    def batch(self) -> ProducerBatch:
        """Return a batch that was sent in the transaction."""
        batch = ProducerBatch(PARTITION, NO_COMPRESSION, 0, 0.0)
        batch.assign_sequence(ProducerIdAndEpoch(4000, 0), 0, transactional=True)
        return batch

    def fail_a_batch(self, error: KafkaException | None = None) -> KafkaException:
        """Fail a batch that was sent."""
        error = error or KafkaException("a record was refused")
        self.manager.batch_failed(self.batch(), error, Action.ABORTABLE)
        return error

    def in_state(self, state: TransactionState) -> PureTransactions:
        """Bring the producer from UNINITIALIZED to a state."""
        match state:
            case TransactionState.INITIALIZING:
                self.manager.initialize()
            case TransactionState.READY:
                self.ready()
            case TransactionState.IN_TRANSACTION:
                self.writing()
            case TransactionState.COMMITTING:
                self.writing().manager.begin_commit()
            case TransactionState.ABORTING:
                self.writing().manager.begin_abort()
            case TransactionState.ABORTABLE_ERROR:
                self.writing().fail_a_batch()
            case TransactionState.FATAL_ERROR:
                self.manager.give_up(KafkaException("it is over"))
        assert self.state is state
        return self

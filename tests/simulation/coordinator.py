"""The transaction coordinators of a simulation, for any number of transactional ids.

They do what TransactionCoordinator and TransactionMarkerChannelManager of Kafka 4.3 do: fencing,
epoch bumps, the replacement of an exhausted producer id, transaction.version 1 and 2 (KIP-890),
aborts after transaction.timeout.ms, and markers, which group offsets get as rows do. An id belongs
to one of the logs. When that gets another leader, pending writes are lost, and completed ones
continue there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final

from simulation.controller import Broker, Controller, Reply
from simulation.coordinator_log import (
    OFFSETS_LOG,
    CoordinatorLog,
    find_coordinator,
    log_of,
    transaction_logs,
)
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.wire.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
)

_LAST_EPOCH: Final = 2**15 - 2  # the last epoch of a client; the next one is for fencing
_UNREACHABLE: Final = (14, 15, 16, 19)
_SWEEP_S: Final = 0.5
# The first version of EndTxn that bumps the epoch (KIP-890).
_END_TXN_V2: Final = 5


class State(Enum):
    """The state of a transaction."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare commit"
    PREPARE_ABORT = "prepare abort"
    COMPLETE_COMMIT = "complete commit"
    COMPLETE_ABORT = "complete abort"


_PREPARED: Final = (State.PREPARE_COMMIT, State.PREPARE_ABORT)


@dataclass(slots=True, eq=False)
class Transaction:
    """The state of a transactional id in its coordinator's log.

    next_producer_id: replaces an exhausted one once the markers are written, else -1.
    writing_since: the leader epoch of a pending write, -1 without one. generation: counts the ends
    of transactions. losses: the epochs that
    the timeout or InitProducerId aborted, with their producer ids.
    """

    transactional_id: str
    log: CoordinatorLog
    producer_id: int
    epoch: int
    last_producer_id: int = -1
    last_epoch: int = -1
    next_producer_id: int = -1
    state: State = State.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    began_at: float = 0.0
    timeout_s: float = 0.0
    writing_since: int = -1
    generation: int = 0
    losses: set[tuple[int, int]] = field(default_factory=set)

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a client."""
        return self.epoch >= _LAST_EPOCH


class TransactionCoordinator:
    """The coordinators of all transactional ids."""

    def __init__(self, cluster: Controller, first_producer_id: int) -> None:
        self._cluster = cluster
        self._scheduler = cluster.scheduler
        self._random = cluster.random
        self._is_v2 = cluster.shape.transaction_version >= 2
        self._next_producer_id = first_producer_id
        count = cluster.shape.transaction_logs
        self.logs = {tp: CoordinatorLog(cluster, tp) for tp in transaction_logs(count)}
        self.transactions: dict[str, Transaction] = {}
        self.handlers: dict[type, Callable[[Broker, Any, Reply], None]] = {
            FindCoordinatorRequest: partial(find_coordinator, transaction_logs=count),
            InitProducerIdRequest: self._init_producer_id,
            AddPartitionsToTxnRequest: self._add_partitions,
            AddOffsetsToTxnRequest: self._add_offsets,
            EndTxnRequest: self._end_txn,
        }
        self._scheduler.after(_SWEEP_S, self._sweep)

    @property
    def is_settled(self) -> bool:
        """Whether all markers are written."""
        return all(each.state not in _PREPARED for each in self.transactions.values())

    def log(self, transactional_id: str) -> CoordinatorLog:
        """Return the log that has the transactions of an id."""
        return self.logs[log_of(transactional_id, len(self.logs))]

    # -- requests ---------------------------------------------------------------------------------

    def _init_producer_id(
        self, broker: Broker, request: InitProducerIdRequest, reply: Reply
    ) -> None:
        name = request.transactional_id or ""

        def answer(code: int) -> None:
            known = self.transactions.get(name)
            if code != codes.NONE or known is None:
                reply(InitProducerIdResponse(error_code=code))
            else:
                reply(
                    InitProducerIdResponse(
                        error_code=code,
                        producer_id=known.producer_id,
                        producer_epoch=known.epoch,
                        throttle_time_ms=broker.throttle_ms,
                    )
                )

        refusal = self.log(name).refusal(broker)
        if refusal != codes.NONE:
            answer(refusal)
            return
        self._raise_epoch(
            broker,
            name,
            (request.producer_id, request.producer_epoch),
            request.transaction_timeout_ms / 1000,
            answer,
        )

    def _raise_epoch(
        self,
        broker: Broker,
        name: str,
        expected: tuple[int, int],
        timeout_s: float,
        answer: Callable[[int], None],
    ) -> None:
        """Assign the next epoch; expected: the producer's current one, (-1, -1) for a new one."""
        known = self.transactions.get(name)
        if known is None:
            first = min(self._cluster.shape.first_epoch, _LAST_EPOCH - 2)
            known = Transaction(name, self.log(name), self._new_producer_id(), first - 1)
            self.transactions[name] = known
        producer_id, epoch = expected
        is_new = producer_id < 0
        is_older = producer_id == known.last_producer_id and epoch >= _LAST_EPOCH
        if self._is_writing(known) or known.state in _PREPARED:
            answer(codes.CONCURRENT_TRANSACTIONS)
        elif not is_new and producer_id != known.producer_id and not is_older:
            answer(codes.PRODUCER_FENCED)
        elif known.state is State.ONGOING:
            self._write(broker, known, lambda: self._fence(known), answer_with(answer, 51))
        elif known.is_exhausted and (is_new or epoch == known.epoch):
            last = -1 if is_new else known.epoch
            self._write(broker, known, lambda: self._rotate(known, last, timeout_s), answer)
        elif is_new or epoch == known.epoch:
            last = -1 if is_new else known.epoch
            self._write(broker, known, lambda: self._bump(known, last, timeout_s), answer)
        elif epoch == known.last_epoch:
            answer(codes.NONE)
        else:
            answer(codes.PRODUCER_FENCED)

    def _add_partitions(
        self, broker: Broker, request: AddPartitionsToTxnRequest, reply: Reply
    ) -> None:
        partitions = {
            TopicPartition(topic.name, number)
            for topic in request.v3_and_below_topics
            for number in topic.partitions
        }

        def answer(code: int) -> None:
            reply(
                AddPartitionsToTxnResponse(
                    throttle_time_ms=broker.throttle_ms,
                    results_by_topic_v3_and_below=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=number, partition_error_code=code
                                )
                                for number in topic.partitions
                            ],
                        )
                        for topic in request.v3_and_below_topics
                    ],
                )
            )

        producer = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        name = request.v3_and_below_transactional_id
        self._add_by_request(broker, name, producer, partitions, answer)

    def _add_offsets(self, broker: Broker, request: AddOffsetsToTxnRequest, reply: Reply) -> None:
        def answer(code: int) -> None:
            reply(AddOffsetsToTxnResponse(error_code=code, throttle_time_ms=broker.throttle_ms))

        producer = request.producer_id, request.producer_epoch
        self._add_by_request(broker, request.transactional_id, producer, {OFFSETS_LOG}, answer)

    def _add_by_request(
        self,
        broker: Broker,
        name: str,
        producer: tuple[int, int],
        partitions: set[TopicPartition],
        answer: Callable[[int], None],
    ) -> None:
        """Add partitions to the transaction at the producer's request."""
        code = self.log(name).refusal(broker) or self._check_producer(name, *producer)
        known = self.transactions.get(name)
        if code != codes.NONE or known is None:
            answer(code)
        elif known.state is State.ONGOING and partitions <= known.partitions:
            answer(codes.NONE)
        else:
            self._write(broker, known, lambda: self._add(known, partitions), answer)

    def _check_producer(self, name: str, producer_id: int, epoch: int) -> int:
        """Return the error of a producer that cannot add to the transaction, NONE if it can."""
        known = self.transactions.get(name)
        if known is None:
            return codes.INVALID_PRODUCER_ID_MAPPING
        if self._is_writing(known) or known.state in _PREPARED:
            return codes.CONCURRENT_TRANSACTIONS
        if known.producer_id != producer_id:
            return codes.INVALID_PRODUCER_ID_MAPPING
        return codes.NONE if known.epoch == epoch else codes.PRODUCER_FENCED

    def verify(self, tp: TopicPartition, name: str, producer_id: int, epoch: int) -> int:
        """Return the error of a producer whose records a leader must not accept, NONE if it may.

        With version 2 this adds the partition to the transaction.
        """
        known = self.transactions.get(name)
        if not self.log(name).is_loaded:
            return self._random.choice(_UNREACHABLE)
        code = self._check_producer(name, producer_id, epoch)
        if code == codes.PRODUCER_FENCED:
            return codes.INVALID_PRODUCER_EPOCH
        if code != codes.NONE or known is None:
            return code
        if self._is_v2:
            self._add(known, {tp})
        elif known.state is not State.ONGOING or tp not in known.partitions:
            return codes.TRANSACTION_ABORTABLE
        return codes.NONE

    def _end_txn(self, broker: Broker, request: EndTxnRequest, reply: Reply) -> None:
        name, is_v2 = request.transactional_id, self._cluster.version >= _END_TXN_V2

        def answer(code: int) -> None:
            known = self.transactions.get(name)
            returns_producer = code == codes.NONE and is_v2 and known is not None
            producer = self._next_of(known) if returns_producer and known is not None else (-1, -1)
            reply(
                EndTxnResponse(
                    error_code=code,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    throttle_time_ms=broker.throttle_ms,
                )
            )

        refusal = self.log(name).refusal(broker)
        known = self.transactions.get(name)
        if refusal != codes.NONE or known is None:
            answer(refusal or codes.INVALID_PRODUCER_ID_MAPPING)
            return
        code = self._end_error(known, request, is_v2=is_v2)
        if code is not None:
            answer(code)
            return
        end = partial(self._prepare, known, commit=request.committed, is_v2=is_v2)
        self._write(broker, known, end, answer)

    def _end_error(self, known: Transaction, request: EndTxnRequest, *, is_v2: bool) -> int | None:
        """Return the response to EndTxn, None if the transaction has to be ended first."""
        producer = request.producer_id, request.producer_epoch
        is_repeated = is_v2 and self._is_repeated(known, *producer)
        is_busy = self._is_writing(known) or known.state in _PREPARED
        if is_busy and is_v2:
            return codes.CONCURRENT_TRANSACTIONS
        if not is_repeated and producer != (known.producer_id, known.epoch):
            is_older = request.producer_id == known.producer_id
            return codes.PRODUCER_FENCED if is_older else codes.INVALID_PRODUCER_ID_MAPPING
        if is_busy:
            return codes.CONCURRENT_TRANSACTIONS
        if known.state is State.ONGOING:
            return None
        if is_v2 and not is_repeated:
            # Nothing was added to the next transaction; an abort bumps the epoch all the same.
            return codes.INVALID_TXN_STATE if request.committed else None
        ended = State.COMPLETE_COMMIT if request.committed else State.COMPLETE_ABORT
        return codes.NONE if known.state is ended else codes.INVALID_TXN_STATE

    @staticmethod
    def _is_repeated(known: Transaction, producer_id: int, epoch: int) -> bool:
        """Whether the producer may not know that its transaction has ended."""
        if known.state not in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            return False
        if known.epoch == 0 and (producer_id, epoch) == (known.last_producer_id, _LAST_EPOCH):
            return True
        return (producer_id, epoch) == (known.producer_id, known.epoch - 1)

    # -- what is written --------------------------------------------------------------------------

    def _is_writing(self, known: Transaction) -> bool:
        return known.writing_since == self._cluster.truth[known.log.tp].epoch

    def _write(
        self,
        broker: Broker,
        known: Transaction,
        change: Callable[[], None],
        answer: Callable[[int], None],
    ) -> None:
        """Write to the coordinator's log after a delay; the write may be lost with its leader."""
        log = known.log.tp
        known.writing_since = epoch = self._cluster.truth[log].epoch

        def written() -> None:
            if self._cluster.truth[log].epoch != epoch:
                answer(codes.NOT_COORDINATOR)
                return
            known.writing_since = -1
            change()
            self._scheduler.trace(
                "coordinator", "{} pid {} epoch {} {} {}", known.transactional_id,
                known.producer_id, known.epoch, known.state.value,
                ", ".join(map(str, sorted(known.partitions))),
            )  # fmt: skip
            answer(codes.NONE)

        self._scheduler.after(self._random.uniform(0.0002, 0.01), written)

    def _new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    @staticmethod
    def _bump(known: Transaction, last_epoch: int, timeout_s: float) -> None:
        known.epoch, known.last_epoch = known.epoch + 1, last_epoch
        known.last_producer_id = known.producer_id
        known.state, known.timeout_s = State.EMPTY, timeout_s

    def _rotate(self, known: Transaction, last_epoch: int, timeout_s: float) -> None:
        known.last_producer_id, known.producer_id = known.producer_id, self._new_producer_id()
        known.epoch, known.last_epoch = 0, last_epoch
        known.state, known.timeout_s = State.EMPTY, timeout_s

    def _add(self, known: Transaction, partitions: set[TopicPartition]) -> None:
        if known.state is not State.ONGOING:
            known.state, known.began_at = State.ONGOING, self._scheduler.now
        known.partitions |= partitions

    def _fence(self, known: Transaction) -> None:
        """Abort the open transaction with an epoch that no producer gets."""
        known.losses.add((known.producer_id, known.epoch))
        known.epoch, known.last_epoch = known.epoch + 1, -1
        self._begin_to_end(known, State.PREPARE_ABORT)

    def _prepare(self, known: Transaction, *, commit: bool, is_v2: bool) -> None:
        if is_v2:
            if known.is_exhausted:
                known.next_producer_id = self._new_producer_id()
            known.last_epoch, known.epoch = known.epoch, known.epoch + 1
        self._begin_to_end(known, State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)

    @staticmethod
    def _next_of(known: Transaction) -> tuple[int, int]:
        """Return the producer id and epoch of the next transaction."""
        if known.next_producer_id >= 0:
            return known.next_producer_id, 0
        return known.producer_id, known.epoch

    # -- markers ----------------------------------------------------------------------------------

    def _begin_to_end(self, known: Transaction, state: State) -> None:
        known.state = state
        known.generation += 1
        for tp in sorted(known.partitions):
            delay = self._random.uniform(0.0005, 0.02)
            self._scheduler.after(delay, self._mark, known, known.generation, tp)
        if not known.partitions:
            self._scheduler.after(0.001, self._complete, known, known.generation)

    def _mark(self, known: Transaction, generation: int, tp: TopicPartition) -> None:
        """Write a marker, and wait until every in-sync replica has it."""
        if known.generation != generation or tp not in known.partitions:
            return
        truth = self._cluster.truth[tp]
        leader = self._cluster.brokers.get(truth.leader)
        can_write = (
            known.log.is_loaded
            and leader is not None
            and leader.is_alive
            and leader.known[tp].epoch == truth.epoch
            and leader.paused_until <= self._scheduler.now
        )
        if leader is None or not can_write:
            self._scheduler.after(0.03, self._mark, known, generation, tp)
            return
        is_commit = known.state is State.PREPARE_COMMIT
        end = leader.logs[tp].mark(known.producer_id, known.epoch, is_commit=is_commit)
        self._scheduler.trace(
            f"broker {leader.id}", "{} {} pid {} epoch {}", tp,
            "committed" if is_commit else "aborted", known.producer_id, known.epoch,
        )  # fmt: skip
        self._cluster.schedule_fetches(leader, tp)
        self._scheduler.after(0.004, self._marked, known, generation, tp, truth.epoch, end)

    def _marked(
        self, known: Transaction, generation: int, tp: TopicPartition, epoch: int, end: int
    ) -> None:
        truth = self._cluster.truth[tp]
        leader = self._cluster.brokers.get(truth.leader)
        if truth.epoch != epoch or leader is None or not leader.is_alive:
            self._mark(known, generation, tp)  # it may be lost, and a second one does no harm
        elif self._cluster.high_watermark(leader, tp) < end:
            self._scheduler.after(0.02, self._marked, known, generation, tp, epoch, end)
        else:
            known.partitions.discard(tp)
            if not known.partitions:
                self._complete(known, generation)

    def _complete(self, known: Transaction, generation: int) -> None:
        if known.generation != generation or known.state not in _PREPARED:
            return
        if not known.log.is_loaded or self._is_writing(known):
            self._scheduler.after(0.02, self._complete, known, generation)
            return
        is_commit = known.state is State.PREPARE_COMMIT
        known.state = State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT
        if known.next_producer_id >= 0:
            known.last_producer_id, known.producer_id = known.producer_id, known.next_producer_id
            known.epoch, known.next_producer_id = 0, -1

    # -- what others do ---------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Abort the transactions that exceed their timeouts."""
        for known in self.transactions.values():
            if known.state is State.ONGOING and known.log.is_loaded:
                is_late = self._scheduler.now > known.began_at + known.timeout_s
                if is_late and not self._is_writing(known):
                    self._scheduler.trace(
                        "coordinator", "{} takes too long", known.transactional_id
                    )
                    self._fence(known)
        self._scheduler.after(_SWEEP_S, self._sweep)

    def let_rival_in(self) -> None:
        """Let another producer take over the first transactional id and disappear."""
        known = next(iter(self.transactions.values()), None)
        if known is None or not known.log.is_loaded:
            return
        leader = self._cluster.brokers[self._cluster.truth[known.log.tp].leader]

        def again(code: int) -> None:
            if code == codes.CONCURRENT_TRANSACTIONS:
                self._scheduler.after(0.02, self.let_rival_in)

        self._raise_epoch(leader, known.transactional_id, (-1, -1), known.timeout_s, again)


def answer_with(answer: Callable[[int], None], code: int) -> Callable[[int], None]:
    """Return a response function that sends `code` instead of success."""
    return lambda found: answer(code if found == codes.NONE else found)

"""BatchCompletion: determines the result of a batch, and does what the result requires.

It handles every response to a Produce request (like Sender.completeBatch of the Java client), with
the rules of `error_actions`: retry the batch, split it, or fail it. `_decide` only returns what to
do; the state of the batch and everything else are changed afterwards. This module sends nothing.
The messages for users are in `batch_errors`. `Deliveries` counts the acknowledged records of each
partition.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final, Protocol

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import AuthenticationException, KafkaException, Option, error_code
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batch_errors import (
    IN_DOUBT,
    OVERTAKEN,
    error_of_attempt,
    error_of_batch,
    error_of_expired_batch,
    joined,
    reason_of,
    record_errors,
    why_no_leader,
)
from spark_kafka_sink.producer.batch_state import BatchAction, BatchState
from spark_kafka_sink.producer.error_actions import Action, Call, ProducerKind, error_action
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sequences import Sequences, is_not_written, may_be_written
from spark_kafka_sink.wire.messages import PartitionProduceResponse

# A broker rejects a batch while it verifies a batch of another producer in the same transaction.
# These are the shortest and the longest wait, in seconds, before the rejected batch is sent again.
# With these waits, all of 100 producers have written their first batch after 0.2 s.
_CONCURRENT_WAIT_S: Final = (0.010, 0.060)


class BatchTransaction(Protocol):
    """The members of `TransactionManager` and `JoinedTransaction` that `BatchCompletion` uses."""

    @property
    def transactional_id(self) -> str:
        """The transactional.id of the transaction."""

    @property
    def gives_up(self) -> bool:
        """Whether the transaction will be aborted. Its unsent records then need not be sent."""

    @property
    def may_renumber(self) -> bool:
        """Whether batches may be renumbered from 0 if a broker no longer knows the producer."""

    def reads_back(self, batch: ProducerBatch) -> bool:
        """Return whether an acknowledged batch must be compared with the batch in the log."""

    def is_concurrent(self, code: int, attempts: int) -> bool:
        """Return whether a broker rejected a batch while verifying another producer's batch."""

    def reported(self, error: KafkaException) -> KafkaException:
        """Return the error to report for the records of a batch that failed with `error`."""

    def batch_failed(self, batch: ProducerBatch, error: KafkaException, action: Action) -> None:
        """Record that some records of the transaction have failed."""


class Decision(Enum):
    """What to do with a batch whose attempt has failed."""

    RETRY = "send it again after a wait"
    RENUMBER = "wait until no broker can write it, then send it again with another sequence"
    SPLIT = "send it again as smaller batches"
    GIVE_UP = "report the error"


class BatchCompletion:
    """Completes batches, and adds each finished batch to `done`, from which the caller removes it.

    fatal_error: the error after which the producer cannot continue, None if there is no such error.
    node_troubles: for each node that lost its connection or never had one, the reason.
    """

    def __init__(
        self,
        *,
        accumulator: RecordAccumulator,
        metadata: ClusterMetadata,
        sequences: Sequences | None,
        retries: int,
        delivery_timeout_s: float,
        retry_backoff: ExponentialBackoff,
        random: Random,
        transactions: BatchTransaction | None = None,
    ) -> None:
        self.fatal_error: KafkaException | None = None
        self.follow(sequences, transactions)
        self._accumulator = accumulator
        self._metadata = metadata
        self._retries = retries
        self._delivery_timeout_s = delivery_timeout_s
        self._retry_backoff = retry_backoff
        self._random = random
        self.done = deque[ProducerBatch]()
        self.node_troubles: dict[int, str] = {}
        # By node: the authentication error since the last time that its connection was ready.
        self._refusals: dict[int, AuthenticationException] = {}
        # For messages: for how long (in seconds) a node throttles this client, and until when.
        self._throttles: dict[int, tuple[float, float]] = {}
        # Only the first retry for each of these error codes has added a warning.
        self._retried: set[int] = set()
        self._warnings: list[str] = []

    def follow(self, sequences: Sequences | None, transactions: BatchTransaction | None) -> None:
        """Use these sequences and this transaction from now on, each None if there is none."""
        self._sequences = sequences
        self._transactions = transactions
        self._kind = _kind(sequences, transactions)

    def take_warnings(self) -> list[str]:
        """Return the warnings since the last call; the caller logs them without the lock."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def node_ready(self, node_id: int) -> None:
        """Record that a node has a connection."""
        self.node_troubles.pop(node_id, None)
        self._refusals.pop(node_id, None)

    def node_down(self, node_id: int, reason: str, error: AuthenticationException | None) -> None:
        """Record that a node has no connection.

        error: the error if authentication between node and client failed, otherwise None.
        """
        self.node_troubles[node_id] = reason
        if error is not None:
            self._refusals[node_id] = error

    def forget_warnings(self) -> None:
        """Forget past warnings: log one again at the first retry for each error code."""
        self._retried.clear()

    def node_throttled(self, node_id: int, until: float, now: float) -> None:
        """Record until when a node throttles this client, for example for a quota (KIP-219)."""
        self._throttles[node_id] = (until - now, until)

    # -- responses --------------------------------------------------------------------------------

    def answered(
        self, batch: ProducerBatch, answer: PartitionProduceResponse, node_id: int, now: float
    ) -> None:
        """Complete a batch according to the broker's response."""
        if error_action(answer.error_code, Call.PRODUCE, self._kind) is Action.SUCCEED:
            if answer.error_code == codes.NONE and batch.origin is not None:
                # If the broker had written the original batch, it would reject the part.
                batch.origin_not_written()
            self._accumulator.acknowledged(node_id, now)
            self.succeeded(batch, answer.base_offset, answer.log_append_time_ms)
        else:
            reason = reason_of(batch, answer)
            self.failed(batch, answer.error_code, reason, node_id, now, answer)

    def succeeded(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        """Complete a batch that a broker has written."""
        if batch.state is BatchState.ABANDONED:
            self._late(batch, succeeded=True)
            return
        ends = batch.succeed(base_offset, log_append_time_ms)
        if self._transactions is not None and self._transactions.reads_back(batch):
            batch.keep()
        self._end(batch, ends, succeeded=True)

    def failed(
        self,
        batch: ProducerBatch,
        code: int,
        reason: str,
        node_id: int | None,
        now: float,
        answer: PartitionProduceResponse | None = None,
        *,
        was_sent: bool = True,
    ) -> None:
        """Retry, split or fail a batch after an error code of a broker or a network error.

        was_sent: whether the batch may have reached the broker in this attempt.
        """
        # Even if the failure was reported already, the partition's next batches need the metadata.
        if error_code(code).refresh_metadata:
            self._metadata.request_update()
        is_unanswered = may_be_written(batch, code, answer, was_sent=was_sent)
        if batch.state is BatchState.ABANDONED:
            batch.is_unanswered = is_unanswered
            self._late(batch, succeeded=False)
            return
        self._accumulator.keep_progress(batch)
        decision = self._decide(batch, code, now, answer)
        batch.is_unanswered = is_unanswered
        if decision is Decision.SPLIT:
            self._split(batch, now)
        elif decision is Decision.GIVE_UP:
            self._give_up(batch, code, reason, node_id, now, answer)
        else:
            if decision is Decision.RENUMBER and self._sequences is not None:
                self._sequences.request_epoch_bump(batch)
            self._retry(batch, code, reason, node_id, now)

    # -- what to do about an error; this changes nothing ------------------------------------------

    def _decide(
        self, batch: ProducerBatch, code: int, now: float, answer: PartitionProduceResponse | None
    ) -> Decision:
        """Return what to do with a batch in flight whose attempt failed with the error `code`."""
        action = error_action(code, Call.PRODUCE, self._kind)
        if action is Action.SPLIT and batch.record_count > 1:
            return Decision.SPLIT
        is_last = batch.retries >= self._retries and not self._is_concurrent(batch, code)
        if is_last or self._has_run_out(batch, now):
            return Decision.GIVE_UP
        is_in_doubt = batch.is_in_doubt and is_not_written(code, answer)
        if is_in_doubt or self._is_overtaken(batch, code):
            return Decision.GIVE_UP
        if action is Action.CHECK_SEQUENCE and self._sequences is not None:
            log_start = -1 if answer is None else answer.log_start_offset
            if self._transactions is not None:
                return _decide_in_transaction(
                    batch, code, log_start, self._sequences, self._transactions
                )
            return _decide_by_sequence(batch, code, log_start, self._sequences)
        return Decision.RETRY if action is Action.RETRY else Decision.GIVE_UP

    def _is_overtaken(self, batch: ProducerBatch, code: int) -> bool:
        """Return whether a broker cannot accept a batch any more, because it has a later one."""
        sequences = self._sequences if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER else None
        return sequences is not None and sequences.is_overtaken(batch)

    def _is_concurrent(self, batch: ProducerBatch, code: int) -> bool:
        """Return whether a broker was busy with another producer's batch. This is no retry."""
        transactions = self._transactions
        return transactions is not None and transactions.is_concurrent(code, batch.attempts)

    def _has_run_out(self, batch: ProducerBatch, now: float) -> bool:
        return now >= self._accumulator.expires_at(batch)

    # -- actions ----------------------------------------------------------------------------------

    def _split(self, batch: ProducerBatch, now: float) -> None:
        """Replace a batch with smaller batches to send. This does not count as an attempt."""
        parts = self._accumulator.split(batch, now)
        if self._sequences is not None:
            self._sequences.replace(batch, parts)
        self._accumulator.deallocate(batch)
        self.done.append(batch)

    def _retry(
        self, batch: ProducerBatch, code: int, reason: str, node_id: int | None, now: float
    ) -> None:
        # If the metadata already contains a newer leader, there is no need to wait (KIP-951).
        moved = self._metadata.leader_epoch(batch.topic_partition) != batch.leader_epoch
        is_concurrent = self._is_concurrent(batch, code)
        if is_concurrent:
            wait = self._random.uniform(*_CONCURRENT_WAIT_S)
        else:
            wait = self._retry_backoff.delay_s(batch.retries, self._random)
        why = error_of_attempt(batch, code, reason, node_id)
        batch.retry(now if moved else now + wait, why, is_busy=is_concurrent)
        self._accumulator.reenqueue(batch)
        if code not in self._retried and not is_concurrent:
            self._retried.add(code)
            self._warnings.append(
                f"{batch.topic_partition}: {batch.record_count} record(s) are sent again after "
                f"{why}"
            )

    def _give_up(
        self,
        batch: ProducerBatch,
        code: int,
        reason: str,
        node_id: int | None,
        now: float,
        answer: PartitionProduceResponse | None,
    ) -> None:
        """Fail a batch with the error of its last attempt."""
        action = error_action(code, Call.PRODUCE, self._kind)
        if batch.is_in_doubt and is_not_written(code, answer):
            reason = joined((reason, IN_DOUBT))
        elif self._is_overtaken(batch, code):
            reason = joined((reason, OVERTAKEN))
        if action is Action.RETRY and self._has_run_out(batch, now):
            reason = joined((reason, f"{self._timeout()} has passed"))
        name = batch.topic_partition.topic
        if code == codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED and self._transactions is not None:
            name = self._transactions.transactional_id
        hint = self._metadata.advice(code, name)
        error = error_of_batch(batch, code, reason, node_id, hint)
        if action is Action.FATAL:
            self.fatal_error = error
        of_records = None if answer is None else record_errors(batch, answer, error)
        reported = self._transactional(error)
        ends = batch.fail(reported, of_records)
        self._fail_transaction(batch, reported, action)
        self._end(batch, ends, succeeded=False)

    def expired(
        self, batch: ProducerBatch, now: float, prerequisite_error: KafkaException | None = None
    ) -> None:
        """Fail a batch whose delivery.timeout.ms has passed.

        If a broker may still write the batch, it keeps its memory and its sequence until the
        response comes or the connection breaks. prerequisite_error: see `error_of_expired_batch`.
        """
        self._accumulator.keep_progress(batch)
        leader = self._metadata.leader(batch.topic_partition)
        error = error_of_expired_batch(
            batch,
            now,
            self._timeout(),
            self._throttle(batch, leader),
            self._leader(batch, leader),
            None if leader is None else self._refusals.get(leader.id),
            prerequisite_error,
        )
        self.abandon(batch, error)

    def abandon(self, batch: ProducerBatch, error: KafkaException) -> None:
        """Fail a batch that is not done, in any state."""
        reported = self._transactional(error)
        ends = batch.abandon(reported)
        self._fail_transaction(batch, reported, Action.FAIL)
        self._end(batch, ends, succeeded=False)

    def end_all(self, error: KafkaException) -> None:
        """Fail all unfinished batches, even if an exception has left some of them half changed.

        The batches that are done already keep their results. Sequences and memory stay reserved.
        """
        for batch in self._accumulator.incomplete:
            for each in batch.parts or [batch]:
                if not each.is_done:
                    each.abandon(self._transactional(error))
                self.done.append(each)
            self._accumulator.complete(batch)

    def _late(self, batch: ProducerBatch, *, succeeded: bool) -> None:
        """Free the memory and sequence of an abandoned batch that is no longer in flight."""
        self._end(batch, batch.late(), succeeded=succeeded)

    def _end(self, batch: ProducerBatch, ends: BatchAction, *, succeeded: bool) -> None:
        """Perform `ends`, the action that the last event of a batch has returned."""
        if ends is BatchAction.DEQUEUE:
            self._accumulator.remove(batch)
        if ends is not BatchAction.FREE:
            self._accumulator.complete(batch)
            self.done.append(batch)
        if ends is BatchAction.REPORT:
            return
        if self._sequences is not None:
            if succeeded:
                self._sequences.acknowledged(batch)
            else:
                self._sequences.failed(batch)
        self._accumulator.deallocate(batch)

    def _transactional(self, error: KafkaException) -> KafkaException:
        return error if self._transactions is None else self._transactions.reported(error)

    def _fail_transaction(
        self, batch: ProducerBatch, error: KafkaException, action: Action
    ) -> None:
        """Record the failure, so that the batch's transaction, if any, cannot be committed."""
        if self._transactions is not None:
            self._transactions.batch_failed(batch, error, action)

    # -- messages for users -----------------------------------------------------------------------

    def _timeout(self) -> str:
        return f"{Option('delivery.timeout.ms')}={round(self._delivery_timeout_s * 1000)}"

    def _throttle(self, batch: ProducerBatch, leader: Node | None) -> str:
        """Return a note that the batch's node throttled this client, or "" if it did not."""
        node_id = leader.id if batch.node_id is None and leader is not None else batch.node_id
        if node_id is None or node_id not in self._throttles:
            return ""
        pause_s, until = self._throttles[node_id]
        if until <= batch.created_at:
            return ""
        return (
            f"node {node_id} throttles this client for {round(pause_s * 1000)} ms, as brokers do "
            "if a quota (producer_byte_rate) is exceeded"
        )

    def _leader(self, batch: ProducerBatch, leader: Node | None) -> str:
        if leader is None:
            return why_no_leader(self._metadata, *batch.topic_partition)
        trouble = self.node_troubles.get(leader.id)
        return f"its leader is {leader}{f' ({trouble})' if trouble else ''}"


def _decide_by_sequence(
    batch: ProducerBatch, code: int, log_start_offset: int, sequences: Sequences
) -> Decision:
    """Return what an idempotent producer does with a batch whose sequence a broker rejected."""
    if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
        is_lost = sequences.follows_last_acked(batch)
    else:
        is_lost = log_start_offset != -1
    return Decision.RENUMBER if is_lost else Decision.RETRY


def _decide_in_transaction(
    batch: ProducerBatch,
    code: int,
    log_start_offset: int,
    sequences: Sequences,
    transactions: BatchTransaction,
) -> Decision:
    """Return what a producer in a transaction does with a batch whose sequence was rejected."""
    if transactions.gives_up:
        return Decision.GIVE_UP
    if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
        is_lost = sequences.follows_last_acked(batch)
        return Decision.GIVE_UP if is_lost else Decision.RETRY
    if not transactions.may_renumber:
        return Decision.GIVE_UP
    if log_start_offset == -1:
        return Decision.RETRY
    # If retention has deleted the producer's last records, the broker accepts sequence 0 again.
    was_deleted = sequences.last_acked_offset(batch.topic_partition) < log_start_offset
    return Decision.RENUMBER if was_deleted else Decision.GIVE_UP


def _kind(sequences: Sequences | None, transactions: BatchTransaction | None) -> ProducerKind:
    if transactions is not None:
        return ProducerKind.TRANSACTIONAL
    return ProducerKind.PLAIN if sequences is None else ProducerKind.IDEMPOTENT


@dataclass(kw_only=True)
class PartitionDelivery:
    """The acknowledged records of one partition.

    The class has no slots, because `vars` must return its fields. Offsets are -1 if the broker does
    not return them (acks=0). Records of other producers may be between first_offset and
    last_offset. bytes: the size of the records before compression; compressed_bytes: the size of
    the batches as they were sent, compressed or not, including their headers.
    """

    records: int = 0
    bytes: int = 0
    batches: int = 0
    compressed_bytes: int = 0
    retries: int = 0
    first_offset: int = -1
    last_offset: int = -1


class Deliveries:
    """What was delivered to each partition, and the first error that was not raised yet."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionDelivery] = {}
        self.error: KafkaException | None = None

    def add(self, batch: ProducerBatch) -> None:
        """Count a batch that succeeded or failed."""
        if batch.error is not None:
            # The owner of a span is notified about failures of its records. `error` is for the
            # records without an owner.
            if batch.record_count > sum(span.records for span in batch.spans):
                self.error = self.error or batch.error
            return
        delivery = self.partitions.setdefault(batch.topic_partition, PartitionDelivery())
        delivery.records += batch.record_count
        delivery.bytes += batch.records_bytes
        delivery.batches += 1
        delivery.compressed_bytes += batch.sent_bytes
        delivery.retries += batch.retries
        if batch.base_offset >= 0:
            first, base = delivery.first_offset, batch.base_offset
            delivery.first_offset = base if first < 0 else min(first, base)
            delivery.last_offset = max(delivery.last_offset, base + batch.record_count - 1)

    def take_partitions(self) -> dict[TopicPartition, PartitionDelivery]:
        """Return what was delivered to each partition since the last call."""
        taken, self.partitions = self.partitions, {}
        return taken

    def take_error(self) -> KafkaException | None:
        """Return the first delivery error since the last call, None if there is none."""
        error, self.error = self.error, None
        return error

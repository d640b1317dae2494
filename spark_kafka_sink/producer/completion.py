"""What becomes of a batch: acknowledged, to be sent again, or given up.

Owns the decision for every answer a Produce request can get (Sender.completeBatch of the Java
client) by the rules of `error_actions`, and the sentences that a user reads when a batch is given
up. It never sends. `Deliveries` counts, by partition, what was
acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.error_codes import error_code
from spark_kafka_sink.errors import (
    ApiException,
    InvalidRecordException,
    InvalidTxnStateException,
    KafkaException,
    Option,
    RetriableException,
    TimeoutException,
    TransactionAbortableException,
    advice,
    api_exception,
    words_of_refusal,
)
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.error_actions import Action, Call, ProducerKind, error_action
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.producer_batch import BatchState, ProducerBatch
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.wire.messages import PartitionProduceResponse

# Under a new number, what is there already would be there twice.
_IN_DOUBT: Final = (
    "it is a part of a batch that may have been written before the broker found that too large"
)


class BatchCompletion:
    """Completes batches and keeps those that are done until `take_done`.

    fatal_error: an answer after which the producer cannot go on, None if there was none.
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
        transactions: TransactionManager | None = None,
    ) -> None:
        self.fatal_error: KafkaException | None = None
        self._transactions = transactions
        self._kind = _kind(sequences, transactions)
        self._accumulator = accumulator
        self._metadata = metadata
        self._sequences = sequences
        self._retries = retries
        self._delivery_timeout_s = delivery_timeout_s
        self._retry_backoff = retry_backoff
        self._random = random
        self._done: list[ProducerBatch] = []
        # For messages: why there is no connection to a node; and for how long a node asked to be
        # left alone, and until when.
        self.node_troubles: dict[int, str] = {}
        self._throttles: dict[int, tuple[float, float]] = {}
        # The codes that batches were sent again for, and the warnings about the first of each.
        self._retried: set[int] = set()
        self._warnings: list[str] = []

    def take_done(self) -> list[ProducerBatch]:
        """Give the batches that succeeded, failed or were split since the last call, in order."""
        done, self._done = self._done, []
        return done

    def take_warnings(self) -> list[str]:
        """Give what is to be logged since the last call; not here, under the producer's lock."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def node_throttled(self, node_id: int, until: float, now: float) -> None:
        """Note that a node asked to be left alone, as where a quota is exceeded (KIP-219)."""
        self._throttles[node_id] = (until - now, until)

    def answered(
        self, batch: ProducerBatch, answer: PartitionProduceResponse, node_id: int, now: float
    ) -> None:
        """Complete a batch by a broker's answer."""
        if error_action(answer.error_code, Call.PRODUCE, self._kind) is Action.SUCCEED:
            if answer.error_code == codes.NONE and batch.origin is not None:
                # A broker takes no part of what it has: what this is a part of is not written.
                batch.origin.maybe_written = False
            self.succeeded(batch, answer.base_offset, answer.log_append_time_ms)
        else:
            self.failed(batch, answer.error_code, _reason(batch, answer), node_id, now, answer)

    def succeeded(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        """Complete a batch that a broker has (or, with acks=0, was sent)."""
        if batch.state is not BatchState.IN_FLIGHT:
            self._late(batch, succeeded=True)
            return
        batch.succeed(base_offset, log_append_time_ms)
        if self._sequences is not None:
            self._sequences.acknowledged(batch)
        self._finish(batch)

    def failed(
        self,
        batch: ProducerBatch,
        code: int,
        reason: str,
        node_id: int | None,
        now: float,
        answer: PartitionProduceResponse | None = None,
    ) -> None:
        """Send a batch again, or give it up, for an error code of a broker or of the network."""
        # Also where the batch was given up meanwhile: others of its partition go the same way.
        if error_code(code).refresh_metadata:
            self._metadata.request_update()
        if batch.state is not BatchState.IN_FLIGHT:
            self._late(batch, succeeded=False)
            return
        batch.node_id = None
        action = error_action(code, Call.PRODUCE, self._kind)
        if action is Action.SPLIT and batch.record_count > 1:
            self._split(batch)
            return
        is_refused = _is_not_written(code, answer)
        if is_refused and batch.is_in_doubt:
            reason = "; ".join(part for part in (reason, _IN_DOUBT) if part)
        batch.is_unanswered = not is_refused
        if self._can_retry(batch, code, action, answer, now):
            # A newer leader than the one that was asked need not be waited for (KIP-951).
            moved = self._metadata.leader_epoch(batch.topic_partition) != batch.leader_epoch
            wait = self._retry_backoff.delay_s(batch.attempts, self._random)
            why = _retried(batch, code, reason, node_id)
            batch.retry(now if moved else now + wait, why)
            self._accumulator.reenqueue(batch)
            if code not in self._retried:
                self._retried.add(code)
                again = f"{batch.record_count} record(s) are sent again after {why}"
                self._warnings.append(f"{batch.topic_partition}: {again}")
            return
        if action is Action.RETRY and self._has_run_out(batch, now):
            reason = "; ".join(part for part in (reason, f"{self._timeout()} has passed") if part)
        error = _exception(batch, code, reason, node_id)
        if answer is not None:
            batch.record_errors = _record_errors(batch, answer, error)
        if action is Action.FATAL:
            self.fatal_error = error
        self._give_up(batch, error, action)

    def _split(self, batch: ProducerBatch) -> None:
        """Send a batch again as smaller ones; that is no attempt of theirs."""
        parts = self._accumulator.split(batch)
        if self._sequences is not None:
            self._sequences.replace(batch, parts)
        self._accumulator.deallocate(batch)
        self._done.append(batch)

    def expired(self, batch: ProducerBatch, now: float) -> None:
        """Give up a batch whose delivery.timeout.ms has passed.

        If it is at a broker, its memory and its sequence stay taken until the answer comes or the
        connection breaks (`answered` and `failed` then find it done).
        """
        waited_ms = round((now - batch.created_at) * 1000)
        where = "in flight" if batch.state is BatchState.IN_FLIGHT else "waiting to be sent"
        leader = self._metadata.leader(batch.topic_partition)
        message = (
            f"{batch.topic_partition}: {batch.record_count} record(s) were not acknowledged within "
            f"{self._timeout()}: {where} after {waited_ms} ms and {batch.attempts} failed "
            f"attempt(s)"
        )
        parts = (
            message,
            self._throttle(batch, leader),
            self._where_it_goes(batch, leader),
            "" if batch.last_error is None else f"the last attempt met {batch.last_error}",
        )
        error = TimeoutException(
            "; ".join(part for part in parts if part),
            topic=batch.topic_partition.topic,
            partition=batch.topic_partition.partition,
            node_id=batch.node_id,
            api="Produce",
            attempts=batch.attempts + 1,
        )
        error.__cause__ = batch.last_error
        self.abandon(batch, error)

    def _has_run_out(self, batch: ProducerBatch, now: float) -> bool:
        return now >= batch.created_at + self._delivery_timeout_s

    def _timeout(self) -> str:
        return f"{Option('delivery.timeout.ms')}={round(self._delivery_timeout_s * 1000)}"

    def _throttle(self, batch: ProducerBatch, leader: Node | None) -> str:
        """Say for how long the batch's node asked to be left alone since the batch was made."""
        node_id = leader.id if batch.node_id is None and leader is not None else batch.node_id
        if node_id is None or node_id not in self._throttles:
            return ""
        pause_s, until = self._throttles[node_id]
        if until <= batch.created_at:
            return ""
        return (
            f"node {node_id} asked for a pause of {round(pause_s * 1000)} ms, as brokers do where "
            "a quota (producer_byte_rate) is exceeded"
        )

    def _where_it_goes(self, batch: ProducerBatch, leader: Node | None) -> str:
        if leader is None:
            return self._why_no_leader(*batch.topic_partition)
        trouble = self.node_troubles.get(leader.id)
        return f"its leader is {leader}{f' ({trouble})' if trouble else ''}"

    def _why_no_leader(self, name: str, partition: int) -> str:
        topic = self._metadata.topic(name)
        if topic is None:
            error = self._metadata.topic_error(name)
            return "no leader is known" if error is None else str(error)
        if partition < len(topic.leaders):
            return "it has no leader at present"
        return (
            f"topic {name} has {len(topic.leaders)} partition(s) now, it was made again with fewer"
        )

    def abandon(self, batch: ProducerBatch, error: KafkaException) -> None:
        """Give up a batch in whatever state it is."""
        if batch.state is BatchState.IN_FLIGHT:
            self._fail(batch, error, Action.FAIL)
            self._accumulator.complete(batch)
            self._done.append(batch)
            return
        self._accumulator.remove(batch)
        self._give_up(batch, error)

    def _can_retry(
        self,
        batch: ProducerBatch,
        code: int,
        action: Action,
        answer: PartitionProduceResponse | None,
        now: float,
    ) -> bool:
        if batch.attempts >= self._retries or self._has_run_out(batch, now):
            return False
        if batch.is_in_doubt and _is_not_written(code, answer):
            return False
        if action is Action.CHECK_SEQUENCE and self._sequences is not None:
            log_start = -1 if answer is None else answer.log_start_offset
            if self._transactions is not None:
                return self._goes_on(batch, code, log_start, self._sequences, self._transactions)
            if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
                if self._sequences.follows_last_acked(batch):
                    self._sequences.request_epoch_bump(batch)
            elif _is_not_written(code, answer):
                self._sequences.request_epoch_bump(batch)
            return True
        return action is Action.RETRY

    def _goes_on(
        self,
        batch: ProducerBatch,
        code: int,
        log_start_offset: int,
        sequences: Sequences,
        transactions: TransactionManager,
    ) -> bool:
        """Whether a transaction survives that a broker did not expect a batch's sequence."""
        if transactions.gives_up:
            return False
        if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return not sequences.follows_last_acked(batch)
        if log_start_offset == -1:
            return True
        if sequences.last_acked_offset(batch.topic_partition) >= log_start_offset:
            return False
        # Retention has removed what the broker knew the producer by: it takes 0 again.
        sequences.request_epoch_bump(batch)
        return True

    def _give_up(
        self, batch: ProducerBatch, error: KafkaException, action: Action = Action.FAIL
    ) -> None:
        self._fail(batch, error, action)
        if self._sequences is not None:
            self._sequences.failed(batch)
        self._finish(batch)

    def _fail(self, batch: ProducerBatch, error: KafkaException, action: Action) -> None:
        """Note why a batch is given up; its transaction is not to be committed any more."""
        if self._transactions is None:
            batch.fail(error)
            return
        error = _abortable(error)
        batch.fail(error)
        self._transactions.batch_failed(batch, error, action)

    def _late(self, batch: ProducerBatch, *, succeeded: bool) -> None:
        """Settle a batch that had expired in flight: nothing can come for it any more."""
        batch.node_id = None
        if self._sequences is not None:
            if succeeded:
                self._sequences.acknowledged(batch)
            else:
                self._sequences.failed(batch)
        self._accumulator.deallocate(batch)

    def _finish(self, batch: ProducerBatch) -> None:
        self._accumulator.complete(batch)
        self._accumulator.deallocate(batch)
        self._done.append(batch)


def _is_not_written(code: int, answer: PartitionProduceResponse | None) -> bool:
    """Whether the log has no batch of this sequence, whatever became of earlier attempts.

    A broker recognises a batch that it has, unless retention has deleted it since.
    """
    if code == codes.UNKNOWN_PRODUCER_ID:
        return answer is not None and answer.log_start_offset != -1
    return code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER


def _kind(sequences: Sequences | None, transactions: TransactionManager | None) -> ProducerKind:
    if transactions is not None:
        return ProducerKind.TRANSACTIONAL
    return ProducerKind.PLAIN if sequences is None else ProducerKind.IDEMPOTENT


def _abortable(error: KafkaException) -> KafkaException:
    """Give the error of a transaction for that of a batch.

    What a retry might have helped, no retry of the caller's helps any more: the transaction has to
    be aborted (KAFKA-19176).
    """
    if not isinstance(error, RetriableException | InvalidTxnStateException):
        return error
    wrapped = TransactionAbortableException(
        f"{error}; {advice(codes.TRANSACTION_ABORTABLE)}",
        topic=error.topic,
        partition=error.partition,
        node_id=error.node_id,
        api=error.api,
        attempts=error.attempts,
    )
    wrapped.code = codes.TRANSACTION_ABORTABLE
    wrapped.__cause__ = error
    return wrapped


def _reason(batch: ProducerBatch, answer: PartitionProduceResponse) -> str:
    """Give what the broker said beyond the code, with the first record it refused."""
    said = [answer.error_message] if answer.error_message else []
    if answer.record_errors:
        first = answer.record_errors[0]
        text = f"record {first.batch_index} of the batch"
        if first.batch_index_error_message:
            text += f": {first.batch_index_error_message}"
        said.append(text)
    if answer.error_code == codes.INVALID_TIMESTAMP and batch.state is BatchState.IN_FLIGHT:
        earliest, latest = batch.timestamp_range()
        said.append(f"its timestamps are {earliest} to {latest} ms")
    return "; ".join(said)


def _record_errors(
    batch: ProducerBatch, answer: PartitionProduceResponse, error: ApiException
) -> dict[int, KafkaException]:
    """Give the errors of the records that the broker refused, by their number in the batch.

    As the Java client: the batch's error where one record is to blame, else InvalidRecordException.
    """
    # A number that no record has blames nobody.
    numbers = range(batch.record_count)
    refused = [record for record in answer.record_errors if record.batch_index in numbers]
    kind = type(error) if len(refused) == 1 else InvalidRecordException
    found: dict[int, KafkaException] = {}
    for record in refused:
        said = record.batch_index_error_message or answer.error_message
        found[record.batch_index] = kind(
            f"the broker refused the record: {said}" if said else str(error),
            topic=error.topic,
            partition=error.partition,
            node_id=error.node_id,
            api=error.api,
            attempts=error.attempts,
        )
    return found


def _retried(batch: ProducerBatch, code: int, reason: str, node_id: int | None) -> ApiException:
    """Make the error of an attempt that another one follows."""
    said = (_named(code, node_id), reason, advice(code))
    return _error_of_attempt(batch, code, node_id, said)


def _exception(batch: ProducerBatch, code: int, reason: str, node_id: int | None) -> ApiException:
    text = f"{batch.topic_partition}: {batch.record_count} record(s) were not written"
    attempts = f" after {batch.attempts + 1} attempts" if batch.attempts else ""
    topic = batch.topic_partition.topic
    hint = advice(code, topic=topic)
    if code == codes.TOPIC_AUTHORIZATION_FAILED:
        # As the driver says it, and Metadata where not even DESCRIBE is granted.
        where = "" if node_id is None else f" by node {node_id}"
        cause = words_of_refusal(code, topic, hint)
        return _error_of_attempt(batch, code, node_id, (cause, f"{text}{where}{attempts}", reason))
    text += f": {_named(code, node_id)}{attempts}"
    if code == codes.MESSAGE_TOO_LARGE:
        text += f"; the batch has {batch.sent_bytes} bytes"
    return _error_of_attempt(batch, code, node_id, (text, reason, hint))


def _named(code: int, node_id: int | None) -> str:
    """Return the name of an error code, and which node has answered with it."""
    text = f"{error_code(code).name} ({code})"
    return text if node_id is None else f"{text} from node {node_id}"


def _error_of_attempt(
    batch: ProducerBatch, code: int, node_id: int | None, said: Iterable[str | None]
) -> ApiException:
    return api_exception(
        code,
        "; ".join(part for part in said if part),
        topic=batch.topic_partition.topic,
        partition=batch.topic_partition.partition,
        node_id=node_id,
        api="Produce",
        attempts=batch.attempts + 1,
    )


@dataclass(kw_only=True)
class PartitionDelivery:
    """One partition's acknowledged records; without slots, so that `vars` gives its fields.

    Offsets are -1 where the broker does not say (acks=0). Between first_offset and last_offset may
    be records of others. bytes: of records before compression; compressed_bytes:
    of batches as sent, whatever the codec, with their headers.
    """

    records: int = 0
    bytes: int = 0
    batches: int = 0
    compressed_bytes: int = 0
    retries: int = 0
    first_offset: int = -1
    last_offset: int = -1


class Deliveries:
    """Sums over batches that are done, and the first failure that nobody else is told of."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionDelivery] = {}
        self.error: KafkaException | None = None
        self.failed_records = 0

    def add(self, batch: ProducerBatch) -> None:
        """Take a batch that succeeded or failed."""
        if batch.state is BatchState.FAILED:
            self.failed_records += batch.record_count
            # Who waits for records one by one is told of each; the first error is for the others.
            if batch.record_count > sum(span.records for span in batch.spans):
                self.error = self.error or batch.error
            return
        delivery = self.partitions.setdefault(batch.topic_partition, PartitionDelivery())
        delivery.records += batch.record_count
        delivery.bytes += batch.records_bytes
        delivery.batches += 1
        delivery.compressed_bytes += batch.sent_bytes
        delivery.retries += batch.attempts
        if batch.base_offset >= 0:
            last = batch.base_offset + batch.record_count - 1
            first = delivery.first_offset
            delivery.first_offset = (
                batch.base_offset if first < 0 else min(first, batch.base_offset)
            )
            delivery.last_offset = max(delivery.last_offset, last)

    def take_partitions(self) -> dict[TopicPartition, PartitionDelivery]:
        """Give what was acknowledged since the last call."""
        taken, self.partitions = self.partitions, {}
        return taken

    def take_error(self) -> KafkaException | None:
        """Give the first failure since the last call."""
        error, self.error = self.error, None
        return error

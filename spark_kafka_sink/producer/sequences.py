"""Idempotence: producer id, epochs, and the sequence numbers of each partition (TxnPartitionMap).

A broker accepts a batch of an idempotent producer only if its base sequence follows the last
sequence in the log. It also recognises each of the last five batches by epoch and sequences. After
a restart, it may recognise only the last batch, because its snapshots of producers contain no more.
So the following rules apply to each partition:

- A batch gets its sequence once, when it is first sent, and keeps it through retries.
- While a batch waits for a retry, no later batch is sent: of the batches with a sequence, only the
  batch with the lowest sequence may be sent.
- Until the first acknowledgement of an epoch, only one batch is in flight. A broker may accept any
  first sequence; if the first batch were rejected and the second accepted, the first batch could
  never follow. The same applies to the first batch after a long pause, because a broker forgets a
  producer that sends nothing.
- While a broker may still write an expired batch, no new batch is sent, because it is unknown
  whether the expired batch's sequence is missing in the log (hasUnresolvedSequence).
- All batches in flight are at one broker. After a leader change, the new leader gets no further
  batches until the old leader has responded to all of them.

When a sequence is missing in the log (a gap, KIP-360), a broker rejects each batch behind the gap
with OUT_OF_ORDER_SEQUENCE_NUMBER. The partition then waits until none of its batches is in flight,
and until it is certain that none of them was written. Then the client bumps the epoch by one and
numbers the partition's batches again from 0. Other partitions change to the new epoch as soon as
they have nothing in flight.

A batch may have been written if its response was lost. With a new number, a broker would write it a
second time. So each such batch is first retried with its old number. A rejection alone does not
prove that the batch was not written: the broker may know only a later batch. But as long as a
broker knows the producer, it recognises the last batch that it has written. It forgets the producer
once the largest record timestamp of this batch is older than producer.id.expiration.ms, unless a
transaction is open. So with old timestamps, a batch may be written twice. This client cannot detect
that. While the broker knows the producer:

- If it rejects every batch that may have been written, it has written none of them, and they can be
  numbered again.
- If it has written one of them, the batches before that one may have been written, too. If one of
  these is rejected again, it fails. The same applies if a later batch has failed, and may have been
  written.

For a part of a batch that was split after its response was lost, a rejection never proves anything:
a broker that has written the complete batch rejects each part. So a part that is rejected fails.

The epochs of a transactional producer come from its coordinator: `adopt` sets them between two
transactions, and a gap fails the transaction. There is one exception: if a broker no longer knows
the producer, the partition's batches are sent again from 0 in the same epoch.

TxnPartitionMap, TxnPartitionEntry and hasUnresolvedSequence are names in the Java client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final
from uuid import UUID

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import (
    ApiException,
    UnknownServerException,
    advice,
    api_exception,
    error_code,
)
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.feature_level import no_producer_id
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.records.batch import NO_SEQUENCE, increment_sequence
from spark_kafka_sink.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataResponseTopic,
    PartitionProduceResponse,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID

MAX_EPOCH: Final = 2**15 - 1
# After this time without a new batch, a broker may have forgotten the producer. The client does not
# know the broker's producer.id.expiration.ms, a day by default. It may be shorter, and one batch in
# flight costs only the time of one response after a pause, so this is far less than a day.
_MAX_PAUSE_S: Final = 300.0


class PartitionSequences:
    """The sequences of one partition under one producer id and epoch (TxnPartitionEntry).

    in_flight: the batches with a sequence that are not acknowledged, lowest sequence first,
    including batches that wait to be sent again. last_assigned_at: when a batch last got one.
    """

    __slots__ = ("in_flight", "is_confirmed", "last_acked_offset", "last_acked_sequence",
                 "last_assigned_at", "last_passed", "next_sequence", "producer")  # fmt: skip

    def __init__(self, producer: ProducerIdAndEpoch) -> None:
        self.producer = producer
        self.next_sequence = 0
        self.last_acked_sequence = NO_SEQUENCE
        # The last sequence of the batches that are done and were, or may have been, written.
        self.last_passed = NO_SEQUENCE
        self.last_acked_offset = -1
        self.is_confirmed = False
        self.last_assigned_at = 0.0
        self.in_flight: list[ProducerBatch] = []

    def follows_last_acked(self, batch: ProducerBatch) -> bool:
        """Return whether the broker should expect exactly this batch next."""
        if self.last_acked_sequence == NO_SEQUENCE:
            return batch.base_sequence == 0
        return batch.base_sequence == increment_sequence(self.last_acked_sequence, 1)

    def is_overtaken(self, batch: ProducerBatch) -> bool:
        """Return whether a later batch is done, and was, or may have been, written."""
        return self.last_passed != NO_SEQUENCE and _is_after(self.last_passed, batch.base_sequence)

    def passed(self, batch: ProducerBatch) -> None:
        """Record that `batch` is done, and was, or may have been, written.

        The batches before it may then have been written, too, even if they were rejected.
        """
        if not self.is_overtaken(batch):
            self.last_passed = increment_sequence(batch.base_sequence, batch.record_count - 1)
        for other in self.in_flight:
            if _is_after(batch.base_sequence, other.base_sequence):
                other.is_unanswered = True

    def to_settle(self) -> ProducerBatch | None:
        """Return the batch to send with its old number, before the batches can be renumbered.

        Return None if there is none, or if a broker may still write a batch.
        """
        if any(batch.node_id is not None for batch in self.in_flight):
            return None
        return next((batch for batch in self.in_flight if batch.maybe_written), None)

    def restart(self, producer: ProducerIdAndEpoch, *, transactional: bool) -> None:
        """Renumber all batches in flight from 0, under the given producer id and epoch."""
        self.producer = producer
        self.next_sequence = 0
        self.last_acked_sequence = self.last_passed = NO_SEQUENCE
        self.is_confirmed = False
        for batch in self.in_flight:
            batch.assign_sequence(producer, self.next_sequence, transactional=transactional)
            self.next_sequence = increment_sequence(self.next_sequence, batch.record_count)


class Sequences:
    """The producer id and epoch, and the sequences of every partition that was written to."""

    def __init__(self, *, is_transactional: bool = False) -> None:
        self.is_transactional = is_transactional
        self.producer: ProducerIdAndEpoch = NO_PRODUCER_ID
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._of_topic: dict[str, list[PartitionSequences]] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._to_restart: set[TopicPartition] = set()

    @property
    def has_producer_id(self) -> bool:
        """Whether there is a producer id."""
        return self.producer.is_valid

    @property
    def has_in_flight(self) -> bool:
        """Whether a batch with a sequence still waits for its response.

        This includes a batch that has already failed, for example by its delivery timeout.
        """
        return any(known.in_flight for known in self._partitions.values())

    def adopt(self, producer: ProducerIdAndEpoch) -> None:
        """Use the producer id and epoch that a broker assigned."""
        self.producer = producer

    def unconfirm(self, topics: Iterable[str] | None = None) -> None:
        """Allow only one batch in flight per partition until the next acknowledgement.

        This is necessary if a topic may have been recreated. A broker accepts any first sequence in
        the new topic, so it could accept a second batch after it rejected the first. topics: the
        topics that may have been recreated, None for all.
        """
        for topic in self._of_topic if topics is None else topics:
            for known in self._of_topic.get(topic, ()):
                known.is_confirmed = False

    def follow_topics(self, answers: Iterable[MetadataResponseTopic]) -> None:
        """Unconfirm the partitions of topics whose id is new in a response of Metadata."""
        ids = {each.name: each.topic_id for each in answers if each.name is not None}
        known = {name: topic_id for name, topic_id in ids.items() if topic_id != ZERO_UUID}
        changed = {n for n, topic_id in known.items() if self._topic_ids.get(n) != topic_id}
        if changed:
            self._topic_ids |= known
            self.unconfirm(changed)

    def first_to_send(self, batch: ProducerBatch, now: float) -> ProducerBatch | None:
        """Return the batch to send instead of `batch`, the first of its partition, or `batch`.

        Before the batches of a partition are renumbered, each batch that may have been written is
        sent again, even if a batch before it was rejected. Return None during the back-off of such
        a batch. Then the back-off of the first batch is extended, because the accumulator considers
        only the first batch of a partition.
        """
        if batch.topic_partition not in self._to_restart:
            return batch
        found = self._partitions[batch.topic_partition].to_settle() or batch
        if found is not batch and found.retry_at > now:
            batch.retry_at = found.retry_at
            return None
        return found

    def may_send(self, batch: ProducerBatch, node_id: int) -> bool:
        """Return whether `batch`, from `first_to_send`, may be sent to `node_id` now."""
        if not self.has_producer_id:
            return False
        known = self._partitions.get(batch.topic_partition)
        if batch.topic_partition in self._to_restart:
            return known is not None and known.to_settle() is batch
        if known is None or not known.in_flight:
            return True
        if batch.has_sequence:
            return known.in_flight[0] is batch
        if not known.is_confirmed or known.producer != self.producer:
            return False
        return all(other.node_id == node_id and not other.is_done for other in known.in_flight)

    def assign(self, batch: ProducerBatch, now: float) -> None:
        """Assign a sequence to `batch`, unless it has one from an earlier attempt."""
        known = self._partitions.get(batch.topic_partition)
        if known is not None and now - known.last_assigned_at > _MAX_PAUSE_S:
            known.is_confirmed = False
        if batch.has_sequence:
            return
        if known is None:
            known = self._add(batch.topic_partition)
        if known.producer != self.producer:
            known.restart(self.producer, transactional=self.is_transactional)
        known.last_assigned_at = now
        batch.assign_sequence(
            self.producer, known.next_sequence, transactional=self.is_transactional
        )
        known.next_sequence = increment_sequence(known.next_sequence, batch.record_count)
        known.in_flight.append(batch)

    def _add(self, topic_partition: TopicPartition) -> PartitionSequences:
        known = self._partitions[topic_partition] = PartitionSequences(self.producer)
        self._of_topic.setdefault(topic_partition.topic, []).append(known)
        return known

    def acknowledged(self, batch: ProducerBatch) -> None:
        """Record that a broker has written `batch`."""
        known = self._remove(batch)
        if known is None or known.producer != batch.producer:
            return
        known.passed(batch)
        last = increment_sequence(batch.base_sequence, batch.record_count - 1)
        nothing_acked = known.last_acked_sequence == NO_SEQUENCE
        if nothing_acked or _is_after(last, known.last_acked_sequence):
            known.last_acked_sequence = last
        known.last_acked_offset = max(known.last_acked_offset, batch.base_offset)
        known.is_confirmed = True

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Replace a split batch with its parts, which together use the batch's sequences."""
        in_flight = self._partitions[batch.topic_partition].in_flight
        place = in_flight.index(batch)
        in_flight[place : place + 1] = parts

    def failed(self, batch: ProducerBatch) -> None:
        """Record that `batch` has failed, and that no response to it can come any more.

        Its sequence is missing in the log, or may be missing. An idempotent producer sends later
        batches with a new epoch; a transactional producer gets a new epoch for its next
        transaction.
        """
        known = self._remove(batch) if batch.has_sequence else None
        if known is None or known.producer != batch.producer:
            return
        if batch.maybe_written:
            known.passed(batch)
        if not self.is_transactional:
            self.request_epoch_bump(batch)

    def follows_last_acked(self, batch: ProducerBatch) -> bool:
        """Return whether the broker should expect `batch` next in its partition."""
        known = self._partitions.get(batch.topic_partition)
        return known is not None and known.follows_last_acked(batch)

    def is_overtaken(self, batch: ProducerBatch) -> bool:
        """Return whether a later batch is done, and was, or may have been, written."""
        known = self._partitions.get(batch.topic_partition)
        return known is not None and known.is_overtaken(batch)

    def last_acked_offset(self, topic_partition: TopicPartition) -> int:
        """Return the base offset of the latest acknowledged batch, -1 if there is none."""
        known = self._partitions.get(topic_partition)
        return -1 if known is None else known.last_acked_offset

    def request_epoch_bump(self, batch: ProducerBatch) -> None:
        """Record that the partition of `batch` needs new sequences, in a new epoch."""
        known = self._partitions.get(batch.topic_partition)
        if known is not None and batch.producer == known.producer:
            self._to_restart.add(batch.topic_partition)

    def bump_epoch_if_needed(self) -> None:
        """Renumber the batches of the partitions that need it.

        A partition waits until no broker can write any of its batches any more. If all partitions
        that need not wait still have an older epoch than the producer, they change to the
        producer's epoch. Otherwise the producer's epoch is bumped first. If this epoch is already
        the largest, the producer id is dropped instead, and the sender requests a new one.
        """
        ready = {tp for tp in self._to_restart if self._can_restart(self._partitions[tp])}
        if not ready or not self.has_producer_id:
            return
        is_stale = any(self._partitions[tp].producer == self.producer for tp in ready)
        if is_stale and not self.is_transactional:
            if self.producer.epoch >= MAX_EPOCH:
                self.producer = NO_PRODUCER_ID
                return
            epoch = self.producer.epoch + 1
            self.producer = ProducerIdAndEpoch(self.producer.producer_id, epoch)
        self._to_restart -= ready
        for topic_partition in ready:
            self._partitions[topic_partition].restart(
                self.producer, transactional=self.is_transactional
            )

    def _can_restart(self, known: PartitionSequences) -> bool:
        return not any(b.node_id is not None or b.maybe_written for b in known.in_flight)

    def _remove(self, batch: ProducerBatch) -> PartitionSequences | None:
        known = self._partitions.get(batch.topic_partition)
        if known is not None and batch in known.in_flight:
            known.in_flight.remove(batch)
            return known
        return None


def is_not_written(code: int, answer: PartitionProduceResponse | None) -> bool:
    """Return whether the error `code` means that the broker does not have the batch.

    If the batch was written after all, a later batch was, too, or retention has deleted the batch
    from the log: see the module's docstring.
    """
    if code == codes.UNKNOWN_PRODUCER_ID:
        return answer is not None and answer.log_start_offset != -1
    return code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER


def may_be_written(
    batch: ProducerBatch, code: int, answer: PartitionProduceResponse | None, *, was_sent: bool
) -> bool:
    """Return whether a broker may have written a batch whose attempt failed with `code`.

    answer: the response, None if there was none. was_sent: whether the batch may have reached the
    broker in this attempt. A broker may return a retriable error although it has written the batch.
    """
    if not was_sent:
        return batch.is_unanswered
    if is_not_written(code, answer):
        return False
    error = error_code(code)
    # Codes that this client does not know have the kind UnknownServerException, too.
    is_uncertain = error.retriable or error.kind is UnknownServerException
    return batch.is_unanswered or answer is None or is_uncertain


def _is_after(sequence: int, other: int) -> bool:
    """Return whether `sequence` comes after `other`, allowing for overflow at 2**31."""
    return 0 < (sequence - other) % 2**31 < 2**30


# Without a transactional.id, brokers ignore the timeout, but the field is required.
_NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


class ProducerIdRequests:
    """Requests a producer id, from any broker, for a producer without transactions.

    Times are seconds of the producer's clock.
    """

    def __init__(
        self,
        sequences: Sequences,
        retry_backoff: ExponentialBackoff,
        random: Random,
        acls: Acls | None = None,
    ) -> None:
        self._sequences = sequences
        self._retry_backoff = retry_backoff
        self._random = random
        self._acls = acls or Acls()
        self._in_progress = False
        self._attempts = 0
        self._not_before = 0.0
        # Why the last attempt failed; None after a success.
        self.last_error: ApiException | None = None

    @property
    def is_needed(self) -> bool:
        """Whether a producer id must be requested. Without one, no batch can be sent."""
        return not self._sequences.has_producer_id

    def due(self, now: float) -> InitProducerIdRequest | None:
        """Return the request, or None if it is not due. A returned request counts as sent.

        This must be called only while batches wait to be sent.
        """
        if not self.is_needed or self._in_progress or now < self._not_before:
            return None
        self._in_progress = True
        return InitProducerIdRequest(transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS)

    def next_due_at(self) -> float:
        """Return the earliest time at which `due` may return a request."""
        return self._not_before

    def answered(
        self, response: InitProducerIdResponse, node_id: int, now: float
    ) -> ApiException | None:
        """Store the producer id from a response. Return the error if it is not retriable.

        If the response has neither an error nor a valid id, the request is repeated later.
        """
        if response.error_code != codes.NONE:
            return self.failed(response.error_code, "", node_id, now)
        producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        self._in_progress = False
        if producer.problem:
            self._retry(codes.UNKNOWN_SERVER_ERROR, producer.problem, node_id, now)
            return None
        self._attempts = 0
        self.last_error = None
        self._sequences.adopt(producer)
        return None

    def failed(
        self, code: int, reason: str, node_id: int | None, now: float
    ) -> ApiException | None:
        """Repeat the request later if the error is retriable. Return the error otherwise."""
        self._in_progress = False
        if error_code(code).retriable:
            self._retry(code, reason, node_id, now)
            return None
        return no_producer_id(code, reason, node_id, self._acls.hint(code, None))

    def _retry(self, code: int, reason: str, node_id: int | None, now: float) -> None:
        self._not_before = now + self._retry_backoff.delay_s(self._attempts, self._random)
        self._attempts += 1
        self.last_error = _error_of_attempt(code, reason, node_id)


def _error_of_attempt(code: int, reason: str, node_id: int | None) -> ApiException:
    at = "" if node_id is None or node_id < 0 else f" from node {node_id}"
    named = f"no producer id was assigned: {error_code(code).name} ({code}){at}"
    message = "; ".join(part for part in (named, reason, advice(code)) if part)
    return api_exception(code, message, api="InitProducerId", node_id=node_id)

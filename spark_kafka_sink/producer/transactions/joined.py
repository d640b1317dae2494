"""JoinedTransaction: a producer in a transaction that another process begins and ends.

Several producers write with the same transactional id, producer id and epoch, each to its own
partitions. A producer joins the transaction, writes, and leaves. It requests no producer id, bumps
no epoch and sends no EndTxn. While it is in the transaction, it uses separate sequences, which
start at 0 in each partition.

::

    join     transaction.version 1   AddPartitionsToTxn, unless the partitions are added already
             transaction.version 2   nothing: brokers add the partitions that are written to
    write    one batch in flight per partition until its first acknowledgement (see `sequences`)
    leave    when every batch is acknowledged; `partitions` then shows what was written

After the first error, the producer writes nothing more, and its caller must not rely on any record
that it wrote. The transaction may still be open after the error.

While several producers write their first batches, a broker rejects some of these batches, because
it verifies only one producer per transactional id at a time. The rejected batches are sent again
after short waits of random length, and no warning is logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import KafkaException, api_exception
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.completion import Deliveries
from spark_kafka_sink.producer.error_actions import Action
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.producer.transactions.answers import access_hint, read_answer
from spark_kafka_sink.producer.transactions.partitions import TransactionPartitions
from spark_kafka_sink.producer.transactions.queue import TransactionQueue
from spark_kafka_sink.producer.transactions.requests import (
    TransactionalRequest,
    TransactionalRequests,
)
from spark_kafka_sink.records.batch import NO_SEQUENCE, increment_sequence
from spark_kafka_sink.records.compression import Buffer
from spark_kafka_sink.records.log_reader import is_same_batch
from spark_kafka_sink.wire.messages import Response
from spark_kafka_sink.wire.transaction_messages import (
    AddPartitionsToTxnResponse,
    FindCoordinatorResponse,
)

_LAST_PRODUCE_V1: Final = 11
# The error codes that brokers return while they verify or add partitions for another producer of
# the transaction.
_BUSY: Final = frozenset((codes.NOT_ENOUGH_REPLICAS, codes.CONCURRENT_TRANSACTIONS))
_ADDING_WAIT_S: Final = 0.060
# After this many attempts, a different cause of the error is assumed.
_MOST_CONCURRENT: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateBatch:
    """A batch that the broker acknowledged as a duplicate of a batch in the log.

    The broker is right if it wrote the batch in an earlier attempt whose response was lost.
    Otherwise, a different producer has written a batch with the same sequences, and this batch is
    not in the log.

    base_offset: the offset in the acknowledgement. attempts: the number of failed attempts before
    the acknowledgement. sent: the bytes of the batch, empty if the first attempt was acknowledged.
    In that case, there was no earlier attempt, so the batch is not in the log.
    """

    base_offset: int
    attempts: int
    sent: bytes

    def is_in(self, found: Buffer | None) -> bool:
        """Return whether `found`, the log's batch at base_offset, is this batch."""
        return bool(self.sent) and found is not None and is_same_batch(self.sent, found)


@dataclass(slots=True, kw_only=True)
class JoinedPartition:
    """What a producer has written to one partition while it was in the transaction.

    The offsets and the sequence are -1 before the first batch. went_back: None if every batch got
    higher offsets than all batches before it. Otherwise, for the last batch that did not, a pair:
    its base offset, and the highest offset of the batches before it. duplicates: the batches that
    were acknowledged as duplicates; empty if they are not checked.
    """

    first_offset: int = -1
    last_offset: int = -1
    records: int = 0
    last_sequence: int = NO_SEQUENCE
    went_back: tuple[int, int] | None = None
    duplicates: list[DuplicateBatch] = field(default_factory=list)


class JoinedDeliveries(Deliveries):
    """What was delivered in a transaction, with the details that are compared with the log."""

    def __init__(self, *, checks_duplicates: bool) -> None:
        super().__init__()
        self._checks_duplicates = checks_duplicates
        self.joined: dict[TopicPartition, JoinedPartition] = {}

    def add(self, batch: ProducerBatch) -> None:
        """Count a batch that succeeded or failed."""
        super().add(batch)
        if batch.error is not None:
            return
        written = self.joined.setdefault(batch.topic_partition, JoinedPartition())
        written.records += batch.record_count
        written.last_sequence = increment_sequence(batch.base_sequence, batch.record_count - 1)
        if batch.base_offset <= written.last_offset:
            written.went_back = (batch.base_offset, written.last_offset)
        if written.first_offset < 0:
            written.first_offset = batch.base_offset
        written.last_offset = max(written.last_offset, batch.base_offset + batch.record_count - 1)
        if self.is_checked(batch):
            written.duplicates.append(
                DuplicateBatch(
                    base_offset=batch.base_offset, attempts=batch.attempts, sent=batch.kept
                )
            )

    def is_checked(self, batch: ProducerBatch) -> bool:
        """Return whether a broker acknowledged a batch as a duplicate, and duplicates are checked.

        If the topic uses CreateTime, a broker returns a timestamp only for a duplicate, namely the
        timestamp of the stored batch. (Topics with LogAppendTime are rejected before the job if
        duplicates are checked.)
        """
        is_duplicate = batch.log_append_time_ms != -1 or batch.base_offset < 0
        return self._checks_duplicates and is_duplicate


class JoinedTransaction:
    """The participation of one producer in a transaction that another process begins and ends.

    The sender of a producer uses it in place of a `TransactionManager`. Times are seconds of the
    producer's clock. transaction_version: the cluster's finalized transaction.version when the
    transaction began. adds_partitions: whether this producer sends requests that add its partitions
    to the transaction. This is ignored for transaction.version 2. checks_duplicates: whether to
    keep batches that are acknowledged as duplicates, so that the caller can compare them with the
    log. queue: the requests that wait to be sent, and their coordinator. error: why the producer
    cannot continue, None if it can.
    """

    # These are properties of TransactionManager. They are always False here, because this producer
    # does not end the transaction itself.
    gives_up = False
    is_completing = False
    may_renumber = False

    def __init__(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        transaction_version: int,
        *,
        adds_partitions: bool,
        checks_duplicates: bool,
        retry_backoff: ExponentialBackoff,
        random: Random,
        acls: Acls | None = None,
    ) -> None:
        self.error: KafkaException | None = None
        self.sequences = Sequences(is_transactional=True)
        self.sequences.adopt(producer)
        self.deliveries = JoinedDeliveries(checks_duplicates=checks_duplicates)
        self._producer = producer
        self._is_v2 = transaction_version >= 2
        self._adds_partitions = adds_partitions and not self._is_v2
        self._acls = acls or Acls()
        self._requests = TransactionalRequests(transactional_id, transaction_timeout_ms=0)
        self.queue = TransactionQueue(retry_backoff, random)
        self._partitions = TransactionPartitions()

    @property
    def transactional_id(self) -> str:
        """The transactional.id that all producers of the transaction use."""
        return self._requests.transactional_id

    @property
    def fatal_error(self) -> KafkaException | None:
        """The error after which the producer cannot continue, None if there is no such error."""
        return self.error

    @property
    def max_produce_version(self) -> int | None:
        """The latest version of Produce that the transaction allows, None for any version."""
        return None if self._is_v2 else _LAST_PRODUCE_V1

    @property
    def partitions(self) -> Mapping[TopicPartition, JoinedPartition]:
        """What was written to each partition so far."""
        return self.deliveries.joined

    def take_news(self) -> bool:
        """Return whether a transactional call, such as a commit, may have ended.

        It is always False: a producer that has joined a transaction makes no such calls.
        """
        return False

    # -- requests ---------------------------------------------------------------------------------

    def has(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition's batches may be sent without adding the partition first."""
        return not self._adds_partitions or topic_partition in self._partitions

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition's batches may be sent. If not, plan a request that adds it."""
        if self.has(topic_partition):
            return True
        self._partitions.request(topic_partition)
        return False

    def due(self, now: float, *, has_incomplete: bool) -> TransactionalRequest | None:  # noqa: ARG002 - as in TransactionManager
        """Return the request to send now, None if there is none.

        The caller sends it and calls `queue.sent`.
        """
        if self.queue.is_busy:
            return None
        requested = self._partitions.take_requested()
        if requested:
            self.queue.add(self._requests.add_partitions(self._producer, requested))
        return self.queue.due(now)

    def reads_back(self, batch: ProducerBatch) -> bool:
        """Return whether an acknowledged batch must be compared with the batch in the log."""
        return batch.attempts > 0 and self.deliveries.is_checked(batch)

    def is_concurrent(self, code: int, attempts: int) -> bool:
        """Return whether a batch failed because a broker was verifying another producer's batch.

        code: the error code. attempts: the number of failed attempts of the batch.
        """
        return code in _BUSY and attempts < _MOST_CONCURRENT

    # -- responses --------------------------------------------------------------------------------

    def request_failed(
        self, request: TransactionalRequest, code: int, reason: str, now: float
    ) -> None:
        """Record that a request will get no response, and queue it to be sent again.

        If the broker does not support the request, or if the request cannot be encoded, the
        producer gives up instead.
        """
        if not self.queue.back(request):
            return
        if code in (codes.UNSUPPORTED_VERSION, codes.INVALID_REQUEST):
            api = request.call.value
            self.give_up(api_exception(code, f"{api} failed: {reason}", api=api))
            return
        self.queue.look_up_again(request)
        self.queue.retry(request, now)

    def answered(
        self, request: TransactionalRequest, response: Response | None, node_id: int, now: float
    ) -> None:
        """Process a broker's response."""
        if not self.queue.back(request):
            return
        answer = read_answer(request, response, node_id)
        if answer.action is Action.SUCCEED:
            if isinstance(response, AddPartitionsToTxnResponse):
                self._partitions.added(answer.partitions)
            elif isinstance(response, FindCoordinatorResponse):
                self.queue.looked_up(request, response)
        elif answer.action in (Action.RETRY, Action.LOOK_UP):
            if answer.action is Action.LOOK_UP:
                self.queue.look_up_again(request)
            longest = _ADDING_WAIT_S if answer.code in _BUSY else float("inf")
            self.queue.retry(request, now, answer.error(), longest_wait_s=longest)
        else:
            hint = access_hint(request, answer, self.transactional_id, self._acls)
            self.give_up(answer.error(hint))

    # -- errors -----------------------------------------------------------------------------------

    def reported(self, error: KafkaException) -> KafkaException:
        """Return the error to report for the records of a batch that failed with `error`."""
        return error

    def batch_failed(self, batch: ProducerBatch, error: KafkaException, action: Action) -> None:  # noqa: ARG002 - as in TransactionManager
        """Write nothing more in the transaction, because some records have failed."""
        self.give_up(error)

    def give_up(self, error: KafkaException) -> None:
        """Set the error after which nothing more is sent, unless an error is set already."""
        if self.error is None:
            self.error = error
            self.queue.clear()

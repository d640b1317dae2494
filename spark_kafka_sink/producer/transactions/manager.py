"""TransactionManager: begin, commit and abort as a pure state machine (KIP-98, KIP-890).

It stores the state of the transaction, and applies calls and responses to it. The rest is in other
modules: the table of states (`state`), the contents of requests (`requests`), their order
(`TransactionQueue`), the meaning of responses (`answers`), the partitions (`TransactionPartitions`)
and the rules for new epochs (`TransactionalProducerId`). A call returns a `TransactionalResult` to
wait for. The sender gets the next request from `due`, and passes the responses to the manager.

::

    begin           READY ──> IN_TRANSACTION         nothing is sent yet
    first batch     AddPartitionsToTxn (version 1)   and only then the batch itself
    offsets         AddOffsetsToTxn (version 1), TxnOffsetCommit
    commit, abort   every batch is acknowledged or dropped, then EndTxn
                    InitProducerId if a new epoch is needed, then READY

Most of the code handles failures:

- A response may be lost, so the coordinator may have begun a transaction although the producer does
  not know it. That transaction must be ended, too (`has_begun`, `is_unanswered`).
- A caller may stop waiting and call again. It must then get the result of the first call
  (`TransactionalCalls.start_or_resume`).
- Rows that were appended before the end of a transaction may not be in a batch yet (`_collects`),
  and EndTxn must wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import (
    IllegalStateException,
    KafkaException,
    TransactionAbortedException,
    api_exception,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.producer.batch_errors import abortable
from spark_kafka_sink.producer.error_actions import Action, Call
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.producer.transactions.answers import Answer, access_hint, read_answer
from spark_kafka_sink.producer.transactions.partitions import TransactionPartitions
from spark_kafka_sink.producer.transactions.queue import TransactionQueue
from spark_kafka_sink.producer.transactions.requests import (
    CoordinatorKey,
    Priority,
    TransactionalCalls,
    TransactionalRequest,
    TransactionalRequests,
    TransactionalResult,
)
from spark_kafka_sink.producer.transactions.state import TRANSITIONS, Outcome, TransactionState
from spark_kafka_sink.producer.transactions.transactional_producer_id import TransactionalProducerId
from spark_kafka_sink.wire.messages import InitProducerIdResponse, Response
from spark_kafka_sink.wire.transaction_messages import EndTxnResponse, FindCoordinatorResponse

_LAST_PRODUCE_V1: Final = 11
# How long to wait before AddPartitionsToTxn is repeated while the previous transaction is still
# being completed. This is so common that retry.backoff.ms would reduce throughput (KAFKA-5477).
_ADD_PARTITIONS_RETRY_BACKOFF_S: Final = 0.020
_NOT_AUTHORIZED: Final = (
    codes.CLUSTER_AUTHORIZATION_FAILED,
    codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_S = TransactionState


class TransactionManager:
    """The transactions of a transactional producer. Times are seconds of the producer's clock.

    queue: the waiting requests, and their coordinators. error: the cause of an error state, None in
    other states. has_loose_rows: whether some rows of the transaction may not be in a batch yet;
    the caller that ends the transaction sets this, and EndTxn waits while it is set. open_appends:
    the number of Arrow batches that may be only partly appended; EndTxn waits for them, too.
    """

    def __init__(
        self,
        transactional_id: str,
        transaction_timeout_ms: int,
        sequences: Sequences,
        retry_backoff: ExponentialBackoff,
        random: Random,
        acls: Acls | None = None,
    ) -> None:
        self._acls = acls or Acls()
        self.error: KafkaException | None = None
        self._has_news = False
        self.has_loose_rows = False
        self.open_appends = 0
        self._requests = TransactionalRequests(transactional_id, transaction_timeout_ms)
        self.queue = TransactionQueue(retry_backoff, random)
        self._producer_id = TransactionalProducerId(
            sequences, self.queue.coordinators, self._requests.coordinator
        )
        self._state = _S.UNINITIALIZED
        self._calls = TransactionalCalls()
        self._partitions = TransactionPartitions()
        # The EndTxn request of the commit, None if certainly no broker has carried it out.
        self._commit: TransactionalRequest | None = None
        self._is_committed = False

    @property
    def transactional_id(self) -> str:
        """The transactional.id; a newer producer with the same id replaces this producer."""
        return self._requests.transactional_id

    @property
    def state(self) -> TransactionState:
        """The state of the transactional producer."""
        return self._state

    @property
    def is_completing(self) -> bool:
        """Whether a commit or an abort is in progress; no batch lingers then."""
        return self._state in (_S.COMMITTING, _S.ABORTING)

    @property
    def unacknowledged_call(self) -> TransactionalResult | None:
        """The latest call, ended or not. None if its caller has received the result."""
        return self._calls.unacknowledged

    @property
    def latest_call(self) -> TransactionalResult | None:
        """The latest call, None before the first."""
        return self._calls.last

    @property
    def outcome(self) -> Outcome:
        """The outcome of the latest transaction. While it is open, this is NOT_COMMITTED."""
        if self._is_committed:
            return Outcome.COMMITTED
        is_sent = self._commit is not None and self._commit.is_sent
        return Outcome.UNKNOWN if is_sent else Outcome.NOT_COMMITTED

    @property
    def gives_up(self) -> bool:
        """Whether the transaction will be aborted. Its unsent records then need not be sent."""
        return self._state in (_S.ABORTING, _S.ABORTABLE_ERROR)

    @property
    def may_renumber(self) -> bool:
        """Whether batches may be renumbered from 0 if a broker no longer knows the producer."""
        return True

    @property
    def fatal_error(self) -> KafkaException | None:
        """The error after which the producer cannot continue, None if there is no such error."""
        return self.error if self._state is _S.FATAL_ERROR else None

    @property
    def max_produce_version(self) -> int | None:
        """The latest version of Produce that the transaction allows, None for any version."""
        return None if self._producer_id.is_v2 else _LAST_PRODUCE_V1

    def take_news(self) -> bool:
        """Return whether a call may have ended since the last `take_news`."""
        has_news, self._has_news = self._has_news, False
        return has_news

    # -- calls: an illegal call raises and changes nothing ----------------------------------------

    def initialize(self) -> TransactionalResult:
        """Request the producer id.

        The coordinator then ends the transaction of an older producer with the same
        transactional.id.
        """

        def start(result: TransactionalResult) -> None:
            self._raise_error(result.operation)
            self._call_to(_S.INITIALIZING, result.operation)
            self._ask_for_producer_id(Priority.INIT_PRODUCER_ID, result)

        return self._calls.start_or_resume("init_transactions", start)

    def begin(self) -> None:
        """Begin a transaction; brokers learn of it when something is sent."""
        self._calls.raise_unfinished("begin_transaction")
        self._raise_error("begin_transaction")
        self._call_to(_S.IN_TRANSACTION, "begin_transaction")
        self._commit, self._is_committed = None, False

    def check_in_transaction(self, operation: str) -> None:
        """Raise an exception if records or offsets cannot be sent in the present state."""
        self._calls.raise_unfinished(operation)
        self._raise_error(operation)
        if self._state is not _S.IN_TRANSACTION:
            first = "begin_transaction" if self._producer_id.is_known else "init_transactions"
            message = f"{operation} needs a transaction: call {first} first"
            raise IllegalStateException(message)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> TransactionalResult:
        """Commit a consumer group's offsets as part of the transaction (KIP-447).

        Without offsets, do nothing: a broker would not begin the transaction for none.
        """
        result = TransactionalResult("send_offsets_to_transaction")
        self.check_in_transaction(result.operation)
        if not offsets:
            result.finish()
            return result
        producer = self._producer_id.current
        if self._producer_id.is_v2:
            self._partitions.begin()
        else:
            # AddOffsetsToTxn goes first: requests of equal priority are sent in the order of `add`.
            self.queue.add(self._requests.add_offsets(producer, group.group_id, result))
        self.queue.add(
            self._requests.commit_offsets(
                producer, offsets, group, result, is_v2=self._producer_id.is_v2
            )
        )
        return result

    def begin_commit(self) -> TransactionalResult:
        """Commit the transaction when everything that was sent is acknowledged."""

        def start(result: TransactionalResult) -> None:
            self._raise_error(result.operation)
            self._call_to(_S.COMMITTING, result.operation)
            self._commit = self._end(Call.COMMIT, result)

        return self._calls.start_or_resume("commit_transaction", start)

    def begin_abort(self) -> TransactionalResult:
        """Abort the transaction; records that were not sent yet are dropped."""

        def start(result: TransactionalResult) -> None:
            if self._state is not _S.ABORTABLE_ERROR:
                self._raise_error(result.operation)
            self._call_to(_S.ABORTING, result.operation)
            self._partitions.drop_requested()
            self._end(Call.ABORT, result)

        return self._calls.start_or_resume("abort_transaction", start)

    def end_at_close(self, *, is_awaited: bool) -> TransactionalResult:
        """End the transaction at `close`: abort it, or resume a commit or abort in progress.

        A commit is resumed if EndTxn was sent: a broker may have committed already, and only the
        response to a further EndTxn shows the outcome. A commit is also resumed if another thread
        waits for it (is_awaited). Otherwise, the commit fails, and the transaction is aborted.
        """
        if self._state is _S.COMMITTING:
            if is_awaited or self.outcome is Outcome.UNKNOWN:
                return self.begin_commit()
            self._answer_to(_S.ABORTABLE_ERROR)
            self.error = aborted_at_close()
            for request in self.queue.drop(lambda request: request is self._commit):
                self._finish(request.result, self.error)
                request.result.is_acknowledged = True
        return self.begin_abort()

    def _raise_error(self, operation: str) -> None:
        if self.error is None:
            return
        if self._state is _S.FATAL_ERROR:
            raise self.error.with_traceback(None)  # its traceback must not grow with each call
        message = (
            f"{operation} is not possible: the transaction has failed and can only be aborted "
            f"(abort_transaction): {self.error}"
        )
        raise KafkaException(message) from self.error

    def _call_to(self, state: TransactionState, operation: str) -> None:
        """Change the state for a call. Raise IllegalStateException if the change is illegal."""
        if state not in TRANSITIONS[self._state]:
            message = f"{operation} is not possible in state {self._state.name}"
            raise IllegalStateException(f"{message}: {self._state.value}")
        self._state = state

    # -- requests ---------------------------------------------------------------------------------

    def has(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition is in the transaction, so its batches may be sent."""
        return topic_partition in self._partitions

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition is in the transaction; if not, request to add it."""
        if self.has(topic_partition):
            return True
        if self._state not in (_S.IN_TRANSACTION, _S.COMMITTING):
            return False
        if self._producer_id.is_v2:
            self._partitions.add_at_once(topic_partition)
            return True
        self._partitions.request(topic_partition)
        return False

    def due(self, now: float, *, has_incomplete: bool) -> TransactionalRequest | None:
        """Return the request to send now; the caller sends it and calls `queue.sent`.

        has_incomplete: whether any batch has no response yet; EndTxn waits for these responses.
        """
        if self.queue.is_busy:
            return None
        requested = self._partitions.take_requested()
        if requested:
            producer = self._producer_id.current
            self.queue.add(self._requests.add_partitions(producer, requested))
        for refused in self.queue.drop(self._is_refused):
            self._finish(refused.result, self.error or _not_sent(refused))
        while (request := self.queue.first()) is not None:
            if request.priority is not Priority.END_TXN:
                break
            if has_incomplete or self._collects:
                return None
            if self._partitions.has_begun:
                break
            self.queue.drop_first()
            self._decided(request)
            self._ended(request.result)
        return self.queue.due(now)

    def _is_refused(self, request: TransactionalRequest) -> bool:
        """Return whether a request is no longer needed.

        The look-up of a coordinator is needed only while a request to it is needed.
        """
        if request.looks_up is not None:
            return not self._is_needed(request.looks_up)
        if self._state in (_S.ABORTABLE_ERROR, _S.ABORTING):
            if request.call in (Call.ADD_PARTITIONS_TO_TXN, Call.ADD_OFFSETS_TO_TXN):
                # It is unknown whether the transaction has begun at its coordinator. The abort
                # needs EndTxn only if it has, and fails with EndTxn if not. So repeat the request.
                return not request.is_unanswered
            return self._state is _S.ABORTABLE_ERROR or request.call is Call.TXN_OFFSET_COMMIT
        return self._state is _S.FATAL_ERROR

    def _is_needed(self, coordinator: CoordinatorKey) -> bool:
        """Return whether the transaction or a waiting request needs this coordinator."""
        return coordinator == self._requests.coordinator or any(
            request.coordinator == coordinator and not self._is_refused(request)
            for request in self.queue.waiting
        )

    def _ask_for_producer_id(self, priority: Priority, result: TransactionalResult) -> None:
        producer = self._producer_id.current
        self.queue.add(self._requests.init_producer_id(producer, priority, result))

    def _end(self, call: Call, result: TransactionalResult) -> TransactionalRequest:
        producer = self._producer_id.current
        request = self._requests.end_txn(producer, call, result, is_v2=self._producer_id.is_v2)
        self.queue.add(request)
        return request

    # -- responses: an unexpected response is a fatal error ---------------------------------------

    def request_failed(
        self, request: TransactionalRequest, code: int, reason: str, now: float
    ) -> None:
        """Repeat a request that got no response; fail it if it is unsupported or not encodable."""
        if not self.queue.back(request) or self._is_refused_look_up(request):
            return
        request.is_unanswered = True
        if code in (codes.UNSUPPORTED_VERSION, codes.INVALID_REQUEST):
            fatal = code == codes.UNSUPPORTED_VERSION
            message = f"{request.call.value} failed: {reason}"
            error = api_exception(code, message, api=request.call.value)
            self._failed(request, code, Action.FATAL if fatal else Action.ABORTABLE, error)
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
        # Most errors that are retried do not show whether an earlier attempt succeeded. If a topic
        # is unknown, no attempt succeeds any more, and an abort must not wait for one.
        is_retried = answer.action in (Action.RETRY, Action.LOOK_UP)
        if not is_retried or answer.code == codes.UNKNOWN_TOPIC_OR_PARTITION:
            request.is_unanswered = False
        if answer.action is not Action.SUCCEED and self._is_refused_look_up(request):
            return
        if answer.action is Action.SUCCEED:
            self._succeeded(request, response, answer.partitions)
        elif answer.action in (Action.RETRY, Action.LOOK_UP):
            if answer.action is Action.LOOK_UP:
                self.queue.look_up_again(request)
            self._retry(request, answer, now)
        else:
            if request.call is Call.ADD_PARTITIONS_TO_TXN:
                self._partitions.not_added(some_were=answer.is_partly_done)
            hint = access_hint(request, answer, self.transactional_id, self._acls)
            self._failed(request, answer.code, answer.action, answer.error(hint))

    def _is_refused_look_up(self, request: TransactionalRequest) -> bool:
        """Return whether a request looks up a coordinator, and this look-up is no longer needed."""
        return request.looks_up is not None and self._is_refused(request)

    def _retry(self, request: TransactionalRequest, answer: Answer, now: float) -> None:
        first_of_transaction = (
            request.call is Call.ADD_PARTITIONS_TO_TXN
            and answer.code == codes.CONCURRENT_TRANSACTIONS
            and not self._partitions.has_begun
        )
        longest = _ADD_PARTITIONS_RETRY_BACKOFF_S if first_of_transaction else float("inf")
        self.queue.retry(request, now, answer.error(), longest_wait_s=longest)

    def _succeeded(
        self,
        request: TransactionalRequest,
        response: Response | None,
        partitions: list[TopicPartition],
    ) -> None:
        if request.call in (Call.ADD_PARTITIONS_TO_TXN, Call.ADD_OFFSETS_TO_TXN):
            self._partitions.added(partitions)
        elif isinstance(response, FindCoordinatorResponse):
            self.queue.looked_up(request, response)
        elif isinstance(response, InitProducerIdResponse):
            self._initialized(response, request.result)
        elif isinstance(response, EndTxnResponse):
            self._producer_id.transaction_ended(response)
            self._decided(request)
            self._ended(request.result)
        else:
            self._finish(request.result)

    def _initialized(self, response: InitProducerIdResponse, result: TransactionalResult) -> None:
        if not self._answer_to(_S.READY):
            return
        self._producer_id.initialized(response)
        self._finish(result)

    def _decided(self, request: TransactionalRequest) -> None:
        """Record that EndTxn succeeded, or was not needed because the transaction is empty.

        A successful abort does not prove that an earlier commit failed.
        """
        self._is_committed = request.call is Call.COMMIT

    def _ended(self, result: TransactionalResult) -> None:
        """Prepare for the next transaction; request a new epoch first if one is needed."""
        raises = self._producer_id.next_transaction()
        if not self._answer_to(_S.INITIALIZING if raises else _S.READY):
            return
        self._partitions.clear()
        self.error = None
        if raises:
            self._ask_for_producer_id(Priority.EPOCH_BUMP, result)
        else:
            self._finish(result)

    # -- errors -----------------------------------------------------------------------------------

    def reads_back(self, batch: ProducerBatch) -> bool:  # noqa: ARG002 - as in JoinedTransaction
        """Return whether an acknowledged batch must be compared with the batch in the log."""
        return False

    def is_concurrent(self, code: int, attempts: int) -> bool:  # noqa: ARG002 - as in JoinedTransaction
        """Return whether a batch failed because a broker was verifying another producer's batch."""
        return False

    def reported(self, error: KafkaException) -> KafkaException:
        """Return the error to report for the records of a batch that failed with `error`."""
        return abortable(error)

    def batch_failed(self, batch: ProducerBatch, error: KafkaException, action: Action) -> None:
        """Record that some records of the transaction have failed."""
        if action is Action.FATAL:
            self._fatal(error)
        elif self._state is not _S.FATAL_ERROR:
            if self._producer_id.batch_failed(batch):
                self._abortable(error)
            else:
                self._fatal(error)

    def record_refused(self, error: KafkaException) -> None:
        """Change the state to ABORTABLE_ERROR: a record was rejected before it was appended."""
        is_open = self._state is _S.IN_TRANSACTION or (
            self._state is _S.COMMITTING and self._collects
        )
        if is_open and self._answer_to(_S.ABORTABLE_ERROR):
            self.error = error

    def give_up(self, error: KafkaException) -> None:
        """Fail everything, because the producer is closed or cannot continue."""
        self._fatal(error)

    @property
    def _collects(self) -> bool:
        """Whether rows of the transaction may still have to be put into batches."""
        return self.has_loose_rows or self.open_appends > 0

    def _failed(
        self, request: TransactionalRequest, code: int, action: Action, error: KafkaException
    ) -> None:
        if request is self._commit and not request.attempts:
            self._commit = None  # no earlier attempt can have succeeded
        if action is Action.ABORTABLE_IF_BUMP:
            action = Action.ABORTABLE if self._producer_id.can_go_on else Action.FATAL
        if action is Action.ABORTABLE and request.call is Call.ABORT:
            # The coordinator no longer knows the transaction. A new epoch fences its remains.
            self._producer_id.raise_epoch()
            self._ended(request.result)
            return
        initializing = self._state is _S.INITIALIZING
        if action is Action.ABORTABLE:
            self._abortable(error)
        else:
            self._fatal(error)
        self._finish(request.result, error)
        if initializing and self._state is _S.ABORTABLE_ERROR and code in _NOT_AUTHORIZED:
            self._answer_to(_S.UNINITIALIZED)
            self.error = None

    def _abortable(self, error: KafkaException) -> None:
        if self._state is not _S.ABORTING and self._answer_to(_S.ABORTABLE_ERROR):
            self.error = self.error or error
            self._producer_id.transaction_failed()

    def _fatal(self, error: KafkaException) -> None:
        if self._state is _S.FATAL_ERROR:
            return
        self._state, self.error = _S.FATAL_ERROR, error
        for request in self.queue.clear():
            self._finish(request.result, error)
        if self._calls.last is not None:
            self._finish(self._calls.last, error)

    def _answer_to(self, state: TransactionState) -> bool:
        """Change the state for a response. An illegal change is a fatal error."""
        if state in TRANSITIONS[self._state]:
            self._state = state
            return True
        message = f"a response would change the state from {self._state.name} to {state.name}"
        self._fatal(IllegalStateException(message))
        return False

    def _finish(self, result: TransactionalResult, error: KafkaException | None = None) -> None:
        result.finish(error)
        self._has_news = True


def aborted_at_close() -> KafkaException:
    """Return the error of a commit that fails because `close` aborts the transaction."""
    message = (
        "commit_transaction was not carried out: the producer was closed before EndTxn was sent, "
        "so the transaction is aborted; send the records of the transaction again"
    )
    return TransactionAbortedException(message)


def _not_sent(request: TransactionalRequest) -> KafkaException:
    message = f"{request.call.value} was not sent: the transaction was aborted first"
    return TransactionAbortedException(message)

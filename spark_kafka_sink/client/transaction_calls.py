"""The transactional calls of a producer, such as a commit.

A call starts an operation of the I/O thread, waits for its end, and raises its error. It waits at
most max.block.ms. After a timeout, the operation continues in the background. The user must then
either close the producer, or call the same method again to wait for the same operation.
`TransactionManager` defines which calls are legal, and what the brokers' responses mean. This
module also checks the offsets of a consumer group before they are sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from random import Random
from typing import Any, Final

from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.client.deadlines import deadline_of, seconds_until
from spark_kafka_sink.client.io_thread import ProducerThread
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    IllegalArgumentException,
    KafkaException,
    TimeoutException,
    TransactionAbortedException,
)
from spark_kafka_sink.model import (
    LARGEST_INT32,
    LARGEST_INT64,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    check_text,
    check_topic_name,
    checked_number,
)
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.producer.transactions.manager import TransactionManager, aborted_at_close
from spark_kafka_sink.producer.transactions.requests import TransactionalResult
from spark_kafka_sink.producer.transactions.state import Outcome, TransactionState

_NONE: Final = -1


def checked_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a copy of `offsets` that contains only objects of this package.

    `offsets` may contain objects of a different Python client. Raise IllegalArgumentException
    unless it maps partitions to valid offsets. Raise DataException for an invalid topic name.
    """
    copied: dict[TopicPartition, OffsetAndMetadata] = {}
    if not isinstance(offsets, Mapping):
        message = (
            f"the offsets are {offsets!r}: expected a mapping from TopicPartition to "
            "OffsetAndMetadata"
        )
        raise IllegalArgumentException(message)
    for key, value in offsets.items():
        if not isinstance(key, tuple) or len(key) != 2:
            message = f"offsets are given for {key!r}: expected a TopicPartition"
            raise IllegalArgumentException(message)
        topic, partition = key
        check_topic_name(topic)
        partition = checked_number(f"the partition of topic {topic}", partition, 0, LARGEST_INT32)
        where = f"{topic}-{partition}"
        of_partition = _values(f"the offset of {where}", value, OffsetAndMetadata)
        offset = checked_number(f"the offset of {where}", of_partition["offset"], 0, LARGEST_INT64)
        epoch = checked_number(
            f"the leader epoch of {where}", of_partition["leader_epoch"], _NONE, LARGEST_INT32
        )
        metadata = of_partition["metadata"]
        if metadata is not None:
            check_text(f"the metadata of {where}", metadata)
        copied[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, metadata, epoch)
    return copied


def checked_group(group: object) -> ConsumerGroupMetadata:
    """Return a copy of `group` as a ConsumerGroupMetadata of this package.

    `group` may be an object of a different Python client. Raise IllegalArgumentException unless it
    is a valid consumer group.
    """
    of_group = _values("the group", group, ConsumerGroupMetadata)
    check_text("the group id", of_group["group_id"])
    if not of_group["group_id"]:
        message = "the group id is empty: expected the name of a consumer group"
        raise IllegalArgumentException(message)
    generation = checked_number(
        "the generation id", of_group["generation_id"], _NONE, LARGEST_INT32
    )
    check_text("the member id", of_group["member_id"])
    if of_group["group_instance_id"] is not None:
        check_text("the group instance id", of_group["group_instance_id"])
    if not of_group["member_id"] and generation > 0:
        message = (
            f"group {of_group['group_id']} has generation {generation} but no member id: pass both "
            "values of the group's consumer, or neither"
        )
        raise IllegalArgumentException(message)
    return ConsumerGroupMetadata(**{**of_group, "generation_id": generation})


def _values(what: str, thing: object, kind: type) -> dict[str, Any]:
    """Return the attributes of `thing` that are named like the fields of `kind`.

    what: what `thing` is, for error messages. kind: a dataclass. Raise IllegalArgumentException if
    `thing` lacks one of these attributes.
    """
    try:
        return {field.name: getattr(thing, field.name) for field in fields(kind)}
    except AttributeError:
        article = "an" if kind is OffsetAndMetadata else "a"
        message = f"{what} is {thing!r}: expected {article} {kind.__name__}"
        raise IllegalArgumentException(message) from None


# For each method, the key of the metric for its time in `producer_metrics.TIMES`.
_SENSORS = {
    "init_transactions": "txn-init",
    "send_offsets_to_transaction": "txn-send-offsets",
    "commit_transaction": "txn-commit",
    "abort_transaction": "txn-abort",
}
_COMMIT: Final = "commit_transaction"
_ABORT: Final = "abort_transaction"
_AT_CLOSE: Final = {
    Outcome.NOT_COMMITTED: "the transaction was not committed, and its coordinator aborts it after "
    "transaction.timeout.ms",
    Outcome.COMMITTED: "the transaction was committed",
    Outcome.UNKNOWN: "it is not known whether the transaction was committed",
}
_RESUMED = ("init_transactions", "commit_transaction", "abort_transaction")


def transaction_manager(
    config: ProducerConfig,
    sequences: Sequences,
    retry_backoff: ExponentialBackoff,
    random: Random,
    acls: Acls,
) -> TransactionManager:
    """Return the TransactionManager for a configuration that has a transactional.id."""
    return TransactionManager(
        config.transactional_id or "",
        config.transaction_timeout_ms,
        sequences,
        retry_backoff,
        random,
        acls,
    )


class ProducerTransactions:
    """The transactional calls of a producer that has a transactional.id.

    drain_rows: a function that puts the rows of earlier `send` calls into batches; it takes a
    deadline. drop_rows: a function that fails the rows that are in no batch yet; it takes the error
    of the transaction.
    """

    def __init__(
        self,
        state: ProducerState,
        thread: ProducerThread,
        manager: TransactionManager,
        max_block_ms: int,
        drain_rows: Callable[[float | None], None],
        drop_rows: Callable[[KafkaException | None], None],
    ) -> None:
        self._state = state
        self._thread = thread
        self._manager = manager
        self._max_block_ms = max_block_ms
        self._drain_rows = drain_rows
        self._drop_rows = drop_rows
        # The ids of the threads that are running `commit`.
        self._committing = set[int]()
        # Whether a commit was interrupted, so that no call has shown its result.
        self._is_interrupted_commit = False
        self._unseen_commit: TransactionalResult | None = None
        # For a garbage-collected producer: the time limit for the end of its transaction, whether
        # there was a transaction to end, and the commit or abort in progress.
        self._unowned_until: float | None = None
        self._is_unowned = False
        self._unowned_end: TransactionalResult | None = None

    def init(self) -> None:
        """See KafkaProducer.init_transactions."""
        self._call(self._manager.initialize)

    def begin(self) -> None:
        """See KafkaProducer.begin_transaction."""
        started = time.monotonic()
        self._state.ask(self._manager.begin)
        self._is_interrupted_commit = False
        self._state.record_time("txn-begin", time.monotonic() - started)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """See KafkaProducer.send_offsets_to_transaction."""
        # The user's objects may run code, so they are copied without the lock.
        copied, of_group = checked_offsets(offsets), checked_group(group)
        self._call(lambda: self._manager.send_offsets(copied, of_group))

    def commit(self, check: Callable[[], object]) -> None:
        """See KafkaProducer.commit_transaction. check: raises if the producer cannot commit now."""
        # Until the call returns or raises its error, an interrupt may end it at any moment.
        self._is_interrupted_commit = True
        try:
            check()
            self._commit()
        except KafkaException:
            self._is_interrupted_commit = False
            raise
        self._is_interrupted_commit = False

    def _commit(self) -> None:
        thread = threading.get_ident()
        try:
            self._committing.add(thread)
            self._end(self._manager.begin_commit)
        finally:
            self._committing.discard(thread)

    def abort(self) -> None:
        """See KafkaProducer.abort_transaction."""
        self._is_interrupted_commit = False
        self._end(self._manager.begin_abort)

    @property
    def is_open(self) -> bool:
        """Whether an open transaction still has to be committed or aborted."""
        return self._state.ask(self._open_end) is not None

    @property
    def has_unseen_commit(self) -> bool:
        """Whether a commit was called, and the caller has not seen its result or its error yet."""
        return self._is_interrupted_commit or self._state.ask(self._take_unseen_commit) is not None

    @property
    def outcome(self) -> Outcome:
        """The outcome of the latest transaction."""
        return self._state.ask(lambda: self._manager.outcome)

    def _take_unseen_commit(self) -> TransactionalResult | None:
        """Return the commit that has timed out or was interrupted; None if there is none.

        Also return None if a commit was interrupted before it began. Later calls of this method
        return the same commit, even after `end_open` has waited for it.
        """
        latest = self._manager.latest_call
        # A call may be interrupted between the end of its wait and its own end.
        is_unseen = latest is not None and (
            self._is_interrupted_commit or not latest.is_acknowledged
        )
        if latest is not None and is_unseen and latest.operation == _COMMIT:
            self._unseen_commit = latest
        return self._unseen_commit

    def end_open(self, timeout: float | None) -> None:
        """Abort the open transaction of a producer that is being closed.

        If an abort has timed out before, or if EndTxn was sent for a commit, wait for the end of
        this abort or commit instead. Errors are stored so that `close` raises them. This includes
        the error of a commit that timed out or was interrupted before, but not the error of records
        that an abort has dropped. If the timeout passes first, the coordinator aborts the
        transaction later.

        timeout: seconds; None for max.block.ms. A longer timeout than max.block.ms is shortened to
        it.
        """
        commit = self._state.ask(self._take_unseen_commit)
        end = self._state.ask(self._open_end)
        if end is None:
            failure = self._failure(commit)
            if failure is not None or self._state.ask(self._has_unseen_abort):
                self._keep(self._state.take_delivery_error(), failure)
            return
        unseen = self._state.take_delivery_error()
        wait = self._max_block_ms / 1000
        deadline = deadline_of(wait if timeout is None else min(wait, timeout))
        for _ in range(2):  # after a failed commit, the transaction has to be aborted
            try:
                self._end(end, seconds_until(deadline), is_closing=True)
            except KafkaException as error:
                unseen = unseen or error
            end = self._state.ask(self._open_end)
            if end is None:
                break
        self._state.take_delivery_error()
        self._keep(unseen, self._failure(commit))

    def end_unowned(self) -> float | None:
        """End the open transaction of a garbage-collected producer, in the same way as `close`.

        The I/O thread calls this after each round, because it must not wait. Return the time at
        which max.block.ms expires. Return None if it has expired, or if no transaction is open.
        """
        now = self._state.now()
        if self._unowned_until is None:
            self._unowned_until = now + self._max_block_ms / 1000
            self._is_unowned = self.is_open or self.has_unseen_commit
        while now < self._unowned_until and (end := self._state.ask(self._open_end)) is not None:
            if self._unowned_end is None:
                self._unowned_end = self._state.change(end)
                if self._manager.gives_up:
                    self._drop_rows(self._manager.error)
                self._state.change(self._all_in_batches)
            if not self._unowned_end.is_done:
                return self._unowned_until
            self._unowned_end.is_acknowledged = True
            self._unowned_end = None
        return None

    @property
    def unowned_outcome(self) -> str:
        """The outcome of a garbage-collected producer's transaction; empty if it had none."""
        if self._is_unowned or self.is_open or self.has_unseen_commit:
            return self.outcome.value
        return ""

    def _all_in_batches(self) -> None:
        """Record that every remaining row is in a batch, so that EndTxn need not wait for rows."""
        self._manager.has_loose_rows = False

    def _keep(self, unseen: KafkaException | None, failure: KafkaException | None) -> None:
        """Store the error that `close` raises: `unseen`, or else the `failure` of a commit."""
        # A user that closes the producer without a commit expects that the records are dropped.
        if isinstance(unseen, TransactionAbortedException):
            unseen = None
        if unseen is not None or failure is not None:
            self._state.keep_delivery_error(unseen or failure)

    def _failure(self, commit: TransactionalResult | None) -> KafkaException | None:
        """Return the error of a failed commit that no call has raised yet; None if there is none.

        commit: the result of `_take_unseen_commit`.
        """
        if commit is None and not self._is_interrupted_commit:
            return None
        outcome, fatal = self.outcome, self._state.fatal_error
        if outcome is Outcome.COMMITTED:
            return None
        if commit is not None and commit.error is not None:
            return commit.error
        if fatal is None and outcome is Outcome.NOT_COMMITTED:
            return aborted_at_close()
        reason = "" if fatal is None else f": {fatal}"
        message = f"commit_transaction was interrupted; {_AT_CLOSE[outcome]}{reason}"
        failure = KafkaException(message)
        failure.__cause__ = fatal
        return failure

    def _has_unseen_abort(self) -> bool:
        """Whether a call of abort timed out or was interrupted before the abort was done."""
        unseen = self._manager.unacknowledged_call
        return unseen is not None and unseen.operation == _ABORT

    def _open_end(self) -> Callable[[], TransactionalResult] | None:
        """Return a function that ends the open transaction, or continues to end it.

        The returned function returns the result to wait for. If no transaction is open, return None
        in place of a function.
        """
        if self._state.fatal_error is not None:  # a failed producer cannot end a transaction
            return None
        unseen = self._manager.unacknowledged_call
        match self._manager.state:
            case TransactionState.ABORTABLE_ERROR if unseen is not None:
                return lambda: unseen
            case (
                TransactionState.IN_TRANSACTION
                | TransactionState.COMMITTING
                | TransactionState.ABORTABLE_ERROR
                | TransactionState.ABORTING
            ):
                return self._end_at_close
        return None

    def _end_at_close(self) -> TransactionalResult:
        others = self._committing - {threading.get_ident()}
        return self._manager.end_at_close(is_awaited=bool(others))

    def _end(
        self,
        begin: Callable[[], TransactionalResult],
        timeout: float | None = None,
        *,
        is_closing: bool = False,
    ) -> None:
        """Begin or resume the end of a transaction, and wait for it.

        The transaction first stops taking new rows, and then its rows are sent. In the other order,
        rows that another thread sends between the two steps would not be part of the transaction.
        An abort drops the rows that are in no batch yet, so it does not wait for a partitioner. If
        an interrupt (KeyboardInterrupt) comes before all rows are in batches, EndTxn is not sent
        until the user calls the same method again, or aborts the transaction by closing the
        producer. After a later interrupt, EndTxn is sent as soon as the batches are acknowledged.

        begin: the method of the manager that begins a commit or an abort. timeout: seconds, None
        for max.block.ms. is_closing: whether the producer is being closed.
        """
        wait = self._max_block_ms / 1000 if timeout is None else timeout
        deadline = deadline_of(wait)

        def begin_and_wait_for_rows() -> TransactionalResult:
            is_new = not self._manager.is_completing
            result = begin()
            if is_new:
                self._manager.has_loose_rows = True
            return result

        result = self._state.change(begin_and_wait_for_rows)
        if self._manager.gives_up:
            self._drop_rows(self._manager.error)
        else:
            self._drain_rows(deadline)

        def all_in_batches() -> TransactionalResult:
            self._all_in_batches()
            return result

        self._call(all_in_batches, timeout, deadline, is_closing=is_closing)

    def _call(
        self,
        start: Callable[[], TransactionalResult],
        timeout: float | None = None,
        deadline: float | None = None,
        *,
        is_closing: bool = False,
    ) -> None:
        """Start or resume an operation, such as a commit. Wait for its end, and raise its error.

        start: the function that starts or resumes the operation. timeout: the longest wait in
        seconds, None for max.block.ms. deadline: the time at which the wait ends, if the timeout
        began before this method was called. With None, the timeout begins now. is_closing: whether
        the producer is being closed.
        """
        wait = self._max_block_ms / 1000 if timeout is None else timeout
        started = time.monotonic()
        deadline = deadline_of(wait) if deadline is None else deadline
        result = self._state.change(start)

        def ended() -> bool | None:
            if not result.is_done:
                return None
            if result.operation == _ABORT:
                # The failed records belong to the transaction that has ended, so their error is
                # removed. It is removed here, because an interrupt may follow, and the user cannot
                # repeat the abort then.
                self._state.take_delivery_error()
            result.is_acknowledged = True
            return True

        def late() -> TimeoutException:
            return self._timed_out(result.operation, wait, is_closing=is_closing)

        try:
            self._state.wait(ended, deadline, late)
        finally:
            waited_s = time.monotonic() - started
            self._state.record_time(_SENSORS[result.operation], waited_s)
        if result.error is not None:
            # This method raises the error, so the next flush need not raise it again.
            self._state.take_delivery_error()
            raise result.error

    def _timed_out(self, operation: str, wait_s: float, *, is_closing: bool) -> TimeoutException:
        trouble = self._thread.network_trouble
        way_on = "call it again to go on waiting" if operation in _RESUMED else "abort"
        way_on += ", or close the producer"
        if is_closing:
            way_on = _AT_CLOSE[self._manager.outcome]
        return TimeoutException.after(
            self._state.last_error(),
            f"{operation} was not done within {round(wait_s * 1000)} ms (max.block.ms="
            f"{self._max_block_ms}); {way_on}",
            trouble=f" ({trouble})" if trouble else "",
        )

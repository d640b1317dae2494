"""ProducerState: the state that the callers and the I/O thread of a producer share, with its lock.

It contains the lock (see `ProducerLock`) and the state machines: accumulator, metadata, sender,
completion, sequences, transactions, deliveries. Nearly all code that takes the lock is here. No
method waits, calls user code or logs while it holds the lock. Arrow batches are appended in slices
(see `appender`). If a slice need not wait, its append takes the lock three times, in `reserve`,
`hold` and `put_in`, and once more if batches became full (`packed`). A transactional producer takes
it twice more for each append, in `begin_append` and `end_append`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.client.deadlines import Call
from spark_kafka_sink.client.producer_lock import ProducerLock
from spark_kafka_sink.client.producer_metrics import ProducerMetrics
from spark_kafka_sink.errors import BufferExhaustedException, KafkaException
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.plugins.user_calls import UserCalls, call_in_io_thread
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.completion import Deliveries, PartitionDelivery
from spark_kafka_sink.producer.delivery_progress import DeliveryProgress
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import TopicLoad
from spark_kafka_sink.producer.producer_batch import ProducerBatch, SpanOwner
from spark_kafka_sink.producer.sender import Sender, SenderPoll
from spark_kafka_sink.records.encoder import EncodedRows
from spark_kafka_sink.records.layout import OpenBatch
from spark_kafka_sink.wire.exchange import Event

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.joined import JoinedTransaction
    from spark_kafka_sink.producer.transactions.manager import TransactionManager


# How often the I/O thread cleans up after interrupted callers while other callers wait for memory.
_CLEAN_UP_INTERVAL_S: Final = 1.0


class ProducerState(ProducerLock):
    """The state machines of a producer and their lock. Times are seconds of the producer's clock.

    is_adaptive: whether the partitioner takes queue lengths into account. rack: rows without key go
    to partitions with a leader in this rack; None if racks are ignored.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        sender: Sender,
        metrics: ProducerMetrics,
        transactions: TransactionManager | None,
        *,
        is_adaptive: bool,
        rack: str | None = None,
    ) -> None:
        super().__init__(clock)
        self.accumulator = sender.accumulator
        self.metadata = sender.metadata
        self.metrics = metrics
        self.deliveries = Deliveries()
        self.latencies = sender.latencies
        self.transactions = transactions
        self._completion = sender.completion
        self._sender = sender
        self._is_adaptive = is_adaptive
        self._rack = rack
        # The deliveries that do not belong to a joined transaction (see `join`).
        self._own_deliveries = self.deliveries
        self.user_calls = UserCalls()
        # The appends in progress; only recorded if there are transactions.
        self._open_appends: set[object] = set()
        # The topics of each call that waits for metadata.
        self._topic_waits: dict[object, Collection[str]] = {}
        # The number of failed records whose error no call has raised, by topic; see `lost`.
        self._failed = Counter[str]()
        self._counts_rows_of_send = False
        # The error with which the I/O thread must fail all batches.
        self._interruption: KafkaException | None = None
        self._is_stopping = False
        self._is_in_hurry = False
        self.ends_when_idle = False

    # -- the time and the results, for callers ----------------------------------------------------

    def now(self) -> float:
        """Return the time of the producer's clock."""
        return self._clock()

    @property
    def fatal_error(self) -> KafkaException | None:
        """The error that ends all deliveries; None if there is none. The lock is not needed."""
        return self._sender.fatal_error

    def raise_if_fatal(self) -> None:
        """Raise the producer's fatal error, if there is one; the lock is not needed."""
        error = self._sender.fatal_error
        if error is not None:
            # Without a reset, its traceback would grow with each call, and keep the rows of all
            # these calls in memory.
            raise error.with_traceback(None)

    def take_delivery_error(self) -> KafkaException | None:
        """Return the first delivery error since the last call; None if there is none.

        If an interrupt ends this call, the next call returns the error.
        """
        if self.deliveries.error is None:  # the usual case takes no lock
            return None
        error, failed = None, Counter[str]()
        try:
            with self.lock:
                if not self._counts_rows_of_send:
                    failed, self._failed = self._failed, failed
                error = self.deliveries.take_error()
        except BaseException:
            with self.lock:
                self._failed += failed
                self.deliveries.error = error or self.deliveries.error
            raise
        return error

    def keep_delivery_error(self, error: KafkaException | None) -> None:
        """Replace the error that `take_delivery_error` returns next."""
        with self.lock:
            self.deliveries.error = error

    def take_deliveries(self) -> dict[TopicPartition, PartitionDelivery]:
        """Return what was delivered to each partition since the last call."""
        with self.lock:
            return self.deliveries.take_partitions()

    def progress(self) -> DeliveryProgress:
        """Return the progress of deliveries, and what the producer waits for."""
        with self.lock:
            return self._sender.progress(self.deliveries, self._topic_waits.values(), self._clock())

    def last_error(self) -> KafkaException | None:
        """Return the last error of a request or batch that is retried; None if there is none."""
        with self.lock:
            return self._sender.last_error()

    def count_lost(self) -> None:
        """Count rows of `send` as lost if they fail from now on.

        Their futures show the error too, but perhaps no caller reads the futures any more.
        """
        with self.lock:
            self._counts_rows_of_send = True

    def lost(self) -> Counter[str]:
        """Return the number of records that are lost or in unfinished batches, by topic.

        The lost records are the failed records of `append` whose error no call has raised yet, and
        the rows of `send` that have failed since `count_lost` was called.
        """
        with self.lock:
            return self._failed + self.accumulator.undelivered()

    def refuse(self, records: int, error: KafkaException, topic: str | None = None) -> None:
        """Count records that could not be appended.

        topic: the topic of the records if `send` had already returned futures for them; None if
        `send` or `append` is still running and reports the error itself.
        """
        exhausted = isinstance(error, BufferExhaustedException)
        with self.lock:
            self.metrics.refused(records, self._clock(), exhausted=exhausted)
            if topic is not None:
                self._count_failed(topic, records, of_send=records)

    def _count_failed(self, topic: str, records: int, *, of_send: int) -> None:
        if not (self._counts_rows_of_send or self.ends_when_idle):
            records -= of_send
        if records:
            self._failed[topic] += records

    def record_time(self, name: str, seconds: float) -> None:
        """Add `seconds` to the time that callers spent in a method; see `ProducerMetrics`."""
        with self.lock:
            self.metrics.record_time(name, seconds * 1e9)

    # -- waiting ----------------------------------------------------------------------------------

    def wait_for(
        self,
        topics: Collection[str],
        find: Callable[[], list[TopicMetadata] | None],
        call: Call,
        late: Callable[[], KafkaException],
    ) -> list[TopicMetadata]:
        """Wait until `find` returns the topics' metadata, and return it.

        All unknown topics are in one metadata request. find: called with the lock after each change
        of the metadata; returns None to keep waiting. late: called with the lock after the
        deadline; returns the error to raise.
        """
        waiter = object()

        def tracked() -> list[TopicMetadata] | None:
            self._track(topics)
            call.check()
            found = find()
            if found is None or self.metadata.is_update_requested:
                self._wake()
            if found is None:
                self._topic_waits[waiter] = topics
            else:
                self._end_topic_wait(waiter)
            return found

        try:
            return self.wait(
                tracked,
                call.deadline,
                late,
                lambda time_ns, _: self.metrics.record_time("metadata-wait", time_ns),
            )
        except BaseException:
            self.left_behind[waiter] = self._end_topic_wait
            self._end_topic_wait(waiter)
            raise

    def _end_topic_wait(self, waiter: object) -> None:
        """Record that a call no longer waits for metadata; harmless if repeated."""
        with self.lock:
            self._topic_waits.pop(waiter, None)

    def _track(self, topics: Iterable[str]) -> None:
        """Mark topics as used, and request the metadata of unknown topics.

        A topic is requested again if its last request failed for another caller.
        """
        if not self.metadata.track_all(topics, self._clock()):
            self._wake()

    def limit_messages(self, max_message_bytes: Mapping[str, int]) -> None:
        """Set the max.message.bytes of topics; see `TaskProducer.limit_messages`."""
        with self.lock:
            self.accumulator.limit_topics(max_message_bytes)

    def forget_topics(self) -> None:
        """Forget all topics, as if the producer were new."""
        with self.lock:
            self.metadata.forget_topics()
            # Each waiter requests its topic itself.
            self._waiters.notify_all()
            self.accumulator.forget_limits()
            self._completion.forget_warnings()
            if self._sender.sequences is not None:
                self._sender.sequences.unconfirm()

    # -- appending --------------------------------------------------------------------------------

    def reserve(
        self,
        pending: PendingAppend,
        size_bytes: int,
        call: Call,
        late: Callable[[], KafkaException],
        topics: Sequence[str],
        to_spread: Mapping[str, TopicMetadata],
    ) -> dict[str, TopicLoad]:
        """Reserve bytes of buffer.memory for rows; callers are served in order of arrival.

        topics: the topics of the rows, which are marked as used. to_spread: the topics with rows
        that may go to any partition. Return the `TopicLoad` of each topic in `to_spread`. The
        caller must call `release` afterwards, even if this method raises. That is not necessary
        after `put_in`, which releases the bytes. In the producer of a task, max.block.ms begins
        again whenever a broker acknowledges a batch.
        """
        pool = self.accumulator.pool

        def take() -> dict[str, TopicLoad] | None:
            call.check()
            room_bytes = pool.room_bytes
            if pool.reserve(pending, size_bytes):
                self._track(topics)
                return self.loads(to_spread)
            if pool.room_bytes > room_bytes:
                self._wake()
            return None

        with self.lock:
            loads = take()
        if loads is not None:
            return loads
        with self.lock:
            pool.wait(pending)
            self._wake()
        loads = self.wait(
            take,
            call.deadline,
            late,
            self.metrics.waited_for_memory,
            lambda: self.accumulator.last_acknowledged_at + call.max_block_s,
        )
        self._stop_waiting(pending)
        return loads

    def _stop_waiting(self, pending: PendingAppend) -> None:
        """Remove a call from the queue of calls that wait for memory; harmless if repeated."""
        with self.lock:
            self.accumulator.pool.stop_waiting(pending)
            self._waiters.notify_all()

    def loads(self, topics: Mapping[str, TopicMetadata]) -> dict[str, TopicLoad]:
        """Return the load of each topic: how much data waits for its partitions."""
        with self.lock:
            near = self.metadata.nodes_in(self._rack) if self._rack is not None else ()
            return {
                name: self.accumulator.topic_load(
                    name, topic, self.latencies, adaptive=self._is_adaptive, near=near
                )
                for name, topic in topics.items()
            }

    def hold(self, pending: PendingAppend, partitions: Sequence[TopicPartition]) -> list[OpenBatch]:
        """Protect the partitions' open batches from changes, and return how full they are."""
        with self.lock:
            # End the holds of interrupted appends on the same partitions. Forget an earlier hold of
            # these rows, so that the I/O thread does not end the new hold.
            self._clean_up()
            self.left_behind.pop(pending, None)
            pending.partitions = partitions
            return self.accumulator.hold(partitions)

    def put_in(
        self,
        pending: PendingAppend,
        rows: EncodedRows,
        check: Callable[[], None],
        created_at: float | None,
        owner: SpanOwner | None,
    ) -> None:
        """Append encoded rows to the held batches, end the hold, and release the reserved memory.

        check: raises if rows must not be appended now. created_at: when the rows began to wait;
        None means now. owner: notified about each row's result; None if nobody needs it.
        """
        with self.lock:
            check()
            now = self._clock()
            self.metrics.appended(rows.records, rows.size_bytes, rows.largest_bytes, now)
            since = now if created_at is None else created_at
            with self._change:
                pending.full = self.accumulator.append(
                    pending.partitions, rows.cuts, rows.encoded, since, owner
                )
                pending.is_in_batches = True
                self._change.is_half = False
            self.let_go(pending)
            self.give_back(pending)

    def packed(self, pending: PendingAppend) -> None:
        """Record that batches were compressed and can be sent; harmless if repeated.

        The I/O thread is woken once for all of these batches, so that more of them go in one
        request. That saves a tenth of a broker's CPU time (docs/contributing/performance.md).
        """
        with self.lock:
            if pending.full:
                # Notify first, as in `give_back`.
                self._waiters.notify_all()
                for batch in pending.full:
                    if self.accumulator.may_be_sent(batch):
                        with self._change:
                            self.accumulator.settle(batch)
                            self._change.is_half = False
                pending.full = []
            self._wake()

    def let_go(self, pending: PendingAppend) -> None:
        """End the `hold` of an append's partitions; harmless if repeated."""
        with self.lock:
            self.accumulator.let_go(pending.partitions)
            pending.partitions = ()
            self._wake()

    def give_back(self, pending: PendingAppend) -> None:
        """Release the memory that was reserved for rows; harmless if repeated."""
        with self.lock:
            # Notify first: if an interrupt comes, a second call then does the rest. The woken
            # callers still wait for the lock.
            self._waiters.notify_all()
            self.accumulator.pool.give_back(pending)

    def release(self, pending: PendingAppend) -> None:
        """Release the memory and the batches that an append holds; harmless if repeated.

        The I/O thread compresses the full batches that the append has not compressed.
        """
        with self.lock:
            self._stop_waiting(pending)
            self.let_go(pending)
            self.give_back(pending)
            self.packed(pending)

    # -- a joined transaction ---------------------------------------------------------------------

    def join(self, joined: JoinedTransaction, *, withholds: bool) -> None:
        """From now on, send batches in a transaction that another process has begun.

        withholds: whether batches wait for a flush; they are sent earlier only if memory is short.
        Raise IllegalStateException if any batch is unfinished.
        """
        with self.lock:
            self._collect()
            self._sender.join(joined)
            self._own_deliveries, self.deliveries = self.deliveries, joined.deliveries
            if withholds:
                self.accumulator.withhold()

    def end_joined(self) -> None:
        """Detach from the joined transaction. Later batches do not belong to a transaction.

        Raise IllegalStateException if any batch is unfinished, or if no transaction was joined.
        """
        with self.lock:
            self._collect()
            self._sender.end_joined()
            self.accumulator.end_withholding()
            self.deliveries = self._own_deliveries

    # -- transactions, flush and close ------------------------------------------------------------

    def begin_append(self, token: object) -> None:
        """Delay the end of the transaction, if necessary, until `end_append` is called."""
        if self.transactions is not None:
            with self.lock:
                self._open_appends.add(token)
                self.transactions.open_appends = len(self._open_appends)

    def end_append(self, token: object) -> None:
        """End the append that began with `begin_append`; harmless if repeated."""
        if self.transactions is not None:
            with self.lock:
                self._open_appends.discard(token)
                self.transactions.open_appends = len(self._open_appends)
                self._wake()

    def spoil_transaction(self, error: KafkaException) -> None:
        """Move the open transaction to ABORTABLE_ERROR, because some of its records are missing."""
        if self.transactions is not None:
            with self.lock:
                self.transactions.record_refused(error)

    def begin_flush(self, flush: object) -> list[ProducerBatch]:
        """Let no rows linger until `end_flush`; return the unfinished batches."""
        with self.lock:
            self.accumulator.begin_flush(flush)
            self._wake()
            return self.accumulator.incomplete

    def end_flush(self, flush: object) -> None:
        """Let rows linger again if no other flush is in progress; harmless if repeated."""
        with self.lock:
            self.accumulator.end_flush(flush)

    def give_up(self, error: KafkaException) -> None:
        """Fail every batch with `error`, and accept no more rows."""
        with self.lock:
            # Notify first, as in `give_back`.
            self._waiters.notify_all()
            try:
                self._sender.fail_all(error)
            except Exception:  # noqa: BLE001 - an earlier exception left a batch half changed
                self._completion.end_all(error)
            self._collect()

    def _end_by(self, error: KafkaException) -> None:
        # The error of a row of `send` may come before the interrupted caller can call `count_lost`.
        self._counts_rows_of_send = True
        self._interruption = self._sender.fatal_error = error

    def stop(self, error: KafkaException | None = None) -> None:
        """Make the I/O thread end; it fails unacknowledged batches with `error`."""
        with self.lock:
            if error is not None:
                self._sender.fatal_error = self._sender.fatal_error or error
            self._is_stopping = True
            self._waiters.notify_all()
            self._wake()

    def hurry(self) -> None:
        """Send lingering rows at once. From now on, count rows of `send` calls that fail as lost.

        Do nothing if the producer is transactional.
        """
        if self.transactions is None:
            with self.lock:
                self._is_in_hurry = True
                self._counts_rows_of_send = True
                self.accumulator.stop_lingering()
                self._wake()

    def end_when_idle(self) -> None:
        """Make the I/O thread deliver its rows and then end.

        A finalizer calls this. It may run in any thread at any moment, even while the thread holds
        the lock, so this method takes no lock. The I/O thread aborts an open transaction, because
        no caller can commit it.
        """
        self.ends_when_idle = True
        self._wakeup()

    def call_later(self, call: Callable[[], object]) -> None:
        """Queue `call`; the I/O thread runs it later, without the lock."""
        with self.lock, self._change:
            self.user_calls.add(call)
            self._change.is_half = False
            self._wake()

    def make_calls(self) -> None:
        """Run the queued calls of user code; the I/O thread does this after each round."""
        made = self.user_calls.make()
        if made:
            with self.lock:
                self.user_calls.made += made
                self._waiters.notify_all()

    def make_last_calls(self) -> None:
        """Run queued calls until none is left; a new thread runs calls that are queued later."""
        while True:
            self.make_calls()
            with self.lock:
                if self.user_calls.end():
                    return

    # -- the I/O thread ---------------------------------------------------------------------------

    @property
    def is_in_hurry(self) -> bool:
        """Whether lingering rows must be put into batches at once."""
        return self.accumulator.pool.waiters > 0 or self._is_in_hurry or self.ends_when_idle

    def poll(
        self, sent: SenderPoll, events: list[Event], has_rows: Callable[[], bool]
    ) -> tuple[SenderPoll, float] | None:
        """Process sent requests and received events; return the next actions and the current time.

        Return None if the I/O thread must end. has_rows: returns whether rows wait that are in no
        batch yet; it is called with the lock held. A thread that fails these rows later wakes the
        I/O thread.
        """
        with self.lock:
            now = self._clock()
            self._clean_up_for_good()
            if self._interruption is not None:
                self.give_up(self._interruption)
                self._interruption = None
            self._take_in(sent, events, now)
            if self.ends_when_idle:
                self.accumulator.stop_lingering()
            due = self._sender.poll(now)
            if self.accumulator.pool.waiters:
                # An interrupted caller may hold memory, and may not have woken this thread.
                due.next_poll_at = min(due.next_poll_at, now + _CLEAN_UP_INTERVAL_S)
            if self._collect() or events or due.has_news:
                self._waiters.notify_all()
            if self._is_stopping:
                return None
            if self.ends_when_idle and not (self.accumulator.has_incomplete or has_rows()):
                return None
            self._is_asleep = True
            return due, now

    def awake(self) -> None:
        """Record that the I/O thread no longer waits for the network."""
        self._is_asleep = False

    def nodes_to_know(self) -> tuple[Mapping[int, Node], int]:
        """Return the brokers to connect to, and the number of rebootstraps so far.

        Only the I/O thread calls this, and only the I/O thread changes the two values.
        """
        return self._sender.nodes, self.metadata.rebootstraps

    def _take_in(self, sent: SenderPoll, events: list[Event], now: float) -> None:
        available = self.accumulator.pool.available_bytes
        for drained in sent.drained:
            for batch in drained.batches:
                self.accumulator.packed(batch)
        if self.accumulator.pool.available_bytes > available:
            self._waiters.notify_all()
        for event in events:
            self._sender.handle(event, now)

    def _collect(self) -> bool:
        """Record the results of the batches that are done; return whether there were any."""
        done = self._completion.done
        has_done = bool(done)
        while done:
            batch = done.popleft()
            if batch.state is BatchState.SPLIT:
                self.metrics.split(self._clock())
                continue
            if batch.spans:
                self.call_later(partial(_complete_spans, batch))
            self.deliveries.add(batch)
            if batch.error is not None:
                self.metrics.failed(batch, self._clock())
                of_send = sum(span.records for span in batch.spans)
                self._count_failed(batch.topic_partition.topic, batch.record_count, of_send=of_send)
        return has_done


def _complete_spans(batch: ProducerBatch) -> None:
    for span in batch.spans:
        call_in_io_thread("owner", span.owner.completed, span, batch)

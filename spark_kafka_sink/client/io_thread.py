"""The I/O thread of a producer: joins the sender's decisions with the network, under one lock.

Owns the lock, the condition that callers wait on, the thread, and the objects that only it may
touch (network client, sender, metadata). The loop: take events, decide what is due (both under the
lock), build and send requests, wait for the network (both without it). It knows nothing of columns.

Whatever goes wrong in the loop ends every wait with that error: no caller hangs on a dead thread.
User code that raises is nothing that goes wrong (`guarded_call`), nor is a handler of the log
(`safe_logging`). Nothing is logged under the lock, since a handler may call the producer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Protocol

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.client.producer_metrics import ProducerMetrics
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import BufferExhaustedException, KafkaException
from spark_kafka_sink.logs import never_raise_from_logging, safe_logging
from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient, NetworkConfig
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.plugins.guarded_call import call_in_io_thread
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.buffer_pool import Reservation
from spark_kafka_sink.producer.completion import BatchCompletion, Deliveries
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.partitioner import NodeLatencies
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sender import Sender, SenderConfig, SenderPoll
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.wire.exchange import Answered, Event

logger = logging.getLogger(__name__)

# select() takes no infinity.
_LONGEST_WAIT_S = 3600.0


class Feeder(Protocol):
    """Who has something for the accumulator when its time has come (rows that linger)."""

    def next_feed_at(self, *, hurry: bool) -> float:
        """Give when `feed` is due; hurry: whether memory is short."""

    def feed(self, now: float, *, hurry: bool) -> None:
        """Append what is due; called by the I/O thread, without the lock."""

    def waiting_rows(self) -> Counter[str]:
        """Count by topic what has not been appended yet."""

    def give_up(self, error: KafkaException) -> None:
        """Fail what has not been appended yet; called without the lock."""


class ProducerThread:
    """Everything of a producer that outlives a call: state machines, network, and their thread."""

    def __init__(
        self,
        config: ProducerConfig,
        client_id: str,
        brokers: Sequence[Node] = (),
        *,
        allow_auto_create_topics: bool = True,
    ) -> None:
        # Tasks begin at the same time; they have heard of brokers from the driver.
        security = Security.of(config, is_one_of_many=bool(brokers))
        self._clock = time.monotonic
        random = Random()  # noqa: S311 - jitter, not secrets
        retry_backoff = ExponentialBackoff.of_ms(
            config.retry_backoff_ms, config.retry_backoff_max_ms
        )
        self.accumulator = RecordAccumulator(
            batch_size_bytes=config.batch_size,
            linger_s=config.linger_ms / 1000,
            buffer_memory_bytes=config.buffer_memory,
            delivery_timeout_s=config.delivery_timeout_ms / 1000,
            codec=codec(config.compression_type, config.compression_level),
        )
        trigger_s = config.metadata_recovery_rebootstrap_trigger_ms / 1000
        self.metadata = ClusterMetadata(
            config.metadata_max_age_ms / 1000,
            retry_backoff,
            random,
            max_idle_s=config.metadata_max_idle_ms / 1000,
            rebootstrap_after_s=trigger_s if config.rebootstraps else None,
            allow_auto_topic_creation=allow_auto_create_topics,
        )
        self.deliveries = Deliveries()
        self.latencies = NodeLatencies(config.partitioner_availability_timeout_ms / 1000)
        sequences = None
        if config.enable_idempotence:
            sequences = Sequences(is_transactional=config.transactional_id is not None)
        self._sequences = sequences
        self.transactions = None
        if config.transactional_id is not None and sequences is not None:
            self.transactions = TransactionManager(
                config.transactional_id,
                config.transaction_timeout_ms,
                sequences,
                retry_backoff,
                random,
            )
        self._completion = BatchCompletion(
            accumulator=self.accumulator,
            metadata=self.metadata,
            sequences=sequences,
            retries=config.retries,
            delivery_timeout_s=config.delivery_timeout_ms / 1000,
            retry_backoff=retry_backoff,
            random=random,
            transactions=self.transactions,
            option_prefix=config.option_prefix,
        )
        self._sender = Sender(
            SenderConfig(
                acks=config.acks_number,
                max_in_flight=config.max_in_flight_requests_per_connection,
                max_request_size_bytes=config.max_request_size,
                request_timeout_ms=config.request_timeout_ms,
                retry_backoff=retry_backoff,
                option_prefix=config.option_prefix,
            ),
            accumulator=self.accumulator,
            metadata=self.metadata,
            completion=self._completion,
            sequences=sequences,
            latencies=self.latencies,
            random=random,
            transactions=self.transactions,
        )
        metrics = Metrics(
            num_samples=config.metrics_num_samples,
            window_s=max(1, config.metrics_sample_window_ms) / 1000,
            tags={"client-id": client_id},
        )
        network_metrics = NetworkMetrics(metrics)
        # To be taken by its own name and not by that of the condition, whose way in and out is
        # Python: a caller that is interrupted there (Ctrl-C) would keep it. A condition gives a
        # lock of this kind, and no other, back to who waits without running Python.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.whole = _Whole(self._cut_short)
        self.feeder: Feeder | None = None
        # The appends that are under way, where there are transactions.
        self._under_way: set[object] = set()
        # Calls into user code, for the I/O thread to make in order: how many there are to make and
        # how many were made, ever.
        self._calls: deque[Callable[[], object]] = deque()
        self.calls_due = 0
        self.calls_made = 0
        self._known_nodes: Mapping[int, Node] = {}
        self._rebootstraps = 0
        self._asleep = False
        self._cut: KafkaException | None = None
        self._stopping = self._leaving = False
        self._is_in_hurry = False
        self._has_ended = False
        self._name = f"kafka-producer-network-thread | {client_id}"
        self._thread = self._make_thread(self._run)
        selector_class = Selector if security is None else security.selector_class
        selector = selector_class(
            send_buffer_bytes=config.send_buffer_bytes,
            receive_buffer_bytes=config.receive_buffer_bytes,
            metrics=network_metrics,
        )
        try:
            self._client = NetworkClient(
                selector,
                NetworkConfig.of(config, client_id),
                config.bootstrap_nodes,
                self._clock,
                random,
                metrics=network_metrics,
                security=security,
            )
            self._client.set_initial_nodes(brokers)
            self.metrics = ProducerMetrics(
                metrics,
                network_metrics,
                accumulator=self.accumulator,
                metadata=self.metadata,
                client=self._client,
            )
            self._thread.start()
        except BaseException:
            # A thread that did start is told to end, and closes the selector itself.
            self._stopping = True
            selector.wakeup()
            if not self._thread.is_alive():
                selector.close_all()
            raise

    def _make_thread(self, run: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=run, name=self._name, daemon=True)

    # -- for callers, under the lock ---------------------------------------------------------------

    @property
    def fatal_error(self) -> KafkaException | None:
        """Why nothing can be delivered any more, None if it can."""
        return self._sender.fatal_error

    def wake(self) -> None:
        """Have the I/O thread look again; the caller holds the lock."""
        if self._asleep:
            self._client.wakeup()
            self._asleep = False

    def call_later(self, call: Callable[[], object]) -> None:
        """Have the I/O thread make a call, without the lock; the caller holds the lock.

        After its end another one takes its place, since who causes the call may have locks that it
        needs.
        """
        # Without a call between, after which a caller could be interrupted: `flush` compares them.
        self._calls += (call,)
        self.calls_due += 1
        if self._has_ended:
            self._thread = self._make_thread(self._make_last_calls)
            self._thread.start()
            self._has_ended = False
        self.wake()

    def packed(self, batches: Iterable[ProducerBatch]) -> None:
        """Take account of batches that were compressed; the caller holds the lock.

        Who waits for memory is told of what that freed, since the I/O thread, which `wake` wakes,
        tells callers only of what it has done itself.
        """
        pool = self.accumulator.pool
        available_bytes = pool.available_bytes
        for batch in batches:
            self.accumulator.packed(batch)
        if pool.available_bytes > available_bytes:
            self.changed.notify_all()

    def forget_topics(self) -> None:
        """Know nothing of topics, as a new producer does; the caller holds the lock.

        Who waits for one has to ask for it again: nobody else will.
        """
        self.metadata.forget_topics()
        self.changed.notify_all()
        self.accumulator.forget_limits()
        if self._sequences is not None:
            self._sequences.unconfirm()

    def give_up(self, error: KafkaException) -> None:
        """Fail every batch with `error` and take no more; the caller holds the lock."""
        self._sender.fail_all(error)
        self._collect()
        self.changed.notify_all()

    def _cut_short(self, error: BaseException) -> None:
        what = type(error).__name__
        message = f"{what} came in the middle of a change to the producer's batches: make another"
        failure = KafkaException(message)
        failure.__cause__ = error
        # The I/O thread gives up the batches: no interrupt comes there, and half of that is no end.
        self._cut = self._sender.fatal_error = failure
        self.changed.notify_all()
        self.wake()

    # -- for callers, without the lock -------------------------------------------------------------

    @property
    def network_trouble(self) -> str:
        """What is wrong with brokers now, nothing where all is well as far as is known."""
        return self._client.last_errors()

    def refused(self, records: int, error: KafkaException) -> None:
        """Count records that a caller could not append."""
        exhausted = isinstance(error, BufferExhaustedException)
        with self.lock:
            self.metrics.refused(records, self._clock(), exhausted=exhausted)

    def give_back(self, reservation: Reservation) -> None:
        """Return memory that was reserved, and tell who waits for some."""
        with self.lock:
            self.accumulator.pool.give_back(reservation)
            self.changed.notify_all()

    def spoil_transaction(self, error: KafkaException) -> None:
        """Note that a transaction, if there is one, lacks records that its caller gave to it."""
        with self.lock:
            if self.transactions is not None:
                self.transactions.record_refused(error)

    def append_begins(self, under_way: object) -> None:
        """Have a transaction that comes to its end wait for what is appended from here on."""
        if self.transactions is not None:
            with self.lock:
                self._under_way.add(under_way)
                self.transactions.open_appends = len(self._under_way)

    def append_ends(self, under_way: object) -> None:
        """End what `append_begins` began, if it did."""
        if self.transactions is not None:
            with self.lock:
                self._under_way.discard(under_way)
                self.transactions.open_appends = len(self._under_way)
                self.wake()

    def undelivered(self) -> Counter[str]:
        """Count by topic the records that are neither acknowledged nor given up."""
        records = Counter[str]() if self.feeder is None else self.feeder.waiting_rows()
        with self.lock:
            for batch in self.accumulator.incomplete:
                records[batch.topic_partition.topic] += batch.record_count
        return records

    def stop(self, timeout_s: float | None = None, error: KafkaException | None = None) -> bool:
        """End the thread and close the connections; what is not acknowledged fails with `error`.

        The thread does that, where nothing interrupts it: a call may be repeated that was.
        timeout_s: how long to wait for the thread, which user code may hold up; None for as long as
        it takes. Returns whether it has ended, or will with the callback that calls this.
        """
        with self.lock:
            if error is not None:
                self._sender.fatal_error = error
            self._stopping = True
            self.changed.notify_all()
            self.wake()
        return self.is_current or self.join(timeout_s)

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the thread's end; return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def hurry(self) -> None:
        """Send what lingers from here on at once; what is part of a transaction stays."""
        if self.transactions is None:
            with self.lock:
                self._is_in_hurry = True
                self.accumulator.stop_lingering()
                self.wake()

    def leave(self) -> None:
        """Have the thread deliver what it has and end, without the lock: for a finalizer.

        Garbage is collected in any thread at any moment, in this one also while it has the lock.
        What is part of a transaction is abandoned: nobody will commit it.
        """
        if self.transactions is not None:
            self._stopping = True
        self._leaving = True
        self._client.wakeup()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the I/O thread, as callbacks do."""
        return threading.current_thread() is self._thread

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        never_raise_from_logging()
        try:
            self._loop()
        except BaseException as error:  # a bug, or the interpreter going down: end every wait
            message = f"the producer's I/O thread failed: {type(error).__name__}: {error}"
            failure = KafkaException(message)
            failure.__cause__ = error
            with self.lock:
                self.give_up(failure)
            with safe_logging():
                logger.exception("the I/O thread of a Kafka producer failed")
        finally:
            try:
                self._end()
            finally:
                self._client.close()

    def _end(self) -> None:
        """Fail what nobody will send any more, so that nobody waits for it."""
        error = self.fatal_error or KafkaException("the producer ended before this was sent")
        with self.lock:
            # Also where all is complete: what a caller is encoding now finds that it is too late.
            self.give_up(error)
        try:
            if self.feeder is not None:
                self.feeder.give_up(error)
        finally:
            self._make_last_calls()
        if self._leaving:
            with self.lock:
                unseen = self.deliveries.take_error()
            if unseen is not None:
                with safe_logging():
                    logger.error("%s, which nobody closed, lost records: %s", self._name, unseen)

    def _make_last_calls(self) -> None:
        """Make the calls that are due, and be over as soon as there are none."""
        while True:
            self._make_calls()
            with self.lock:
                if not self._calls:
                    self._has_ended = True
                    return

    def _loop(self) -> None:
        events: list[Event] = []
        work = SenderPoll()
        while True:
            if self.feeder is not None:
                self.feeder.feed(self._clock(), hurry=self._hurry)
            with self.lock:
                now = self._clock()
                if self._cut is not None:
                    self.give_up(self._cut)
                    self._cut = None
                has_news = self._take_in(work, events, now)
                if self._leaving:
                    self.accumulator.stop_lingering()
                # Nothing of what is done stays here while the thread waits: it may be much.
                events, work = [], self._sender.poll(now)
                if self._collect() or has_news or work.has_news:
                    self.changed.notify_all()
                if self._stopping or (self._leaving and self._is_idle()):
                    return
                self._asleep = True
            self._act(work, now)
            self._make_calls()
            due_at = work.next_poll_at
            if self.feeder is not None:
                due_at = min(due_at, self.feeder.next_feed_at(hurry=self._hurry))
            wait = min(due_at - self._clock(), _LONGEST_WAIT_S)
            events = self._client.poll(max(0.0, wait))
            self._asleep = False
            self._observe(events)

    def _take_in(self, sent: SenderPoll, events: list[Event], now: float) -> bool:
        """Take account of what was sent and what came; tell whether anything came."""
        for drained in sent.drained:
            self.packed(drained.batches)
        for event in events:
            self._sender.handle(event, now)
        return bool(events)

    def _observe(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Answered):
                self.metrics.answered(event)

    def _act(self, work: SenderPoll, now: float) -> None:
        for warning in work.warnings:
            with safe_logging():
                logger.warning("%s", warning)
        nodes, rebootstraps = self._sender.nodes, self.metadata.rebootstraps
        if nodes != self._known_nodes or rebootstraps != self._rebootstraps:
            self._known_nodes, self._rebootstraps = nodes, rebootstraps
            self._client.set_nodes(nodes)
        self._client.connect(work.connect)
        for request in work.requests:
            self._client.send(request)
        for drained in work.drained:
            self._client.send(self._sender.build(drained))
            self.metrics.sent(drained.batches, now)

    def _collect(self) -> bool:
        """Take account of the batches that are done; tell whether there were any."""
        done = self._completion.take_done()
        for batch in done:
            if batch.state is BatchState.SPLIT:
                self.metrics.split(self._clock())
                continue
            self.deliveries.add(batch)
            if batch.error is not None:
                self.metrics.failed(batch, self._clock())
            if batch.spans:
                self.call_later(partial(_tell_owners, batch))
        return bool(done)

    def _is_idle(self) -> bool:
        """Whether nothing is left to deliver or to call."""
        is_fed = self.feeder is None or not self.feeder.waiting_rows()
        return is_fed and not self.accumulator.has_incomplete

    @property
    def _hurry(self) -> bool:
        return self.accumulator.pool.waiters > 0 or self._is_in_hurry or self._leaving

    def _make_calls(self) -> None:
        """Make the calls that are due, also those that they cause."""
        made = 0
        while self._calls:
            # User code is guarded where it is called: what raises here is a bug.
            call_in_io_thread("call", self._calls.popleft())
            made += 1
        if made:
            with self.lock:
                self.calls_made += made
                self.changed.notify_all()


class _Whole:
    """Changes that are made as a whole: `with lock, whole:`.

    cut_short: called where something comes in between that is none of the producer's own errors, as
    KeyboardInterrupt: half of a change would be records that are lost, or sent twice.
    """

    def __init__(self, cut_short: Callable[[BaseException], None]) -> None:
        self._cut_short = cut_short

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, KafkaException):
            self._cut_short(error)


def _tell_owners(batch: ProducerBatch) -> None:
    for span in batch.spans:
        call_in_io_thread("owner", span.owner.completed, span, batch)

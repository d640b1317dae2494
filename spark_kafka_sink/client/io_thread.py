"""ProducerThread: the I/O thread of a producer, which connects its state to the network.

The threads of one producer, and the state between them:

    callers: append, send, flush, …            the I/O thread
    ┌──────────────────────────────┐           ┌────────────────────────────────────────┐
    │ read columns, choose         │           │ feed: rows that have lingered become   │
    │ partitions, encode, compress │           │       batches                          │
    │ (no lock)                    │           │ poll: take events, return what is due  │
    └──────────┬───────────────────┘           │       (ProducerState, with the lock)   │
               │ reserve, hold, put_in         │ act:  build and send requests          │
               ▼                               │ run calls of user code                 │
        ┌───────────────┐  poll                │ wait: for the network, until something │
        │ ProducerState │ ◄────────────────────┤       is due                           │
        │   one lock    │ ────────────────────►│       (no lock)                        │
        └──────┬────────┘  wakeup              └──────────────────┬─────────────────────┘
               │ waiters are notified                             ▼
               ▼                                       NetworkClient: sockets
    callers that wait for memory, metadata,            (this thread's alone)
    or the end of deliveries

Only this thread uses the network client. The lock is taken only in `ProducerState` and, to read
errors, in `Caller`. The thread waits in `select`. A caller that has work for the thread wakes it,
but only while it waits, because each wakeup costs a system call. If a caller adds work between
`poll` and `select`, it also wakes the thread, because `poll` has recorded under the lock that the
thread is about to wait.

Calls of user code (callbacks and `SpanOwner.completed`) are queued under the lock. The thread runs
them in order, without the lock. Any exception of user code (`user_calls`) or of a log handler
(`safe_logging`) is caught. Any other exception in the loop ends the thread, and fails every wait
with this error, so that no caller waits forever.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.errors import Cause, KafkaException, as_options_are_named_here, message_of
from spark_kafka_sink.logs import never_raise_from_logging, safe_logging
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.producer.produce_requests import DrainedBatches
from spark_kafka_sink.producer.sender import SenderPoll
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, Event

logger = logging.getLogger(__name__)

# select() does not accept infinity as a timeout.
_LONGEST_WAIT_S = 3600.0


def records_by_topic(records: Counter[str]) -> str:
    """Return a text with the total number of records, and the ten topics with the most records."""
    shown = ", ".join(f"{topic}: {count}" for topic, count in records.most_common(10))
    more = len(records) - 10
    return f"{records.total()} record(s) ({shown}{f' and {more} more topics' if more > 0 else ''})"


class Feeder(Protocol):
    """A source of rows that are in no batch yet: rows that were passed to `send`, in chunks."""

    def next_feed_at(self, *, hurry: bool) -> float:
        """Return the time at which to call `feed` next. hurry: whether memory is short."""

    def feed(self, now: float, *, hurry: bool) -> None:
        """Append the rows that are due; called by the I/O thread, without the lock."""

    def waiting_rows(self) -> Counter[str]:
        """Return the number of rows that have not been appended yet, by topic."""

    def give_up(self, error: KafkaException) -> None:
        """Fail the rows that have not been appended yet; called without the lock."""


class UnownedTransaction(Protocol):
    """The transaction that may be open when its producer is garbage-collected."""

    def end_unowned(self) -> float | None:
        """Do the next step of the abort; return its time limit, or None if the abort is over."""

    @property
    def unowned_outcome(self) -> str:
        """The outcome of the transaction; an empty string if no transaction was open."""


class ProducerThread:
    """The I/O thread of a producer, its network client and its loop; `start` starts the thread.

    build: makes a Produce request from batches. It needs no lock, because no other thread changes
    batches in flight.
    """

    def __init__(
        self,
        state: ProducerState,
        client: NetworkClient,
        client_id: str,
        build: Callable[[DrainedBatches], ClientRequest],
    ) -> None:
        self._state = state
        self._client = client
        self._build = build
        self._feeder: Feeder | None = None
        self._transaction: UnownedTransaction | None = None
        self._known_nodes: tuple[Mapping[int, Node], int] = ({}, 0)
        self._name = f"kafka-producer-network-thread | {client_id}"
        self._thread = self._make_thread(self._run)
        self._is_started = False
        state.attach(client.wakeup)
        state.user_calls.start_later_threads(self._start_last_calls)

    def _make_thread(self, run: Callable[[], None]) -> threading.Thread:
        run = as_options_are_named_here(run)
        return threading.Thread(target=run, name=self._name, daemon=True)

    def start(self, feeder: Feeder | None = None) -> None:
        """Start the thread. Raise RuntimeError if no more threads can be started."""
        self._feeder = feeder
        self._is_started = True
        try:
            self._thread.start()
        except BaseException:
            # If the thread was started nevertheless, it ends by itself and closes the client.
            self._is_started = self._thread.is_alive()
            raise

    def attach(self, transaction: UnownedTransaction) -> None:
        """Set the transaction that the thread must abort if the producer is garbage-collected."""
        self._transaction = transaction

    def _start_last_calls(self) -> None:
        """Start a thread for callbacks that are queued after the I/O thread has ended."""
        self._thread = self._make_thread(self._state.make_last_calls)
        self._thread.start()

    # -- for callers ------------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the I/O thread, which also runs callbacks."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def principal(self) -> str:
        """The name of the client's principal; an empty string if it is unknown."""
        return self._client.principal

    @property
    def network_trouble(self) -> str:
        """The current errors of connections to brokers; an empty string if there are none."""
        return self._client.last_errors()

    @property
    def no_broker(self) -> Cause:
        """The error of a call that no broker has answered in time."""
        return self._client.no_broker

    def lost(self) -> Counter[str]:
        """Return the number of records that are lost or not acknowledged yet, by topic."""
        return self._waiting_rows() + self._state.lost()

    @property
    def unowned_outcome(self) -> str:
        """The outcome of a garbage-collected producer's transaction, "" without transaction."""
        return "" if self._transaction is None else self._transaction.unowned_outcome

    def _waiting_rows(self) -> Counter[str]:
        return Counter() if self._feeder is None else self._feeder.waiting_rows()

    def stop(self, timeout_s: float | None = None, error: KafkaException | None = None) -> bool:
        """End the thread and close the connections; unacknowledged rows fail with `error`.

        The I/O thread does the work, because no interrupt reaches it. An interrupted call may be
        repeated. timeout_s: how many seconds to wait until the thread ends (user code may block
        it); None for no limit. Return whether the thread has ended. If a callback calls this,
        return True, because the thread ends after the callback.
        """
        self._state.stop(error)
        if not self._is_started:
            self._client.close()
            return True
        return self.is_current or self.join(timeout_s)

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the thread ends; return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        never_raise_from_logging()
        try:
            self._loop()
        except BaseException as error:  # a bug, or Python is shutting down: end every wait
            message = (
                f"the producer's I/O thread failed: {type(error).__name__}: {message_of(error)}"
            )
            failure = KafkaException(message)
            failure.__cause__ = error
            self._state.give_up(failure)
            with safe_logging():
                logger.exception("the I/O thread of a Kafka producer failed")
        finally:
            try:
                self._end()
            finally:
                self._client.close()

    def _end(self) -> None:
        """Fail the rows that will not be sent, so that no caller waits for them."""
        state = self._state
        error = state.fatal_error or KafkaException("the producer ended before the record was sent")
        try:
            # Do this even if no batch is unfinished, because a caller may be encoding rows now.
            state.give_up(error)
        finally:
            try:
                if self._feeder is not None:
                    self._feeder.give_up(error)
            finally:
                state.make_last_calls()
        if not state.ends_when_idle:
            return
        lost, unseen = state.lost(), state.take_delivery_error()
        if lost:
            why = "" if unseen is None else f": {unseen}"
            with safe_logging():
                logger.error(
                    "%s was not closed and lost %s%s", self._name, records_by_topic(lost), why
                )
        if self.unowned_outcome:
            with safe_logging():
                logger.error("%s was not closed: %s", self._name, self.unowned_outcome)

    def _loop(self) -> None:
        state, feeder = self._state, self._feeder
        events: list[Event] = []
        work = SenderPoll()
        while True:
            if feeder is not None:
                feeder.feed(self._state.now(), hurry=state.is_in_hurry)
            polled = state.poll(work, events, self._has_rows)
            if polled is None:
                return
            # Drop references to finished objects before the wait, because the objects may be large.
            events = []
            work, now = polled
            del polled
            self._act(work, now)
            state.make_calls()
            due_at = min(work.next_poll_at, self._end_unowned())
            if feeder is not None:
                due_at = min(due_at, feeder.next_feed_at(hurry=state.is_in_hurry))
            wait = min(due_at - self._state.now(), _LONGEST_WAIT_S)
            events = self._client.poll(max(0.0, wait))
            state.awake()
            self._observe(events)

    def _has_rows(self) -> bool:
        """Whether a garbage-collected producer still has rows for this thread to put into batches.

        For a transactional producer, this is always True, because a transaction may be open.
        `_end_unowned` then stops the thread.
        """
        return self._transaction is not None or bool(self._waiting_rows())

    def _end_unowned(self) -> float:
        """Abort the transaction of a garbage-collected producer, and then stop this thread.

        Return the time at which to call this again at the latest.
        """
        if self._transaction is None or not self._state.ends_when_idle:
            return math.inf
        until = self._transaction.end_unowned()
        if until is None:
            self._state.stop()
            return self._state.now()
        return until

    def _act(self, work: SenderPoll, now: float) -> None:
        """Do what `ProducerState.poll` returned at the time `now`: log, connect and send."""
        for warning in work.warnings:
            with safe_logging():
                logger.warning("%s", warning)
        known_nodes = self._state.nodes_to_know()
        if known_nodes != self._known_nodes:
            self._known_nodes = known_nodes
            self._client.set_nodes(known_nodes[0])
        self._client.connect(work.connect)
        for request in work.requests:
            self._client.send(request)
        for drained in work.drained:
            self._client.send(self._build(drained))
            self._state.metrics.sent(drained.batches, now)

    def _observe(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Answered):
                self._state.metrics.answered(event)

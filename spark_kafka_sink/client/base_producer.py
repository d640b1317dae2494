"""BaseProducer: the common part of `KafkaProducer` and `TaskProducer`.

It creates the parts of a producer and closes them. `client.appender` appends columns, and the I/O
thread (`client.io_thread`) sends batches. `KafkaProducer` adds single rows (`send`) and
transactions, which Spark tasks do not use.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

import pyarrow as pa

from spark_kafka_sink.client import unclosed
from spark_kafka_sink.client.appender import ColumnProducer, OnFailure, SliceAppender
from spark_kafka_sink.client.assembly import MakeTransactions, assemble
from spark_kafka_sink.client.caller import Caller
from spark_kafka_sink.client.io_thread import records_by_topic
from spark_kafka_sink.client.unclosed import say_lost, warn_unclosed
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException, message_of
from spark_kafka_sink.logs import safe_logging
from spark_kafka_sink.metrics import MetricName
from spark_kafka_sink.model import (
    LARGEST_INT32,
    Node,
    check_callable,
    check_monotonic_time,
    check_timeout,
    checked,
    checked_brokers,
    checked_number,
)
from spark_kafka_sink.plugins.batch_partitioner import BatchPartitioner
from spark_kafka_sink.records.record_limits import RecordLimits

if TYPE_CHECKING:  # Spark tasks append only columns
    from spark_kafka_sink.client.chunk_feeder import ChunkFeeder

logger = logging.getLogger(__name__)

_numbers = itertools.count(1)
# How many seconds `close` waits for the last callbacks of failed records, whatever its timeout. At
# the end of a program and after Ctrl-C, this wait is shorter, and is part of the limit `AT_EXIT_S`.
_LAST_CALLBACKS_S: Final = 5.0
_LAST_CALLBACKS_AT_EXIT_S: Final = 1.0
# The shorter wait also takes at most this fraction of delivery.timeout.ms.
_CALLBACKS_SHARE: Final = 1 / 5


class Plugins(Protocol):
    """The user's objects that a producer calls: serializers, interceptors and the partitioner."""

    @property
    def partitioner(self) -> BatchPartitioner | None:
        """The user's partitioner; None if the producer uses its built-in partitioner."""

    def close(self) -> KafkaException | None:
        """Close each object that has a ``close`` method, once; return the first error."""


class BaseProducer:
    """A producer that takes columns."""

    def __init__(
        self,
        config: ProducerConfig,
        plugins: Plugins,
        brokers: Iterable[Node],
        *,
        allow_auto_create_topics: bool,
        make_transactions: MakeTransactions | None = None,
        identity: str = "",
        is_of_task: bool = False,
    ) -> None:
        client_id = config.client_id or f"producer-{config.transactional_id or next(_numbers)}"
        self._config = config
        self._plugins = plugins
        self._limits = RecordLimits.of(
            max_request_size=config.max_request_size, buffer_memory=config.buffer_memory
        )
        thread = None
        try:
            self._state, thread = assemble(
                config,
                client_id,
                checked_brokers(brokers),
                allow_auto_create_topics=allow_auto_create_topics,
                make_transactions=make_transactions,
                identity=identity,
                is_of_task=is_of_task,
            )
            self._thread = thread
            # The I/O thread refers to these objects, so none of them may refer to the producer.
            # Otherwise, an unused producer would never be garbage-collected, and its I/O thread
            # would not end.
            self._caller = Caller(self._state, thread, config)
            self._appender = SliceAppender(self._state, config)
            self._row_feeder = feeder = self._make_feeder()
            self._columns = ColumnProducer(
                self._state,
                self._appender,
                self._caller,
                config=config,
                limits=self._limits,
                partitioner=plugins.partitioner,
                drain_rows=_drain_nothing if feeder is None else feeder.drain,
            )
            self._is_closing = False
            self._name = f"KafkaProducer {client_id}"
            self._delivery_timeout_s = config.delivery_timeout_ms / 1000
            thread.start(feeder)
            if feeder is not None:
                feeder.start()
            unclosed.remember(
                self._state,
                thread,
                self._name,
                weakref.WeakMethod(self._close_at_exit),
                self._delivery_timeout_s,
            )
            self._finalizer = weakref.finalize(
                self, warn_unclosed, self._name, self._state, os.getpid()
            )
            self._finalizer.atexit = False
        except BaseException as error:
            if thread is not None:
                thread.stop()
            plugins.close()
            if not isinstance(error, Exception):
                raise
            said = f"{type(error).__name__}: {message_of(error)}"
            message = f"Failed to construct kafka producer: {said}"
            raise KafkaException(message) from error

    # -- what KafkaProducer overrides, because it also has rows and transactions ------------------

    def _make_feeder(self) -> ChunkFeeder | None:
        """Make the parts for `send` and transactions.

        Return the feeder, which puts the rows of `send` into batches; None if there is no `send`.
        """
        return None

    @property
    def _is_in_partitioner(self) -> bool:
        return self._row_feeder is not None and self._row_feeder.is_in_partitioner

    def _close_rows(self) -> None:
        """Accept no more rows of `send`."""

    @property
    def _has_transaction(self) -> bool:
        """Whether a transaction is open."""
        return False

    @property
    def _has_unseen_commit(self) -> bool:
        """Whether a commit timed out or was interrupted, and no later call has shown its result."""
        return False

    @property
    def _outcome(self) -> str:
        """The outcome of the latest transaction; an empty string if there are no transactions."""
        return ""

    def _end_transaction(self, timeout: float | None) -> None:
        """Abort the open transaction, or wait for its commit if EndTxn was sent."""

    # -- the with statement -----------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._caller.check_process()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        # As in Java's try-with-resources, rows that were sent before the error are delivered.
        if issubclass(kind, KeyboardInterrupt):
            self._close_after(kind)
            return
        try:
            self.close()
        except KafkaException as failure:  # the error of the with block is raised instead
            self._log_failure(kind, failure)
        self._log_lost(kind)

    def _close_after(self, kind: type[BaseException], longest_s: float = math.inf) -> None:
        """After Ctrl-C, close within 5 s and log lost records; a second Ctrl-C ends the wait."""
        try:
            self._close_within(unclosed.AT_EXIT_S, longest_s)
        except KafkaException as failure:
            self._log_failure(kind, failure)
        finally:
            self._log_lost(kind)

    def _log_failure(self, kind: type[BaseException], failure: KafkaException) -> None:
        with safe_logging():
            logger.error("closing %s after %s failed: %s", self._name, kind.__name__, failure)

    def _log_lost(self, kind: type[BaseException]) -> None:
        if self._caller.is_forked:
            return
        lost = self._thread.lost()
        if lost:
            message = "%s was closed after %s: %s were not delivered"
            with safe_logging():
                logger.error(message, self._name, kind.__name__, records_by_topic(lost))
        if self._has_unseen_commit:
            with safe_logging():
                logger.error("%s was closed after %s: %s", self._name, kind.__name__, self._outcome)

    # -- appending --------------------------------------------------------------------------------

    def append(
        self,
        topic: str | None,
        record_batch: pa.RecordBatch | pa.Table,
        on_failure: OnFailure | None = None,
        *,
        built_in_partitioner: bool = False,
        lingers_since: float | None = None,
    ) -> None:
        """Append the rows of an Arrow batch with the columns that `serde.arrow_columns` describes.

        topic: the topic of all rows; None to use the topic column. record_batch: an Arrow batch, or
        a table, whose batches are appended one after the other. If the call fails half-way, the
        error message shows the number of appended rows. The call returns when the rows are in the
        producer's memory; `flush` raises an exception if they cannot be delivered. on_failure:
        called by the I/O thread with an AppendFailure for rows that could not be delivered; for
        these rows, `flush` then raises no error. built_in_partitioner: whether to ignore the user's
        partitioner. lingers_since: the time (of `time.monotonic`) at which the rows began to wait;
        this wait counts towards linger.ms.

        Raise DataException or RecordTooLargeException for rows that cannot be sent. In this case,
        no row of the Arrow batch is sent. Raise TimeoutException or BufferExhaustedException after
        max.block.ms. If an earlier delivery has failed, raise its error. An Arrow batch of at least
        12 MiB (24 MiB with 250 or more partitions), or of more than a quarter of buffer.memory, is
        appended in slices. Each slice may wait up to max.block.ms for memory.
        """
        check_callable("on_failure", on_failure, "a callable that takes an AppendFailure")
        checked("built_in_partitioner", built_in_partitioner, bool, "True or False")
        check_monotonic_time("lingers_since", lingers_since, time.monotonic())
        if self._row_feeder is not None:
            self._row_feeder.check_not_in_partitioner()
        self._columns.append(
            topic,
            record_batch,
            on_failure,
            built_in_partitioner=built_in_partitioner,
            lingers_since=lingers_since,
        )

    def spread_evenly(self, start: int) -> None:
        """From now on, spread rows evenly over the partitions, even if there are few rows.

        This applies to rows that have neither partition nor key.

        The method is for a job with several producers. The producer sends rows to all partitions of
        a topic before it returns to a partition. At first, it sends few bytes to each partition,
        unless the topic has more than 100 partitions. start: which of a topic's available
        partitions gets rows first (an index). Use a different index for each producer. Without this
        call, the producer spreads rows as the Java client does. If partitioner.class names a
        partitioner of the Java client, that partitioner stays in use.
        """
        start = checked_number("start", start, 0, LARGEST_INT32)
        self._caller.check_open()
        self._appender.spread_evenly(start)

    def _partition_counts(self, expected: Mapping[str, int]) -> dict[str, int]:
        self._caller.before_call()
        known = self._caller.wait_for(expected, self._caller.column_call())
        counts = [len(topic.leaders) for topic in known]
        return dict(zip(expected, counts, strict=True))

    # -- flush and close --------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all earlier records are acknowledged or have failed, and callbacks have run.

        timeout: seconds; None to wait as long as delivery.timeout.ms allows. Raise TimeoutException
        if the timeout passes first. After the wait, raise the first delivery error that no call has
        raised yet, and discard the others. Only errors of rows that were passed to `append` without
        `on_failure` count. If there is no delivery error, but the producer has failed, raise the
        producer's error. It is not an error if another thread closes the producer during the wait.
        """
        check_timeout(timeout)
        self._caller.before_flush()
        self._caller.check_not_in_callback("flush")
        self._flush(timeout, time.monotonic())
        self._caller.after_flush()

    def _flush(self, timeout: float | None, since: float) -> None:
        feeder, drain = self._row_feeder, None
        if feeder is not None and feeder.has_partitioner:
            drain = feeder.drain
        elif feeder is not None:  # this is quick, and all rows then go in the same batches
            feeder.drain()
        self._caller.flush(timeout, since, drain)

    def metrics(self) -> dict[MetricName, float]:
        """Return the current values of the Java producer's metrics, by their names.

        The result maps each `MetricName` (name, group, description, tags) to a float, with the same
        keys as in the Java client and kafka-python. In these clients, a value is an object that is
        measured later; here, the value is measured at once. The groups are producer-metrics,
        producer-topic-metrics (with the tag `topic`) and producer-node-metrics (with the tag
        `node-id`); docs/reference/metrics.md lists all metrics with their units. A metric without a
        value, such as an average before the first event, is NaN. Any thread may call this method,
        even after `close`.
        """
        self._caller.check_process()
        return self._state.metrics.measure(time.monotonic())

    def close(self, timeout: float | None = None) -> None:
        """Deliver all rows that were passed to `append` or `send`, then close the producer.

        If the producer is closed already, do nothing. If another thread is closing it, return at
        once, even if that thread still waits for deliveries. After Ctrl-C (KeyboardInterrupt), wait
        at most 5 s for deliveries and callbacks, and log the number of lost records. If a second
        interrupt ends that wait, `close` may be called again to finish.

        timeout: seconds to wait for deliveries; rows that are not acknowledged by then fail. With
        timeout 0, they fail at once. They also fail at once if a callback or a partitioner closes
        its own producer. If a callback does not return, the call waits for it up to 5 s more. An
        open transaction is aborted, even if a commit has timed out or was interrupted before EndTxn
        was sent. If EndTxn was sent for a commit, this call waits for the commit instead, because
        it can no longer be aborted. With timeout 0, this call neither aborts nor waits, and the
        coordinator aborts an open transaction after transaction.timeout.ms. Serializers,
        interceptors and the partitioner are closed if they have a ``close`` method.

        Unless timeout is 0, raise the first delivery error that was neither raised nor passed to a
        callback, or the error of a commit that has timed out or was interrupted. If there is no
        such error, but closing a serializer or the partitioner has failed, raise the first of these
        failures after everything is closed. Raise IllegalArgumentException for a negative timeout,
        and close nothing.
        """
        check_timeout(timeout)
        started = time.monotonic()
        try:
            self._close_once(timeout, _LAST_CALLBACKS_S, is_final=False)
        except KafkaException:
            raise
        except BaseException as interrupt:
            if isinstance(interrupt, Exception):
                self._log_lost(type(interrupt))
            elif timeout is None:
                self._close_after(type(interrupt))
            else:
                self._close_after(type(interrupt), max(started + timeout - time.monotonic(), 0))
            raise

    def _close_within(self, limit_s: float, longest_s: float = math.inf) -> None:
        """Close; wait at most `limit_s` seconds for deliveries and callbacks together.

        Wait at most delivery.timeout.ms if that is shorter. longest_s: the limit for deliveries
        alone.
        """
        limit_s = min(limit_s, self._delivery_timeout_s)
        last_callbacks_s = min(
            _LAST_CALLBACKS_AT_EXIT_S, limit_s, _CALLBACKS_SHARE * self._delivery_timeout_s
        )
        timeout = min(limit_s - last_callbacks_s, longest_s)
        self._close_once(timeout, last_callbacks_s)

    def _close_once(
        self, timeout: float | None, last_callbacks_s: float, *, is_final: bool = True
    ) -> None:
        """Close, unless the producer is closed already.

        is_final: whether an interrupt of the wait for deliveries also stops the I/O thread; if not,
        the caller may close again.
        """
        started = time.monotonic()
        if self._is_closing:
            return
        try:
            self._is_closing = True
            cannot_wait = self._thread.is_current or self._is_in_partitioner
            limit = 0 if cannot_wait else timeout
            failure = self._close(limit, started, last_callbacks_s, is_final=is_final)
        except KafkaException:
            raise
        except BaseException:
            self._is_closing = False
            raise
        if failure is not None:
            raise failure

    def _close(
        self, timeout: float | None, started: float, last_callbacks_s: float, *, is_final: bool
    ) -> KafkaException | None:
        """Close all parts that are open; return the exception that `close` raises at its end."""
        self._caller.is_closed = True
        if self._caller.is_forked:
            self._finalizer.detach()
            return None
        self._close_rows()
        try:
            if timeout is None or timeout > 0:
                self._end_transaction(timeout)
                self._state.count_lost()
                self._flush(timeout, started)
        except BaseException as error:
            if is_final or isinstance(error, Exception):
                self._stop(timeout, started, last_callbacks_s)
            raise
        unclosed = self._stop(timeout, started, last_callbacks_s)
        undelivered = None if timeout == 0 else self._caller.take_error_of_close()
        return undelivered or unclosed

    def _stop(
        self, timeout: float | None, started: float, last_callbacks_s: float
    ) -> KafkaException | None:
        """End the I/O thread, fail its rows, and close the plugins.

        Return the first error of a plugin.
        """
        error = self._caller.closing_error or KafkaException("Producer is closed forcefully.")
        self._caller.closing_error = error
        self._state.count_lost()
        wait_s = None if timeout is None else _join_s(started + timeout, last_callbacks_s)
        is_over = self._thread.stop(wait_s, error)
        if not is_over:
            with safe_logging():
                logger.warning(
                    "%s is closed, but its I/O thread has not ended: a callback may hold it up",
                    self._name,
                )
        self._finalizer.detach()
        return self._plugins.close()

    def _close_at_exit(self, limit_s: float) -> None:
        """Close at the end of the program, and print the number of lost records on stderr."""
        if not self._finalizer.alive:  # closed already, but a callback still blocks the I/O thread
            return
        has_transaction = self._has_transaction or self._has_unseen_commit
        said: list[str] = []
        end = time.monotonic() + min(limit_s, self._delivery_timeout_s)
        try:
            self._close_within(limit_s)
            # Another thread may have called close, and still wait for deliveries.
            self._thread.join(max(end - time.monotonic(), 0))
        except KeyboardInterrupt:
            raise
        except BaseException as failure:  # noqa: BLE001 - printed; the exit code stays as it is
            said.append(f"{type(failure).__name__}: {message_of(failure)}")
        finally:
            if has_transaction:
                said.insert(0, self._outcome)
            say_lost(self._name, self._thread.lost(), said)


def _drain_nothing(_: float, __: list[str]) -> None:
    """Do nothing: this producer takes only columns, so no row waits."""


def _join_s(deadline: float, least_s: float) -> float:
    return min(max(deadline - time.monotonic(), least_s), threading.TIMEOUT_MAX)

"""KafkaProducer: the public producer. Columns or rows go in, acknowledgements come back.

Owns the parts of a producer and their end. The caller's side of columns is `client.appender`, that
of rows `client.row_producer`, that of transactions `client.transaction_calls`; what happens to
batches afterwards is the I/O thread's (`client.io_thread`).
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - see _close_at_exit
import itertools
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from spark_kafka_sink.client.appender import ColumnProducer, OnFailure, SliceAppender
from spark_kafka_sink.client.caller import Caller
from spark_kafka_sink.client.chunk_feeder import ChunkFeeder
from spark_kafka_sink.client.future import OnDelivery
from spark_kafka_sink.client.io_thread import ProducerThread, assemble
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.client.row_producer import RowProducer
from spark_kafka_sink.client.transaction_calls import ProducerTransactions, transaction_manager
from spark_kafka_sink.config import ProducerConfig, check_options, producer_config
from spark_kafka_sink.errors import IllegalStateException, KafkaException, Option, message_of
from spark_kafka_sink.logs import safe_logging
from spark_kafka_sink.metrics import MetricName
from spark_kafka_sink.model import (
    LARGEST_INT32,
    ConsumerGroupMetadata,
    Headers,
    Node,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
    check_callable,
    check_counts,
    check_monotonic_time,
    check_timeout,
    check_topic_name,
    checked,
    checked_brokers,
    checked_number,
)
from spark_kafka_sink.network.security import with_login_identity as with_login_identity  # noqa: PLC0414 - for spark/
from spark_kafka_sink.plugins.batch_partitioner import PARTITIONER_CLASS
from spark_kafka_sink.plugins.user_code import UserCode, without_user_code
from spark_kafka_sink.producer.completion import PartitionDelivery
from spark_kafka_sink.producer.slices import slice_bytes

logger = logging.getLogger(__name__)

_numbers = itertools.count(1)
# How long what was sent may take when the program is about to end, by Ctrl-C or by itself.
_AT_EXIT_S: Final = 5.0
# How long `close` waits for the last callbacks of failed records, whatever its timeout.
_LAST_CALLBACKS_S: Final = 5.0
_LAST_CALLBACKS_AT_EXIT_S: Final = 1.0


class KafkaProducer:
    """A Kafka producer for columns and rows.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:  # doctest: +SKIP
    ...     producer.append("flights", record_batch) ...     future = producer.send("flights",
    b"value", key=b"key") ...     producer.flush() ...     print(future.result().offset)

    configs: options of the Java producer by their Java names, as strings or values.
    ``key.serializer``, ``value.serializer`` and ``interceptor.classes`` (for `send`) are Python
    objects, classes or their names as ``module.Name``; so may be ``partitioner.class`` (see
    `batch_partitioner`). key_serializer, value_serializer: replace the options, which are then
    ignored. brokers: the known brokers of the cluster, to use instead of bootstrap.servers unless
    they are unreachable. allow_auto_create_topics: False asks brokers not to create a missing
    topic, even if auto.create.topics.enable is set (brokers before 0.11 ignore this). Raise
    ConfigException, and KafkaException if there is no thread or socket left; everything made until
    then is closed.

    Leaving the block closes the producer, also after an error: everything sent before is delivered,
    after KeyboardInterrupt within 5 s at most. A program that ends without `close` has the same
    time, and prints the number of lost records to stderr. Slices of several threads are appended
    one after another. A producer belongs to the process that made it: it does not survive a fork.
    """

    def __init__(
        self,
        configs: Mapping[str, Any] | ProducerConfig,
        *,
        key_serializer: object = None,
        value_serializer: object = None,
        brokers: Iterable[Node] = (),
        allow_auto_create_topics: bool = True,
    ) -> None:
        brokers = checked_brokers(brokers)
        what = "allow_auto_create_topics"
        checked(what, allow_auto_create_topics, bool, "True or False")
        given: dict[str, Any] = {}
        if isinstance(configs, ProducerConfig):
            config = configs
            given = {PARTITIONER_CLASS: config.partitioner_class}
        else:
            check_options(configs)
            given = dict(configs)
            config = producer_config(without_user_code(given))
        self._user_code = UserCode(
            given,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        client_id = config.client_id or f"producer-{config.transactional_id or next(_numbers)}"
        thread = None
        try:
            make_transactions = None
            if config.transactional_id is not None:
                make_transactions = partial(transaction_manager, config)
            state, thread = assemble(
                config,
                client_id,
                brokers,
                allow_auto_create_topics=allow_auto_create_topics,
                make_transactions=make_transactions,
            )
            self._join(state, thread, config, self._user_code)
        except BaseException as error:
            if thread is not None:
                thread.stop()
            self._user_code.close()
            if not isinstance(error, Exception):
                raise
            said = f"{type(error).__name__}: {message_of(error)}"
            message = f"Failed to construct kafka producer: {said}"
            raise KafkaException(message) from error
        self._is_closing = False
        self._name = f"KafkaProducer {client_id}"
        self._delivery_timeout_s = config.delivery_timeout_ms / 1000
        self._given_up = Counter[str]()
        self._finalizer = weakref.finalize(self, _warn_unclosed, self._name, state, os.getpid())
        self._finalizer.atexit = False
        _remember(state, thread, self._name, self)

    def _join(
        self,
        state: ProducerState,
        thread: ProducerThread,
        config: ProducerConfig,
        user_code: UserCode,
    ) -> None:
        """Make the caller's side, and start the thread."""
        limits = self._limits = {
            str(Option("max.request.size")): config.max_request_size,
            str(Option("buffer.memory")): config.buffer_memory,
        }
        self._state, self._thread = state, thread
        # None of these knows the producer: the I/O thread holds them, and has to end with it.
        self._caller = caller = Caller(state, thread, config)
        self._appender = appender = SliceAppender(state, config)
        self._feeder = feeder = ChunkFeeder(
            state,
            thread,
            appender,
            user_code.partitioner,
            linger_s=config.linger_ms / 1000,
            delivery_timeout_s=config.delivery_timeout_ms / 1000,
        )
        self._rows = RowProducer(state, thread, feeder, caller, user_code, limits)
        self._columns = ColumnProducer(
            state,
            appender,
            caller,
            config=config,
            limits=limits,
            partitioner=user_code.partitioner,
            drain_rows=feeder.drain,
        )
        self._transactions: ProducerTransactions | None = None
        if state.transactions is not None:
            self._transactions = ProducerTransactions(
                state, thread, state.transactions, config.max_block_ms, feeder.drain
            )
        thread.start(feeder)
        feeder.start()

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
        # As Java's try-with-resources: what was sent before the error is delivered.
        try:
            self.close(_AT_EXIT_S if issubclass(kind, KeyboardInterrupt) else None)
        except KafkaException as failure:  # what ended the block is what counts
            logger.error("closing %s after %s failed: %s", self._name, kind.__name__, failure)  # noqa: TRY400 - a sentence says it
        if self._given_up:
            records = _records_by_topic(self._given_up)
            logger.error(
                "%s was closed after %s: %s were given up", self._name, kind.__name__, records
            )

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

        topic: for all rows; None to use the topic column. record_batch: or a table, whose batches
        are appended one after the other; an error contains the number of appended rows. Return when
        the rows are in the producer's memory; `flush` raises if they cannot be delivered.
        on_failure: called by the I/O thread with rows that could not be delivered; `flush` does not
        raise for them then. built_in_partitioner: ignore a user's own partitioner. lingers_since:
        the time by `time.monotonic` since which the rows have waited already; that counts as
        linger.

        Raise DataException and RecordTooLargeException for rows that cannot be sent (then no row of
        the batch is sent), TimeoutException and BufferExhaustedException after max.block.ms, and
        the error of an earlier failed delivery. An Arrow batch of 12 MiB or more, or of a quarter
        of buffer.memory, is appended in slices, and each slice after the first may wait for memory
        for another max.block.ms.
        """
        check_callable("on_failure", on_failure, "what takes an AppendFailure")
        checked("built_in_partitioner", built_in_partitioner, bool, "True or False")
        check_monotonic_time("lingers_since", lingers_since)
        self._columns.append(
            topic,
            record_batch,
            on_failure,
            built_in_partitioner=built_in_partitioner,
            lingers_since=lingers_since,
        )

    def slice_bytes(self, partitions: int) -> int:
        """Return the best size in bytes of the rows in one append, for so many partitions.

        partitions: of all topics of the rows; 0 if unknown.
        """
        partitions = checked_number("partitions", partitions, 0, LARGEST_INT32)
        self._caller.check_process()
        return slice_bytes(partitions)

    def limit_messages(
        self,
        max_message_bytes: Mapping[str, int],
        look_anew: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """Set the max.message.bytes of topics, replacing the earlier values.

        Batches stay below them. A larger row is rejected with RecordTooLargeException; if it is
        compressed, the broker decides. look_anew: returns the present values; called before
        `append` rejects a row.
        """
        check_counts("max_message_bytes", max_message_bytes, 0)
        check_callable("look_anew", look_anew, "what gives the max.message.bytes of topics")
        self._caller.check_process()
        self._columns.limit_messages(max_message_bytes, look_anew)

    def spread_evenly(self, start: int) -> None:
        """Spread rows with neither partition nor key evenly from now on, even if they are few.

        For a job with several producers. The producer visits all partitions of a topic before it
        visits one again. The first visits are short, unless there are more than 100 partitions.
        start: the number of the available partition that comes first; use another one for each
        producer. Without this call, the producer spreads rows as the Java client does. A
        partitioner.class of the Java client's stays in use.
        """
        start = checked_number("start", start, 0, LARGEST_INT32)
        self._caller.check_open()
        self._appender.spread_evenly(start)

    # -- sending row by row -----------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Future[RecordMetadata]:
        """Send one record; the future's result is its RecordMetadata.

        value, key: bytes, str or None, or the types that the serializers accept. partition: None to
        let key or partitioner choose. timestamp_ms: milliseconds since 1970, None for now. headers:
        pairs of str and bytes (or None). on_delivery: called with the RecordMetadata and the error
        (or None) by the I/O thread, in order per partition; its exceptions are logged and dropped.

        Block at most max.block.ms, for the topic's metadata and for memory. The future fails with
        an ApiException: for a timeout of that wait, a topic that cannot be written to, a record
        that is too large, and errors of brokers; `flush` and `close` do not raise it again. Raise
        the errors of the call itself: DataException for an invalid topic, partition, timestamp or
        header, SerializationException, IllegalStateException after close.
        """
        return self._rows.send(topic, value, key, partition, timestamp_ms, headers, on_delivery)

    def partitions_for(self, topic: str, expected: int = 1) -> int:
        """Return the number of partitions of a topic.

        expected: if fewer are known, brokers are asked once more, because topics may grow. Raise
        DataException for an invalid topic name, TimeoutException after max.block.ms, and at once an
        error that prevents writes to the topic (InvalidTopicException,
        TopicAuthorizationException).
        """
        check_topic_name(topic)
        return self.partition_counts({topic: expected})[topic]

    def partition_counts(self, expected: Mapping[str, int]) -> dict[str, int]:
        """Return the number of partitions of several topics; see `partitions_for`.

        One request asks for all unknown topics, and another one for those with fewer partitions
        than expected, all within one max.block.ms.
        """
        check_counts("expected", expected, 0)
        for topic in expected:
            check_topic_name(topic)
        self._caller.before_call()
        known = self._caller.wait_for(expected, self._caller.column_call())
        counts = [len(topic.leaders) for topic in known]
        return dict(zip(expected, counts, strict=True))

    # -- transactions -----------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Fence older producers with the same transactional.id; call it once, before the others.

        Their open transactions are aborted. Each of the five transactional calls waits at most
        max.block.ms and then raises TimeoutException: init, commit and abort must then be called
        again, and continue. Raise IllegalStateException if a call is not possible now (it then has
        no effect), and ProducerFencedException after a newer producer has taken over the id; after
        that, and after other fatal errors, only `close` is possible.
        """
        self._transactional("init_transactions").init()

    def begin_transaction(self) -> None:
        """Begin a transaction; everything appended from here on is part of it."""
        self._transactional().begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Commit offsets of a consumer group if and when the transaction commits (KIP-447).

        offsets: of the next record to read in each partition. Raise CommitFailedException if the
        group has assigned the partitions to another member; the transaction can then only be
        aborted. Wrong arguments raise before anything is sent, and the transaction continues:
        IllegalArgumentException for offsets or a group that do not fit a request, DataException for
        an invalid topic name.
        """
        self._transactional("send_offsets_to_transaction").send_offsets(offsets, group_metadata)

    def commit_transaction(self) -> None:
        """Deliver the appended rows, then commit. No more rows are accepted meanwhile.

        Raise the error of a failed delivery: the transaction can then only be aborted.
        """
        transactions = self._transactional("commit_transaction")
        self._feeder.check_not_in_partitioner()
        transactions.commit()

    def abort_transaction(self) -> None:
        """Abort the transaction; what was not sent yet is dropped. After an error, the way on."""
        transactions = self._transactional("abort_transaction")
        self._feeder.check_not_in_partitioner()
        transactions.abort()

    def _transactional(self, waiting: str | None = None) -> ProducerTransactions:
        """Return the object for transactional calls; waiting: the call's name if it waits."""
        self._caller.check_open()
        if self._transactions is None:
            message = "transactions need a transactional.id: set it in the producer's configuration"
            raise IllegalStateException(message)
        if waiting is not None:
            self._caller.check_not_in_callback(waiting)
        return self._transactions

    # -- flush and close --------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record so far is acknowledged or has failed, and callbacks were called.

        timeout: seconds, None for as long as delivery.timeout.ms allows. After the wait, raise the
        first delivery error of `append` since the last call that raised one. Raise TimeoutException
        if the wait is too long.
        """
        check_timeout(timeout)
        self._caller.check_open()
        self._caller.check_not_in_callback("flush")
        self._flush(timeout, time.monotonic())
        self._caller.before_call()

    def _flush(self, timeout: float | None, since: float) -> None:
        self._feeder.drain(None if timeout is None else since + timeout)
        self._caller.flush(timeout, since)

    def take_deliveries(self) -> dict[TopicPartition, PartitionDelivery]:
        """Return what has been acknowledged since the last call, by partition."""
        self._caller.check_process()
        return self._state.take_deliveries()

    def forget_topics(self) -> None:
        """Request the metadata of each topic again at its next use; keep brokers and connections.

        Call this before new work that may begin long after the last: topics may have been deleted
        and created again meanwhile. Raise if the producer cannot go on.
        """
        self._caller.before_call()
        self._state.forget_topics()

    @property
    def record_limits(self) -> Mapping[str, int]:
        """The largest record in bytes, with its overhead, by the option that sets this limit."""
        self._caller.check_process()
        return self._limits

    @property
    def topics_written(self) -> int:
        """The number of topics that something was sent to since the producer was made."""
        self._caller.check_process()
        return self._state.metrics.topics_written

    @property
    def throttle_time_ms(self) -> int:
        """The sum of the throttle times in all Produce responses, in milliseconds."""
        self._caller.check_process()
        return self._state.metrics.throttle_time_ms

    def metrics(self) -> dict[MetricName, float]:
        """Measure the producer now: return the Java producer's metrics by their names.

        Return a mapping from `MetricName` (name, group, description, tags) to a float, with the
        keys of the maps of the Java client and kafka-python. In those, a value is an object that is
        measured later; here it is measured at once. The groups are producer-metrics,
        producer-topic-metrics (tag topic) and producer-node-metrics (tag node-id); docs/metrics.md
        lists all metrics with their units. A metric without a value, such as an average of nothing,
        is NaN. Any thread may call this, also after close.
        """
        self._caller.check_process()
        return self._state.metrics.measure(time.monotonic())

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was appended and sent, then close; another call does nothing.

        An interrupted call (KeyboardInterrupt) may be repeated, to close what is still open.

        timeout: seconds to wait for deliveries; rows without an acknowledgement then fail. With 0
        they fail at once; a callback or a partitioner that closes its producer cannot wait, either.
        The call does not wait any longer for a callback that does not return. An open transaction
        is aborted; with timeout 0, its coordinator does that after transaction.timeout.ms. Close
        serializers, interceptors and the partitioner if they have a ``close``. Unless timeout is 0,
        raise the first delivery error that has not been raised or passed to a callback; otherwise,
        when all is closed, the first error of closing a serializer or the partitioner. Raise
        IllegalArgumentException for a negative timeout, and close nothing.
        """
        check_timeout(timeout)
        self._close_once(timeout, _LAST_CALLBACKS_S)

    def _close_once(self, timeout: float | None, last_callbacks_s: float) -> None:
        started = time.monotonic()
        if self._is_closing:
            return
        try:
            self._is_closing = True
            cannot_wait = self._thread.is_current or self._feeder.is_in_partitioner
            limit = 0 if cannot_wait else timeout
            failure = self._close(limit, started, last_callbacks_s)
        except KafkaException:
            raise
        except BaseException:
            self._is_closing = False
            raise
        if failure is not None:
            raise failure

    def _close(
        self, timeout: float | None, started: float, last_callbacks_s: float
    ) -> KafkaException | None:
        """Close what is open; return what `close` raises when all is closed."""
        self._caller.is_closed = True
        if self._caller.is_forked:
            self._finalizer.detach()
            return None
        self._rows.close()
        try:
            if timeout is None or timeout > 0:
                if self._transactions is not None:
                    self._transactions.end_open(timeout)
                self._flush(timeout, started)
        finally:
            error = KafkaException("Producer is closed forcefully.")
            self._given_up += self._thread.undelivered()
            wait_s = None if timeout is None else _join_s(started + timeout, last_callbacks_s)
            is_over = self._thread.stop(wait_s, error)
            if not is_over:
                with safe_logging():
                    logger.warning(
                        "%s is closed, but its I/O thread has not ended: a callback may hold it up",
                        self._name,
                    )
            self._finalizer.detach()
            unclosed = self._user_code.close()
        undelivered = None if timeout == 0 else self._state.take_delivery_error()
        return undelivered or unclosed

    def _close_at_exit(self, limit_s: float) -> None:
        """Close at the end of the program, and tell on stderr what that loses."""
        has_transaction = self._transactions is not None and self._transactions.is_open
        said: list[str] = []
        try:
            self._close_once(min(limit_s, self._delivery_timeout_s), _LAST_CALLBACKS_AT_EXIT_S)
        except KeyboardInterrupt:
            raise
        except BaseException as failure:  # noqa: BLE001 - told; the exit code stays as it is
            said.append(f"{type(failure).__name__}: {message_of(failure)}")
        finally:
            if has_transaction:
                said.insert(0, "its open transaction was not committed")
            _say_lost(self._name, self._given_up, said)


def _join_s(deadline: float, least_s: float) -> float:
    return min(max(deadline - time.monotonic(), least_s), threading.TIMEOUT_MAX)


def _records_by_topic(records: Counter[str]) -> str:
    """Name up to ten topics with most records, and the number of all records."""
    shown = ", ".join(f"{topic}: {count}" for topic, count in records.most_common(10))
    more = len(records) - 10
    return f"{records.total()} record(s) ({shown}{f' and {more} more topics' if more > 0 else ''})"


def _warn_unclosed(name: str, state: ProducerState, pid: int) -> None:
    if os.getpid() == pid:
        state.end_when_idle()
        warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=2)


# -- producers that nobody has closed when the program ends ---------------------------------------

# By their threads, which outlive a producer that is garbage while it has records to deliver.
_unclosed: dict[ProducerThread, tuple[str, ProducerState, weakref.ref[KafkaProducer]]] = {}


def _remember(
    state: ProducerState, thread: ProducerThread, name: str, producer: KafkaProducer
) -> None:
    """Register a producer to be closed when the program ends; drop those that have ended."""
    for other in list(_unclosed):
        if not other.is_alive:
            _unclosed.pop(other, None)
    _unclosed[thread] = (name, state, weakref.ref(producer))


def _close_at_exit() -> None:
    """Deliver the rows of producers that are still open, and print what is lost.

    In Java, such rows are lost silently. Python calls this when all threads of the user, which may
    send until then, have ended; the I/O threads, which are daemons, still run. From 3.12 on, Python
    starts no more threads at this time, and refuses to import `concurrent.futures.thread`, which
    pyarrow imports together with pandas when it first makes an array.
    """
    deadline = time.monotonic() + _AT_EXIT_S
    # In a forked child none is: what it has of its parent is its parent's to close.
    unclosed = [item for item in list(_unclosed.items()) if item[0].is_alive]
    for _, (_, state, _) in unclosed:
        state.hurry()
    for thread, (name, _, ref) in unclosed:
        producer, limit_s = ref(), max(deadline - time.monotonic(), 0)
        if producer is not None:
            producer._close_at_exit(limit_s)  # noqa: SLF001 - of this module
        elif not thread.join(limit_s):
            _say_lost(name, thread.undelivered(), [])


def _say_lost(name: str, records: Counter[str], said: list[str]) -> None:
    """Print to stderr how many records the program's end loses, and other messages."""
    if records:
        said = [f"{_records_by_topic(records)} were not delivered", *said]
    if said and sys.stderr is not None:
        message = f"{name} was not closed before the program ended: {'; '.join(said)}"
        print(message, file=sys.stderr, flush=True)  # noqa: T201 - loggers may write elsewhere


atexit.register(_close_at_exit)

"""Futures of single rows, and the table in which they look up their results.

The rows of a chunk (see `chunk`) share one `SentRows`: an array of offsets, and for each row a
reference to the result of its batch. When a batch is acknowledged or fails, it sets the results of
all its rows at once. A `RowFuture` stores only its `SentRows` and the row's number, and computes
the row's result when a caller requests it. So creating a future costs one small object, and
resolving it costs nothing. In contrast, a `concurrent.futures.Future` costs a condition and a
notification per row.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from spark_kafka_sink.client.deadlines import Waiters, deadline_of, wait_for_signal
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import RecordMetadata, check_timeout, checked
from spark_kafka_sink.plugins.interceptors import ProducerInterceptors, unsent_metadata
from spark_kafka_sink.plugins.user_calls import call_in_caller, call_in_io_thread
from spark_kafka_sink.producer.partitioner import GroupedRows
from spark_kafka_sink.producer.producer_batch import ProducerBatch, RecordSpan
from spark_kafka_sink.records.varint import Int64s

OnDelivery: TypeAlias = Callable[[RecordMetadata, BaseException | None], object]

# What log messages call the user's functions that futures call.
ON_DELIVERY: Final = "on_delivery callback"
_DONE_CALLBACK: Final = "done callback"


class _End(NamedTuple):
    """The result of the rows of one span, which are consecutive records of a batch."""

    partition: int
    log_append_time_ms: int
    error: BaseException | None


class SentRows:
    """The results of the rows of one chunk.

    The caller's thread stores the order of the rows, the I/O thread stores the results
    (`completed`, `fail`), and any thread may read them. As in the Java client, a row's callback
    runs before its future is done.

    callbacks: the callbacks of the rows that have one, by row number; the chunk adds them.
    check_may_wait: raises if a wait would never end. check_process: raises in a forked child, where
    no row gets a result and locks may stay held forever.
    """

    __slots__ = (
        "_check_process",
        "_columns",
        "_end_of",
        "_ends",
        "_interceptors",
        "_lock",
        "_offsets",
        "_order",
        "_refused",
        "_waiters",
        "_watches",
        "callbacks",
        "check_may_wait",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        interceptors: ProducerInterceptors,
        check_may_wait: Callable[[], None],
        check_process: Callable[[], None],
    ) -> None:
        self.topic = topic
        self.callbacks: dict[int, OnDelivery] = {}
        self._interceptors = interceptors
        self.check_may_wait = check_may_wait
        self._check_process = check_process
        self._lock = threading.RLock()
        self._waiters = Waiters()
        self._watches: dict[int, _Watch] = {}
        self._ends: list[_End | None] = [None]
        self._refused: dict[int, BaseException] = {}
        # Two memoryviews of NumPy arrays with one element per row: the index of the row's result in
        # _ends, and the row's offset. Indexing a memoryview returns a Python int.
        self._end_of: memoryview | None = None
        self._offsets = memoryview(b"")
        self._order: Int64s = np.empty(0, np.int64)
        self._columns: tuple[memoryview, memoryview | None, memoryview] | None = None

    # -- filling in -------------------------------------------------------------------------------

    def lay_out(self, grouped: GroupedRows) -> None:
        """Store the order that the rows have after they were sorted by partition.

        `RecordSpan.first_row` is a position in this order. This is called before any of the rows is
        sent.
        """
        columns = grouped.rows.columns
        self._columns = (
            columns.timestamps_ms.data,
            None if columns.key_lengths is None else columns.key_lengths.data,
            columns.value_lengths.data,
        )
        self._order = grouped.runs.order
        self._make_room(len(columns))

    def _make_room(self, rows: int) -> None:
        self._offsets = np.full(rows, -1, np.int64).data
        self._end_of = np.zeros(rows, np.int32).data

    def completed(self, span: RecordSpan, batch: ProducerBatch) -> None:
        """Store the result of a span of a batch; called only by the I/O thread, without a lock."""
        rows = self._order[span.first_row : span.first_row + span.records]
        if batch.error is None and batch.base_offset >= 0:
            first = batch.base_offset + span.first_record
            np.asarray(self._offsets)[rows] = np.arange(first, first + span.records)
        error = batch.error
        if batch.record_errors:
            error = KafkaException(
                "the record was not written because it was part of a batch in which the broker "
                f"refused {len(batch.record_errors)} record(s)"
            )
            self._refuse(rows, span.first_record, batch.record_errors)
        partition = batch.topic_partition.partition
        self._finish(rows, _End(partition, batch.log_append_time_ms, error))

    def _refuse(
        self, rows: Int64s, first_record: int, errors: Mapping[int, KafkaException]
    ) -> None:
        """Store the errors of those records in a span that the broker rejected individually."""
        for number, error in errors.items():
            if 0 <= number - first_record < len(rows):
                self._refused[int(rows[number - first_record])] = error

    def fail(self, rows: int, error: BaseException) -> None:
        """Fail all rows that have no result yet; called by the I/O thread.

        rows: the number of rows in the chunk.
        """
        if self._end_of is None:
            self._make_room(rows)
        pending = np.flatnonzero(np.asarray(self._end_of) == 0)
        self._finish(pending, _End(-1, -1, error))

    def _finish(self, rows: Int64s, end: _End) -> None:
        error = end.error
        try:
            if self.callbacks or self._interceptors:
                for row in rows.tolist():
                    self._call_back(row, end)
                    if error is not None:
                        _shorten(error)
        finally:
            self._end_rows(rows, end)

    def _end_rows(self, rows: Int64s, end: _End) -> None:
        """Store a result, and notify the futures of the rows."""
        watches = []
        with self._lock:
            self._ends.append(end)
            np.asarray(self._end_of)[rows] = len(self._ends) - 1
            if self._watches:
                ended = (self._watches.pop(row, None) for row in rows.tolist())
                watches = [watch for watch in ended if watch is not None]
            self._waiters.notify_all()
        for watch in watches:
            watch.notify()

    def _call_back(self, row: int, end: _End) -> None:
        metadata, error = self._metadata(row, end), self._refused.get(row, end.error)
        self._interceptors.on_acknowledgement(metadata, error)
        callback = self.callbacks.pop(row, None)
        if callback is not None:
            call_in_io_thread(ON_DELIVERY, callback, metadata, error)

    def _metadata(self, row: int, end: _End) -> RecordMetadata:
        partition, log_append_time_ms, error = end
        if error is not None or self._columns is None:
            return unsent_metadata(self.topic, partition)
        timestamps, keys, values = self._columns
        return _new_metadata(
            (
                self.topic,
                partition,
                self._offsets[row],
                timestamps[row] if log_append_time_ms < 0 else log_append_time_ms,
                -1 if keys is None else keys[row],
                values[row],
            )
        )

    # -- reading the results ----------------------------------------------------------------------

    def _end(self, row: int) -> _End | None:
        ends = self._end_of
        return None if ends is None else self._ends[ends[row]]

    def is_done(self, row: int) -> bool:
        """Return whether the row has a result."""
        return self._end(row) is not None

    def wait(self, row: int, timeout: float | None) -> _End:
        """Wait for the row's result and return it. Raise TimeoutError after `timeout` seconds."""
        end = self._end(row)
        if end is not None:
            return end
        self.check_may_wait()
        deadline = deadline_of(timeout)
        while True:
            with self._lock:
                end = self._end(row)
                if end is not None:
                    return end
                signal = self._waiters.add()
            if not wait_for_signal(signal, deadline):
                break
        # Check once more after the timeout, because the row may have got a result meanwhile.
        with self._lock:
            self._waiters.discard(signal)
            end = self._end(row)
        if end is None:
            raise TimeoutError
        return end

    def result(self, row: int, timeout: float | None) -> RecordMetadata:
        """Wait for a row, and return its metadata or raise its error."""
        ends = self._end_of
        end = (None if ends is None else self._ends[ends[row]]) or self.wait(row, timeout)
        if end.error is not None:
            raise _shorten(self._refused.get(row, end.error))
        return self._metadata(row, end)

    def exception(self, row: int, timeout: float | None) -> BaseException | None:
        """Wait for a row, and return its error; None if the row was acknowledged."""
        end = self.wait(row, timeout)
        return None if end.error is None else _shorten(self._refused.get(row, end.error))

    def watch(self, row: int, watch: _Watch) -> bool:
        """Notify `watch` as soon as the row has a result. Return False if it has one already."""
        if self._end(row) is not None:
            return False
        self._check_process()
        with self._lock:
            if self._end(row) is not None:
                return False
            self._watches[row] = watch
            return True


def _shorten(error: BaseException) -> BaseException:
    """Return an error without its traceback.

    Many rows share an error. If a user's code raises it for each row, its traceback must not grow,
    because each log message would then be longer than the one before.
    """
    return error.with_traceback(None)


class _Watch:
    """The part of a future's state that only waiters need.

    A `concurrent.futures.Future` creates this state when it is constructed. A `RowFuture` creates
    it when a waiter first needs it.

    is_notified: whether the waiters were notified. `RowFuture._state`, which waiters read, shows
    this value. It changes only while the condition is held. If a thread waits for several futures,
    it holds the conditions of all of them while it checks which are done, and until it has added
    itself to the waiters of the others. So no future becomes done in between. pid: the process that
    created this object. A forked child cannot use the lock, because another thread may have held it
    at the fork.
    """

    __slots__ = ("callbacks", "condition", "future", "is_notified", "lock", "pid", "waiters")

    def __init__(self, future: RowFuture) -> None:
        self.future = future
        self.lock = threading.RLock()
        self.condition = threading.Condition(self.lock)
        self.waiters: list[Any] = []
        self.callbacks: list[Callable[[Future[RecordMetadata]], object]] = []
        self.is_notified = False
        self.pid = os.getpid()

    def notify(self) -> None:
        """Notify all waiters and call the done callbacks; the I/O thread calls this once."""
        self.notify_waiters()
        for callback in self.callbacks:
            call_in_io_thread(_DONE_CALLBACK, callback, self.future)

    def notify_waiters(self) -> None:
        """Notify the waiters that the future is done, unless they have been notified."""
        with self.lock:
            if self.is_notified:
                return
            self.is_notified = True
            failed = self.future.exception() is not None
            for waiter in self.waiters:
                (waiter.add_exception if failed else waiter.add_result)(self.future)


class RowFuture(Future[RecordMetadata]):
    """The future of one row; its result is the row's RecordMetadata.

    It works with `concurrent.futures.wait`, `as_completed` and `asyncio.wrap_future`. A record
    cannot be recalled once it is appended, so `cancel` returns False, as in the Java client.
    """

    __slots__ = ("_row", "_rows", "_watch")

    def __init__(self, rows: SentRows, row: int) -> None:  # Future.__init__ costs 10 times more
        self._rows = rows
        self._row = row

    def __repr__(self) -> str:
        state = "finished" if self.done() else "pending"
        return f"<RowFuture of row {self._row} for topic {self._rows.topic}, {state}>"

    def cancel(self) -> bool:
        """Return False, because a record cannot be recalled."""
        return False

    def cancelled(self) -> bool:
        """Return False, because a record cannot be recalled."""
        return False

    def running(self) -> bool:
        """Return whether the record is not acknowledged yet and has not failed."""
        return not self._rows.is_done(self._row)

    def done(self) -> bool:
        """Return whether the record is acknowledged or has failed."""
        return self._rows.is_done(self._row)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return the record's metadata or raise its error; raise TimeoutError after `timeout` s."""
        _check_timeout(timeout)
        return self._rows.result(self._row, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the record's error or None; raise TimeoutError after `timeout` s."""
        _check_timeout(timeout)
        return self._rows.exception(self._row, timeout)

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        """Call `fn` with this future when it is done.

        The I/O thread calls `fn`; if the future is done already, this method calls it.
        """
        checked("fn", fn, Callable, "a callable that takes the future")  # type: ignore[arg-type] # isinstance accepts it
        if not self.done():
            watch = self._watched()
            with watch.lock:
                if not self.done():
                    watch.callbacks.append(fn)
                    return
        raised = call_in_caller(_DONE_CALLBACK, [fn], self)
        if raised is not None:
            raise raised

    # -- the attributes of Future that the standard library reads ----------------------------------
    #
    # `concurrent.futures.wait` and `as_completed` acquire the `_condition` of each future, read its
    # `_state` and append themselves to its `_waiters`; `asyncio.wrap_future` adds a done callback.
    # `Future.__init__` sets these three attributes, which would cost ten times as much as the row.
    # Here they are properties, and the lock and the list are created when they are first read.
    # Since Python 3.15, asyncio calls `_get_snapshot` for the result. The attributes are private,
    # so a new version of Python may read other attributes. Therefore
    # tests/unit/client/test_future.py calls these functions, and `make test-matrix` runs that test
    # with each version of Python.

    def _watched(self) -> _Watch:
        watch: _Watch | None = getattr(self, "_watch", None)
        if watch is not None and watch.pid == os.getpid():
            return watch
        with _making_watches:
            watch = getattr(self, "_watch", None)
            if watch is None or watch.pid != os.getpid():
                watch = _Watch(self)
                if not self._rows.watch(self._row, watch):
                    watch.is_notified = True
                # Other threads see the watch only from now on, so every waiter that they add to it
                # is notified.
                self._watch: _Watch = watch
            return watch

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override] # made when asked for
        watch = self._watched()
        if self.done():  # the I/O thread may not have notified the waiters yet
            watch.notify_waiters()
        return watch.condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override] # made when asked for
        watch = self._watched()
        if not watch.is_notified:  # the caller is about to wait
            self._rows.check_may_wait()
        return watch.waiters

    @property
    def _state(self) -> str:  # type: ignore[override] # does not change under the condition
        return "FINISHED" if self._watched().is_notified else "RUNNING"

    def _get_snapshot(self) -> tuple[bool, bool, RecordMetadata | None, BaseException | None]:
        """Return whether the future is done, whether it was cancelled, its result, its error."""
        if not self.done():
            return False, False, None, None
        error = self.exception(0)
        return True, False, None if error is not None else self.result(0), error


def _check_timeout(timeout: object) -> None:
    """Reject an invalid timeout. As in `concurrent.futures`, a negative timeout does not wait."""
    if timeout is not None:
        check_timeout(max(timeout, 0) if isinstance(timeout, int | float) else timeout)


# Creates a RowFuture without calling its Python __init__, which is half of the cost. The caller
# sets `_rows` and `_row`.
new_row_future: Callable[[type[RowFuture]], RowFuture] = object.__new__
# Creates a RecordMetadata without calling its Python __new__, which is half of the cost.
_new_metadata: Callable[[tuple[object, ...]], RecordMetadata] = partial(
    tuple.__new__, RecordMetadata
)
_making_watches = threading.Lock()


def _renew_lock() -> None:
    global _making_watches  # noqa: PLW0603 - the lock may stay held forever in a forked child
    _making_watches = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)

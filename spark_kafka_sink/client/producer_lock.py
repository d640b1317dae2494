"""ProducerLock: the lock of a producer, waits for changes, and the guard against interrupts.

A caller may be interrupted anywhere (by KeyboardInterrupt, or by any exception of a signal
handler). ``with self.lock, self._change:`` guards a change, during which the accumulator or a batch
is inconsistent. An interrupt inside a change ends the producer with an error, because half a change
could lose records or send them twice. Everything else may be interrupted: waits and encoding hold
no lock, and it does no harm if a caller releases its reserved memory twice.

More interrupts may come while a caller handles the first one. So an exception handler first stores
its cleanup function in `left_behind`, and then calls it. The statement that stores the function
cannot be interrupted, because it calls nothing. The I/O thread, which gets no signals, does the
cleanup that is left. It also ends the producer if an interrupt came inside the guard of a change.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from spark_kafka_sink.client.deadlines import Waiters, wait_for_signal
from spark_kafka_sink.errors import KafkaException

_T = TypeVar("_T")


class ProducerLock(ABC):
    """The lock of a producer. Threads can also wait until another thread changes something.

    clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        # Callers enter this lock directly, because a lock written in C is acquired and released
        # without an interrupt.
        self.lock = threading.RLock()
        self._clock = clock
        self._waiters = Waiters()
        self._change = _Change(self._interrupted)
        # What interrupted calls may have left behind: objects, and the functions that clean up
        # after them. A function is called with the lock, perhaps twice.
        self.left_behind: dict[Any, Callable[[Any], None]] = {}
        self._wakeup: Callable[[], None] = lambda: None
        self._is_asleep = False

    @abstractmethod
    def raise_if_fatal(self) -> None:
        """Raise the producer's fatal error, if there is one; the lock is not needed."""

    @abstractmethod
    def _end_by(self, error: KafkaException) -> None:
        """Accept no more rows, and make the I/O thread fail all batches."""

    def attach(self, wakeup: Callable[[], None]) -> None:
        """Set the function that ends the I/O thread's wait for the network."""
        self._wakeup = wakeup

    def wake(self) -> None:
        """Wake the I/O thread."""
        with self.lock:
            self._wake()

    def notify(self) -> None:
        """Wake all waiters and the I/O thread."""
        with self.lock:
            self._waiters.notify_all()
            self._wake()

    def _wake(self) -> None:
        if self._is_asleep:
            self._wakeup()
            self._is_asleep = False

    def _interrupted(self, error: BaseException) -> KafkaException:
        """End the producer, because one of its changes was interrupted; return its error."""
        what = type(error).__name__
        message = (
            f"{what} interrupted a change to the producer's batches, so the producer cannot be "
            "used any more: create another producer"
        )
        failure = KafkaException(message)
        failure.__cause__ = error
        # The I/O thread fails the batches, because signals do not interrupt it.
        self._end_by(failure)
        self._change.is_half = False
        self._waiters.notify_all()
        self._wake()
        return failure

    def _clean_up(self) -> None:
        """Finish the cleanup of calls that were interrupted; the caller holds the lock.

        The entries stay in `left_behind`, because this call may be interrupted, too. Raise
        KafkaException if the producer has a fatal error, or gets one now because a change was
        interrupted.
        """
        if self._change.is_half:
            raise self._interrupted(KeyboardInterrupt())
        self.raise_if_fatal()
        for key, function in list(self.left_behind.items()):
            function(key)

    def _clean_up_for_good(self) -> None:
        """Finish the cleanup of interrupted calls, and forget it.

        The I/O thread calls this with the lock.
        """
        if self._change.is_half:
            self._interrupted(KeyboardInterrupt())
        while self.left_behind:
            key, function = self.left_behind.popitem()
            function(key)

    def ask(self, question: Callable[[], _T]) -> _T:
        """Return the result of a function that reads state, or changes it by one assignment.

        An interrupt does no harm, because nothing is left half changed.
        """
        with self.lock:
            return question()

    def change(self, change: Callable[[], _T]) -> _T:
        """Change the state machines; an interrupt in the middle ends the producer."""
        with self.lock:
            self._clean_up()
            with self._change:
                changed = change()
                self._change.is_half = False
            self._wake()
            return changed

    def wait(
        self,
        find: Callable[[], _T | None],
        deadline: float | None,
        late: Callable[[], KafkaException],
        meter: Callable[[float, float], None] | None = None,
        extended: Callable[[], float] | None = None,
    ) -> _T:
        """Wait until `find` returns a result, and return the result.

        find: called under the lock after each change; returns None if there is no result yet. late:
        called under the lock after the deadline; returns the error to raise. meter: called after
        each wait with its duration in nanoseconds, and the current time. extended: called under the
        lock after the deadline; if it returns a later time than now, this becomes the deadline. The
        lock is free during a wait (see `Waiters`).
        """
        came, signal = True, None
        while True:
            with self.lock:
                if signal is not None:
                    self._waiters.discard(signal)
                # This also runs after the timeout, because the result may have come meanwhile.
                found = find()
                if found is not None:
                    return found
                if not came:
                    deadline = deadline if extended is None else extended()
                    if deadline is None or deadline <= self._clock():
                        raise late()
                signal = self._waiters.add()
            started = self._clock()
            try:
                came = wait_for_signal(signal, deadline)
            finally:
                if meter is not None:
                    now = self._clock()
                    with self.lock:
                        meter((now - started) * 1e9, now)


class _Change:
    """The guard of a change: ``with lock, change:``.

    interrupted: called with the exception that interrupts a change, unless it is a KafkaException.
    is_half: whether a change has begun and has not ended. The last statement of a change sets it to
    False. If it is True while no thread holds the lock, the guard itself was interrupted.
    """

    __slots__ = ("_interrupted", "is_half")

    def __init__(self, interrupted: Callable[[BaseException], object]) -> None:
        self._interrupted = interrupted
        self.is_half = False

    def __enter__(self) -> None:
        if self.is_half:  # this change must not remove the mark of the one before it
            self._interrupted(KeyboardInterrupt())
        self.is_half = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KafkaException):
            self.is_half = False
        elif error is not None and self.is_half:
            self._interrupted(error)

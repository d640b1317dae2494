"""CallerChecks: what stands against a call of a producer's user, and the error that says so.

Owns whether the producer is closed, and which process it belongs to. What is fatal is known by the
I/O thread, what is allowed in a transaction by `TransactionManager`; it only asks them.
"""

from __future__ import annotations

import os

from spark_kafka_sink.errors import IllegalStateException, KafkaException
from spark_kafka_sink.producer_thread import ProducerThread


class CallerChecks:
    """The checks of one producer: `before_…` take the lock, `raise_if_…` want it held."""

    def __init__(self, thread: ProducerThread) -> None:
        self._thread = thread
        self._pid = os.getpid()
        self.is_closed = False

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked process, which has no I/O thread."""
        return os.getpid() != self._pid

    def before_call(self) -> None:
        """Raise what stands against a call; the error of a delivery that failed is told so."""
        self.check_open()
        with self._thread.lock:
            self.raise_if_unusable()

    def before_append(self) -> None:
        """Raise what stands against appending columns."""
        self.check_open()
        with self._thread.lock:
            self.raise_if_not_appendable()

    def before_send(self) -> None:
        """Raise what stands against sending rows, whose failures their futures tell of."""
        self.check_open()
        self.check_transaction()

    def check_open(self) -> None:
        """Raise where the producer is another process's, closed, or over."""
        self.check_process()
        self.raise_if_closed()

    def check_process(self) -> None:
        """Raise in a forked child: nobody there sends anything, or gives back a lock."""
        if self.is_forked:
            message = (
                "this KafkaProducer was made before a fork; make one in the process that uses it"
            )
            raise IllegalStateException(message)

    def check_not_in_callback(self, call: str) -> None:
        """Raise in the I/O thread, which cannot wait for itself; call: a method's name."""
        if self._thread.is_current:
            message = (
                f"KafkaProducer.{call}() invocation inside a callback is not permitted because it "
                "would never end: callbacks run in the thread that delivers records"
            )
            raise KafkaException(message)

    def raise_if_not_appendable(self) -> None:
        """Raise what stands against putting columns into batches."""
        self.raise_if_unusable()
        self.check_transaction()

    def raise_if_unusable(self) -> None:
        """Raise what stands against going on."""
        error = None if self.is_closed else self._thread.deliveries.take_error()
        if error is not None:
            raise error
        self.raise_if_closed()

    def raise_if_closed(self) -> None:
        """Raise where the producer takes nothing any more."""
        if self.is_closed:
            message = "Cannot perform operation after producer has been closed"
            raise IllegalStateException(message)
        if self._thread.fatal_error is not None:
            raise self._thread.fatal_error

    def check_transaction(self) -> None:
        """Raise where records cannot be part of a transaction now; with the lock or without."""
        if self._thread.transactions is not None:
            self._thread.transactions.check_in_transaction("append")

"""BufferPool: the bytes of buffer.memory, and the calls that wait for some, in order.

It counts bytes and nothing else. The rows themselves are in batches: Python has no memory to hand
out, whereas the Java client's BufferPool keeps buffers. It has no lock and no clock: the caller of
every method holds the producer's lock, and waits outside of it.

A call takes the bytes of the rows that it is about to encode (`reserve`). When the rows are in
batches, the accumulator charges for the memory that the batches keep, and the call returns its
bytes. Waiting calls are served in the order of their arrival, so that a large slice does not wait
forever behind small ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer_batch import ProducerBatch

# The part of buffer.memory that must be free, or about to become free, for open batches to linger.
_ROOM: Final = 1 / 4


class PendingAppend:
    """Rows on their way into batches (a slice of columns, or a chunk of rows), and what they hold.

    That has to be returned if the caller is interrupted (Ctrl-C). Each resource is noted here
    before it is taken, or in the same change, and returning it twice does no harm.

    size_bytes: the bytes of buffer.memory, 0 before they are taken and again after they are
    returned; partitions: those whose open batches are held; full: batches that are to be packed,
    which are not sent before that; is_in_batches: whether the rows are in batches, all of them or
    none.
    """

    __slots__ = ("full", "is_in_batches", "partitions", "size_bytes")

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        self.partitions: Sequence[TopicPartition] = ()
        self.full: list[ProducerBatch] = []
        self.is_in_batches = False


class BufferPool:
    """The credit of one producer.

    available_bytes: below 0 while batches keep more than was reserved for them. draining_bytes:
    what sealed batches on their way to a broker will free. room_bytes: how much is to be free.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.available_bytes = total_bytes
        self.draining_bytes = 0
        self.room_bytes = int(total_bytes * _ROOM)
        self._waiting: deque[PendingAppend] = deque()

    @property
    def waiters(self) -> int:
        """The number of calls that wait for memory."""
        return len(self._waiting)

    @property
    def is_short(self) -> bool:
        """Whether too little memory is free, or will be soon, so that open batches must go."""
        return self.available_bytes + self.draining_bytes < min(self.room_bytes, self.total_bytes)

    def reserve(self, pending: PendingAppend, size_bytes: int) -> bool:
        """Take bytes for a call. Return whether they were free and no other call waits before it.

        More than buffer.memory is granted only when everything is free. If the first waiting call
        asks for more bytes than usual, room_bytes becomes that size. When room_bytes grows, the I/O
        thread has to check which batches to send.
        """
        if self._waiting and self._waiting[0] is not pending:
            return False
        self.room_bytes = max(int(self.total_bytes * _ROOM), size_bytes)
        if size_bytes > self.available_bytes < self.total_bytes:
            return False
        # There is no call between these two, because the caller could be interrupted after one.
        self.available_bytes -= size_bytes
        pending.size_bytes = size_bytes
        return True

    def give_back(self, pending: PendingAppend) -> None:
        """Return the bytes of an append, if they were not returned before."""
        self.available_bytes += pending.size_bytes
        pending.size_bytes = 0

    def wait(self, pending: PendingAppend) -> None:
        """Add a call at the end of the waiting calls."""
        self._waiting.append(pending)

    def stop_waiting(self, pending: PendingAppend) -> None:
        """Remove a call from those that wait, if it is one of them."""
        if pending in self._waiting:
            self._waiting.remove(pending)

    def charge(self, size_bytes: int) -> None:
        """Count bytes that batches keep from now on, reserved or not."""
        self.available_bytes -= size_bytes

    def free(self, size_bytes: int) -> None:
        """Count bytes that batches no longer keep."""
        self.available_bytes += size_bytes

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
from typing import Final

# The part of buffer.memory that must be free, or about to become free, for open batches to linger.
_ROOM: Final = 1 / 4


class Reservation:
    """Bytes that a call has taken and not returned yet, and its place among the waiting calls.

    size_bytes is 0 before the bytes are taken and again after they are returned. So an interrupted
    call (Ctrl-C) may safely return them a second time.
    """

    __slots__ = ("size_bytes",)

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes


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
        self._waiting: deque[Reservation] = deque()

    @property
    def waiters(self) -> int:
        """The number of calls that wait for memory."""
        return len(self._waiting)

    @property
    def is_short(self) -> bool:
        """Whether less is free, or on its way to be, than there is to be room for."""
        return self.available_bytes + self.draining_bytes < min(self.room_bytes, self.total_bytes)

    def reserve(self, reservation: Reservation, size_bytes: int) -> bool:
        """Take bytes for a call. Return whether they were free and no other call waits before it.

        More than buffer.memory is granted only when everything is free. If the first waiting call
        asks for more bytes than usual, room_bytes becomes that size. When room_bytes grows, the I/O
        thread has to check which batches to send.
        """
        if self._waiting and self._waiting[0] is not reservation:
            return False
        self.room_bytes = max(int(self.total_bytes * _ROOM), size_bytes)
        if size_bytes > self.available_bytes < self.total_bytes:
            return False
        # There is no call between these two, because the caller could be interrupted after one.
        self.available_bytes -= size_bytes
        reservation.size_bytes = size_bytes
        return True

    def give_back(self, reservation: Reservation) -> None:
        """Return the bytes of a reservation, if they were not returned before."""
        self.available_bytes += reservation.size_bytes
        reservation.size_bytes = 0

    def wait(self, reservation: Reservation) -> None:
        """Add a call at the end of the waiting calls."""
        self._waiting.append(reservation)

    def stop_waiting(self, reservation: Reservation) -> None:
        """Remove a call from those that wait, if it is one of them."""
        if reservation in self._waiting:
            self._waiting.remove(reservation)

    def charge(self, size_bytes: int) -> None:
        """Count bytes that batches keep from now on, reserved or not."""
        self.available_bytes -= size_bytes

    def free(self, size_bytes: int) -> None:
        """Count bytes that batches no longer keep."""
        self.available_bytes += size_bytes

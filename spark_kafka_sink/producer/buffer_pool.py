"""BufferPool: the number of free bytes of buffer.memory, and the queue of calls that wait for them.

The pool only counts bytes; the rows themselves are in batches. (The Java client's BufferPool also
keeps buffers for reuse, which Python does not need.) It has no lock and no clock. A caller holds
the producer's lock during each call, and releases it to wait.

A call reserves the bytes of the rows that it is about to encode (`reserve`). When the rows are in
batches, the accumulator charges the memory that the batches keep, and the call releases the
reserved bytes. Waiting calls are served in the order of their arrival, so that a call for many
bytes does not wait forever behind calls for few bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer_batch import ProducerBatch

# Open batches may linger while at least this fraction of buffer.memory is free or will soon be
# free.
_ROOM: Final = 1 / 4


class PendingAppend:
    """Rows that are being put into batches (a slice of columns or a chunk), and their resources.

    The resources must be released even if the caller is interrupted (Ctrl-C). So each resource is
    recorded here before it is taken, or so soon afterwards that no interrupt can come in between.
    Releasing a resource twice does no harm.

    size_bytes: the reserved bytes of buffer.memory, 0 before the reservation and after the release;
    partitions: the partitions whose open batches are held; full: the batches that this call must
    compress before they can be sent; is_in_batches: whether the rows were put into batches (either
    all of them or none).
    """

    __slots__ = ("full", "is_in_batches", "partitions", "size_bytes")

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        self.partitions: Sequence[TopicPartition] = ()
        self.full: list[ProducerBatch] = []
        self.is_in_batches = False


class BufferPool:
    """The free memory of one producer.

    available_bytes: the free bytes, negative while batches keep more than was reserved for them.
    draining_bytes: the bytes that will be free when the batches in flight are done.
    draining_parts_bytes: the parts of these batches in buffers that other batches may also
    reference. unused_bytes: the bytes of referenced slices that no unfinished batch references.
    room_bytes: if fewer bytes than this are free or will soon be free, memory is short.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.available_bytes = total_bytes
        self.draining_bytes = 0
        self.draining_parts_bytes = 0
        self.unused_bytes = 0
        self.room_bytes = int(total_bytes * _ROOM)
        self._waiting: deque[PendingAppend] = deque()

    @property
    def waiters(self) -> int:
        """The number of calls that wait for memory."""
        return len(self._waiting)

    @property
    def is_short(self) -> bool:
        """Whether open batches must be sent because too little memory is free or soon free."""
        soon = self.available_bytes + self.draining_bytes
        if not self._waiting:
            soon += self.draining_parts_bytes
        return soon < min(self.room_bytes, self.total_bytes)

    @property
    def is_wasted(self) -> bool:
        """Whether calls wait for memory, although more than half of it is in unused bytes."""
        return bool(self._waiting) and 2 * self.unused_bytes > self.total_bytes

    def reserve(self, pending: PendingAppend, size_bytes: int) -> bool:
        """Reserve bytes for a call; return False if it must wait for memory or for earlier calls.

        A call for more than buffer.memory is only granted when all memory is free. If no earlier
        call waits, room_bytes becomes `size_bytes`, or a quarter of buffer.memory if that is more.
        When room_bytes grows, the I/O thread must check which batches to send.
        """
        if self._waiting and self._waiting[0] is not pending:
            return False
        self.room_bytes = max(int(self.total_bytes * _ROOM), size_bytes)
        if size_bytes > self.available_bytes < self.total_bytes:
            return False
        # No function is called between these two statements, because an interrupt (Ctrl-C) could
        # come in it.
        self.available_bytes -= size_bytes
        pending.size_bytes = size_bytes
        return True

    def give_back(self, pending: PendingAppend) -> None:
        """Release the reserved bytes of an append; a second call does nothing."""
        self.available_bytes += pending.size_bytes
        pending.size_bytes = 0

    def wait(self, pending: PendingAppend) -> None:
        """Add a call to the end of the queue of waiting calls."""
        self._waiting.append(pending)

    def stop_waiting(self, pending: PendingAppend) -> None:
        """Remove a call from the queue of waiting calls, if it is there."""
        if pending in self._waiting:
            self._waiting.remove(pending)

    def drain(self, more: tuple[int, int]) -> None:
        """Count more bytes as soon free: of draining_bytes, and of draining_parts_bytes."""
        self.draining_bytes += more[0]
        self.draining_parts_bytes += more[1]

    def charge(self, size_bytes: int, unused_bytes: int) -> None:
        """Record that batches keep these bytes from now on. They need not have been reserved.

        unused_bytes: how many of them are in slices, but in no piece that a batch references.
        """
        self.available_bytes -= size_bytes
        self.unused_bytes += unused_bytes

    def free(self, size_bytes: int, unused_bytes: int) -> None:
        """Record that batches no longer keep these bytes, and that more bytes are unused."""
        self.available_bytes += size_bytes
        self.unused_bytes += unused_bytes

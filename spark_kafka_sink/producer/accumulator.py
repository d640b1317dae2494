"""RecordAccumulator: a queue of batches for each partition, and the memory that the batches use.

Rows come in slices (a slice is a part of an Arrow batch, with rows of many partitions), but brokers
work best with few large batches. So rows wait here until the batch of their partition is full, has
waited for linger.ms, or must be sent to free memory.

::

    hold, append              seal                 sendable, take        the response
    ──────────────> OPEN ─────────────> SEALED ─────────────────> IN_FLIGHT ──────> complete
                     at most one per     waits at the head             │            deallocate
                     partition, the      of its queue       ^          │
                     last of its queue                      └──────────┘ reenqueue, split

The difficult parts:

- Rows are encoded outside the lock, with offset deltas that continue those of the open batch. So
  rows are appended in three steps: `hold` the partitions, encode, `append`. While an open batch is
  held, it is neither sealed nor sent, and does not expire. `let_go` ends the hold.
- The thread that appends also compresses full batches, outside the lock. A full batch keeps its
  place in the queue, but is only sent after `packed` was called.
- The memory that a batch keeps is charged to the `BufferPool`. The charge changes when rows are
  copied, when an encoded slice is referenced, when a batch is compressed, and when a batch is done.
  A slice is charged until no batch references it. One slow broker's batches would soon keep slices
  in all of the memory, although most rows are delivered (`unused_bytes`). If calls wait for memory
  then, the last pieces of slices are copied into their batches, and these slices are freed. Only
  the I/O thread copies, and only batches that wait in their queue.
- While memory is short, open batches are sent, oldest first. Memory of batches in flight counts as
  soon free (`draining`), so no more batches are sent than needed. If all open batches were sent,
  the average batch would contain half as many records. A referenced slice is usually free only when
  all of its batches are done. While no caller waits for memory, a batch's part of the slice also
  counts as soon free, because the other batches usually fill, and are sent, before memory runs out.
- A batch that is sent again goes to the head of its queue, but behind batches with lower sequences.
- The oldest batches are sent first, and among batches of the same age the partitions take turns. So
  no partition waits forever behind partitions that always have more data. `_open` and `_incomplete`
  are sorted by age, so each search ends at the first batch that is too young.
- delivery.timeout.ms begins when a batch is created, as in the Java client (KIP-91). In a task's
  producer, it begins again each time the leader of the partition acknowledges a batch, until an
  attempt to send this batch has failed. The reason: a task fills buffer.memory in a moment, also if
  the cluster is slow or a quota limits the job. Otherwise, batches would fail only because they
  wait behind many others, although the leader accepts one after the other.

The accumulator has no lock and no clock, because its callers hold the producer's lock, and pass the
time as an argument.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import numpy as np

from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.producer.batch_splitter import split
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.buffer_pool import BufferPool
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import NodeLatencies, TopicLoad
from spark_kafka_sink.producer.producer_batch import (
    COPY_BELOW_BYTES,
    ProducerBatch,
    RetainedBuffer,
    SpanOwner,
)
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.compression import Codec, CompressionRatioEstimator
from spark_kafka_sink.records.encoder import EncodedRecords
from spark_kafka_sink.records.layout import Cut, OpenBatch
from spark_kafka_sink.records.varint import Int64s

_Key = TypeVar("_Key")
# How often the expiry of old batches is checked while they may wait longer than usual.
_LONGEST_PAUSE_S: Final = 1.0


class _FoundLimit(NamedTuple):
    """A limit that was learned from a rejected batch, and when it is forgotten."""

    size_bytes: int
    forgotten_at: float


def is_worth_keeping(sizes_bytes: Int64s) -> bool:
    """Return whether the large pieces of a slice should be referenced instead of copied.

    They should if they are at least half of the slice. Otherwise, most of the slice would be in
    memory twice: the few referenced pieces keep the whole slice, and the other pieces were copied.
    sizes_bytes: the size of each piece.
    """
    # The method `sum` runs Python code, in which the caller could be interrupted.
    referenced = int(np.add.reduce(sizes_bytes[sizes_bytes >= COPY_BELOW_BYTES]))
    return 2 * referenced >= int(np.add.reduce(sizes_bytes))


class RecordAccumulator:
    """Batches that wait to be sent. Times are seconds of the producer's clock.

    leader: for the producer of a task, returns the leader of a partition, or None if it is unknown;
    None for other producers. last_acknowledged_at: for the producer of a task, when any node last
    acknowledged a batch; -inf if none did.
    """

    def __init__(
        self,
        *,
        batch_size_bytes: int,
        linger_s: float,
        buffer_memory_bytes: int,
        delivery_timeout_s: float,
        found_limit_age_s: float,
        codec: Codec,
        leader: Callable[[TopicPartition], Node | None] | None = None,
    ) -> None:
        self._batch_size_bytes = max(1, batch_size_bytes)
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._leader = leader
        self._acknowledged_at: dict[int, float] = {}
        self.last_acknowledged_at = float("-inf")
        # No batch expires before this time.
        self._next_look_at = float("inf")
        self._codec = codec
        self._ratios = CompressionRatioEstimator()
        # The limits on the batch size in bytes, by topic, if any is known: max.message.bytes, and
        # limits that were learned from batches that brokers rejected as too large. A learned limit
        # is forgotten after a time, because the topic may accept larger batches by then.
        self._topic_limits: dict[str, int] = {}
        self._found_limits: dict[str, _FoundLimit] = {}
        self._found_limit_age_s = found_limit_age_s
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        # _sealed: partitions whose first batch is sealed. _open: the open batch of each partition
        # that has one. _incomplete: all incomplete batches. The last two are sorted, oldest first.
        self._sealed: dict[TopicPartition, None] = {}
        self._open: dict[TopicPartition, ProducerBatch] = {}
        self._incomplete: dict[ProducerBatch, ProducerBatch] = {}
        self._held: set[TopicPartition] = set()
        self._packing: set[ProducerBatch] = set()
        self.pool = BufferPool(buffer_memory_bytes)
        self._flushes: set[object] = set()
        self._lingers = True
        self._is_withheld = False

    @property
    def has_incomplete(self) -> bool:
        """Whether there is a batch that is neither acknowledged nor failed."""
        return bool(self._incomplete)

    @property
    def has_undrained(self) -> bool:
        """Whether there is a batch that waits to be sent."""
        return bool(self._sealed or self._open)

    @property
    def waiting_partitions(self) -> set[TopicPartition]:
        """The partitions that have a batch waiting to be sent."""
        return {*self._sealed, *self._open}

    @property
    def incomplete(self) -> list[ProducerBatch]:
        """The batches that are neither acknowledged nor failed, oldest first."""
        return list(self._incomplete)

    def undelivered(self) -> Counter[str]:
        """Return, by topic, the number of records that are neither acknowledged nor failed."""
        records = Counter[str]()
        for batch in self._incomplete:
            records[batch.topic_partition.topic] += batch.record_count
        return records

    def topic_load(
        self,
        name: str,
        topic: TopicMetadata,
        latencies: NodeLatencies,
        *,
        adaptive: bool,
        near: Collection[int] = (),
    ) -> TopicLoad:
        """Return the partitions to spread rows over, and the function that counts waiting batches.

        Few slices need the counts, so they are computed later. Only this function may be called
        without the lock.

        The partitions are those that have a leader, or all partitions if no partition has a leader.
        adaptive: whether to count batches, and to exclude partitions whose leader is slow
        (KIP-794, see `NodeLatencies`). If all leaders are slow, no partition is excluded. near: the
        ids of the nodes in the producer's rack (KIP-1123). If these nodes lead any of the
        partitions, only the partitions that they lead are returned.
        """
        available = topic.available or list(range(len(topic.leaders)))
        batch_bytes = self.full_bytes(name)
        if adaptive and latencies.has_slow:
            quick = [p for p in available if not latencies.is_slow(topic.leaders[p])]
            available = quick or available
        if near:
            available = [p for p in available if topic.leaders[p] in near] or available
        if not adaptive:
            return TopicLoad(available=available, queue_lengths=None, batch_bytes=batch_bytes)
        lengths = partial(self._queue_lengths, name, available)
        return TopicLoad(available=available, queue_lengths=lengths, batch_bytes=batch_bytes)

    def _queue_lengths(self, topic: str, partitions: Sequence[int]) -> list[int]:
        none: deque[ProducerBatch] = deque()
        return [len(self._queues.get(TopicPartition(topic, p), none)) for p in partitions]

    def limit_topics(self, sizes_bytes: Mapping[str, int]) -> None:
        """Set the limits on the batch size, by topic. They replace the earlier limits.

        A lower limit that rejected batches have shown also applies, until the topic's limit rises
        or `found_limit_age_s` has passed.
        """
        for topic, size_bytes in sizes_bytes.items():
            if size_bytes > self._topic_limits.get(topic, size_bytes):
                self._found_limits.pop(topic, None)
        self._topic_limits = dict(sizes_bytes)

    def forget_limits(self) -> None:
        """Forget the batch size limits of all topics: some may have been raised by now."""
        self._topic_limits.clear()
        self._found_limits.clear()

    def full_bytes(self, topic: str) -> int:
        """Return how many bytes of uncompressed records fill a batch of a topic."""
        size = self._batch_size_bytes
        if topic in self._topic_limits:
            size = min(size, self._topic_limits[topic])
        if topic in self._found_limits:
            size = min(size, self._found_limits[topic].size_bytes)
        size -= RECORD_BATCH_OVERHEAD
        if self._codec.compress is not None:
            size = self._ratios.uncompressed_bytes(topic, size)
        return max(1, size)

    # -- flush and close: no batch lingers --------------------------------------------------------

    @property
    def flushes(self) -> int:
        """The number of flushes in progress; no batch lingers during a flush."""
        return len(self._flushes)

    def begin_flush(self, flush: object) -> None:
        """Make every batch sendable until `end_flush` is called with the same object."""
        self._flushes.add(flush)

    def end_flush(self, flush: object) -> None:
        """End a flush. A second call does nothing, so an interrupted caller may call again."""
        self._flushes.discard(flush)

    def stop_lingering(self) -> None:
        """Make every batch sendable from now on, for example because the producer is closing."""
        self._lingers = False

    # -- withholding ------------------------------------------------------------------------------

    def withhold(self) -> None:
        """Send no batch, not even a full one, until a flush begins or memory is short.

        `stop_lingering` ends this, too. Until then, linger.ms and delivery.timeout.ms do not run.
        """
        self._is_withheld = True

    def end_withholding(self) -> None:
        """End `withhold`: send batches as usual from now on."""
        self._is_withheld = False

    def _is_still_withheld(self, now: float) -> bool:
        """Return whether batches are still withheld. If not, start the age of each at `now`."""
        if not self._flushes and self._lingers and not self.pool.is_short:
            return True
        self._is_withheld = False
        for batch in self._incomplete:
            batch.restart_age(now)
        return False

    # -- appending: the caller's thread, under the lock -------------------------------------------

    def hold(self, partitions: Sequence[TopicPartition]) -> list[OpenBatch]:
        """Protect the partitions' open batches from changes, and return how full they are."""
        self._held.update(partitions)
        full = {topic: self.full_bytes(topic) for topic in {tp.topic for tp in partitions}}
        opens = []
        for topic_partition in partitions:
            batch = self._open.get(topic_partition)
            full_bytes = full[topic_partition.topic]
            if batch is None:
                opens.append(OpenBatch(0, 0, full_bytes, 0))
            else:
                room = full_bytes - batch.records_bytes
                opens.append(
                    OpenBatch(batch.record_count, room, full_bytes, batch.base_timestamp_ms)
                )
        return opens

    def let_go(self, partitions: Sequence[TopicPartition]) -> None:
        """End `hold`: from now on, these partitions' open batches may change, and may be sent."""
        self._held.difference_update(partitions)

    def append(
        self,
        partitions: Sequence[TopicPartition],
        cuts: list[Cut],
        encoded: EncodedRecords,
        now: float,
        owner: SpanOwner | None = None,
    ) -> list[ProducerBatch]:
        """Append encoded rows to the batches of their partitions.

        partitions: the partition of each run (the rows of one partition, see `records.layout`);
        cuts: where to cut the encoded rows, in order and without gaps; owner: notified about the
        result of each record (see `RecordSpan`), None if nobody needs the results.

        Return the batches that became full and must be compressed. The caller must compress them
        outside the lock and then call `packed`, so that they can be sent. The memory that batches
        keep is charged here. The caller must then release the bytes that it reserved.
        """
        bounds = encoded.offsets[[cut.start for cut in cuts] + [cuts[-1].stop]]
        is_kept = is_worth_keeping(bounds[1:] - bounds[:-1])
        retained = RetainedBuffer(len(encoded.buffer)) if is_kept else None
        edges = bounds.tolist()
        charged, full, is_out_of_order = 0, [], False
        for number, cut in enumerate(cuts):
            topic_partition = partitions[cut.run]
            batch = self._open.get(topic_partition)
            if batch is None or cut.starts_batch:
                if batch is not None:
                    self._seal(topic_partition, batch)
                    if self._codec.compress is not None:
                        full.append(batch)
                batch = self._new_batch(topic_partition, cut.base_timestamp_ms, now)
            elif now < batch.created_at:  # these rows have waited longer than the batch
                # An age of linger_s makes the batch due. More would expire its younger rows early.
                older = max(now, batch.created_at - self._linger_s)
                is_out_of_order |= older < batch.created_at
                batch.restart_age(older)
                self._look_again_by(older + self._delivery_timeout_s)
            copied = batch.copied_bytes
            piece = encoded.buffer[edges[number] : edges[number + 1]]
            records = cut.stop - cut.start
            batch.append(piece, records, cut.max_timestamp_ms, retained, owner, cut.start)
            charged += batch.copied_bytes - copied
        if is_out_of_order:
            _sort_by_age(self._open)
            _sort_by_age(self._incomplete)
        unused = 0
        if retained is not None:
            unused = retained.size_bytes - (edges[-1] - edges[0] - charged)
            charged += retained.size_bytes
        self.pool.charge(charged, unused)
        self._packing.update(full)
        return full

    def packed(self, batch: ProducerBatch) -> None:
        """Account for a compressed batch: charge less memory, and record its compression ratio.

        A second call for the same batch does nothing, so every attempt to send the batch may call
        this.
        """
        if self.may_be_sent(batch):
            self.settle(batch)

    def may_be_sent(self, batch: ProducerBatch) -> bool:
        """Allow a batch to be sent, now that no caller is compressing it any more.

        Record its compression ratio. Return whether the caller must now call `settle`. An
        interrupted caller may call this again.
        """
        self._packing.discard(batch)
        if batch.codec.compress is None or batch.is_done or batch.settled or not batch.packed:
            return False
        self._ratios.observe(
            batch.topic_partition.topic,
            (batch.size_bytes - RECORD_BATCH_OVERHEAD) / max(1, batch.records_bytes),
        )
        return True

    def settle(self, batch: ProducerBatch) -> None:
        """Charge the compressed size of a batch instead of the size of its records."""
        self.pool.free(*batch.settle())
        if batch.state is BatchState.IN_FLIGHT:
            self.pool.drain(batch.draining(batch.copied_bytes, batch.referenced_bytes))

    def _new_batch(self, tp: TopicPartition, base_timestamp_ms: int, now: float) -> ProducerBatch:
        found = self._found_limits.get(tp.topic)
        if found is not None and now >= found.forgotten_at:
            del self._found_limits[tp.topic]
        batch = ProducerBatch(tp, self._codec, base_timestamp_ms, now)
        self._look_again_by(now + self._delivery_timeout_s)
        self._queues.setdefault(tp, deque()).append(batch)
        _put_by_age(self._open, tp, batch)
        _put_by_age(self._incomplete, batch, batch)
        return batch

    def _seal(self, topic_partition: TopicPartition, batch: ProducerBatch) -> None:
        batch.seal()
        del self._open[topic_partition]
        self._sealed[topic_partition] = None

    # -- sending: the I/O thread, under the lock --------------------------------------------------

    def sendable(self, now: float, *, completes_transaction: bool = False) -> list[ProducerBatch]:
        """Return the batches to send now, oldest first: at most the first batch of each partition.

        An open batch is due when it has waited for linger.ms. During a flush, a close or the end of
        a transaction, it is due at once. `sendable_for_room` returns further batches.
        """
        if self._is_withheld and self._is_still_withheld(now):
            return []
        heads = [self._queues[topic_partition][0] for topic_partition in self._sealed]
        found = [b for b in heads if b.retry_at <= now and b not in self._packing]
        # An open batch behind a sealed batch is not the first of its partition.
        excluded = self._held.union(self._sealed)
        hurry = bool(self._flushes) or not self._lingers or completes_transaction
        for topic_partition, batch in self._open.items():
            if not hurry and now < batch.created_at + self._linger_s:
                break
            if topic_partition not in excluded:
                found.append(batch)
        return sorted(found, key=attrgetter("created_at"))

    def sendable_for_room(self, others: Sequence[ProducerBatch]) -> Iterator[ProducerBatch]:
        """Yield open batches, oldest first, while memory is short.

        When the caller takes a batch, its memory counts as memory that will soon be free. So no
        more batches are sent than needed, and the others can fill up. If a call waits for memory,
        and batches reference slices, all open batches are sent, as Java's RecordAccumulator does
        once its pool is exhausted. others: batches that are sent anyway; their partitions are
        skipped.
        """
        if self._is_withheld or not self.pool.is_short:
            return
        excluded = self._held.union(self._sealed, (other.topic_partition for other in others))
        for topic_partition, batch in list(self._open.items()):
            if not self.pool.is_short:
                return
            if topic_partition not in excluded:
                yield batch

    def next_sendable_at(self, now: float) -> float:
        """Return the next time at which more batches become sendable just because time passes."""
        if self._is_withheld:
            return float("inf")
        waits = [self._queues[tp][0].retry_at for tp in self._sealed]
        due = min((at for at in waits if at > now), default=float("inf"))
        for batch in self._open.values():
            if batch.created_at + self._linger_s > now:
                return min(due, batch.created_at + self._linger_s)
        return due

    def take(self, batch: ProducerBatch) -> None:
        """Remove a sendable batch from its queue; seal it if it is open."""
        topic_partition = batch.topic_partition
        self.pool.drain(batch.draining(batch.copied_bytes, batch.referenced_bytes))
        if batch.state is BatchState.OPEN:
            self._seal(topic_partition, batch)
        queue = self._queues[topic_partition]
        queue.remove(batch)  # nearly always the first
        # Partitions take turns: this partition goes behind the others.
        del self._sealed[topic_partition]
        if queue and queue[0].state is BatchState.SEALED:
            self._sealed[topic_partition] = None

    def reenqueue(self, batch: ProducerBatch) -> None:
        """Put a batch back at the head of its queue, but behind batches with lower sequences."""
        self.pool.drain(batch.draining(0, 0))
        queue = self._queues[batch.topic_partition]
        ahead = 0
        if batch.has_sequence:
            base = batch.base_sequence
            while ahead < len(queue) and _is_before(queue[ahead], base):
                ahead += 1
        queue.insert(ahead, batch)
        self._sealed[batch.topic_partition] = None

    def split(self, batch: ProducerBatch, now: float) -> list[ProducerBatch]:
        """Replace a batch that a broker found too large, and return the smaller batches.

        Batches of the topic are now limited to half the size of that batch for a time. The Java
        client (RecordAccumulator.splitAndReenqueue) sets no such limit, so brokers reject each
        further large batch once. Here, they reject only batches that are already built. If the
        batch exceeds the topic's known limit, it only compressed worse than estimated, and sets no
        limit.
        """
        topic, half = batch.topic_partition.topic, batch.size_bytes // 2
        if batch.size_bytes <= self._topic_limits.get(topic, batch.size_bytes):
            if topic in self._found_limits:
                half = min(half, self._found_limits[topic].size_bytes)
            self._found_limits[topic] = _FoundLimit(half, now + self._found_limit_age_s)
        parts = split(batch)
        batch.split_into(parts)
        self._incomplete = {
            each: each for old in self._incomplete for each in (parts if old is batch else [old])
        }
        copied = sum(part.copied_bytes for part in parts)
        slices = sum(buffer.size_bytes for buffer in _retained(parts))
        records = sum(part.records_bytes for part in parts)
        self.pool.charge(copied + slices, slices + copied - records)
        for part in reversed(parts):
            self.reenqueue(part)
        return parts

    def expired(self, now: float) -> list[ProducerBatch]:
        """Return the batches, queued or in flight, whose delivery.timeout.ms has passed.

        `_incomplete` is sorted by age, so only batches of at least this age are visited.
        """
        if self._is_withheld or now < self._next_look_at:
            return []
        found, has_waiting = [], False
        self._next_look_at = float("inf")
        for batch in self._incomplete:
            if now < batch.created_at + self._delivery_timeout_s:
                self._look_again_by(batch.created_at + self._delivery_timeout_s)
                break
            expires_at = self.expires_at(batch)
            self._look_again_by(expires_at)
            has_waiting |= now < expires_at
            if now >= expires_at and not self._is_worked_on(batch):
                found.append(batch)
        if has_waiting:
            # Each visit takes a microsecond for each of these batches, so there are few visits.
            pause_s = min(_LONGEST_PAUSE_S, self._delivery_timeout_s / 100)
            self._next_look_at = max(self._next_look_at, now + pause_s)
        return found

    def unsent(self) -> list[ProducerBatch]:
        """Return the batches that were never sent and that no caller is filling or compressing."""
        return [
            batch
            for batch in self._incomplete
            if not batch.has_sequence
            and batch.topic_partition not in self._held
            and batch not in self._packing
        ]

    def next_expiry_at(self, now: float) -> float:
        """Return when `expired` must be called again, which is when the next batch may expire.

        This ignores an expired batch that a caller is still filling or compressing. When that
        caller has finished, the I/O thread calls `expired` again.
        """
        if self._is_withheld:
            return float("inf")
        if self._next_look_at > now:
            return self._next_look_at
        due = float("inf")
        for batch in self._incomplete:
            if now < batch.created_at + self._delivery_timeout_s:
                return min(due, batch.created_at + self._delivery_timeout_s)
            if not self._is_worked_on(batch):
                due = min(due, self.expires_at(batch))
        return due

    def _look_again_by(self, expires_at: float) -> None:
        self._next_look_at = min(self._next_look_at, expires_at)

    def expires_at(self, batch: ProducerBatch) -> float:
        """Return the time at which delivery.timeout.ms of a batch will have passed.

        Only `restart_age` of the batch can make it earlier.
        """
        return max(batch.created_at, self._progress_at(batch)) + self._delivery_timeout_s

    def acknowledged(self, node_id: int, now: float) -> None:
        """Record that a node has acknowledged a batch."""
        if self._leader is not None:
            self._acknowledged_at[node_id] = self.last_acknowledged_at = now

    def keep_progress(self, batch: ProducerBatch) -> None:
        """Store the progress of a batch. Call this before an attempt counts as failed."""
        batch.progress_at = self._progress_at(batch)

    def leaders_change(self) -> None:
        """Store the progress of each batch. Call this before the leaders of partitions change."""
        if self._leader is not None:
            for batch in self._incomplete:
                self.keep_progress(batch)

    def _progress_at(self, batch: ProducerBatch) -> float:
        """Return when the leader last acknowledged a batch, before this batch has failed."""
        leader = None
        if self._leader is not None and not batch.attempts:
            leader = self._leader(batch.topic_partition)
        if leader is None:
            return batch.progress_at
        return max(batch.progress_at, self._acknowledged_at.get(leader.id, batch.progress_at))

    def _is_worked_on(self, batch: ProducerBatch) -> bool:
        return batch.topic_partition in self._held or batch in self._packing

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a batch from its queue, wherever it is in the queue."""
        topic_partition = batch.topic_partition
        queue = self._queues[topic_partition]
        queue.remove(batch)
        if self._open.get(topic_partition) is batch:
            del self._open[topic_partition]
        self._sealed.pop(topic_partition, None)
        if queue and queue[0].state is BatchState.SEALED:
            self._sealed[topic_partition] = None

    def complete(self, batch: ProducerBatch) -> None:
        """Record that a batch is done; its memory stays charged until `deallocate`."""
        self._incomplete.pop(batch, None)

    def deallocate(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch that no request in flight contains."""
        self.pool.drain(batch.draining(0, 0))
        self.pool.free(*batch.release())
        if self.pool.is_wasted:
            self._free_slices()

    def _free_slices(self) -> None:
        """Copy the last pieces of slices into their batches, so that these slices are freed.

        Pieces in flight are not copied, because the network still needs the slice.
        """
        for slice_ in _retained(self._incomplete):
            pieces_bytes = sum(batch.referenced_bytes for batch in slice_.holders)
            if 2 * pieces_bytes < slice_.size_bytes and all(map(self._is_idle, slice_.holders)):
                for batch in list(slice_.holders):
                    self.pool.free(*batch.copy_pieces())
                if not self.pool.is_wasted:
                    return

    def _is_idle(self, batch: ProducerBatch) -> bool:
        """Return whether a batch waits in its queue, and no caller fills or compresses it."""
        if batch.state is BatchState.OPEN:
            return batch.topic_partition not in self._held
        return batch.state is BatchState.SEALED and batch not in self._packing


def _put_by_age(batches: dict[_Key, ProducerBatch], key: _Key, batch: ProducerBatch) -> None:
    """Insert a batch behind all batches that are at least as old.

    Usually the new batch is the youngest. But if its rows waited before they were appended, that
    time counts as well.
    """
    newer = []
    for other in reversed(batches):
        if batches[other].created_at <= batch.created_at:
            break
        newer.append(other)
    batches[key] = batch
    for each in reversed(newer):
        # `pop` is not used, because an interrupt of the caller after `pop` would lose the batch.
        moved = batches[each]
        del batches[each]
        batches[each] = moved


def _sort_by_age(batches: dict[_Key, ProducerBatch]) -> None:
    for key in sorted(batches, key=lambda key: batches[key].created_at):
        moved = batches[key]
        del batches[key]  # `pop` is not used, for the same reason as in `_put_by_age`
        batches[key] = moved


def _is_before(batch: ProducerBatch, sequence: int) -> bool:
    """Return whether a batch is before `sequence`, a number that may have wrapped to 0."""
    if not batch.has_sequence:
        return False
    return 0 < (sequence - batch.base_sequence) % 2**31 < 2**30


def _retained(batches: Iterable[ProducerBatch]) -> list[RetainedBuffer]:
    """Return the slices that batches reference, each once, in the order of the batches."""
    return list(dict.fromkeys(buffer for batch in batches for buffer in batch.retained))

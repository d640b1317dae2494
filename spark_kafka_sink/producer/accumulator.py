"""RecordAccumulator: per partition a queue of batches, and the memory that they take.

Why: rows come in slices of many partitions, and brokers want few large batches. So rows wait here
until a batch of their partition is full, has lingered, or must make room.

::

    hold, append              seal                 sendable, take        the response
    ──────────────> OPEN ─────────────> SEALED ─────────────────> IN_FLIGHT ──────> complete
                     at most one per     waits at the head             │            deallocate
                     partition, the      of its queue       ^          │
                     last of its queue                      └──────────┘ reenqueue, split

What is hard:

- Rows are encoded outside the lock, with offset deltas that continue the open batch. So appending
  has three steps: `hold` the partitions, encode, `append`. A held open batch is neither sealed nor
  sent nor expired meanwhile. `let_go` ends that.
- Full batches are compressed by the thread that appends, outside the lock. They stand in their
  queue, in order, but are not sent before `packed`.
- Memory is charged for what batches keep (`BufferPool`), which changes four times: when rows are
  copied, when a slice is referenced, when a batch is compressed, and when it is done. A slice that
  several batches reference is paid for until the last of them is done.
- While memory is short, the oldest open batches go, and no more than have to: what is on its way to
  a broker counts as free soon (`draining`). To send all of them would halve what batches hold.
- A batch that is sent again goes to the head of its queue, behind batches with lower sequences.
- Order: the oldest first, and of one age each partition in its turn, so that no partition starves
  behind others that always have more. `_open` and `_incomplete` are kept in order of age, so that
  the first one that is too young ends each search.

It has no lock and no clock: its callers hold the producer's lock, and the time is an argument.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch_splitter import split
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.buffer_pool import BufferPool
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import NodeLatencies, TopicLoad
from spark_kafka_sink.producer.producer_batch import (
    ProducerBatch,
    RetainedBuffer,
    SpanOwner,
    is_worth_keeping,
)
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.compression import Codec, CompressionRatioEstimator
from spark_kafka_sink.records.encoder import EncodedRecords
from spark_kafka_sink.records.layout import Cut, OpenBatch

_Key = TypeVar("_Key")


class RecordAccumulator:
    """Batches waiting to be sent. Times are seconds of the producer's clock."""

    def __init__(
        self,
        *,
        batch_size_bytes: int,
        linger_s: float,
        buffer_memory_bytes: int,
        delivery_timeout_s: float,
        codec: Codec,
    ) -> None:
        self._batch_size_bytes = max(1, batch_size_bytes)
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._codec = codec
        self._ratios = CompressionRatioEstimator()
        # The most bytes that a batch of a topic may have, where that is known: by the topic's
        # configuration, and by batches that brokers found too large.
        self._topic_limits: dict[str, int] = {}
        self._found_limits: dict[str, int] = {}
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        # The partitions whose first batch is sealed; the partitions with an open batch, the oldest
        # first; and all incomplete batches, the oldest first.
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
        """Whether any batch is neither acknowledged nor failed."""
        return bool(self._incomplete)

    @property
    def has_undrained(self) -> bool:
        """Whether any batch waits to be sent."""
        return bool(self._sealed or self._open)

    @property
    def waiting_partitions(self) -> set[TopicPartition]:
        """The partitions of which a batch waits to be sent."""
        return {*self._sealed, *self._open}

    @property
    def incomplete(self) -> list[ProducerBatch]:
        """The batches that are neither acknowledged nor failed, oldest first."""
        return list(self._incomplete)

    def undelivered(self) -> Counter[str]:
        """Return by topic the number of records that are neither acknowledged nor failed."""
        records = Counter[str]()
        for batch in self._incomplete:
            records[batch.topic_partition.topic] += batch.record_count
        return records

    def topic_load(
        self, name: str, topic: TopicMetadata, latencies: NodeLatencies, *, adaptive: bool
    ) -> TopicLoad:
        """Return the partitions to spread rows over, and what each has waiting.

        These are the partitions with a leader, or all if none has one. adaptive: whether queue
        lengths count, and whether partitions whose leader accepts no data are left out while others
        do (KIP-794).
        """
        with_leader = topic.available or list(range(len(topic.leaders)))
        batch_bytes = self.full_bytes(name)
        if not adaptive:
            return TopicLoad(available=with_leader, queue_lengths=None, batch_bytes=batch_bytes)
        quick = [p for p in with_leader if not latencies.is_slow(topic.leaders[p])]
        available = quick or with_leader
        none: deque[ProducerBatch] = deque()
        lengths = [len(self._queues.get(TopicPartition(name, p), none)) for p in available]
        return TopicLoad(available=available, queue_lengths=lengths, batch_bytes=batch_bytes)

    def limit_topics(self, sizes_bytes: Mapping[str, int]) -> None:
        """Keep batches below the limits of their topics, which replace the limits before.

        Where a limit was raised, the batches that brokers found too large before do not count.
        """
        for topic, size_bytes in sizes_bytes.items():
            if size_bytes > self._topic_limits.get(topic, size_bytes):
                self._found_limits.pop(topic, None)
        self._topic_limits = dict(sizes_bytes)

    def forget_limits(self) -> None:
        """Forget the limits of all topics: they may have been raised since."""
        self._topic_limits.clear()
        self._found_limits.clear()

    def full_bytes(self, topic: str) -> int:
        """Return how many bytes of records fill a batch, by how well they compress."""
        size = self._batch_size_bytes
        for limits in (self._topic_limits, self._found_limits):
            size = min(size, limits.get(topic, size))
        size -= RECORD_BATCH_OVERHEAD
        if self._codec.compress is not None:
            size = self._ratios.uncompressed_bytes(topic, size)
        return max(1, size)

    # -- not lingering ----------------------------------------------------------------------------

    @property
    def flushes(self) -> int:
        """The number of flushes in progress; nothing lingers while there are any."""
        return len(self._flushes)

    def begin_flush(self, flush: object) -> None:
        """Make every batch sendable until `end_flush` of the same flush."""
        self._flushes.add(flush)

    def end_flush(self, flush: object) -> None:
        """End a flush; a flush that was interrupted may be ended twice."""
        self._flushes.discard(flush)

    def stop_lingering(self) -> None:
        """Make every batch sendable from here on: the producer is to end."""
        self._lingers = False

    # -- withholding ------------------------------------------------------------------------------

    def withhold(self) -> None:
        """Send nothing, also no full batch, until a flush begins or memory is short.

        The wait does not count as linger, nor as delivery.timeout.ms.
        """
        self._is_withheld = True

    def end_withholding(self) -> None:
        """Send batches as usual again."""
        self._is_withheld = False

    def _is_still_withheld(self, now: float) -> bool:
        """Return whether nothing is to be sent yet; if that is over, batches count as new."""
        if not self._flushes and self._lingers and not self.pool.is_short:
            return True
        self._is_withheld = False
        for batch in self._incomplete:
            batch.created_at = now
        return False

    # -- appending: the caller's thread, under the lock -------------------------------------------

    def hold(self, partitions: Sequence[TopicPartition]) -> list[OpenBatch]:
        """Keep the partitions' open batches as they are, and return how full they are."""
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
        """End `hold`."""
        self._held.difference_update(partitions)

    def append(
        self,
        partitions: Sequence[TopicPartition],
        cuts: list[Cut],
        encoded: EncodedRecords,
        now: float,
        owner: SpanOwner | None = None,
    ) -> list[ProducerBatch]:
        """Append encoded cuts to the batches of their partitions; cuts are in order, without gaps.

        partitions: of each run of the layout; owner: who waits for the records one by one, if
        anybody does (see `RecordSpan`). Returns the batches that became full and are to be
        packed outside the lock: they are not sent before `packed`. Charges what is retained; the
        caller returns its reservation.
        """
        bounds = encoded.offsets[[cut.start for cut in cuts] + [cuts[-1].stop]]
        is_kept = is_worth_keeping(bounds[1:] - bounds[:-1])
        retained = RetainedBuffer(len(encoded.buffer)) if is_kept else None
        edges = bounds.tolist()
        charged, full = 0, []
        for number, cut in enumerate(cuts):
            topic_partition = partitions[cut.run]
            batch = self._open.get(topic_partition)
            if batch is None or cut.starts_batch:
                if batch is not None:
                    self._seal(topic_partition, batch)
                    if self._codec.compress is not None:
                        full.append(batch)
                batch = self._new_batch(topic_partition, cut.base_timestamp_ms, now)
            copied = batch.copied_bytes
            piece = encoded.buffer[edges[number] : edges[number + 1]]
            records = cut.stop - cut.start
            batch.append(piece, records, cut.max_timestamp_ms, retained, owner, cut.start)
            charged += batch.copied_bytes - copied
        if retained is not None:
            charged += retained.size_bytes
        self.pool.charge(charged)
        self._packing.update(full)
        return full

    def packed(self, batch: ProducerBatch) -> None:
        """Account for a compressed batch: it uses less memory, and its ratio is observed.

        Another call for the same batch, as in every attempt to send it, does nothing.
        """
        if self.may_be_sent(batch):
            self.settle(batch)

    def may_be_sent(self, batch: ProducerBatch) -> bool:
        """Note that no caller packs a batch any more, and its compression ratio.

        Return whether `settle` is due. An interrupted caller may call this again.
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
        """Charge the bytes of a compressed batch in place of those of its records."""
        self.pool.free(batch.settle())
        if batch.state is BatchState.IN_FLIGHT:
            self.pool.draining_bytes += batch.draining(batch.copied_bytes)

    def _new_batch(self, tp: TopicPartition, base_timestamp_ms: int, now: float) -> ProducerBatch:
        batch = ProducerBatch(tp, self._codec, base_timestamp_ms, now)
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
        """Return the first batch of each partition that has one to send, the oldest first.

        An open batch is to be sent when it has lingered, or when it must not wait: while a flush, a
        close or the end of a transaction is under way. `sendable_for_room` has more.
        """
        if self._is_withheld and self._is_still_withheld(now):
            return []
        heads = [self._queues[topic_partition][0] for topic_partition in self._sealed]
        found = [b for b in heads if b.retry_at <= now and b not in self._packing]
        # An open batch behind a sealed one is not its partition's first.
        excluded = self._held.union(self._sealed)
        hurry = bool(self._flushes) or not self._lingers or completes_transaction
        for topic_partition, batch in self._open.items():
            if not hurry and now < batch.created_at + self._linger_s:
                break
            if topic_partition not in excluded:
                found.append(batch)
        return sorted(found, key=attrgetter("created_at"))

    def sendable_for_room(self, others: Sequence[ProducerBatch]) -> Iterator[ProducerBatch]:
        """Yield open batches, the oldest first, for as long as memory is short.

        The batches that are taken count as free soon, so that no more go than have to, and the
        others fill further. (Java's RecordAccumulator sends all of them once its pool is
        exhausted.) None is of the partitions of `others`, which were sendable before.
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
        """Return when `sendable` will return more than now because of time alone."""
        if self._is_withheld:
            return float("inf")
        waits = [self._queues[tp][0].retry_at for tp in self._sealed]
        due = min((at for at in waits if at > now), default=float("inf"))
        for batch in self._open.values():
            if batch.created_at + self._linger_s > now:
                return min(due, batch.created_at + self._linger_s)
        return due

    def take(self, batch: ProducerBatch) -> None:
        """Remove a batch that is sendable from its queue; it is sealed if it was open."""
        topic_partition = batch.topic_partition
        self.pool.draining_bytes += batch.draining(batch.copied_bytes)
        if batch.state is BatchState.OPEN:
            self._seal(topic_partition, batch)
        queue = self._queues[topic_partition]
        queue.popleft()
        # Partitions take turns: this one goes after the others.
        del self._sealed[topic_partition]
        if queue and queue[0].state is BatchState.SEALED:
            self._sealed[topic_partition] = None

    def reenqueue(self, batch: ProducerBatch) -> None:
        """Put a batch back at the head of its queue, behind batches with lower sequences."""
        self.pool.draining_bytes += batch.draining(0)
        queue = self._queues[batch.topic_partition]
        ahead = 0
        if batch.has_sequence:
            base = batch.base_sequence
            while ahead < len(queue) and _is_before(queue[ahead], base):
                ahead += 1
        queue.insert(ahead, batch)
        self._sealed[batch.topic_partition] = None

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Put smaller batches in the place of one that a broker found too large; return them.

        New batches of the topic will be as small. In the Java client, every batch of the topic is
        rejected once more; here only the first ones are (RecordAccumulator.splitAndReenqueue).
        """
        topic, half = batch.topic_partition.topic, batch.size_bytes // 2
        self._found_limits[topic] = min(half, self._found_limits.get(topic, half))
        parts = split(batch)
        batch.split_into(parts)
        self._incomplete = {
            each: each for old in self._incomplete for each in (parts if old is batch else [old])
        }
        self.pool.charge(sum(part.copied_bytes for part in parts))
        self.pool.charge(sum(buffer.size_bytes for buffer in _retained(parts)))
        for part in reversed(parts):
            self.reenqueue(part)
        return parts

    def expired(self, now: float) -> list[ProducerBatch]:
        """Return the batches, in queues or in flight, whose delivery.timeout.ms has passed.

        `_incomplete` is in order of age, so only the expired batches are visited.
        """
        if self._is_withheld:
            return []
        found = []
        for batch in self._incomplete:
            if now < batch.created_at + self._delivery_timeout_s:
                break
            if not self._is_worked_on(batch):
                found.append(batch)
        return found

    def unsent(self) -> list[ProducerBatch]:
        """Return the batches that were never sent and that no caller is working on."""
        return [
            batch
            for batch in self._incomplete
            if not batch.has_sequence
            and batch.topic_partition not in self._held
            and batch not in self._packing
        ]

    def next_expiry_at(self, now: float) -> float:
        """Return when to look at `expired` again: when the oldest batch expires.

        Batches that a caller's thread works on past their time do not count. When it lets go of
        them, the I/O thread looks again.
        """
        if self._is_withheld:
            return float("inf")
        for batch in self._incomplete:
            expires_at = batch.created_at + self._delivery_timeout_s
            if expires_at > now or not self._is_worked_on(batch):
                return expires_at
        return float("inf")

    def _is_worked_on(self, batch: ProducerBatch) -> bool:
        return batch.topic_partition in self._held or batch in self._packing

    def remove(self, batch: ProducerBatch) -> None:
        """Take a batch that waits in its queue out of it, wherever it stands."""
        topic_partition = batch.topic_partition
        queue = self._queues[topic_partition]
        queue.remove(batch)
        if self._open.get(topic_partition) is batch:
            del self._open[topic_partition]
        self._sealed.pop(topic_partition, None)
        if queue and queue[0].state is BatchState.SEALED:
            self._sealed[topic_partition] = None

    def complete(self, batch: ProducerBatch) -> None:
        """Note that a batch is done; its memory stays charged until `deallocate`."""
        self._incomplete.pop(batch, None)

    def deallocate(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch that is no longer on the wire."""
        self.pool.draining_bytes += batch.draining(0)
        self.pool.free(batch.release())


def _put_by_age(batches: dict[_Key, ProducerBatch], key: _Key, batch: ProducerBatch) -> None:
    """Insert a batch after those that are at least as old.

    Usually it is the newest. But rows that have lingered in their chunk give it the chunk's age.
    """
    newer = []
    for other in reversed(batches):
        if batches[other].created_at <= batch.created_at:
            break
        newer.append(other)
    batches[key] = batch
    for each in reversed(newer):
        # Instead of `pop`, after which an interrupt of the caller would lose the batch.
        moved = batches[each]
        del batches[each]
        batches[each] = moved


def _is_before(batch: ProducerBatch, sequence: int) -> bool:
    """Whether a queued batch carries a sequence before `sequence`, across the wrap."""
    if not batch.has_sequence:
        return False
    return 0 < (sequence - batch.base_sequence) % 2**31 < 2**30


def _retained(batches: Sequence[ProducerBatch]) -> set[RetainedBuffer]:
    return {buffer for batch in batches for buffer in batch.retained}

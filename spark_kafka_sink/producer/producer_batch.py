"""ProducerBatch: the records that go to a partition in one record batch, and the batch's state.

The object contains the batch's state, its pieces of encoded records and its header. Everything that
happens to a batch is an event, and the table in `batch_state` defines the next state. The batch
never determines *when* it is sealed, sent or retried: the accumulator and the sender do.

About the pieces: a memoryview keeps its whole buffer alive. So pieces smaller than
`COPY_BELOW_BYTES` are copied into the batch's own buffer, and larger pieces are referenced. A
referenced buffer has a `RetainedBuffer`, whose memory counts as used until no batch references the
buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from spark_kafka_sink.errors import ApiException, IllegalStateException, KafkaException
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.batch_state import (
    DONE,
    EVENTS,
    BatchAction,
    BatchEvent,
    BatchState,
)
from spark_kafka_sink.records.batch import (
    NO_SEQUENCE,
    RECORD_BATCH_OVERHEAD,
    BatchInfo,
    batch_header,
)
from spark_kafka_sink.records.compression import Buffer, Codec
from spark_kafka_sink.records.decoder import read_fields
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.wire.primitives import Records


class SpanOwner(Protocol):
    """An object that gets the results of single records, for example for the futures of rows.

    When a batch is done, the owner of each of its spans is notified. A span covers many rows. So
    each row's future gets its offset, although the batch has no Python object for each row. Rows
    that were passed as columns without a callback have no span, because nobody needs the result of
    each row.
    """

    def completed(self, span: RecordSpan, batch: ProducerBatch) -> None:
        """Take the result of a span. The I/O thread calls this when the batch is done."""


class RecordSpan(NamedTuple):
    """Consecutive records of a batch that have the same owner.

    records: their number; first_record: the offset delta of the first of them; owner: is notified
    of their result; first_row: the position of the first record among the owner's rows, in the
    order that `RowOwner.lay_out` stored.
    """

    owner: SpanOwner
    first_row: int
    first_record: int
    records: int


# Creates a RecordSpan without running Python code, in which the caller could be interrupted.
_new_span: Callable[[tuple[object, ...]], RecordSpan] = partial(tuple.__new__, RecordSpan)


def split_spans(spans: Sequence[RecordSpan], at: int) -> tuple[list[RecordSpan], list[RecordSpan]]:
    """Return the spans of the records before record `at`, and the spans of all other records.

    The offset deltas in the second part count from `at`. A span across the cut is divided in two.
    """
    before: list[RecordSpan] = []
    after: list[RecordSpan] = []
    for owner, first_row, first, records in spans:
        kept = min(max(at - first, 0), records)
        if kept:
            before.append(RecordSpan(owner, first_row, first, kept))
        if kept < records:
            after.append(RecordSpan(owner, first_row + kept, first + kept - at, records - kept))
    return before, after


COPY_BELOW_BYTES: Final = 64 * 1024


class RetainedBuffer:
    """A buffer with an encoded slice; `holders`: for each referenced piece, its batch."""

    __slots__ = ("holders", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.holders: list[ProducerBatch] = []


class SplitOrigin:
    """Whether a batch that was split may have been written. All parts of it share this object."""

    __slots__ = ("maybe_written",)

    def __init__(self) -> None:
        self.maybe_written = True


class ProducerBatch:
    """A record batch for one partition. Times are seconds of the producer's clock."""

    __slots__ = (
        "_draining_bytes",
        "_header",
        "_pieces",
        "_state",
        "attempts",
        "base_offset",
        "base_sequence",
        "base_timestamp_ms",
        "codec",
        "copied_bytes",
        "created_at",
        "error",
        "is_transactional",
        "is_unanswered",
        "kept",
        "last_error",
        "leader_epoch",
        "log_append_time_ms",
        "max_timestamp_ms",
        "node_id",
        "origin",
        "packed",
        "parts",
        "producer",
        "progress_at",
        "record_count",
        "record_errors",
        "records_bytes",
        "retained",
        "retries",
        "retry_at",
        "sent_bytes",
        "settled",
        "spans",
        "topic_partition",
    )

    def __init__(
        self, topic_partition: TopicPartition, codec: Codec, base_timestamp_ms: int, now: float
    ) -> None:
        self.topic_partition = topic_partition
        self.codec = codec
        self.base_timestamp_ms = base_timestamp_ms
        self.max_timestamp_ms = base_timestamp_ms
        self.created_at, self.progress_at = now, float("-inf")  # see RecordAccumulator
        self.record_count = 0
        self.records_bytes = 0
        self.copied_bytes = 0
        # The parts of copied_bytes and referenced_bytes that the accumulator counts as soon free.
        self._draining_bytes = (0, 0)
        self.retained: list[RetainedBuffer] = []
        # The spans of records with an owner; a split divides them.
        self.spans: list[RecordSpan] = []
        # The batches that replace this batch after a split.
        self.parts: list[ProducerBatch] = []
        self.packed = False
        self.settled = False
        self.sent_bytes = 0
        # The failed attempts, and how many of them count for the option `retries`.
        self.attempts = self.retries = 0
        # The error of the last failed attempt, None if no attempt has failed.
        self.last_error: ApiException | None = None
        self.retry_at = 0.0
        self.node_id: int | None = None
        # The leader epoch at the last attempt, -1 if unknown.
        self.leader_epoch = -1
        self.producer: ProducerIdAndEpoch = NO_PRODUCER_ID
        self.base_sequence = NO_SEQUENCE
        # Whether a broker may have written the batch with this sequence in an attempt that failed.
        self.is_unanswered = False
        # Set if this batch is a part of a split batch that may have been written, otherwise None.
        self.origin: SplitOrigin | None = None
        self.is_transactional = False
        self.base_offset = -1
        self.log_append_time_ms = -1
        # The bytes that were sent, if they are still needed after the batch is done.
        self.kept = b""
        self.error: KafkaException | None = None
        # The errors of single records that the broker rejected, by record number (KIP-467).
        self.record_errors: dict[int, KafkaException] = {}
        self._state = BatchState.OPEN
        self._pieces: list[Buffer] = []
        self._header: bytes | None = None

    def __repr__(self) -> str:
        return (
            f"ProducerBatch({self.topic_partition}, {self._state.name}, "
            f"{self.record_count} records, sequence {self.base_sequence})"
        )

    @property
    def state(self) -> BatchState:
        """The state of the batch."""
        return self._state

    @property
    def is_in_doubt(self) -> bool:
        """Whether the split batch that this batch is part of may have been written."""
        return self.origin is not None and self.origin.maybe_written

    @property
    def maybe_written(self) -> bool:
        """Whether a broker may have written the batch, or the one that was split into it."""
        return self.is_unanswered or self.is_in_doubt

    @property
    def is_done(self) -> bool:
        """Whether the batch itself has its final state; its `parts` may still be unfinished."""
        return self._state in DONE

    @property
    def has_sequence(self) -> bool:
        """Whether the batch has a sequence, which it gets when it is first drained."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def size_bytes(self) -> int:
        """The size of the batch as it is sent. Before it is compressed, this is an upper bound."""
        return RECORD_BATCH_OVERHEAD + sum(map(len, self._pieces))

    @property
    def referenced_bytes(self) -> int:
        """The size of the batch's parts of referenced buffers."""
        # If the batch was compressed, and `settle` was not called yet, copied_bytes is larger.
        return max(0, sum(map(len, self._pieces)) - self.copied_bytes)

    @property
    def records(self) -> Buffer:
        """The records as one buffer, in the form in which they are sent."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def restart_age(self, now: float) -> None:
        """Start the age of the batch at `now`: linger.ms and delivery.timeout.ms begin again."""
        self.created_at = now

    # -- filling and sending ----------------------------------------------------------------------

    def append(
        self,
        piece: memoryview,
        records: int,
        max_timestamp_ms: int,
        retained: RetainedBuffer | None,
        owner: SpanOwner | None = None,
        first_row: int = 0,
    ) -> None:
        """Add encoded records.

        retained: the RetainedBuffer of the buffer that contains `piece`; with None, the piece is
        copied. owner: notified about the result of each record, None if nobody needs it; first_row:
        see `RecordSpan`. Raise IllegalStateException if the batch accepts no more records.
        """
        # The same check as in `_handle`. A call of `_handle` for each piece would be too slow.
        if self._state is not BatchState.OPEN:
            raise self._illegal(BatchEvent.APPEND)
        if owner is not None:
            self.spans.append(_new_span((owner, first_row, self.record_count, records)))
        size_bytes = len(piece)
        if retained is not None and size_bytes >= COPY_BELOW_BYTES:
            self._pieces.append(piece)
            self.retained.append(retained)
            retained.holders.append(self)
        else:
            self.copied_bytes += size_bytes
            if self._pieces and isinstance(self._pieces[-1], bytearray):
                self._pieces[-1] += piece
            else:
                self._pieces.append(bytearray(piece))
        self.record_count += records
        self.records_bytes += size_bytes
        if max_timestamp_ms > self.max_timestamp_ms:  # noqa: PLR1730 - a call may be interrupted
            self.max_timestamp_ms = max_timestamp_ms

    def seal(self) -> None:
        """Close the batch: it accepts no more records."""
        self._handle(BatchEvent.SEAL)

    def pack(self) -> None:
        """Compress the records of a sealed batch (*pack* it); a second call does nothing.

        This needs no lock: only one thread packs a batch, and `settle` accounts for the memory
        later.
        """
        if not self.packed:
            if self.codec.compress is not None:
                self._pieces = [self.codec.compress(self._pieces)]
            self.packed = True

    def settle(self) -> tuple[int, int]:
        """Release the memory of the appended records; charge the size of the compressed records.

        Return the difference: the number of bytes that become free. Also return how many more
        bytes of slices are unused, see `BufferPool`.
        """
        self.settled = True
        return self._own_pieces()

    def copy_pieces(self) -> tuple[int, int]:
        """Copy the referenced pieces, so that the batch references no slice.

        Return the number of bytes that become free (negative if a slice is still referenced), and
        how many more bytes of slices are unused. Later pieces may reference slices again.
        """
        self._pieces = [bytearray().join(self._pieces)]
        return self._own_pieces()

    def assign_sequence(
        self, producer: ProducerIdAndEpoch, base_sequence: int, *, transactional: bool = False
    ) -> None:
        """Set the producer id, epoch and sequence; the next `stamp` builds a new header."""
        self.producer = producer
        self.base_sequence = base_sequence
        self.is_unanswered = False
        self.origin = None
        self.is_transactional = transactional
        self._header = None

    def stamp(self) -> Records:
        """Return the batch with its header, as it is sent; a retry sends the same bytes again."""
        self.pack()
        if self._header is None:
            info = BatchInfo(
                self.record_count, self.base_timestamp_ms, self.max_timestamp_ms, self.codec.id
            )
            self._header = batch_header(
                info,
                self._pieces,
                self.producer,
                self.base_sequence,
                transactional=self.is_transactional,
            )
        self.sent_bytes = self.size_bytes
        return Records((self._header, *self._pieces), self.sent_bytes)

    def timestamp_range(self) -> tuple[int, int]:
        """Return the earliest and the latest timestamp in ms, from the compressed records."""
        section = decompress(self.codec.id, self.records, self.records_bytes)
        fields = read_fields(memoryview(section), self.record_count, 0, self.base_timestamp_ms)
        return int(fields.timestamps_ms.min()), int(fields.timestamps_ms.max())

    def keep(self) -> None:
        """Keep a copy of the bytes that were sent, even after `release` drops the records."""
        self.kept = b"".join(self.stamp().buffers)

    def down_converted(self, size_bytes: int) -> None:
        """Store the size that the batch has in an older message format, in which it is sent."""
        self.sent_bytes = size_bytes

    def draining(self, copied_bytes: int, referenced_bytes: int) -> tuple[int, int]:
        """Set how many bytes of the batch will soon be free. Return the increase of each."""
        copied, referenced = self._draining_bytes
        self._draining_bytes = copied_bytes, referenced_bytes
        return copied_bytes - copied, referenced_bytes - referenced

    # -- events -----------------------------------------------------------------------------------

    def sent(self, node_id: int, leader_epoch: int) -> BatchAction:
        """Record that the batch is sent to a node, which leads the partition in `leader_epoch`."""
        action = self._handle(BatchEvent.SEND)
        self.node_id, self.leader_epoch = node_id, leader_epoch
        return action

    def retry(self, retry_at: float, error: ApiException, *, is_busy: bool = False) -> BatchAction:
        """Record that an attempt failed, its error, and when the next attempt may be made.

        is_busy: whether the broker was busy with another producer's batch. This is no retry.
        """
        action = self._handle(BatchEvent.RETRY)
        self.attempts += 1
        self.retries += not is_busy
        self.last_error, self.retry_at = error, retry_at
        self.node_id = None
        return action

    def end_backoff(self, now: float) -> None:
        """Allow the next attempt at once."""
        self.retry_at = now

    def succeed(self, base_offset: int, log_append_time_ms: int) -> BatchAction:
        """Record the acknowledgement."""
        action = self._handle(BatchEvent.SUCCEED)
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        return action

    def origin_not_written(self) -> None:
        """Record that the split batch was never written: a broker has accepted this part of it."""
        if self.origin is not None:
            self.origin.maybe_written = False

    def fail(
        self, error: KafkaException, record_errors: dict[int, KafkaException] | None = None
    ) -> BatchAction:
        """Record that the last attempt has failed, and with it the batch.

        record_errors: the errors of the records that the broker rejected, by record number in the
        batch.
        """
        action = self._handle(BatchEvent.FAIL)
        self.error = error
        self.record_errors = record_errors or {}
        self.node_id = None
        return action

    def abandon(self, error: KafkaException) -> BatchAction:
        """Record that the batch has failed. This is allowed in every state that is not final."""
        action = self._handle(BatchEvent.ABANDON)
        self.error = error
        return action

    def late(self) -> BatchAction:
        """Record that an abandoned batch got its response, or can no longer get one."""
        action = self._handle(BatchEvent.LATE)
        self.node_id = None
        return action

    def split_into(self, parts: list[ProducerBatch]) -> BatchAction:
        """Record that the batch was split, and the parts that replace it."""
        action = self._handle(BatchEvent.SPLIT)
        self.parts = parts
        self.node_id = None
        return action

    def become_part(
        self,
        split: ProducerBatch,
        spans: list[RecordSpan],
        sequence: int,
        origin: SplitOrigin | None,
    ) -> None:
        """Make this new batch a part of a split batch, and seal it.

        sequence: the sequence of this part's first record; ignored if the split batch has no
        sequence. origin: shared by all parts; contains whether the batch that was split may have
        been written.
        """
        self.spans = spans
        self.attempts, self.retries = split.attempts, split.retries
        self.last_error, self.progress_at = split.last_error, split.progress_at
        if split.has_sequence:
            self.assign_sequence(split.producer, sequence, transactional=split.is_transactional)
            self.origin = origin
        self.seal()

    def release(self) -> tuple[int, int]:
        """Drop the records. Return the same numbers as `settle`."""
        self._pieces = []
        return self._own_pieces()

    def _own_pieces(self) -> tuple[int, int]:
        """Charge the pieces, which reference no slice any more, instead of what was charged."""
        freed, unused = self.copied_bytes, 0
        if self.retained:
            unused = self.records_bytes - self.copied_bytes
            for buffer in self.retained:
                buffer.holders.remove(self)
                if not buffer.holders:
                    freed += buffer.size_bytes
                    unused -= buffer.size_bytes
            self.retained = []
        self.copied_bytes = sum(map(len, self._pieces))
        return freed - self.copied_bytes, unused

    def _handle(self, event: BatchEvent) -> BatchAction:
        try:
            self._state, action = EVENTS[self._state][event]
        except KeyError:
            raise self._illegal(event) from None
        return action

    def _illegal(self, event: BatchEvent) -> IllegalStateException:
        return IllegalStateException(f"{self!r} cannot take the event {event.name}")


def unfinished(batches: Iterable[ProducerBatch]) -> list[ProducerBatch]:
    """Return the batches that are not done. A split batch is replaced with its unfinished parts."""
    found = []
    for batch in batches:
        if not batch.is_done:
            found.append(batch)
        elif batch.parts:
            found += unfinished(batch.parts)
    return found

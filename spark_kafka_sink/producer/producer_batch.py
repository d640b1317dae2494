"""ProducerBatch: the records on their way to one partition, from first append to acknowledgement.

Owns the batch's state, its pieces of encoded records and its header. It never decides *when* to
seal, send or retry: the accumulator and the sender do.

Pieces: a memoryview keeps its whole buffer alive, so pieces under `COPY_BELOW_BYTES` are copied
into the batch's own buffer and larger ones are referenced; what is referenced is accounted for as a
`RetainedBuffer`, whose memory counts as used until the last batch that holds it is done. A buffer
of which little would be referenced is not worth keeping: `is_worth_keeping`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from spark_kafka_sink.errors import ApiException, IllegalStateException, KafkaException
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.record_spans import RecordSpan
from spark_kafka_sink.records.batch import (
    NO_SEQUENCE,
    RECORD_BATCH_OVERHEAD,
    BatchInfo,
    batch_header,
)
from spark_kafka_sink.records.compression import Buffer, Codec
from spark_kafka_sink.records.decoder import read_fields
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.wire.primitives import Records

COPY_BELOW_BYTES: Final = 64 * 1024


class BatchState(Enum):
    """Where a batch is in its life."""

    # In C; Enum has one in Python, which is called for each step of each batch.
    __hash__ = object.__hash__

    OPEN = "takes records"
    SEALED = "closed, waiting to be sent or sent again"
    IN_FLIGHT = "sent, waiting for the answer"
    SUCCEEDED = "acknowledged"
    FAILED = "given up"
    SPLIT = "too large, replaced by smaller batches"


TRANSITIONS: Final[Mapping[BatchState, frozenset[BatchState]]] = {
    BatchState.OPEN: frozenset({BatchState.SEALED, BatchState.FAILED}),
    BatchState.SEALED: frozenset({BatchState.IN_FLIGHT, BatchState.FAILED}),
    BatchState.IN_FLIGHT: frozenset(
        {BatchState.SEALED, BatchState.SUCCEEDED, BatchState.FAILED, BatchState.SPLIT}
    ),
    BatchState.SUCCEEDED: frozenset(),
    BatchState.FAILED: frozenset(),
    BatchState.SPLIT: frozenset(),
}


class RetainedBuffer:
    """An encoded slice that several batches reference; `holders` counts them."""

    __slots__ = ("holders", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.holders = 0


def is_worth_keeping(sizes_bytes: Int64s) -> bool:
    """Whether pieces of these sizes are to be referenced: where half of their buffer would be.

    Else one large piece would keep a buffer whose other pieces were copied, and both be paid for.
    """
    referenced = int(sizes_bytes[sizes_bytes >= COPY_BELOW_BYTES].sum())
    return 2 * referenced >= int(sizes_bytes.sum())


class SplitOrigin:
    """What batches were split from: whether that may have been written. They share it."""

    __slots__ = ("maybe_written",)

    def __init__(self) -> None:
        self.maybe_written = True


class ProducerBatch:
    """Records for one partition. Times are seconds of the producer's clock."""

    __slots__ = (
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
        "draining_bytes",
        "error",
        "is_transactional",
        "is_unanswered",
        "last_error",
        "leader_epoch",
        "log_append_time_ms",
        "max_timestamp_ms",
        "node_id",
        "origin",
        "packed",
        "parts",
        "producer",
        "record_count",
        "record_errors",
        "records_bytes",
        "retained",
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
        self.created_at = now
        self.record_count = 0
        self.records_bytes = 0
        self.copied_bytes = 0
        # Of these, what the accumulator counts as on its way to be free.
        self.draining_bytes = 0
        self.retained: list[RetainedBuffer] = []
        # The records that somebody waits for one by one; a batch that is split splits them too.
        self.spans: list[RecordSpan] = []
        # What it was split into.
        self.parts: list[ProducerBatch] = []
        self.packed = False
        self.settled = False
        self.sent_bytes = 0
        self.attempts = 0
        # Why the last attempt failed, where it did.
        self.last_error: ApiException | None = None
        self.retry_at = 0.0
        self.node_id: int | None = None
        # The epoch of the leader that the last attempt went to, -1 where it was not known.
        self.leader_epoch = -1
        self.producer: ProducerIdAndEpoch = NO_PRODUCER_ID
        self.base_sequence = NO_SEQUENCE
        # Whether an attempt under this sequence ended without a word on whether it was written.
        self.is_unanswered = False
        # What it is a part of, where that may have been written when it was split.
        self.origin: SplitOrigin | None = None
        self.is_transactional = False
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: KafkaException | None = None
        # Why the broker refused single records, by their number (KIP-467).
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
        """Where the batch is."""
        return self._state

    @property
    def is_in_doubt(self) -> bool:
        """Whether what it is a part of may have been written, which no part of it has disproved."""
        return self.origin is not None and self.origin.maybe_written

    @property
    def maybe_written(self) -> bool:
        """Whether a broker may have the batch, by itself or in what it is a part of."""
        return self.is_unanswered or self.is_in_doubt

    @property
    def is_done(self) -> bool:
        """Whether nothing more will happen to the batch; its `parts` may be another matter."""
        return not TRANSITIONS[self._state]

    @property
    def has_sequence(self) -> bool:
        """Whether a sequence was assigned, which happens when it is first drained."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def size_bytes(self) -> int:
        """Bytes of the batch as it will be sent; before it is packed, an upper bound."""
        return RECORD_BATCH_OVERHEAD + sum(map(len, self._pieces))

    @property
    def records(self) -> Buffer:
        """The records as one buffer, as they will be sent."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def append(
        self, piece: memoryview, records: int, max_timestamp_ms: int, whole: RetainedBuffer | None
    ) -> None:
        """Add encoded records; `whole` stands for the buffer that `piece` is a view of.

        Without it, the piece is copied. Raises IllegalStateException where the batch takes no more
        records.
        """
        if self._state is not BatchState.OPEN:
            message = f"{self!r} takes no more records"
            raise IllegalStateException(message)
        if whole is not None and len(piece) >= COPY_BELOW_BYTES:
            self._pieces.append(piece)
            self.retained.append(whole)
            whole.holders += 1
        else:
            self.copied_bytes += len(piece)
            if self._pieces and isinstance(self._pieces[-1], bytearray):
                self._pieces[-1] += piece
            else:
                self._pieces.append(bytearray(piece))
        self.record_count += records
        self.records_bytes += len(piece)
        self.max_timestamp_ms = max(self.max_timestamp_ms, max_timestamp_ms)

    def seal(self) -> None:
        """Close the batch for records."""
        self._to(BatchState.SEALED)

    def pack(self) -> None:
        """Compress the records of a sealed batch; the second call does nothing.

        Needs no lock: one thread packs a batch, and `settle` accounts for the memory afterwards.
        """
        if not self.packed:
            self._pieces = list(self.codec(self._pieces))
            self.packed = True

    def settle(self) -> int:
        """Account for the packed records in place of the ones appended; give what this frees."""
        packed_bytes = sum(map(len, self._pieces))
        freed = self._release_retained() - packed_bytes
        self.copied_bytes = packed_bytes
        self.settled = True
        return freed

    def assign_sequence(
        self, producer: ProducerIdAndEpoch, base_sequence: int, *, transactional: bool = False
    ) -> None:
        """Set what the header says of the producer; the next stamp writes it anew."""
        self.producer = producer
        self.base_sequence = base_sequence
        self.is_unanswered = False
        self.origin = None
        self.is_transactional = transactional
        self._header = None

    def stamp(self) -> Records:
        """Give the batch as it goes over the wire; a retry gives the same bytes again."""
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
        """Return the earliest and the latest timestamp; reads all packed records back."""
        section = decompress(self.codec.id, self.records, self.records_bytes)
        times = read_fields(
            memoryview(section), self.record_count, 0, self.base_timestamp_ms
        ).timestamps_ms
        return int(times.min()), int(times.max())

    def sent(self, node_id: int) -> None:
        """Note that the batch is on its way to a node."""
        self._to(BatchState.IN_FLIGHT)
        self.node_id = node_id

    def retry(self, retry_at: float, error: ApiException) -> None:
        """Note that an attempt failed, by which error, and when the next one may be made."""
        self._to(BatchState.SEALED)
        self.attempts += 1
        self.last_error = error
        self.retry_at = retry_at
        self.node_id = None

    def succeed(self, base_offset: int, log_append_time_ms: int) -> None:
        """Note the acknowledgement."""
        self._to(BatchState.SUCCEEDED)
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms

    def fail(self, error: KafkaException) -> None:
        """Give the batch up."""
        self._to(BatchState.FAILED)
        self.error = error

    def split_into(self, parts: list[ProducerBatch]) -> None:
        """Note the batches that take its place."""
        self._to(BatchState.SPLIT)
        self.parts = parts

    def release(self) -> int:
        """Let go of the records and give the bytes of memory this frees."""
        freed = self._release_retained()
        self._pieces, self.copied_bytes = [], 0
        return freed

    def _release_retained(self) -> int:
        freed = self.copied_bytes
        for whole in self.retained:
            whole.holders -= 1
            if not whole.holders:
                freed += whole.size_bytes
        self.retained = []
        return freed

    def _to(self, state: BatchState) -> None:
        if state not in TRANSITIONS[self._state]:
            message = f"{self!r} cannot become {state.name}"
            raise IllegalStateException(message)
        self._state = state


def unfinished(batches: Iterable[ProducerBatch]) -> list[ProducerBatch]:
    """Give those that are neither acknowledged nor given up, a split one as its parts."""
    found = []
    for batch in batches:
        if not batch.is_done:
            found.append(batch)
        elif batch.parts:
            found += unfinished(batch.parts)
    return found

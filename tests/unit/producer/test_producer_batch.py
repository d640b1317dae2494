"""A batch's life: every state with every call, and who pays for its memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import IllegalStateException, KafkaException, NetworkException
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.producer_batch import (
    COPY_BELOW_BYTES,
    TRANSITIONS,
    BatchState,
    ProducerBatch,
    RetainedBuffer,
)
from spark_kafka_sink.records.compression import NO_COMPRESSION, codec

CALLS: dict[str, tuple[Callable[[ProducerBatch], object], BatchState]] = {
    "seal": (lambda b: b.seal(), BatchState.SEALED),
    "sent": (lambda b: b.sent(1), BatchState.IN_FLIGHT),
    "retry": (lambda b: b.retry(1.0, NetworkException("lost")), BatchState.SEALED),
    "succeed": (lambda b: b.succeed(0, -1), BatchState.SUCCEEDED),
    "fail": (lambda b: b.fail(KafkaException("given up")), BatchState.FAILED),
    "split": (lambda b: b.split_into([]), BatchState.SPLIT),
}
PATHS = {
    BatchState.OPEN: [],
    BatchState.SEALED: ["seal"],
    BatchState.IN_FLIGHT: ["seal", "sent"],
    BatchState.SUCCEEDED: ["seal", "sent", "succeed"],
    BatchState.FAILED: ["fail"],
    BatchState.SPLIT: ["seal", "sent", "split"],
}


def batch_in(state: BatchState) -> ProducerBatch:
    """Make a batch of one record and bring it into a state."""
    batch = ProducerBatch(TopicPartition("t", 0), NO_COMPRESSION, 0, 0.0)
    batch.append(memoryview(b"record"), 1, 0, RetainedBuffer(6))
    for call in PATHS[state]:
        CALLS[call][0](batch)
    return batch


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", BatchState)
def test_a_call_moves_the_batch_as_the_table_says_or_changes_nothing(
    state: BatchState, call: str
) -> None:
    batch = batch_in(state)
    act, target = CALLS[call]
    if target in TRANSITIONS[state]:
        act(batch)
        assert batch.state is target
    else:
        before = (batch.state, batch.attempts, batch.error, batch.base_offset)
        with pytest.raises(IllegalStateException):
            act(batch)
        assert (batch.state, batch.attempts, batch.error, batch.base_offset) == before


@pytest.mark.parametrize("state", [s for s in BatchState if s is not BatchState.OPEN])
def test_only_an_open_batch_takes_records(state: BatchState) -> None:
    with pytest.raises(IllegalStateException):
        batch_in(state).append(memoryview(b"more"), 1, 0, RetainedBuffer(4))


def test_small_pieces_are_copied_and_large_ones_referenced_and_paid_for_once() -> None:
    buffer = bytearray(3 * COPY_BELOW_BYTES)
    whole = RetainedBuffer(len(buffer))
    first = ProducerBatch(TopicPartition("t", 0), NO_COMPRESSION, 0, 0.0)
    second = ProducerBatch(TopicPartition("t", 1), NO_COMPRESSION, 0, 0.0)
    first.append(memoryview(buffer)[:COPY_BELOW_BYTES], 1, 0, whole)
    first.append(memoryview(buffer)[:100], 1, 0, whole)
    second.append(memoryview(buffer)[COPY_BELOW_BYTES:], 1, 0, whole)
    buffer[:100] = b"\1" * 100
    first.seal()
    sent = b"".join(bytes(piece) for piece in first.stamp().buffers[1:])
    assert sent[:100] == b"\1" * 100, "a large piece was copied"
    assert sent[COPY_BELOW_BYTES:] == bytes(100), "a small piece was referenced"
    assert first.release() == 100, "the buffer was freed while another batch holds it"
    assert second.release() == len(buffer)


def test_a_packed_batch_pays_for_its_compressed_bytes() -> None:
    batch = ProducerBatch(TopicPartition("t", 0), codec("lz4"), 0, 0.0)
    batch.append(memoryview(bytes(10_000)), 1, 0, RetainedBuffer(10_000))
    batch.seal()
    batch.pack()
    freed = batch.settle()
    compressed = batch.size_bytes - 61
    assert compressed < 200
    assert freed == 10_000 - compressed
    assert batch.release() == compressed


def test_a_stamp_is_the_same_until_the_sequence_changes() -> None:
    batch = batch_in(BatchState.SEALED)
    batch.assign_sequence(ProducerIdAndEpoch(7, 0), 5)
    first = b"".join(batch.stamp().buffers)
    assert b"".join(batch.stamp().buffers) == first
    batch.assign_sequence(ProducerIdAndEpoch(7, 1), 0)
    other = b"".join(batch.stamp().buffers)
    assert other != first
    assert other[61:] == first[61:]

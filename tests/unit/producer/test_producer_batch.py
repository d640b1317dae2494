"""A batch's life: every state with every call, and who pays for its memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import IllegalStateException, KafkaException, NetworkException
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.batch_state import (
    DONE,
    EVENTS,
    BatchAction,
    BatchEvent,
    BatchState,
)
from spark_kafka_sink.producer.producer_batch import (
    COPY_BELOW_BYTES,
    ProducerBatch,
    RetainedBuffer,
)
from spark_kafka_sink.records.compression import NO_COMPRESSION, codec

GIVEN_UP = KafkaException("given up")
CALLS: dict[BatchEvent, Callable[[ProducerBatch], object]] = {
    BatchEvent.APPEND: lambda b: b.append(memoryview(b"record"), 1, 0, RetainedBuffer(6)),
    BatchEvent.SEAL: lambda b: b.seal(),
    BatchEvent.SEND: lambda b: b.sent(1, 7),
    BatchEvent.RETRY: lambda b: b.retry(1.0, NetworkException("lost")),
    BatchEvent.SUCCEED: lambda b: b.succeed(0, -1),
    BatchEvent.FAIL: lambda b: b.fail(GIVEN_UP),
    BatchEvent.ABANDON: lambda b: b.abandon(GIVEN_UP),
    BatchEvent.LATE: lambda b: b.late(),
    BatchEvent.SPLIT: lambda b: b.split_into([]),
}
# Between the first append and the end.
PATHS = {
    BatchState.OPEN: [],
    BatchState.SEALED: [BatchEvent.SEAL],
    BatchState.IN_FLIGHT: [BatchEvent.SEAL, BatchEvent.SEND],
    BatchState.SUCCEEDED: [BatchEvent.SEAL, BatchEvent.SEND, BatchEvent.SUCCEED],
    BatchState.FAILED: [BatchEvent.SEAL, BatchEvent.SEND, BatchEvent.FAIL],
    BatchState.ABANDONED: [BatchEvent.SEAL, BatchEvent.SEND, BatchEvent.ABANDON],
    BatchState.SPLIT: [BatchEvent.SEAL, BatchEvent.SEND, BatchEvent.SPLIT],
}


def batch_in(state: BatchState) -> ProducerBatch:
    """Make a batch of one record and bring it into a state."""
    batch = ProducerBatch(TopicPartition("t", 0), NO_COMPRESSION, 0, 0.0)
    CALLS[BatchEvent.APPEND](batch)
    for event in PATHS[state]:
        CALLS[event](batch)
    assert batch.state is state
    return batch


def seen(batch: ProducerBatch) -> tuple[object, ...]:
    """Return what the events change."""
    return (
        batch.state, batch.attempts, batch.error, batch.base_offset, batch.node_id,
        batch.record_count, batch.retry_at, batch.leader_epoch, batch.parts,
    )  # fmt: skip


@pytest.mark.parametrize("event", BatchEvent)
@pytest.mark.parametrize("state", BatchState)
def test_an_event_does_what_the_table_says_or_changes_nothing(
    state: BatchState, event: BatchEvent
) -> None:
    batch = batch_in(state)
    transition = EVENTS[state].get(event)
    if transition is None:
        before = seen(batch)
        with pytest.raises(IllegalStateException, match=event.name):
            CALLS[event](batch)
        assert seen(batch) == before
    else:
        action = CALLS[event](batch)
        assert batch.state is transition.state
        assert action in (transition.action, None)
        assert action is not None or transition.action is BatchAction.KEEP


def test_every_state_is_reached_and_the_done_ones_never_go_back() -> None:
    reached = {BatchState.OPEN}
    while more := {t.state for state in reached for t in EVENTS[state].values()} - reached:
        reached |= more
    assert reached == set(EVENTS) == set(BatchState)
    for state in DONE:
        assert {t.state for t in EVENTS[state].values()} <= DONE
    ends = (BatchAction.END, BatchAction.DEQUEUE, BatchAction.REPORT, BatchAction.REPLACE)
    for state, events in EVENTS.items():
        for transition in events.values():
            is_end = state not in DONE and transition.state in DONE
            assert is_end is (transition.action in ends), "a result is reported once"


@pytest.mark.parametrize("state", BatchState)
def test_a_batch_is_done_where_its_result_is_known(state: BatchState) -> None:
    assert batch_in(state).is_done is (state in DONE)


def test_an_abandoned_batch_stays_at_its_node_until_nothing_can_come_from_there() -> None:
    batch = batch_in(BatchState.ABANDONED)
    assert (batch.error, batch.node_id) == (GIVEN_UP, 1)
    assert batch.late() is BatchAction.FREE
    assert (batch.state, batch.error, batch.node_id) == (BatchState.FAILED, GIVEN_UP, None)


def test_small_pieces_are_copied_and_large_ones_referenced_and_paid_for_once() -> None:
    buffer = bytearray(3 * COPY_BELOW_BYTES)
    retained = RetainedBuffer(len(buffer))
    first = ProducerBatch(TopicPartition("t", 0), NO_COMPRESSION, 0, 0.0)
    second = ProducerBatch(TopicPartition("t", 1), NO_COMPRESSION, 0, 0.0)
    first.append(memoryview(buffer)[:COPY_BELOW_BYTES], 1, 0, retained)
    first.append(memoryview(buffer)[:100], 1, 0, retained)
    second.append(memoryview(buffer)[COPY_BELOW_BYTES:], 1, 0, retained)
    buffer[:100] = b"\1" * 100
    first.seal()
    sent = b"".join(bytes(piece) for piece in first.stamp().buffers[1:])
    assert sent[:100] == b"\1" * 100, "a large piece was copied"
    assert sent[COPY_BELOW_BYTES:] == bytes(100), "a small piece was referenced"
    unused = COPY_BELOW_BYTES
    assert first.release() == (100, unused), "the buffer was freed while another batch holds it"
    assert second.release() == (len(buffer), -unused)


def test_a_packed_batch_pays_for_its_compressed_bytes() -> None:
    batch = ProducerBatch(TopicPartition("t", 0), codec("lz4"), 0, 0.0)
    batch.append(memoryview(bytes(10_000)), 1, 0, RetainedBuffer(10_000))
    batch.seal()
    batch.pack()
    freed, unused = batch.settle()
    compressed = batch.size_bytes - 61
    assert compressed < 200
    assert (freed, unused) == (10_000 - compressed, 0)
    assert batch.release() == (compressed, 0)


def test_a_stamp_is_the_same_until_the_sequence_changes() -> None:
    batch = batch_in(BatchState.SEALED)
    batch.assign_sequence(ProducerIdAndEpoch(7, 0), 5)
    first = b"".join(batch.stamp().buffers)
    assert b"".join(batch.stamp().buffers) == first
    batch.assign_sequence(ProducerIdAndEpoch(7, 1), 0)
    other = b"".join(batch.stamp().buffers)
    assert other != first
    assert other[61:] == first[61:]

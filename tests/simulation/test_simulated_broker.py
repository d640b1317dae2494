"""The simulated broker accepts and rejects what Kafka's does, and reads other clients' batches."""

from __future__ import annotations

import pytest
from support.oracles.record_batches import Producer, Row, kafka_python_batch

from simulation.batches import NUMBER, Batch, GroupOffset, read_batch
from simulation.group_coordinator import committed_offsets
from simulation.replica import INVALID_PRODUCER_EPOCH, Appended, Replica, Rules
from simulation.scheduler import SimulationError
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition


def _batch(sequence: int, *, epoch: int = 0, count: int = 1) -> Batch:
    return Batch(7, epoch, sequence, tuple(range(count)), None, 100)


def _replica(*sequences: int, old: bool = False, epoch: int = 0) -> Replica:
    replica = Replica(Rules(old=old))
    for sequence in sequences:
        assert replica.append(_batch(sequence, epoch=epoch)).code == codes.NONE
    return replica


def test_a_batch_of_another_client_is_read() -> None:
    rows = [Row(b"key", NUMBER.pack(n) + b"...", (), 1000 - n) for n in (11, 12, 13)]
    data = kafka_python_batch(rows, Producer(ProducerIdAndEpoch(7, 2), 40, transactional=False))
    batch = read_batch(data)
    assert batch == Batch(7, 2, 40, (11, 12, 13), None, len(data), data=data)
    assert batch.last_sequence == 42


@pytest.mark.parametrize("position", [8, 16, 30, 60, -1])
def test_a_batch_with_a_wrong_byte_is_not_read(position: int) -> None:
    data = bytearray(kafka_python_batch([Row(None, NUMBER.pack(1), (), 5)]))
    data[position] ^= 1
    with pytest.raises(SimulationError, match="cannot read"):
        read_batch(bytes(data))


@pytest.mark.parametrize(
    ("replica", "batch", "expected"),
    [
        (_replica(), _batch(0), Appended(codes.NONE, 0)),
        (_replica(0), _batch(1), Appended(codes.NONE, 1)),
        (_replica(0), _batch(2), Appended(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)),
        (_replica(0, 1, 2), _batch(1), Appended(codes.NONE, 1)),
        (_replica(0, 1, 2), _batch(1, count=2), Appended(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)),
        (_replica(0, 1, 2, 3, 4, 5), _batch(1), Appended(codes.NONE, 1)),
        (_replica(0, 1, 2, 3, 4, 5), _batch(0), Appended(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)),
        (
            _replica(0, 1, 2, 3, 4, 5, old=True),
            _batch(0),
            Appended(codes.DUPLICATE_SEQUENCE_NUMBER),
        ),
        (_replica(2**31 - 1), _batch(0), Appended(codes.NONE, 1)),
        (_replica(0), _batch(0, epoch=1), Appended(codes.NONE, 1)),
        (_replica(0), _batch(1, epoch=1), Appended(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)),
        (_replica(0, epoch=1), _batch(1), Appended(INVALID_PRODUCER_EPOCH)),
        (_replica(), _batch(5), Appended(codes.NONE, 0)),
        (_replica(old=True), _batch(5), Appended(codes.UNKNOWN_PRODUCER_ID)),
    ],
)
def test_a_sequence_is_taken_recognised_or_refused(
    replica: Replica, batch: Batch, expected: Appended
) -> None:
    assert replica.append(batch) == expected


def test_a_new_leader_knows_a_producer_from_its_log() -> None:
    leader, follower = _replica(0, 1), _replica()
    follower.copy_from(leader)
    follower.take_over()
    assert follower.append(_batch(1)) == Appended(codes.NONE, 1)
    assert follower.append(_batch(3)) == Appended(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_a_new_leader_may_know_only_the_last_batch_of_a_producer() -> None:
    leader, follower = _replica(0, 1, 2), Replica(Rules(remembers_last=True))
    follower.copy_from(leader)
    follower.take_over()
    assert follower.append(_batch(2)) == Appended(codes.NONE, 2)
    assert follower.append(_batch(1)) == Appended(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert follower.append(_batch(3)) == Appended(codes.NONE, 3)


def test_a_follower_cuts_off_what_its_leader_does_not_have() -> None:
    old_leader, leader = _replica(0), _replica()
    leader.copy_from(old_leader)
    leader.take_over()
    old_leader.append(_batch(1))
    leader.append(_batch(0, epoch=1))
    old_leader.copy_from(leader)
    assert old_leader.entries == leader.entries


def _offsets(epoch: int, *offsets: int, group: str = "g") -> Batch:
    of_group = tuple(GroupOffset(group, TopicPartition("read", 0), offset) for offset in offsets)
    return Batch(7, epoch, -1, (), None, 0, is_transactional=True, offsets=of_group)


def test_offsets_are_pending_until_a_marker_commits_or_drops_them() -> None:
    log = Replica(Rules())
    log.append_offsets(_offsets(0, 1))
    log.append_offsets(_offsets(0, 2))
    log.mark(7, 0, is_commit=True)
    log.append_offsets(_offsets(0, 3))
    log.mark(7, 0, is_commit=False)
    log.append_offsets(_offsets(0, 4, group="h"))
    committed = committed_offsets(log)
    assert committed.commits == [{GroupOffset("g", TopicPartition("read", 0), 2)}]
    assert committed.open == [GroupOffset("h", TopicPartition("read", 0), 4)]


def test_offsets_of_an_older_epoch_are_refused() -> None:
    log = Replica(Rules())
    assert log.append_offsets(_offsets(1, 1)) == Appended(codes.NONE, 0)
    assert log.append_offsets(_offsets(0, 2)) == Appended(INVALID_PRODUCER_EPOCH)
    assert log.append_offsets(_offsets(1, 3)) == Appended(codes.NONE, 1)
    log.mark(7, 2, is_commit=False)
    assert log.append_offsets(_offsets(1, 4)) == Appended(INVALID_PRODUCER_EPOCH)

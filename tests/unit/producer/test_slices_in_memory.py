"""The memory of slices: delivered rows do not keep it while other rows wait for a slow node."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
import pytest
from support.pure.pure_producer import TOPIC, PureProducer, Settings, batches

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.records.log_reader import read_log
from spark_kafka_sink.wire.exchange import ClientRequest

NOT_LEADER, TOO_LARGE, SLOW = 6, 10, 2


class Arrived:
    """The rows that a node has accepted, by partition and sequence."""

    def __init__(self, producer: PureProducer) -> None:
        self._producer = producer
        self._rows: dict[int, dict[int, list[bytes]]] = defaultdict(dict)

    def accept(self, request: ClientRequest) -> None:
        """Store the rows of a request, and answer it."""
        for batch in batches(request):
            (sent,) = read_log(b"".join(map(bytes, batch.stamp().buffers)))
            rows = sent.records(limit_bytes=2**31 - 1).values.to_pylist()
            self._rows[batch.topic_partition.partition][batch.base_sequence] = rows
        self._producer.answer(request)

    def accept_all(self) -> None:
        """Accept requests until every row has arrived."""
        while self._producer.accumulator.has_incomplete:
            self._producer.now += 1
            for request in self._producer.poll():
                self.accept(request)

    def of(self, partition: int) -> list[bytes]:
        """Return the rows of a partition in order."""
        found = self._rows[partition]
        return [row for sequence in sorted(found) for row in found[sequence]]


def test_a_call_gets_the_memory_of_delivered_rows_though_a_slow_node_has_rows_of_each_slice() -> (
    None
):
    settings = Settings(batch_size=100_000, buffer_memory=2_000_000, max_in_flight=1)
    producer = PureProducer([1, 1, 1, SLOW], settings)
    producer.ready()
    arrived, pool, waiting = Arrived(producer), producer.accumulator.pool, PendingAppend()
    rows = [bytes([number]) * 100_000 for number in range(4)]
    in_flight = []
    for row in rows:
        producer.append_slice(np.arange(4), [row] * 4)
        requests = producer.poll()
        in_flight += [request for request in requests if request.node_id == SLOW]
        if row is rows[-1]:
            assert not pool.reserve(waiting, 500_000)
            pool.wait(waiting)
        for request in requests:
            if request.node_id != SLOW:
                arrived.accept(request)
    assert pool.reserve(waiting, 500_000), "1,200,000 bytes of 1,600,000 were delivered"
    pool.stop_waiting(waiting)
    pool.give_back(waiting)
    for request in in_flight:
        arrived.accept(request)
    arrived.accept_all()
    assert [arrived.of(partition) for partition in range(4)] == [rows] * 4
    assert (pool.available_bytes, pool.unused_bytes) == (settings.buffer_memory, 0)


# With lz4, the sealed batches that reference slices are the parts of a split batch.
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_all_rows_arrive_with_their_bytes_and_all_memory_comes_back(
    compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    held: set[TopicPartition] = set()
    copy_pieces = ProducerBatch.copy_pieces

    def checked_copy(batch: ProducerBatch) -> tuple[int, int]:
        assert batch.state is not BatchState.OPEN or batch.topic_partition not in held
        copied.append(batch.state)
        return copy_pieces(batch)

    monkeypatch.setattr(ProducerBatch, "copy_pieces", checked_copy)
    for seed in range(10):
        _run(Random(seed), compression, held)
    assert {*copied} == {BatchState.OPEN, BatchState.SEALED}


def _run(random: Random, compression: str, held: set[TopicPartition]) -> None:
    """Append, send, refuse, lose and accept rows in random order, nearly none at the slow node."""
    settings = Settings(
        batch_size=random.choice([800_000] if compression == "lz4" else [150_000, 400_000]),
        buffer_memory=2_000_000,
        max_in_flight=random.choice([1, 5]),
        linger=random.choice([0.0, 3.0]),
        compression=compression,
        delivery_timeout=10_000.0,
    )
    producer = PureProducer([1, 1, 1, 1, SLOW, SLOW], settings)
    producer.ready()
    arrived, accumulator = Arrived(producer), producer.accumulator
    pool = accumulator.pool
    expected: dict[int, list[bytes]] = defaultdict(list)
    in_flight: list[ClientRequest] = []
    for _ in range(60):
        producer.now += 1
        partitions = np.sort(np.array(random.choices(range(6), k=random.randint(5, 8))))
        rows = [random.randbytes(random.randint(50_000, 110_000)) for _ in partitions]
        if pool.available_bytes > 1.1 * sum(map(len, rows)):
            producer.append_slice(partitions, rows)
            for partition, row in zip(partitions.tolist(), rows, strict=True):
                expected[partition].append(row)
        in_flight += producer.poll()
        waiting = PendingAppend()
        pool.wait(waiting)
        held.update(TopicPartition(TOPIC, p) for p in random.sample(range(6), k=2))
        accumulator.hold(list(held))
        in_flight = [r for r in in_flight if not _is_answered(r, producer, arrived, random)]
        accumulator.let_go(list(held))
        held.clear()
        pool.stop_waiting(waiting)
    for request in in_flight:
        arrived.accept(request)
    arrived.accept_all()
    assert [arrived.of(p) for p in range(6)] == [expected[p] for p in range(6)]
    assert (pool.available_bytes, pool.unused_bytes) == (settings.buffer_memory, 0)


def _is_answered(
    request: ClientRequest, producer: PureProducer, arrived: Arrived, random: Random
) -> bool:
    """Perhaps answer a request; return whether the producer has an answer or has lost it."""
    if random.random() < (0.97 if request.node_id == SLOW else 0.2):
        return False
    fate = random.random()
    if fate < 0.1:
        producer.answer(request, NOT_LEADER)
    elif fate < 0.2 and all(batch.record_count > 1 for batch in batches(request)):
        producer.answer(request, TOO_LARGE)
    else:
        arrived.accept(request)
    return True

"""The accumulator's memory: what is reserved, charged, held and freed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pure.pure_producer import TOPIC, PureProducer, Settings, batches

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD

TOO_LARGE = 10


def test_credit_is_refused_when_it_is_not_there_and_granted_when_all_is_free() -> None:
    pool, reservation = (
        PureProducer([1], Settings(buffer_memory=1000)).accumulator.pool,
        PendingAppend(),
    )
    assert pool.reserve(reservation, 600)
    assert not pool.reserve(PendingAppend(), 600)
    pool.give_back(reservation)
    assert pool.reserve(reservation, 5000), "more than everything, with everything free"
    pool.give_back(reservation)
    assert pool.available_bytes == 1000


def test_a_held_batch_is_not_sent_and_goes_on_where_it_was() -> None:
    producer = PureProducer([1])
    producer.append(0, [b"first"])
    target = [TopicPartition(TOPIC, 0)]
    (open_batch,) = producer.accumulator.hold(target)
    assert open_batch.records == 1
    producer.ready()
    assert producer.poll() == []
    producer.accumulator.let_go(target)
    assert len(producer.poll()) == 1


def test_a_batch_that_is_being_packed_is_not_sent() -> None:
    producer = PureProducer([1], Settings(compression="lz4"))
    producer.ready()
    packed = producer.accumulator.packed
    held: list[ProducerBatch] = []
    producer.accumulator.packed = held.append  # type: ignore[method-assign, assignment]
    producer.append(0, [b"x" * 600] * 3)
    producer.accumulator.packed = packed  # type: ignore[method-assign]
    (batch, *_) = held
    assert all(b is not batch for b in producer.accumulator.sendable(0.0))
    producer.accumulator.packed(batch)
    assert next(iter(producer.accumulator.sendable(0.0))) is batch


@pytest.mark.parametrize(
    ("large", "small"),
    [
        pytest.param(1, 40, id="one large piece among many small ones: all are copied"),
        pytest.param(7, 7, id="mostly large pieces: they are referenced"),
        pytest.param(0, 40, id="small pieces alone"),
    ],
)
def test_a_slice_takes_little_more_memory_than_its_records(large: int, small: int) -> None:
    settings = Settings(batch_size=1_000_000, buffer_memory=10_000_000, linger=5.0)
    producer = PureProducer([1] * (large + small), settings)
    sizes = [70_000] * large + [10_000] * small
    producer.append_slice(np.arange(len(sizes)), [bytes(size) for size in sizes])
    taken = settings.buffer_memory - producer.accumulator.pool.available_bytes
    assert sum(sizes) <= taken < 1.2 * sum(sizes)
    assert sum(batch.record_count for batch in producer.accumulator.incomplete) == len(sizes)


def test_batches_expire_by_age_in_whatever_order_they_came() -> None:
    ages = [float(n // 2) for n in range(40)]
    Random(7).shuffle(ages)
    producer = PureProducer([1] * len(ages), Settings(linger=5.0, delivery_timeout=30.0))
    for partition, created_at in enumerate(ages):
        producer.now = created_at
        producer.append(partition, [b"v"])
    accumulator = producer.accumulator
    assert [b.created_at for b in accumulator.incomplete] == sorted(ages)
    for now in range(20):
        expired = [b.created_at for b in accumulator.expired(30.0 + now)]
        assert expired == [age for age in sorted(ages) if age <= now]
        lingered = [b.created_at for b in accumulator.sendable(5.0 + now)]
        assert lingered == expired
        assert accumulator.next_sendable_at(5.0 + now) == min(
            (5.0 + age for age in ages if age > now), default=float("inf")
        )


def test_a_batch_is_as_old_as_its_oldest_rows() -> None:
    producer = PureProducer([1] * 3, Settings(linger=5.0, delivery_timeout=30.0))
    accumulator = producer.accumulator
    for partition, created_at in enumerate([4.0, 5.0, 6.0]):
        producer.now = created_at
        producer.append(partition, [b"v"])
    producer.now = 3.0  # these rows have waited since then
    producer.append(1, [b"w"])
    found = [(b.topic_partition.partition, b.created_at) for b in accumulator.incomplete]
    assert found == [(1, 3.0), (0, 4.0), (2, 6.0)]
    assert accumulator.next_sendable_at(7.0) == 8.0
    assert [b.record_count for b in accumulator.sendable(8.0)] == [2]
    producer.now = 6.0
    producer.append(0, [b"w"])
    assert [b.created_at for b in accumulator.incomplete] == [3.0, 4.0, 6.0]
    # Rows that have waited for longer than linger.ms make the batch due. That takes no more of the
    # younger rows' delivery.timeout.ms than linger.ms.
    producer = PureProducer([1], Settings(linger=5.0, delivery_timeout=30.0))
    for created_at in (100.0, 50.0):
        producer.now = created_at
        producer.append(0, [b"v"])
    assert [b.created_at for b in producer.accumulator.sendable(100.0)] == [95.0]


def test_a_batch_that_expires_while_it_is_worked_on_is_no_reason_to_look_again() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, [b"first"])
    target = [TopicPartition(TOPIC, 0)]
    producer.accumulator.hold(target)
    assert producer.accumulator.expired(30.0) == []
    assert producer.accumulator.next_expiry_at(29.0) == 30.0
    assert producer.accumulator.next_expiry_at(30.0) == float("inf")
    producer.accumulator.let_go(target)
    assert producer.accumulator.next_expiry_at(30.0) == 30.0


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, 90_000), min_size=1, max_size=20)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["none", "lz4"]),
    st.integers(200, 200_000),
)
def test_every_record_is_sent_once_in_order_and_all_memory_comes_back(
    appends: list[tuple[int, list[int]]], compression: str, batch_size: int
) -> None:
    settings = Settings(compression=compression, batch_size=batch_size, buffer_memory=100_000_000)
    producer = PureProducer([1, 2, 1, 2], settings)
    counts = [0, 0, 0, 0]
    for partition, sizes in appends:
        producer.append(partition, [bytes(size) for size in sizes])
        counts[partition] += len(sizes)
    assert producer.accumulator.pool.available_bytes < settings.buffer_memory
    producer.ready()
    for _ in range(10_000):
        requests = producer.poll()
        if not requests:
            break
        for request in requests:
            producer.answer(request)
    assert not producer.accumulator.has_incomplete
    assert producer.accumulator.pool.available_bytes == settings.buffer_memory
    sent = [0, 0, 0, 0]
    for batch in producer.done():
        partition = batch.topic_partition.partition
        assert batch.base_sequence == sent[partition]
        sent[partition] += batch.record_count
    assert sent == counts


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_batches_fill_up_to_batch_size_and_not_beyond(compression: str) -> None:
    settings = Settings(compression=compression, batch_size=10_000, buffer_memory=10_000_000)
    producer = PureProducer([1], settings)
    for start in range(0, 20_000, 50):
        producer.append(0, [b"%d" % (number * 7919) * 6 for number in range(start, start + 50)])
    producer.ready()
    while requests := producer.poll():
        for request in requests:
            producer.answer(request)
    sizes = [b.sent_bytes for b in producer.done()]
    assert max(sizes) <= 10_000
    # The first batches are small until it is known how well they compress.
    settled = sizes[8:-1]
    assert min(settled) > (9_900 if compression == "none" else 6_000)


def _full_bytes_of(accumulator: RecordAccumulator, *topics: str) -> list[int]:
    return [accumulator.full_bytes(topic) + RECORD_BATCH_OVERHEAD for topic in topics]


def test_what_is_said_of_limits_takes_the_place_of_what_was_said_before() -> None:
    accumulator = PureProducer([1], Settings(batch_size=1000)).accumulator
    for said, full in (
        ({"a": 500, "b": 300}, [500, 300]),
        ({"a": 800, "b": 200}, [800, 200]),
        ({"a": 2000}, [1000, 1000]),
        ({"a": 400}, [400, 1000]),
        ({}, [1000, 1000]),
    ):
        accumulator.limit_topics(said)
        assert _full_bytes_of(accumulator, "a", "b") == full
    accumulator.limit_topics({"a": 500})
    accumulator.forget_limits()
    assert _full_bytes_of(accumulator, "a") == [1000]


@pytest.mark.parametrize(("said", "is_kept"), [({TOPIC: 800}, True), ({TOPIC: 801}, False)])
def test_what_a_refusal_taught_is_kept_until_a_higher_limit_is_told(
    said: dict[str, int], *, is_kept: bool
) -> None:
    producer = PureProducer([1], Settings(batch_size=1000))
    accumulator = producer.accumulator
    accumulator.limit_topics({TOPIC: 800})
    producer.append(0, [b"x" * 300] * 2)
    producer.ready()
    (request,) = producer.poll()
    half = batches(request)[0].size_bytes // 2
    producer.answer(request, TOO_LARGE)
    assert _full_bytes_of(accumulator, TOPIC) == [half]
    accumulator.limit_topics(said)
    assert _full_bytes_of(accumulator, TOPIC) == [half if is_kept else 801]


def _sent_bytes(producer: PureProducer, values: list[bytes], limit: int) -> list[int]:
    """Send rows to a topic that accepts batches up to a limit; return the sizes of the batches."""
    producer.append(0, values)
    sent, requests = [], producer.poll()
    while requests:
        for request in requests:
            sent.append(batches(request)[0].sent_bytes)
            producer.answer(request, TOO_LARGE if sent[-1] > limit else 0)
        requests = producer.poll()
    return sent


def test_what_a_refusal_taught_is_forgotten_after_a_time() -> None:
    producer = PureProducer([1], Settings(batch_size=1000))
    producer.ready()
    rows = [b"x" * 200] * 8
    assert max(_sent_bytes(producer, rows, 700)) > 700
    producer.now += 250
    assert max(_sent_bytes(producer, rows, 700)) <= 700
    producer.now += 51  # more than metadata.max.age.ms since the refusal
    producer.append(0, [b"the first batch after that time"])
    assert max(_sent_bytes(producer, rows, 1000)) > 700, "the topic accepts more now"


def test_a_batch_that_compresses_worse_than_those_before_it_makes_no_later_ones_smaller() -> None:
    producer = PureProducer([1], Settings(batch_size=4000, compression="lz4"))
    producer.accumulator.limit_topics({TOPIC: 1000})
    producer.ready()
    random = Random(1)
    for _ in range(5):
        assert max(_sent_bytes(producer, [b"x" * 500] * 20, 1000)) <= 1000
    assert max(_sent_bytes(producer, [random.randbytes(500) for _ in range(10)], 1000)) > 1000
    for _ in range(2):
        sizes = _sent_bytes(producer, [random.randbytes(100) for _ in range(20)], 1000)
        assert 700 < max(sizes) <= 1000


def test_rows_that_do_not_compress_make_no_huge_batch_after_rows_that_do() -> None:
    settings = Settings(batch_size=1000, compression="zstd", buffer_memory=10_000_000)
    producer = PureProducer([1], settings)
    producer.ready()
    limit = 10_000_000
    for _ in range(12):
        assert max(_sent_bytes(producer, [b"x" * 500] * 200, limit)) <= 1000
    rows = [Random(n).randbytes(500) for n in range(200)]
    assert 1000 < max(_sent_bytes(producer, rows, limit)) <= 17_000
    assert max(_sent_bytes(producer, rows, limit)) <= 1000


def test_withheld_batches_wait_for_a_flush_and_the_wait_does_not_count() -> None:
    producer = PureProducer([1, 1], Settings(linger=5.0, delivery_timeout=10.0))
    producer.ready()
    producer.accumulator.withhold()
    producer.append(0, [b"x" * 400] * 8)
    producer.append(1, [b"small"])
    producer.now = 500.0
    assert producer.poll() == []
    assert producer.accumulator.next_sendable_at(500.0) == float("inf")
    assert producer.accumulator.next_expiry_at(500.0) == float("inf")
    producer.accumulator.begin_flush("flush")
    (request,) = producer.poll()
    assert [b.topic_partition.partition for b in batches(request)] == [0, 1]
    assert producer.done() == []
    producer.now = 510.0
    producer.poll()
    assert {type(batch.error).__name__ for batch in producer.done()} == {"TimeoutException"}


def test_withheld_batches_go_as_usual_once_memory_is_short() -> None:
    producer = PureProducer([1], Settings(linger=5.0, buffer_memory=4000))
    producer.ready()
    producer.accumulator.withhold()
    producer.append(0, [b"x" * 400] * 4)
    producer.now = 100.0
    assert producer.poll() == []
    producer.append(0, [b"x" * 400] * 4)
    requests = producer.poll()
    assert len(requests) == 1
    while requests:
        for request in requests:
            producer.answer(request)
        requests = producer.poll()
    producer.append(0, [b"small"])
    assert producer.poll() == []
    assert producer.accumulator.next_sendable_at(100.0) == pytest.approx(105.0), "it lingers again"

"""Rows in no batch when their producer ends: each gets its result, in order, without waits.

The end comes from `close`, or from an I/O thread that ends by itself; no broker can be reached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client.future import OnDelivery
from spark_kafka_sink.errors import KafkaException

A_WHILE_S = 20


def close(producer: KafkaProducer) -> None:
    """Close at once."""
    producer.close(0)


def fail(producer: KafkaProducer) -> None:
    """End the I/O thread with an error."""

    def poll(_: float) -> None:
        message = "what cannot be"
        raise ZeroDivisionError(message)

    state, thread = producer._state, producer._thread
    state._sender.poll = poll  # type: ignore[assignment, method-assign] # a bug
    state.wake()
    thread._thread.join(A_WHILE_S)
    assert not thread._thread.is_alive()


def abandon(producer: KafkaProducer) -> None:
    """End the I/O thread as for a producer that is not closed."""
    producer._thread.stop()


ENDS = pytest.mark.parametrize(
    ("end", "said"),
    [
        (close, "closed forcefully"),
        (fail, "what cannot be"),
        (abandon, "the producer ended before the record was sent"),
    ],
)


class Gate:
    """A partitioner that does not return until the test says so."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, _: str, batch: pa.RecordBatch, partitions: int) -> list[int]:
        """Wait, and choose the first partition."""
        self.reached.set()
        assert self.opened.wait(A_WHILE_S)
        return [0] * batch.num_rows


@contextmanager
def flushing(producer: KafkaProducer, gate: Gate) -> Iterator[None]:
    """Flush in another thread, which is in the partitioner meanwhile; check that it returns."""

    def flush() -> None:
        with suppress(KafkaException):  # it raises that the producer has ended
            producer.flush()

    other = threading.Thread(target=flush, daemon=True)
    other.start()
    try:
        assert gate.reached.wait(A_WHILE_S)
        yield
    finally:
        gate.opened.set()
    other.join(A_WHILE_S)
    assert not other.is_alive(), "flush hangs"


def noting(called: list[int], number: int) -> OnDelivery:
    """Return a callback that records the number of its row."""
    return lambda *_: called.append(number)


@ENDS
def test_rows_that_wait_for_a_partitioner_when_all_ends_are_told_so_before_it_returns(
    end: Callable[[KafkaProducer], None], said: str
) -> None:
    gate, called = Gate(), list[int]()
    with idle_producer(1, partitioner_class=gate) as producer:
        futures = [producer.send(TOPIC, b"v", on_delivery=noting(called, n)) for n in range(3)]
        with flushing(producer, gate):
            end(producer)
            for future in futures:
                assert said in str(future.exception(0))
            assert called == [0, 1, 2]
        assert called == [0, 1, 2]
        accumulator = producer._state.accumulator
        assert accumulator.pool.available_bytes == accumulator.pool.total_bytes


def test_a_late_callback_may_close_its_producer_and_is_refused_to_wait() -> None:
    gate, found = Gate(), list[str]()

    def callback(*_: object) -> None:
        for call in (producer.close, futures[0].result):
            try:
                call()
            except KafkaException as error:
                found.append(str(error))

    with idle_producer(1, partitioner_class=gate) as producer:
        futures = [producer.send(TOPIC, b"v", on_delivery=callback)]
        with flushing(producer, gate):
            fail(producer)
        assert "what cannot be" in str(futures[0].exception(A_WHILE_S))
        assert len(found) == 1
        assert "inside a callback is not permitted" in found[0]


@ENDS
def test_rows_in_batches_are_told_of_the_end_before_those_that_were_sent_after_them(
    end: Callable[[KafkaProducer], None], said: str
) -> None:
    called: list[int] = []
    with idle_producer(1) as producer:
        futures = []
        for number in range(4):
            if number == 2:
                producer._feeder.drain()
            futures.append(producer.send(TOPIC, b"v", on_delivery=noting(called, number)))
        end(producer)
        for future in futures:
            assert said in str(future.exception(0))
        assert called == [0, 1, 2, 3]


def test_a_partitioner_that_flushes_the_producer_that_asks_it_fails_its_rows() -> None:
    asking: list[KafkaProducer] = []

    def flushing_partitioner(_: str, batch: pa.RecordBatch, partitions: int) -> list[int]:
        asking[0].flush()
        return [0] * batch.num_rows

    with idle_producer(1, partitioner_class=flushing_partitioner) as producer:
        asking.append(producer)
        sent = producer.send(TOPIC, b"row")
        flush = threading.Thread(target=producer.flush, daemon=True)
        flush.start()
        flush.join(A_WHILE_S)
        assert not flush.is_alive()
        with pytest.raises(KafkaException, match="would wait for the partitioner: choose"):
            sent.result(A_WHILE_S)

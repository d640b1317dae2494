"""Unclosed producers: when they are garbage collected, their threads end by themselves."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NoReturn

import pyarrow as pa
import pytest
from support.brokers.mock_cluster import MockCluster
from support.pure.unreachable import NOBODY

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client.chunk import RowChunk, RowQueue
from spark_kafka_sink.client.chunk_feeder import ChunkFeeder
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.client.unclosed import say_lost
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.producer.sender import Sender, SenderPoll
from spark_kafka_sink.wire.exchange import ClientRequest, Event
from spark_kafka_sink.wire.transaction_messages import EndTxnRequest

TIMEOUT_S = 60


class Owner:
    """An object with a producer and itself: only the cyclic collector ends it."""

    def __init__(self) -> None:
        self.owner = self
        self.producer = KafkaProducer({"bootstrap.servers": NOBODY, "client.id": "forgotten"})


def test_a_producer_that_its_own_thread_collects_under_the_lock_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_forgotten, collected = threading.Event(), threading.Event()
    poll = Sender.poll

    def poll_and_collect(self: Sender, now: float) -> SenderPoll:
        if is_forgotten.is_set():
            gc.collect()
            collected.set()
        return poll(self, now)

    monkeypatch.setattr(Sender, "poll", poll_and_collect)
    gc.disable()
    try:
        owner = Owner()
        thread, name = owner.producer._thread, owner.producer._thread._name
        del owner
        is_forgotten.set()
        with warnings.catch_warnings(record=True, action="always") as warned:
            thread._client.wakeup()
            assert collected.wait(TIMEOUT_S), f"{name} waits for the lock that it has"
        assert "unclosed KafkaProducer forgotten" in [str(each.message) for each in warned]
    finally:
        gc.enable()
    thread._thread.join(TIMEOUT_S)
    assert not thread._thread.is_alive()


def test_its_thread_ends_if_its_last_rows_fail_just_before_it_waits(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_called, may_fail, have_failed = (threading.Event() for _ in range(3))
    poll, release = ProducerState.poll, ChunkFeeder._release

    def refuse(*_: object) -> NoReturn:
        is_called.set()
        assert may_fail.wait(TIMEOUT_S)
        raise KafkaException("refused")

    def recorded_release(self: ChunkFeeder, chunk: RowChunk, queue: RowQueue) -> None:
        release(self, chunk, queue)
        have_failed.set()

    def late_poll(
        self: ProducerState, sent: SenderPoll, events: list[Event], has_rows: Callable[[], bool]
    ) -> tuple[SenderPoll, float] | None:
        if self.ends_when_idle:
            may_fail.set()
            assert have_failed.wait(TIMEOUT_S)
        return poll(self, sent, events, has_rows)

    monkeypatch.setattr(ChunkFeeder, "_release", recorded_release)
    monkeypatch.setattr(ProducerState, "poll", late_poll)
    with warnings.catch_warnings(record=True, action="always"):
        producer = KafkaProducer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "client.id": "forgotten",
                "linger.ms": 0,
                "partitioner.class": refuse,
            }
        )
        thread = producer._thread._thread
        producer.send("t", b"v")
        assert is_called.wait(TIMEOUT_S)
        del producer
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    message = "forgotten was not closed and lost 1 record(s) (t: 1)"
    assert f"kafka-producer-network-thread | {message}" in caplog.messages


def test_its_thread_ends_also_where_warnings_are_errors() -> None:
    script = (
        "from spark_kafka_sink import KafkaProducer\n"
        f"producer = KafkaProducer({{'bootstrap.servers': '{NOBODY}'}})\n"
        "thread = producer._thread._thread\n"
        "del producer\n"
        f"thread.join({TIMEOUT_S})\n"
        "print('ended' if not thread.is_alive() else 'runs')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * TIMEOUT_S,
    )
    assert done.stdout == "ended\n", done.stderr
    assert "unclosed KafkaProducer" in done.stderr


def test_at_the_end_of_a_program_no_failure_keeps_the_other_producers_open() -> None:
    script = (
        "import os, sys\n"
        "from spark_kafka_sink import KafkaProducer\n"
        f"made = [KafkaProducer({{'bootstrap.servers': '{NOBODY}', 'delivery.timeout.ms': 300,\n"
        "    'linger.ms': 0, 'request.timeout.ms': 200, 'max.block.ms': 200,\n"
        "    'client.id': each}) for each in ('one', 'two')]\n"
        "def close(name, close_at_exit):\n"
        "    def closing(limit_s):\n"
        "        print('closing', name, flush=True)\n"
        "        if name == 'one':\n"
        "            raise ValueError('a fault')\n"
        "        close_at_exit(limit_s)\n"
        "    return closing\n"
        "from spark_kafka_sink.client import unclosed\n"
        "for thread, (name, state, ref, limit_s) in list(unclosed._unclosed.items()):\n"
        "    closing = close(name[-3:], ref())\n"
        "    unclosed._unclosed[thread] = name, state, lambda each=closing: each, limit_s\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["closing one", "closing two"], done.stderr
    assert "ValueError: a fault" in done.stderr


def test_a_loss_that_cannot_be_printed_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def write(self, text: str) -> int:
            written.append(text)
            raise BrokenPipeError

    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", Broken())
    say_lost("producer", Counter(t=1), [])
    assert written


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    """A cluster with a transaction coordinator."""
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each EndTxn that producers send commits its transaction."""
    ended, send = list[bool](), NetworkClient.send

    def record(self: NetworkClient, request: ClientRequest) -> None:
        if isinstance(request.message, EndTxnRequest):
            ended.append(request.message.committed)
        send(self, request)

    monkeypatch.setattr(NetworkClient, "send", record)
    return ended


def forget(cluster: MockCluster, *, acknowledged: bool, rows: int) -> threading.Thread:
    """Drop a producer with rows in an open transaction; return its I/O thread."""
    producer = KafkaProducer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": "forgotten",
            "transactional.id": "tid",
            "linger.ms": 60_000,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(rows):
        producer.append("t", pa.record_batch({"value": ["v"]}))
    if acknowledged:
        producer.flush()
    return producer._thread._thread


@pytest.mark.parametrize("acknowledged", [True, False])
def test_the_open_transaction_of_a_collected_producer_is_aborted_and_that_is_said(
    cluster: MockCluster,
    ended: list[bool],
    caplog: pytest.LogCaptureFixture,
    *,
    acknowledged: bool,
) -> None:
    with warnings.catch_warnings(record=True, action="always"):
        thread = forget(cluster, acknowledged=acknowledged, rows=2)
        gc.collect()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert True not in ended
    if acknowledged:
        assert ended == [False]
    assert (
        "kafka-producer-network-thread | forgotten was not closed: its open transaction was not "
        "committed"
    ) in caplog.messages


def test_nothing_is_said_of_a_collected_producer_without_a_transaction(
    cluster: MockCluster, ended: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(record=True, action="always"):
        producer = KafkaProducer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": "tid"}
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.append("t", pa.record_batch({"value": ["v"]}))
        producer.commit_transaction()
        thread = producer._thread._thread
        del producer
        gc.collect()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert ended == [True]
    assert caplog.messages == []

"""A task acknowledges received data at once, so that its first rows need not wait."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tasks.task import write_task
from spark_kafka_sink.spark.worker import acknowledge_now

ROUNDS = 50
# Of struct tcp_info of <linux/tcp.h>: segments sent that are not acknowledged.
UNACKED = slice(24, 28)

linux_only = pytest.mark.skipif(
    not hasattr(socket, "TCP_QUICKACK"), reason="only Linux can be asked to acknowledge"
)


class NoRowsError(Exception):
    """Ends a task when it requests its first rows."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection, as the JVM and a worker have one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        jvm = socket.create_connection(server.getsockname())
        worker, _ = server.accept()
    with jvm, worker:
        yield jvm, worker


def waits(pair: tuple[socket.socket, socket.socket], when_received: Callable[[], object]) -> int:
    """Return in how many turns of question and answer a question had no ACK of its own."""
    jvm, worker = pair
    waiting = 0
    for _ in range(ROUNDS):
        jvm.sendall(b"what to do")
        worker.recv(100)
        when_received()
        info = jvm.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 100)
        waiting += struct.unpack("I", info[UNACKED])[0] > 0
        worker.sendall(b"done")
        jvm.recv(100)
    return waiting


@linux_only
def test_what_was_received_is_acknowledged(pair: tuple[socket.socket, socket.socket]) -> None:
    before = waits(pair, lambda: None)
    after = waits(pair, acknowledge_now)
    assert before
    assert after <= before / 2


@linux_only
def test_a_task_has_it_acknowledged_before_it_asks_for_rows(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    options = sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "a"})

    def rows() -> Iterator[pa.RecordBatch]:
        raise NoRowsError
        yield

    def run_task() -> None:
        with pytest.raises(NoRowsError):
            write_task(options, rows())

    before = waits(pair, lambda: None)
    assert before
    assert waits(pair, run_task) <= before / 2


@linux_only
def test_other_files_are_left_alone(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    jvm, worker = pair
    reading, writing = os.pipe()
    left, right = socket.socketpair()
    unconnected = socket.socket()
    socket.setdefaulttimeout(1)
    try:
        acknowledge_now()
        os.write(writing, b"a")
        left.sendall(b"b")
        jvm.sendall(b"c")
        assert (os.read(reading, 9), right.recv(9), worker.recv(9)) == (b"a", b"b", b"c")
        assert os.get_blocking(worker.fileno())
    finally:
        socket.setdefaulttimeout(None)
        os.close(reading)
        os.close(writing)
        for each in (left, right, unconnected):
            each.close()


def test_systems_without_it_do_without(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "TCP_QUICKACK", raising=False)
    acknowledge_now()
    pair[0].sendall(b"a")
    assert pair[1].recv(9) == b"a"

"""The broker's ceiling: record batches encoded beforehand, written to blocking sockets.

Nothing is read, encoded or compressed while the clock runs, so what this reaches is what the broker
takes from this machine. Batch size, acks and requests in flight are the sink's. One connection per
task, each with its share of the partitions; the topic's partitions must be led by one broker.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_kafka_sink.model import NO_PRODUCER_ID
from spark_kafka_sink.records.batch import NO_SEQUENCE, BatchInfo, batch_header
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.records.encoder import encode
from spark_kafka_sink.wire.frames import decode_response, encode_request
from spark_kafka_sink.wire.messages import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.wire.primitives import Buffer, Records

_VERSION: Final = 9
_IN_FLIGHT: Final = 5
_TIMEOUT_MS: Final = 30_000
_INT32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A record batch as it goes over the wire, and how many records it holds."""

    records: int
    buffers: tuple[Buffer, ...]
    size_bytes: int


def encoded_batch(
    keys: Sequence[bytes], values: Sequence[bytes], compression: str, now_ms: int
) -> EncodedBatch:
    """Encode records as one batch; no key where `keys` is empty."""
    count = len(values)
    columns = RecordColumns.of(
        key=BinaryColumn.of(pa.array(keys, pa.binary())) if keys else None,
        value=BinaryColumn.of(pa.array(values, pa.binary())),
        headers=None,
        timestamps_ms=np.full(count, now_ms),
    )
    rows = np.arange(count)
    encoded = encode(columns, rows, rows, np.zeros(count, np.int64))
    section = encoded.buffer[int(encoded.offsets[0]) : int(encoded.offsets[-1])]
    packing = codec(compression)
    pieces = packing([section])
    info = BatchInfo(count, now_ms, now_ms, packing.id)
    header = batch_header(info, pieces, NO_PRODUCER_ID, NO_SEQUENCE)
    return EncodedBatch(count, (header, *pieces), len(header) + sum(map(len, pieces)))


def write(
    address: tuple[str, int], topic: str, partitions: int, batch: EncodedBatch, records: int,
    connections: int,
) -> float:  # fmt: skip
    """Write at least `records` records and give the seconds until the last was acknowledged.

    Raises OSError, and RuntimeError for an answer that is an error.
    """
    batches = -(-records // batch.records)
    shares = [batches // connections + (n < batches % connections) for n in range(connections)]
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            mine = list(range(number, partitions, connections)) or [0]
            _write_share(address, topic, mine, batch, shares[number])
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - started


def _write_share(
    address: tuple[str, int], topic: str, partitions: list[int], batch: EncodedBatch, batches: int
) -> None:
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frames = [_frame(topic, partition, batch) for partition in partitions]
        in_flight = 0
        for number in range(batches):
            if in_flight == _IN_FLIGHT:
                _read_answer(connection)
                in_flight -= 1
            _send(connection, frames[number % len(frames)])
            in_flight += 1
        for _ in range(in_flight):
            _read_answer(connection)


def _frame(topic: str, partition: int, batch: EncodedBatch) -> list[Buffer]:
    records = Records(batch.buffers, batch.size_bytes)
    data = TopicProduceData(
        name=topic, partition_data=[PartitionProduceData(index=partition, records=records)]
    )
    request = ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[data])
    return encode_request(PRODUCE, _VERSION, 0, "raw-socket", request)


def _send(connection: socket.socket, buffers: list[Buffer]) -> None:
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    while views:
        sent = connection.sendmsg(views)
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if sent:
            views[0] = views[0][sent:]


def _read_answer(connection: socket.socket) -> None:
    (size,) = _INT32.unpack(_receive(connection, 4))
    response = decode_response(PRODUCE, _VERSION, _receive(connection, size))
    if not isinstance(response, ProduceResponse):
        raise TypeError("a Produce request was answered with something else")
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise RuntimeError(f"{topic.name}-{partition.index}: error {partition.error_code}")


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return bytes(data)

"""The broker's limit: pre-encoded record batches, written to blocking sockets.

During the measurement, no row is read and nothing is encoded or compressed: connections are made,
prepared requests are sent, and responses are read. The result is therefore what brokers accept from
this machine. Acks, requests in flight and batch sizes are the sink's, except that the sink's
batches are smaller with a hundred partitions or more. Every connection has partitions of its own,
of one leader.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from spark_kafka_sink.model import NO_PRODUCER_ID
from spark_kafka_sink.records.batch import NO_SEQUENCE, BatchInfo, batch_header
from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.records.encoder import encode
from spark_kafka_sink.serde.arrow_columns import read_rows
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
_REQUEST_BYTES: Final = 1024 * 1024
_TIMEOUT_MS: Final = 30_000
_INT32 = struct.Struct(">i")
# A request as it is sent, in pieces.
_Frame: TypeAlias = list[Buffer]


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A record batch as it is sent, with the number of its records."""

    records: int
    buffers: tuple[Buffer, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """The partitions of one connection, which the broker at `address` leads."""

    address: tuple[str, int]
    partitions: Sequence[int]


def batch_of(rows: pa.RecordBatch, compression: str, now_ms: int) -> EncodedBatch:
    """Return rows with the sink's columns encoded as one batch."""
    packing = codec(compression)
    pieces = packing([records_of(rows, now_ms)])
    info = BatchInfo(rows.num_rows, now_ms, now_ms, packing.id)
    header = batch_header(info, pieces, NO_PRODUCER_ID, NO_SEQUENCE)
    return EncodedBatch(rows.num_rows, (header, *pieces), len(header) + sum(map(len, pieces)))


def records_of(rows: pa.RecordBatch, now_ms: int) -> memoryview:
    """Return rows encoded as the uncompressed records section of a batch."""
    count = rows.num_rows
    columns = read_rows(rows, "any", now_ms).columns
    encoded = encode(columns, np.arange(count), np.arange(count), np.zeros(count, np.int64))
    return encoded.buffer[int(encoded.offsets[0]) : int(encoded.offsets[-1])]


def write(shares: Sequence[Share], topic: str, batch: EncodedBatch, records: int) -> float:
    """Write at least `records` records; return the seconds until the last acknowledgement.

    Raise OSError, or RuntimeError for an error response.
    """
    batches = -(-records // batch.records)
    counts = [batches // len(shares) + (n < batches % len(shares)) for n in range(len(shares))]
    requests = [
        _requests(share, topic, batch, count) for share, count in zip(shares, counts, strict=True)
    ]
    failures: list[BaseException] = []

    def run(share: Share, frames: Sequence[_Frame]) -> None:
        try:
            _write_share(share.address, frames)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread below
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(share, frames))
        for share, frames in zip(shares, requests, strict=True)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - started


def _requests(share: Share, topic: str, batch: EncodedBatch, batches: int) -> list[_Frame]:
    """Return a connection's requests, in order; equal requests are the same object."""
    # A request has one batch per partition, for about a megabyte of partitions.
    together = max(1, min(len(share.partitions), _REQUEST_BYTES // batch.size_bytes))
    groups = [
        share.partitions[first : first + together]
        for first in range(0, len(share.partitions), together)
    ]
    frames = [_frame(topic, group, batch) for group in groups]
    requests: list[_Frame] = []
    while batches:
        timing = len(requests) % len(groups)
        group = groups[timing][:batches]
        is_complete = len(group) == len(groups[timing])
        requests.append(frames[timing] if is_complete else _frame(topic, group, batch))
        batches -= len(group)
    return requests


def _write_share(address: tuple[str, int], requests: Sequence[_Frame]) -> None:
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, request in enumerate(requests):
            if number >= _IN_FLIGHT:
                _read_answer(connection)
            _send(connection, request)
        for _ in requests[-_IN_FLIGHT:]:
            _read_answer(connection)


def _frame(topic: str, partitions: Sequence[int], batch: EncodedBatch) -> _Frame:
    records = Records(batch.buffers, batch.size_bytes)
    data = [PartitionProduceData(index=partition, records=records) for partition in partitions]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    request = ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=topics)
    return encode_request(PRODUCE, _VERSION, 0, "raw-socket", request)


def _send(connection: socket.socket, frame: _Frame) -> None:
    views = [memoryview(buffer).cast("B") for buffer in frame]
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

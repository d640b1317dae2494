"""The tables of docs/scaling.md about the start of a job: first connections, then all leaders'."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from benchmarks.scaling_job import (
    BROKERS,
    CONNECTIONS_PER_S,
    CORES,
    DELIVERY_TIMEOUT_S,
    EXECUTORS,
    PARTITIONS,
    REPLICAS,
    SEED,
    SETTINGS,
    job,
    table,
)
from benchmarks.scaling_model import MEGABYTE, Layout, load, producer
from benchmarks.start_storm import StartStorm

from spark_kafka_sink.wire import schema
from spark_kafka_sink.wire.messages import (
    METADATA,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.wire.primitives import Writer

# Between two questions of a task for metadata that bring nothing new: retry.backoff.max.ms, less
# what chance takes.
_SHORTEST_PAUSE_S: Final = 0.8


def start() -> str:
    """Give the table of first connections, and of what is asked by them."""
    answer = metadata_bytes(PARTITIONS, BROKERS)

    def rows() -> Iterator[Sequence[str]]:
        for executors in EXECUTORS:
            this = load(job(executors), Layout.KEYED, SETTINGS)
            clients = round(this.first_connections)
            yield [
                f"{executors * CORES:,}",
                f"{clients:,}",
                f"{max(_storm(clients, 0.0).waits_s):,.1f}",
                f"{executors * CORES * answer / MEGABYTE:,.0f}",
                f"{this.producer_ids:,.0f}",
            ]

    headings = ["tasks at once", "to each broker", "s until all are up"]
    headings += [f"MB of Metadata answers, {answer / 1000:,.0f} KB each", "producer ids of the job"]
    return table(headings, rows())


def leaders() -> str:
    """Give the table of the connections to leaders, begun at once and begun at random."""

    def rows() -> Iterator[Sequence[str]]:
        for executors in EXECUTORS:
            for layout in (Layout.KEYED, Layout.BY_PARTITION):
                this = job(executors)
                brokers = producer(this, layout, SETTINGS).brokers
                clients = round(load(this, layout, SETTINGS).connections)
                cells = [f"{this.tasks:,}", layout.value, f"{clients:,}"]
                for over_s in (0.0, clients / CONNECTIONS_PER_S):
                    storm = _storm(clients, over_s)
                    in_time = sum(wait <= DELIVERY_TIMEOUT_S for wait in storm.waits_s) / clients
                    cells += [
                        f"{max(storm.connected_at):,.1f}",
                        f"{max(storm.waits_s):,.1f}",
                        f"{in_time**brokers:.0%}",
                    ]
                    if not over_s:
                        asked = min(
                            storm.given_up / max(storm.connected_at),
                            this.tasks / BROKERS / _SHORTEST_PAUSE_S,
                        )
                        cells += [f"{storm.given_up:,}", f"{asked:,.0f}"]
                yield cells

    in_time = f"tasks that wait {DELIVERY_TIMEOUT_S:.0f} s at most"
    headings = ["tasks at once", "", "connections to a broker"]
    headings += ["s until all are up", "longest wait", in_time, "attempts given up"]
    headings += ["Metadata requests a second, at most"]
    headings += ["begun at random: s until all are up"]
    return table([*headings, "longest wait", in_time], rows())


@functools.cache
def most_clients(within_s: float) -> int:
    """Give how many clients a broker may have at most for all of them to be connected in time."""
    low, high = 0, round(within_s * CONNECTIONS_PER_S)
    while high - low > CONNECTIONS_PER_S:
        middle = (low + high) // 2
        if max(_storm(middle, 0.0).waits_s) <= within_s:
            low = middle
        else:
            high = middle
    return low


@functools.cache
def _storm(clients: int, over_s: float) -> StartStorm:
    """Let so many clients of a broker connect that begin within so many seconds."""
    begins = np.random.default_rng(SEED).uniform(0, over_s, clients)
    return StartStorm(begins.tolist(), CONNECTIONS_PER_S, SEED).run()


def metadata_bytes(partitions: int, brokers: int) -> int:
    """Give the size of the answer that describes a topic, as it is on the wire."""
    replicas = list(range(1, REPLICAS + 1))
    answer = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=n, host=f"broker-{n:03}.example.org", port=9092)
            for n in range(1, brokers + 1)
        ],
        topics=[
            MetadataResponseTopic(
                error_code=0,
                name="topic",
                partitions=[
                    MetadataResponsePartition(
                        error_code=0,
                        partition_index=number,
                        leader_id=1,
                        replica_nodes=replicas,
                        isr_nodes=replicas,
                    )
                    for number in range(partitions)
                ],
            )
        ],
    )
    out, version = Writer(), METADATA.max_version
    schema.writer(METADATA.response, version, flexible=METADATA.is_flexible(version))(answer, out)
    return len(out.out)

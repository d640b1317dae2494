"""The tables of scaling.md on the start of a job: first connections, then all leaders'."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from bench.scaling.job import (
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
from bench.scaling.model import MEGABYTE, Job, Layout, load, producer
from bench.scaling.start_storm import StartStorm
from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.messages import (
    METADATA,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.wire.primitives import Writer

# The most Metadata requests of a task per second. Its pauses are retry.backoff.ms, the same again,
# and then doubled, less the jitter of a fifth: requests at 0, 0.08, 0.16, 0.32 and 0.64 s.
_MOST_ASKED: Final = 5
# The seconds within which tasks start at random: the worst case, and one that is much better.
BEGINS: Final = (("at one instant", 0.0), ("within a second", 1.0))
# In clients; whether all are connected in time is partly random.
_NEAR_ENOUGH: Final = 10


def start() -> str:
    """Return the table of first connections and their requests."""
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
    """Return the table of the connections to leaders, by the start of the tasks."""

    def rows() -> Iterator[Sequence[str]]:
        for executors in EXECUTORS:
            for layout in (Layout.KEYED, Layout.BY_PARTITION):
                this = job(executors)
                clients = round(load(this, layout, SETTINGS).connections)
                needed_s = clients / CONNECTIONS_PER_S
                for name, over_s in (*BEGINS, ("within connections / pace", needed_s)):
                    cells = [f"{this.tasks:,}", layout.value, f"{clients:,}", name]
                    yield cells + _outcome(this, layout, _storm(clients, over_s))

    headings = ["tasks at once", "", "connections to a broker", "tasks begin"]
    headings += ["s until all are up", "longest wait"]
    headings += [f"tasks that wait {DELIVERY_TIMEOUT_S:.0f} s at most", "attempts given up"]
    return table([*headings, "Metadata requests in the worst second, at most"], rows())


def _outcome(this: Job, layout: Layout, storm: StartStorm) -> list[str]:
    """Return a row of a storm's results; a task needs all of its connections."""
    waits_s = storm.waits_s
    in_time = sum(wait <= DELIVERY_TIMEOUT_S for wait in waits_s) / len(waits_s)
    return [
        f"{max(storm.connected_at):,.1f}",
        f"{max(waits_s):,.1f}",
        f"{in_time ** producer(this, layout, SETTINGS).brokers:.0%}",
        f"{len(storm.given_up_at):,}",
        f"{_asked_in_a_second(storm, this.tasks):,}",
    ]


def _asked_in_a_second(storm: StartStorm, tasks: int) -> int:
    """Return the most Metadata requests of a broker in any second: one per attempt."""
    by_second = Counter(int(at) for at in storm.given_up_at)
    return min(max(by_second.values(), default=0), _MOST_ASKED * tasks // BROKERS)


@functools.cache
def most_clients(within_s: float, begin_over_s: float) -> int:
    """Return the most clients of a broker with which all are connected in time."""
    low, high = 0, round(within_s * CONNECTIONS_PER_S)
    while high - low > _NEAR_ENOUGH:
        middle = (low + high) // 2
        if max(_storm(middle, begin_over_s).waits_s) <= within_s:
            low = middle
        else:
            high = middle
    return low


@functools.cache
def _storm(clients: int, over_s: float) -> StartStorm:
    """Connect this number of clients to a broker, which start within `over_s` seconds."""
    begins = np.random.default_rng(SEED).uniform(0, over_s, clients)
    return StartStorm(begins.tolist(), CONNECTIONS_PER_S, SEED).run()


def metadata_bytes(partitions: int, brokers: int) -> int:
    """Return the size of the Metadata response for a topic, in bytes."""
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
    message_codecs.writer(METADATA.response, version, flexible=METADATA.is_flexible(version))(
        answer, out
    )
    return len(out.out)

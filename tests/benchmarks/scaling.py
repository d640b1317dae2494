"""The tables of docs/scaling.md, made from the scaling model; its sentences are written by hand.

    PYTHONPATH=tests python -m benchmarks.scaling

A table stands between ``<!-- name -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from benchmarks.scaling_model import MEGABYTE, Job, Layout, Load, Settings, load, producer
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

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "scaling.md"
_PLACE: Final = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

_CORES: Final = 4
_BROKERS: Final = 100
_PARTITIONS: Final = 1000
_REPLICAS: Final = 3
_TASK_BYTES: Final = 128 * MEGABYTE
# What a task alone writes in a second, and what the brokers take of all tasks.
_TASK_BYTES_PER_S: Final = 50 * MEGABYTE
_CLUSTER_BYTES_PER_S: Final = 20_000 * MEGABYTE
_EXECUTORS: Final = (25, 250, 2500, 10_000)
# What a hosted cluster allows a broker (Amazon MSK, standard brokers with IAM).
_MOST_CONNECTIONS: Final = 3000
_CONNECTIONS_PER_S: Final = 100
# The sink's delivery.timeout.ms, and the longest that tasks might wait before they begin.
_DELIVERY_TIMEOUT_S: Final = 120.0
_SPREAD_S: Final = 60.0
_SEED: Final = 1
_SETTINGS: Final = Settings()


def refreshed(text: str) -> str:
    """Give the document's text with its tables made anew."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{_TABLES[found[2]]()}\n{found[3]}", text)


def job(executors: int) -> Job:
    """Give the document's job with so many executors."""
    tasks = executors * _CORES
    return Job(
        executors=executors,
        cores=_CORES,
        brokers=_BROKERS,
        partitions=_PARTITIONS,
        task_bytes=_TASK_BYTES,
        task_bytes_per_s=min(_TASK_BYTES_PER_S, _CLUSTER_BYTES_PER_S / tasks),
        replicas=_REPLICAS,
    )


def _table(headings: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    return "".join(f"{line}\n" for line in [*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _by_layout(text: Callable[[Load], str]) -> Callable[[], str]:
    """Give a table of one figure: tasks down, layouts across."""

    def rows() -> Iterator[Sequence[str]]:
        for executors in _EXECUTORS:
            found = [load(job(executors), layout, _SETTINGS) for layout in Layout]
            yield [f"{executors * _CORES:,}", *map(text, found)]

    return lambda: _table(["tasks at once", *(layout.value for layout in Layout)], rows())


def _job() -> str:
    rows = [
        ["cores of an executor", f"{_CORES}"],
        ["brokers", f"{_BROKERS}"],
        ["partitions of the topic", f"{_PARTITIONS:,}"],
        ["replicas", f"{_REPLICAS}"],
        ["MB of a task", f"{_TASK_BYTES / MEGABYTE:,.0f}"],
        ["MB/s of a task alone", f"{_TASK_BYTES_PER_S / MEGABYTE:,.0f}"],
        ["MB/s of all tasks, at most", f"{_CLUSTER_BYTES_PER_S / MEGABYTE:,.0f}"],
    ]
    return _table(["", ""], iter(rows))


def _limits() -> str:
    """Give the tasks at once with which a broker's connections are at their limit."""
    rows = ([layout.value, f"{_most_tasks(layout):,}"] for layout in Layout)
    return _table(["", f"tasks at once with {_MOST_CONNECTIONS:,} connections to a broker"], rows)


def _most_tasks(layout: Layout) -> int:
    low, high = 1, 10_000_000
    while low < high:
        middle = (low + high + 1) // 2
        if load(job(middle), layout, _SETTINGS).connections <= _MOST_CONNECTIONS:
            low = middle
        else:
            high = middle - 1
    return low * _CORES


def _batches() -> str:
    def rows() -> Iterator[Sequence[str]]:
        for executors in _EXECUTORS:
            for layout in Layout:
                found = producer(job(executors), layout, _SETTINGS)
                yield [
                    f"{executors * _CORES:,}",
                    layout.value,
                    f"{found.batch_bytes / 1000:,.0f}",
                    f"{found.batch_bytes / _SETTINGS.batch_bytes:.0%}",
                    f"{found.batches / found.requests:,.1f}",
                ]

    headings = ["tasks at once", "", "KB of a batch", "of batch.size", "batches of a request"]
    return _table(headings, rows())


def _start() -> str:
    answer = metadata_bytes(_PARTITIONS, _BROKERS)

    def rows() -> Iterator[Sequence[str]]:
        for executors in _EXECUTORS:
            this = job(executors)
            keyed = load(this, Layout.KEYED, _SETTINGS)
            yield [
                f"{this.tasks:,}",
                f"{keyed.metadata_requests:,.0f}",
                f"{this.tasks * answer / MEGABYTE:,.0f}",
                f"{keyed.producer_ids:,.0f}",
            ]

    headings = [
        "tasks at once",
        "Metadata requests to a broker, and as many for producer ids",
        f"MB of all Metadata answers, {answer / 1000:,.0f} KB each",
        "producer ids of the job",
    ]
    return _table(headings, rows())


def _storm() -> str:
    def rows() -> Iterator[Sequence[str]]:
        for executors in _EXECUTORS:
            for layout in (Layout.KEYED, Layout.BY_PARTITION):
                clients = round(load(job(executors), layout, _SETTINGS).connections)
                at_once, spread = (_connected_at(clients, over) for over in (0.0, _SPREAD_S))
                in_time = sum(at <= _DELIVERY_TIMEOUT_S for at in at_once) / clients
                yield [
                    f"{executors * _CORES:,}",
                    layout.value,
                    f"{clients:,}",
                    f"{at_once[clients // 2]:,.1f}",
                    f"{at_once[-1]:,.1f}",
                    f"{in_time:.0%}",
                    f"{spread[clients // 2]:,.1f}",
                    f"{spread[-1]:,.1f}",
                ]

    headings = [
        "tasks at once",
        "",
        "connections to a broker",
        "s until half are up",
        "until all are",
        f"up within {_DELIVERY_TIMEOUT_S:.0f} s",
        f"tasks that begin within {_SPREAD_S:.0f} s: until half are up",
        "until all are",
    ]
    return _table(headings, rows())


def _connected_at(clients: int, over_s: float) -> list[float]:
    """Give when so many clients of a broker are connected that begin within so many seconds."""
    begins = np.random.default_rng(_SEED).uniform(0, over_s, clients)
    return StartStorm(begins.tolist(), _CONNECTIONS_PER_S, _SEED).run()


_TABLES: Final[dict[str, Callable[[], str]]] = {
    "job": _job,
    "connections": _by_layout(lambda found: f"{found.connections:,.0f}"),
    "limits": _limits,
    "requests": _by_layout(lambda found: f"{found.requests_per_s:,.0f}"),
    "record_batches": _by_layout(lambda found: f"{found.batches_per_s:,.0f}"),
    "fill": _batches,
    "states": _by_layout(lambda found: f"{found.producer_states:,.0f}"),
    "memory": _by_layout(lambda found: f"{found.executor_bytes / MEGABYTE:,.0f}"),
    "start": _start,
    "storm": _storm,
}


def metadata_bytes(partitions: int, brokers: int) -> int:
    """Give the size of the answer that describes a topic, as it is on the wire."""
    replicas = list(range(1, _REPLICAS + 1))
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


if __name__ == "__main__":
    DOCUMENT.write_text(refreshed(DOCUMENT.read_text()))

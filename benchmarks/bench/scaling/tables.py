"""The tables of docs/contributing/scaling.md, from the scaling model; sentences are by hand.

PYTHONPATH=benchmarks:tests:jobs python -m bench.scaling.tables
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from support.documents.made_tables import with_tables

from bench.scaling import broker_cost, worker_bytes
from bench.scaling.job import (
    BROKERS,
    CLUSTER_BYTES_PER_S,
    CORES,
    EXECUTORS,
    PARTITIONS,
    REPLICAS,
    SETTINGS,
    TASK_BYTES,
    TASK_BYTES_PER_S,
    job,
    table,
)
from bench.scaling.limits import limits
from bench.scaling.model import MEGABYTE, Job, Layout, Load, load, producer
from bench.scaling.start import leaders, start
from spark_kafka_sink.client.appender import slice_bytes

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "contributing" / "scaling.md"


def refreshed(text: str) -> str:
    """Return the document's text with its tables generated again."""
    return with_tables(text, _TABLES)


def _by_layout(text: Callable[[Load], str]) -> Callable[[], str]:
    """Return a table of one figure: tasks down, layouts across."""

    def rows() -> Iterator[Sequence[str]]:
        for executors in EXECUTORS:
            found = [load(job(executors), layout, SETTINGS) for layout in Layout]
            yield [f"{executors * CORES:,}", *map(text, found)]

    return lambda: table(["tasks at once", *(layout.value for layout in Layout)], rows())


def _job() -> str:
    rows = [
        ["cores of an executor", f"{CORES}"],
        ["brokers", f"{BROKERS}"],
        ["partitions of the topic", f"{PARTITIONS:,}"],
        ["replicas", f"{REPLICAS}"],
        ["MB of a task", f"{TASK_BYTES / MEGABYTE:,.0f}"],
        ["MB/s of a task alone", f"{TASK_BYTES_PER_S / MEGABYTE:,.0f}"],
        ["MB/s of all tasks, at most", f"{CLUSTER_BYTES_PER_S / MEGABYTE:,.0f}"],
    ]
    return table(["", ""], iter(rows))


def _cpu() -> str:
    """Return the table of the cores of a broker that a job's bytes keep busy."""
    cost = _cost()

    def text(found: Load) -> str:
        megabytes = found.bytes_per_s / MEGABYTE
        busy_ms = megabytes * cost.ms(found.bytes_per_s / found.batches_per_s)
        return f"{busy_ms / megabytes:,.1f} ({busy_ms / 1e3:.2f})"

    def rows() -> Iterator[Sequence[str]]:
        for executors in EXECUTORS:
            found = [load(job(executors), layout, SETTINGS) for layout in Layout]
            per_broker = f"{found[0].bytes_per_s / MEGABYTE:,.0f}"
            yield f"{executors * CORES:,}", per_broker, *map(text, found)

    headings = ["tasks at once", "MB/s to a broker", *(layout.value for layout in Layout)]
    return table(headings, rows())


def _smallest_bytes() -> float:
    """Return the size of the smallest batches in the tables."""
    keyed = (producer(job(executors), Layout.KEYED, SETTINGS) for executors in EXECUTORS)
    return min(each.batch_bytes for each in keyed)


def _cost() -> broker_cost.BrokerCost:
    return broker_cost.dearest(_smallest_bytes())


def _broker_cost() -> str:
    """Return the table of a broker's CPU per megabyte and per batch, with its sources."""
    smallest = _smallest_bytes()

    def row(names: Sequence[str], cost: broker_cost.BrokerCost, full_ms: str) -> list[str]:
        seen = [f"{one.ms_per_megabyte:.2f} ({one.batch_bytes / 1000:,.0f})" for one in cost.seen]
        fitted = [f"{cost.ms_per_megabyte:.2f}", f"{cost.ms_per_batch:.3f}"]
        return [*names, full_ms, *seen, *fitted, f"{cost.ms(smallest):.1f}"]

    def rows() -> Iterator[Sequence[str]]:
        for each in broker_cost.reported():
            yield row([each.machine, each.size], each.cost, f"{each.full_ms:.2f}")
        yield row(["in the model", ""], _cost(), "")

    headings = ["machine", "rows", "1 partition", "12", "1,000", "for a megabyte"]
    headings += ["and for each batch", f"a megabyte of {smallest / 1000:.0f} KB each"]
    return table(headings, rows())


def _batches() -> str:
    def rows() -> Iterator[Sequence[str]]:
        for executors in EXECUTORS:
            for layout in Layout:
                found = producer(job(executors), layout, SETTINGS)
                yield [
                    f"{executors * CORES:,}",
                    layout.value,
                    f"{found.batch_bytes / 1000:,.0f}",
                    f"{found.batch_bytes / SETTINGS.batch_bytes:.0%}",
                    f"{found.batches / found.requests:,.1f}",
                ]

    headings = ["tasks at once", "", "KB of a batch", "of batch.size", "batches of a request"]
    return table(headings, rows())


def _memory() -> str:
    """Return the table of the memory of an executor's workers, with that of one in brackets."""
    takes, slices = worker_bytes.reported(), slice_bytes(PARTITIONS)

    def text(this: Job, layout: Layout) -> str:
        one = producer(this, layout, SETTINGS)
        if layout is Layout.SHARED:
            of_sink = takes.of_sink(slices, one.memory_bytes)
            return f"{(CORES * takes.discards + of_sink) / MEGABYTE:,.0f}"
        worker = takes.in_all(slices, one.memory_bytes) / MEGABYTE
        return f"{CORES * worker:,.0f} ({worker:,.0f})"

    def rows() -> Iterator[Sequence[str]]:
        for executors in EXECUTORS:
            this = job(executors)
            yield f"{this.tasks:,}", *(text(this, layout) for layout in Layout)

    return table(["tasks at once", *(layout.value for layout in Layout)], rows())


def _workers() -> str:
    """Return the table of workers' memory, measured and in the model."""
    takes, full = worker_bytes.reported(), SETTINGS.memory_bytes

    def rows() -> Iterator[Sequence[str]]:
        for each in worker_bytes.seen():
            its = worker_bytes.reported(each.machine)
            by_model = its.in_all(each.slice_bytes, each.producer_bytes)
            names = [f"{each.cell}, {each.machine}", f"{each.partitions:,}"]
            yield [*names, *(f"{size / MEGABYTE:,.0f}" for size in (each.worker_bytes, by_model))]
        for partitions in (12, PARTITIONS):
            by_model = takes.in_all(slice_bytes(partitions), full)
            yield "buffer.memory is full", f"{partitions:,}", "", f"{by_model / MEGABYTE:,.0f}"

    return table(["worker", "partitions", "MB, measured", "in the model"], rows())


_TABLES: Final[dict[str, Callable[[], str]]] = {
    "job": _job,
    "connections": _by_layout(lambda found: f"{found.connections:,.0f}"),
    "limits": limits,
    "requests": _by_layout(lambda found: f"{found.requests_per_s:,.0f}"),
    "record_batches": _by_layout(lambda found: f"{found.batches_per_s:,.0f}"),
    "fill": _batches,
    "states": _by_layout(lambda found: f"{found.producer_states:,.0f}"),
    "memory": _memory,
    "workers": _workers,
    "start": start,
    "leaders": leaders,
    "cpu": _cpu,
    "broker_cost": _broker_cost,
}


if __name__ == "__main__":
    DOCUMENT.write_text(refreshed(DOCUMENT.read_text()))

"""The load of a job with very many tasks on a cluster: formulas, by the layout of the rows.

Every task has a producer and connections of its own and is independent of the others, so one task's
load is multiplied. Numbers are means; nothing here runs or is measured. `simulated_task` compares
the formulas for one producer with the real state machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from spark_kafka_sink.client.appender import slice_bytes
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.spark.options import SINK_DEFAULTS

MEGABYTE: Final = 1_000_000


class Layout(Enum):
    """The partitions that a producer's rows go to, and the number of tasks per producer."""

    KEYED = "keys, as they come"
    NO_KEYS = "no keys"
    BY_PARTITION = "keys, rows laid out by partition"
    SHARED = "keys, one producer for an executor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The relevant settings of the producer; the defaults are the sink's."""

    batch_bytes: int = int(SINK_DEFAULTS["batch.size"])
    request_bytes: int = int(SINK_DEFAULTS["max.request.size"])
    memory_bytes: int = int(SINK_DEFAULTS["buffer.memory"])
    linger_s: float = int(SINK_DEFAULTS["linger.ms"]) / 1000
    in_flight: int = 5
    # None for the sink's own size for this number of partitions.
    slice_bytes: int | None = None

    @property
    def full_bytes(self) -> int:
        """The bytes of records in a full batch."""
        return self.batch_bytes - RECORD_BATCH_OVERHEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job: every executor runs `cores` tasks at once, with `task_bytes` to write each.

    task_bytes_per_s: of a single task. cluster_bytes_per_s: what brokers accept from all tasks.
    """

    executors: int
    cores: int
    brokers: int
    partitions: int
    task_bytes: float
    task_bytes_per_s: float
    cluster_bytes_per_s: float = math.inf
    round_trip_s: float = 0.002
    replicas: int = 3

    @property
    def tasks(self) -> int:
        """The number of concurrent tasks."""
        return self.executors * self.cores

    @property
    def is_held_back(self) -> bool:
        """Whether the brokers accept less than the tasks could write."""
        return self.tasks * self.task_bytes_per_s > self.cluster_bytes_per_s

    @property
    def bytes_per_s(self) -> float:
        """The bytes that all tasks write per second."""
        return min(self.tasks * self.task_bytes_per_s, self.cluster_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Producer:
    """The requests, batches and connections of one producer."""

    partitions: float
    brokers: float
    batches: float
    batch_bytes: float
    requests: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Load:
    """The load of all producers on one broker.

    connections: those of producers that write to it or started with it. first_connections: the
    latter, on which they request metadata and producer ids, from a random broker.
    """

    connections: float
    first_connections: float
    producer_ids: float
    producer_states: float
    bytes_per_s: float
    requests_per_s: float
    batches_per_s: float


def load(job: Job, layout: Layout, settings: Settings) -> Load:
    """Return the load of a broker."""
    one = producer(job, layout, settings)
    producers = job.executors * (1 if layout is Layout.SHARED else job.cores)
    bytes_per_s = job.bytes_per_s / job.brokers
    job_bytes = one.batches * one.batch_bytes
    of_no_leader = 1 - one.brokers / job.brokers
    return Load(
        connections=producers * (one.brokers + of_no_leader) / job.brokers,
        first_connections=producers / job.brokers,
        producer_ids=producers,
        producer_states=producers * one.partitions * job.replicas / job.brokers,
        bytes_per_s=bytes_per_s,
        requests_per_s=bytes_per_s * one.requests / job_bytes,
        batches_per_s=bytes_per_s * one.batches / job_bytes,
    )


def producer(job: Job, layout: Layout, settings: Settings) -> Producer:
    """Return the work of one producer."""
    together = job.cores if layout is Layout.SHARED else 1
    size, rate = job.task_bytes * together, job.bytes_per_s / job.tasks * together
    one_slice = min(size, settings.slice_bytes or slice_bytes(job.partitions))
    if layout is Layout.NO_KEYS:
        flow = _one_after_another(job, size, rate, one_slice, settings)
    else:
        partitions = float(job.partitions)
        if layout is Layout.BY_PARTITION:
            partitions = max(1.0, job.partitions / job.tasks)
        if job.is_held_back:
            flow = _held_back(partitions, size, one_slice, settings)
        else:
            flow = _side_by_side(partitions, size, rate, one_slice, settings)
    missed = (1 - flow.partitions / job.partitions) ** (job.partitions / job.brokers)
    brokers = job.brokers * (1 - missed)
    # Batches that are due at the same time are sent together: one request per broker, with at most
    # one batch per partition.
    per_request = flow.due / _distinct(brokers, flow.due) if brokers > 1 else flow.due
    most = min(flow.partitions / brokers, settings.request_bytes * flow.batches / size)
    waiting = max(one_slice, rate * (flow.waits_s + job.round_trip_s))
    if job.is_held_back:
        waiting = settings.memory_bytes
    return Producer(
        partitions=flow.partitions,
        brokers=brokers,
        batches=flow.batches,
        batch_bytes=size / flow.batches,
        requests=flow.batches / max(1.0, min(per_request, most)),
        memory_bytes=min(waiting + one_slice, settings.memory_bytes),
    )


class _Flow(NamedTuple):
    """How rows become batches; `due`: batches that are to be sent at the same time."""

    partitions: float
    batches: float
    due: float
    waits_s: float


def _one_after_another(
    job: Job, size: float, rate: float, one_slice: float, settings: Settings
) -> _Flow:
    """Fill a batch of one partition, then one of another; the last of a slice stays open.

    All partitions have a turn before one has a second.
    """
    slices, filled = size / one_slice, one_slice / settings.full_bytes
    lingers_out = one_slice / rate >= settings.linger_s
    batches = slices * math.ceil(filled) if lingers_out else max(1.0, slices * filled)
    partitions = min(float(job.partitions), batches)
    return _Flow(partitions, batches, min(filled, partitions), settings.linger_s)


def _side_by_side(
    partitions: float, size: float, rate: float, one_slice: float, settings: Settings
) -> _Flow:
    """Fill a batch of every partition at once, until they are full or linger.ms is over."""
    full = settings.full_bytes
    # Slices are appended at once, and one that arrives as the linger ends is not in the batch.
    slices = max(1, math.ceil(settings.linger_s * rate / one_slice))
    room = max(one_slice, settings.memory_bytes - one_slice)
    gathered = min(slices * one_slice, size, room) / partitions
    waits_s = min(gathered, full) * partitions / rate
    if gathered < full:
        return _Flow(partitions, size / gathered, partitions, waits_s)
    # The last batch of a slice whose linger ends, or of the task, is not full.
    lingers_out = one_slice / rate >= settings.linger_s
    ends = size / one_slice if lingers_out else 1.0
    batches = partitions * ends * math.ceil(size / partitions / ends / full)
    return _Flow(partitions, batches, min(one_slice / full, partitions), waits_s)


def _held_back(partitions: float, size: float, one_slice: float, settings: Settings) -> _Flow:
    """Divide buffer.memory among the partitions and, for each, the requests in flight.

    The oldest batches are sent until there is room again, with all rows since their predecessors.
    """
    queued = settings.memory_bytes / settings.in_flight
    gathered = min(max(one_slice, queued) / partitions, settings.full_bytes)
    batches = max(partitions, size / gathered)
    return _Flow(partitions, batches, partitions, settings.linger_s)


def _distinct(places: float, draws: float) -> float:
    """Return the mean number of distinct places in this number of draws."""
    return float(places * (1 - (1 - 1 / places) ** draws))

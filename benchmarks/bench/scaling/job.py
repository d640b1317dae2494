"""The job of docs/scaling.md: what its tables are of, and what the limits are taken from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bench.scaling.model import MEGABYTE, Job, Settings

CORES: Final = 4
BROKERS: Final = 100
PARTITIONS: Final = 1000
REPLICAS: Final = 3
TASK_BYTES: Final = 128 * MEGABYTE
# What a task alone writes in a second, which has other work, too; what the brokers take of all.
TASK_BYTES_PER_S: Final = 50 * MEGABYTE
CLUSTER_BYTES_PER_S: Final = 20_000 * MEGABYTE
EXECUTORS: Final = (25, 250, 2500, 10_000)
# What a hosted cluster allows a broker (Amazon MSK, standard brokers with IAM).
MOST_CONNECTIONS: Final = 3000
CONNECTIONS_PER_S: Final = 100
# Examples, since Kafka limits neither: entries of a broker by producer id, partition and replica,
# and what a hosted cluster of the smallest size takes.
MOST_STATES: Final = 10_000
MOST_REQUESTS_PER_S: Final = 15_000
# The sink's delivery.timeout.ms, and two attempts of socket.connection.setup.timeout.ms.
DELIVERY_TIMEOUT_S: Final = 120.0
TWO_ATTEMPTS_S: Final = 20.0
SEED: Final = 1
SETTINGS: Final = Settings()


def job(executors: int) -> Job:
    """Give the document's job with so many executors."""
    return Job(
        executors=executors,
        cores=CORES,
        brokers=BROKERS,
        partitions=PARTITIONS,
        task_bytes=TASK_BYTES,
        task_bytes_per_s=TASK_BYTES_PER_S,
        cluster_bytes_per_s=CLUSTER_BYTES_PER_S,
        replicas=REPLICAS,
    )


def table(headings: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    return "".join(f"{line}\n" for line in [*lines, *(f"| {' | '.join(row)} |" for row in rows)])

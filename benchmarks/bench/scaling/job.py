"""The job of docs/contributing/scaling.md: the parameters of its tables and of its limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bench.scaling.model import MEGABYTE, Job, Settings

CORES: Final = 4
BROKERS: Final = 100
PARTITIONS: Final = 1000
REPLICAS: Final = 3
TASK_BYTES: Final = 128 * MEGABYTE
# The bytes per second of a single task, which has other work, too, and what the brokers accept in
# all.
TASK_BYTES_PER_S: Final = 50 * MEGABYTE
CLUSTER_BYTES_PER_S: Final = 20_000 * MEGABYTE
EXECUTORS: Final = (25, 250, 2500, 10_000)
# The limits per broker of a hosted cluster (Amazon MSK, standard brokers with IAM).
MOST_CONNECTIONS: Final = 3000
CONNECTIONS_PER_S: Final = 100
# Examples, because Kafka limits neither: a broker's entries by producer id, partition and replica,
# and the requests of the smallest hosted cluster.
MOST_STATES: Final = 10_000
MOST_REQUESTS_PER_S: Final = 15_000
# The sink's delivery.timeout.ms, and two attempts of socket.connection.setup.timeout.ms.
DELIVERY_TIMEOUT_S: Final = 120.0
TWO_ATTEMPTS_S: Final = 20.0
SEED: Final = 1
SETTINGS: Final = Settings()


def job(executors: int) -> Job:
    """Return the document's job with this number of executors."""
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

"""The table of scaling.md with the limits, and the numbers of tasks that reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bench.scaling.job import (
    BROKERS,
    CONNECTIONS_PER_S,
    CORES,
    DELIVERY_TIMEOUT_S,
    MOST_CONNECTIONS,
    MOST_REQUESTS_PER_S,
    MOST_STATES,
    SETTINGS,
    TWO_ATTEMPTS_S,
    job,
    table,
)
from bench.scaling.model import Layout, Load, load
from bench.scaling.start import BEGINS, most_clients

# A limit that is not reached with this many tasks is never reached.
_MOST_EXECUTORS: Final = 10_000_000


def limits() -> str:
    """Return the table of the tasks with which each limit is reached."""

    def rows() -> Iterator[Sequence[str]]:
        for name, used, most in _limits():
            yield name, *(_most_tasks(layout, used, most) for layout in Layout)

    return table(["breaks with more tasks at once than", *(each.value for each in Layout)], rows())


def _limits() -> Iterator[tuple[str, Callable[[Load], float], float]]:
    """Yield each limit's name, the load that it applies to, and its value."""
    yield f"{MOST_STATES:,} producer states of a broker", lambda of: of.producer_states, MOST_STATES
    most: float = MOST_CONNECTIONS
    yield f"{most:,} connections to a broker", lambda of: of.connections, most
    for begun, over_s in BEGINS:
        pace = f"at {CONNECTIONS_PER_S}/s, begun {begun}"
        most = most_clients(DELIVERY_TIMEOUT_S, over_s)
        name = f"all connections within {DELIVERY_TIMEOUT_S:.0f} s {pace}"
        yield name, lambda of: of.connections, most
        most = most_clients(TWO_ATTEMPTS_S, over_s)
        name = f"first connection within {TWO_ATTEMPTS_S:.0f} s {pace}"
        yield name, lambda of: of.first_connections, most
    name, most = f"{MOST_REQUESTS_PER_S:,} requests a second to", MOST_REQUESTS_PER_S
    yield f"{name} a broker", lambda of: of.requests_per_s, most
    yield f"{name} all brokers", lambda of: of.requests_per_s * BROKERS, most


def _most_tasks(layout: Layout, used: Callable[[Load], float], most: float) -> str:
    low, high = 0, _MOST_EXECUTORS
    while low < high:
        middle = (low + high + 1) // 2
        if used(load(job(middle), layout, SETTINGS)) <= most:
            low = middle
        else:
            high = middle - 1
    return f"{low * CORES:,}" if low < _MOST_EXECUTORS else "never"

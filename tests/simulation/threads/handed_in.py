"""Replace the system for a run: clock, threads, sockets and random source.

The product's modules import `threading`, `time`, `socket` and `selectors` as modules. During a run,
these names refer to the run's replacements. A module that starts to use one gets it automatically.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest import mock

from simulation.threads.sockets import Network
from simulation.threads.world import SimulatedSignal, World, threads_of
from spark_kafka_sink.client import appender as slice_appender
from spark_kafka_sink.client import assembly, chunk, deadlines, future, unclosed

_EPOCH_S: Final = 1_700_000_000
_NOT_OF_THE_PRODUCER: Final = ("spark", "consumer", "admin")


@contextmanager
def handed_in(world: World, network: Network) -> Iterator[None]:
    """Let producers that are made and used in the block run in a world, with its network."""
    sockets, poller = network.names()
    threads = threads_of(world)

    def start_new_thread(call: object, arguments: tuple[object, ...]) -> None:
        world.spawn("partitioner", lambda: call(*arguments))  # type: ignore[operator] # a function
        world.step("start")

    given: dict[str, Any] = {
        "threading": SimpleNamespace(**threads),
        "_thread": SimpleNamespace(start_new_thread=start_new_thread),
        "time": SimpleNamespace(
            monotonic=lambda: world.now,
            time=lambda: _EPOCH_S + world.now,
            time_ns=lambda: int((_EPOCH_S + world.now) * 1e9),
        ),
        "socket": sockets,
        "selectors": poller,
    }
    chance: dict[str, Any] = {"Random": lambda: Random(world.random.random())}
    with ExitStack() as stack:
        for module in _modules():
            names = {n: given[n] for n in given if isinstance(vars(module).get(n), ModuleType)}
            if names:
                stack.enter_context(mock.patch.multiple(module, **names))
        stack.enter_context(mock.patch.multiple(assembly, **chance))
        stack.enter_context(mock.patch.multiple(slice_appender, **chance))
        # Objects that modules made or imported by name when they were imported.
        stack.enter_context(mock.patch.object(future, "_making_watches", threads["Lock"]()))  # type: ignore[operator] # a function
        new_signal = partial(SimulatedSignal, world)
        stack.enter_context(mock.patch.object(deadlines, "new_signal", new_signal))
        stack.enter_context(mock.patch.object(chunk, "_wall_clock", given["time"].time))
        stack.enter_context(mock.patch.object(unclosed, "_unclosed", {}))
        yield


def _modules() -> list[ModuleType]:
    found = []
    for name, module in list(sys.modules.items()):
        package, *parts = name.split(".")
        if package == "spark_kafka_sink" and not set(parts[:1]) & set(_NOT_OF_THE_PRODUCER):
            found.append(module)
    return found

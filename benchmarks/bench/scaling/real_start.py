"""The start of a large job with real sockets, compared with the simulation.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.scaling.real_start [CLIENTS]``; 1,010 if they are
not given.

A listener with a broker's queue length accepts at a steady pace and answers accepted clients.
Clients start as fast as one process can start them, the simulated ones at one instant and within a
second; their limits and back-offs are the sink's. It prints the seconds after which half of them
have a response, and all.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from random import Random
from typing import Final

from bench.scaling.start import BEGINS
from bench.scaling.start_storm import BACKLOG, DEFAULTS, PAUSE, SETUP, StartStorm

CLIENTS: Final = 1010
ACCEPTS_PER_S: Final = 100
HELLO: Final = b"hello"


def accept(listener: socket.socket) -> None:
    """Accept at the pace, and answer; connections that clients gave up count, too."""
    with ExitStack() as kept:
        while True:
            accepted, _ = listener.accept()
            kept.enter_context(accepted)
            with suppress(OSError):
                accepted.send(HELLO)
            time.sleep(1 / ACCEPTS_PER_S)


async def connect(port: int, random: Random) -> float:
    """Try until a connection is answered; return the time of the response."""
    answer_timeout_s = DEFAULTS.request_timeout_ms / 1000
    not_up = 0
    for failures in itertools.count():
        try:
            opened = asyncio.open_connection("127.0.0.1", port)
            reader, writer = await asyncio.wait_for(opened, SETUP.delay_s(not_up, random))
        except OSError:
            not_up += 1
            await asyncio.sleep(PAUSE.delay_s(failures, random))
            continue
        not_up = 0
        try:
            writer.write(HELLO)
            await asyncio.wait_for(reader.readexactly(len(HELLO)), answer_timeout_s)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            await asyncio.sleep(PAUSE.delay_s(failures, random))
        else:
            return time.monotonic()
    raise AssertionError


async def connect_all(port: int, clients: int) -> list[float]:
    """Start all clients at once; return the seconds until each had its response, in order."""
    random, began = Random(), time.monotonic()
    answered = await asyncio.gather(*(connect(port, random) for _ in range(clients)))
    return sorted(at - began for at in answered)


def main() -> None:
    """Print both."""
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else CLIENTS
    # Two descriptors per connection, and some for abandoned ones.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    threading.Thread(target=accept, args=[listener], daemon=True).start()
    real = asyncio.run(connect_all(listener.getsockname()[1], clients))
    found = {"real sockets": real}
    for begun, over_s in BEGINS:
        begins = [over_s * number / clients for number in range(clients)]
        storm = StartStorm(begins, ACCEPTS_PER_S, seed=1).run()
        found[f"simulated, begun {begun}"] = storm.connected_at
    for name, at in found.items():
        print(f"{name}: half after {at[clients // 2]:.1f} s, all after {at[-1]:.1f} s")


if __name__ == "__main__":
    main()

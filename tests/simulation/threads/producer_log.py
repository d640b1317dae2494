"""ProducerLog: what a producer logs about its end, among it the number of lost rows."""

from __future__ import annotations

import re
from typing import Final

from simulation.threads.ledger import Ledger
from simulation.threads.world import World

_LOST: Final = re.compile(
    r"was closed after \w+: (\d+) record\(s\) \(.+\) were not delivered"
    r"|was not closed and lost (\d+) record\(s\)"
)


class ProducerLog:
    """The logger of `base_producer` and of `io_thread` in a run, also if logging is disabled."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger

    def warning(self, message: str, *arguments: object) -> None:
        """Log a message."""
        self._world.trace("{}", message % arguments)

    def error(self, message: str, *arguments: object) -> None:
        """Log a message, and report lost rows to the ledger."""
        text = message % arguments
        self._world.trace("{}", text)
        found = _LOST.search(text)
        if found is not None:
            self._ledger.logged_lost(int(found[1] or found[2]))

    def exception(self, message: str) -> None:
        """Log that a thread has failed."""
        self._world.trace("{}", message)

"""The start of a large job at one broker, in simulated time: who gets a connection, and when.

Every client is the sink's own `NodeState`: how long an attempt may take, and the pause before the
next one. The broker accepts connections at a steady pace (max.connection.creation.rate, or what a
host allows); those it has not accepted yet stand in its listener's queue, and the system drops what
comes while that is full. The client's system asks again after a second, two, four and so on, as
Linux does, until the attempt is given up. Networks take no time, and nothing else is slow, so that
this is the best that there can be; `real_start` has what real sockets make of it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection_states import NodeState

# The broker's socket.listen.backlog.size.
BACKLOG: Final = 50
_FIRST_REPEAT_S: Final = 1.0
DEFAULTS: Final = ProducerConfig(bootstrap_servers="")
SETUP: Final = ExponentialBackoff.of_ms(
    DEFAULTS.socket_connection_setup_timeout_ms, DEFAULTS.socket_connection_setup_timeout_max_ms
)
PAUSE: Final = ExponentialBackoff.of_ms(
    DEFAULTS.reconnect_backoff_ms, DEFAULTS.reconnect_backoff_max_ms
)


class StartStorm:
    """Clients of one broker, which begin at given times in seconds."""

    def __init__(self, begins: Sequence[float], accepts_per_s: float, seed: int) -> None:
        self._random = Random(seed)
        self._accept_every_s = 1 / accepts_per_s
        self._queue: deque[NodeState] = deque()
        self._accepts_next_at = 0.0
        self._numbers = itertools.count()
        # When, who is first among equals, whose packet, and when it was first sent.
        self._packets: list[tuple[float, int, NodeState, float]] = []
        self._began: dict[NodeState, float] = {}
        self.connected_at: list[float] = []
        self.waits_s: list[float] = []
        self.given_up = 0
        for begin in begins:
            client = NodeState(Node(id=1, host="broker", port=9092))
            self._began[client] = begin
            self._ask(client, begin)

    def run(self) -> StartStorm:
        """Go on until everyone is connected.

        Then `connected_at` has when they were, in order, `waits_s` how long each had waited, in
        seconds, and `given_up` how many attempts had taken too long.
        """
        while self._packets:
            now, _, client, since = heapq.heappop(self._packets)
            self._accept(until=now)
            if now >= client.setup_until:
                self.given_up += 1
                client.lost("it took too long", client.setup_until, PAUSE, self._random)
                self._ask(client, client.not_before)
                continue
            if len(self._queue) < BACKLOG:
                client.connected()
                self._queue.append(client)
                # With nobody before it, it is accepted as it comes.
                self._accepts_next_at = max(self._accepts_next_at, now)
            else:
                repeat_at = since + 2 * (now - since) + _FIRST_REPEAT_S
                due = min(repeat_at, client.setup_until)
                heapq.heappush(self._packets, (due, next(self._numbers), client, since))
        self._accept(until=float("inf"))
        return self

    def _ask(self, client: NodeState, at: float) -> None:
        client.connecting(at, SETUP, self._random)
        heapq.heappush(self._packets, (at, next(self._numbers), client, at))

    def _accept(self, until: float) -> None:
        while self._queue and self._accepts_next_at <= until:
            client = self._queue.popleft()
            client.ready()
            self.connected_at.append(self._accepts_next_at)
            self.waits_s.append(self._accepts_next_at - self._began[client])
            self._accepts_next_at += self._accept_every_s

"""The start of a large job at one broker, in simulated time: when clients are connected.

Every client is the sink's own `NodeState`, which determines the timeout of an attempt and the pause
before the next. The broker accepts connections at a steady pace (max.connection.creation.rate, or
the host's limit); others wait in its listener's queue. The rest is Linux. While the queue has a
free place, every client gets a response and is connected in its own view; the place is for the
client whose next packet arrives first. The others repeat their first request after 0.2, 0.6, 1.4
seconds and so on, until a place is free at that moment or request.timeout.ms is over. A client that
connects while the queue is full gets no response and tries again after 1, 3, 7 seconds and so on,
until the attempt times out. (Since 6.5, Linux first tries four times at intervals of a second.)
`real_start` measures this with real sockets.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.node_state import NodeState

# The broker's socket.listen.backlog.size.
BACKLOG: Final = 50
# Clients that connect within it get a response before any place is taken, because packets are in
# transit, and timers and queues of a busy system process them together.
ANSWERED_AFTER_S: Final = 0.01
_FIRST_REPEAT_S: Final = 1.0
_FIRST_REPEAT_WHEN_UP_S: Final = 0.2
DEFAULTS: Final = ProducerConfig(bootstrap_servers="")
SETUP: Final = ExponentialBackoff.of_ms(
    DEFAULTS.socket_connection_setup_timeout_ms, DEFAULTS.socket_connection_setup_timeout_max_ms
)
PAUSE: Final = ExponentialBackoff.of_ms(
    DEFAULTS.reconnect_backoff_ms, DEFAULTS.reconnect_backoff_max_ms
)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A client that connects, or is connected in its own view, and its time limit."""

    client: NodeState
    since: float
    until: float
    is_up: bool

    def repeat_after(self, now: float) -> float:
        """Return when the system sends an unanswered packet again: after twice the last pause."""
        first = _FIRST_REPEAT_WHEN_UP_S if self.is_up else _FIRST_REPEAT_S
        return min(now + (now - self.since) + first, self.until)


class StartStorm:
    """Clients of one broker, which start at given times in seconds."""

    def __init__(self, begins: Sequence[float], accepts_per_s: float, seed: int) -> None:
        self._random = Random(seed)
        self._accept_every_s = 1 / accepts_per_s
        self._queue: deque[NodeState] = deque()
        self._accepts_next_at = 0.0
        self._numbers = itertools.count()
        # The time, the order of equal times, and the client.
        self._packets: list[tuple[float, int, _Attempt]] = []
        self._began: dict[NodeState, float] = {}
        self.connected_at: list[float] = []
        self.waits_s: list[float] = []
        self.given_up_at: list[float] = []
        for begin in begins:
            client = NodeState(Node(id=1, host="broker", port=9092))
            self._began[client] = begin
            self._ask(client, begin)

    def run(self) -> StartStorm:
        """Run until all clients are connected.

        Then `connected_at` has the times, in order, `waits_s` the wait of each in seconds, and
        `given_up_at` the times of attempts that timed out.
        """
        while self._packets:
            now, _, attempt = heapq.heappop(self._packets)
            self._accept(until=now)
            if now >= attempt.until:
                self._give_up(attempt)
            elif len(self._queue) >= BACKLOG:
                self._send(attempt, attempt.repeat_after(now))
            elif attempt.is_up:
                self._queue.append(attempt.client)
                # With no client before it, it is accepted at once.
                self._accepts_next_at = max(self._accepts_next_at, now)
            else:
                self._believe(attempt.client, now + ANSWERED_AFTER_S)
        self._accept(until=float("inf"))
        return self

    def _ask(self, client: NodeState, at: float) -> None:
        client.connecting(at, SETUP, self._random)
        self._send(_Attempt(client, at, client.setup_until, is_up=False), at)

    def _believe(self, client: NodeState, at: float) -> None:
        client.connected(is_set_up=True)
        until = at + DEFAULTS.request_timeout_ms / 1000
        self._send(_Attempt(client, at, until, is_up=True), at)

    def _give_up(self, attempt: _Attempt) -> None:
        client = attempt.client
        self.given_up_at.append(attempt.until)
        client.disconnected("it took too long", attempt.until, PAUSE, self._random)
        if attempt.is_up:
            client.failed_connects = 0
        self._ask(client, client.retry_at)

    def _send(self, attempt: _Attempt, at: float) -> None:
        heapq.heappush(self._packets, (at, next(self._numbers), attempt))

    def _accept(self, until: float) -> None:
        while self._queue and self._accepts_next_at <= until:
            client = self._queue.popleft()
            client.succeeded()
            self.connected_at.append(self._accepts_next_at)
            self.waits_s.append(self._accepts_next_at - self._began[client])
            self._accepts_next_at += self._accept_every_s

"""The start of a large job at one broker, in simulated time: who gets a connection, and when.

Every client is the sink's own `NodeState`: how long an attempt may take, and the pause before the
next one. The broker accepts connections at a steady pace (max.connection.creation.rate, or what a
host allows); those it has not accepted yet stand in its listener's queue. The rest is Linux. While
the queue has a place, everyone who asks is answered, and believes to be connected; the place is for
whose next packet comes first. The others send their first request again after 0.2 seconds, 0.6, 1.4
and so on, for a place that is free just then, until request.timeout.ms is over. Who asks while the
queue is full has no answer and asks again after a second, three, seven and so on, until the attempt
is given up. (Since 6.5, Linux asks four times at intervals of a second first.) `real_start` has
what real sockets make of it.
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
# Whoever asks within it has an answer before any place is taken: what is on its way, and what the
# timers and queues of a busy system let come together.
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
    """A client that asks for a connection, or that believes that it has one, and until when."""

    client: NodeState
    since: float
    until: float
    is_up: bool

    def repeat_after(self, now: float) -> float:
        """Give when the system sends again what has had no answer: after twice as long a pause."""
        first = _FIRST_REPEAT_WHEN_UP_S if self.is_up else _FIRST_REPEAT_S
        return min(now + (now - self.since) + first, self.until)


class StartStorm:
    """Clients of one broker, which begin at given times in seconds."""

    def __init__(self, begins: Sequence[float], accepts_per_s: float, seed: int) -> None:
        self._random = Random(seed)
        self._accept_every_s = 1 / accepts_per_s
        self._queue: deque[NodeState] = deque()
        self._accepts_next_at = 0.0
        self._numbers = itertools.count()
        # When it comes, who is first among equals, and whose packet it is.
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
        """Go on until everyone is connected.

        Then `connected_at` has when they were, in order, `waits_s` how long each had waited, in
        seconds, and `given_up_at` when attempts had taken too long.
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
                # With nobody before it, it is accepted as it comes.
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

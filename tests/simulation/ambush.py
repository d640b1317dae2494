"""Faults for the next requests of group offsets, which are too few to be hit by random faults.

The request or its response is lost, or the group coordinator moves while it processes the request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from simulation.controller import Controller, Reply, Session
from simulation.coordinator_log import OFFSETS_LOG
from spark_kafka_sink.wire.transaction_messages import (
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
)

_OFFSETS: Final = (AddOffsetsToTxnRequest, TxnOffsetCommitRequest)


class Ambush:
    """Waits for requests. armed: the faults of the next requests, "lose" or "move" for each."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        self.armed: deque[str] = deque()

    def awaits(self, request: Any) -> bool:  # noqa: ANN401 - any request type
        """Whether a request gets a fault."""
        return bool(self.armed) and isinstance(request, _OFFSETS)

    def strike(
        self, session: Session, handle: Callable[[Reply], None], reply: Reply, name: str
    ) -> None:
        """Apply the fault.

        `handle` processes the request and takes the receiver of the response.
        """
        kind = self.armed.popleft()
        if kind == "move":
            delay = self._cluster.random.uniform(0, 0.004)
            self._cluster.scheduler.after(delay, self._move)
            handle(reply)
        else:
            self._lose(session, handle, name)

    def _move(self) -> None:
        truth = self._cluster.truth[OFFSETS_LOG]
        others = sorted(truth.in_sync - {truth.leader})
        self._cluster.elect(OFFSETS_LOG, self._cluster.random.choice(others) if others else None)

    def _lose(self, session: Session, handle: Callable[[Reply], None], name: str) -> None:
        """Break or silence the connection, before or after the request."""
        random, who = self._cluster.random, f"broker {session.broker.id}"
        is_handled, breaks = random.random() < 0.7, random.random() < 0.5
        what = f"the answer to {name}" if is_handled else name
        end = "breaks" if breaks else "falls silent"
        self._cluster.scheduler.trace(who, "loses {}: the connection {}", what, end)
        if is_handled:
            handle(_nobody)
        if breaks:
            session.hang_up()


def _nobody(response: Any) -> None:  # noqa: ANN401 - any response type
    """Drop a response."""

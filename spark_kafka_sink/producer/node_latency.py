"""Which nodes take no data although there is some for them: partitioner.availability.timeout.ms.

Owns, per node, when there last was data to send and when it could last be sent. The built-in
partitioner leaves the partitions of a node alone whose data has waited for longer than the timeout
(KIP-794, RecordAccumulator.updateNodeLatencyStats). A node for which nothing waits is no such node:
where its data expired or went elsewhere, only new rows can show whether it takes data again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True)
class _NodeTimes:
    data_at: float
    sendable_at: float


class NodeLatencies:
    """Times are seconds of the producer's clock; a timeout of 0 turns it off."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._nodes: dict[int, _NodeTimes] = {}

    def update(self, node_id: int, now: float, *, can_send: bool) -> None:
        """Note that there is data for a node, and whether it can be sent."""
        if not self._timeout_s:
            return
        times = self._nodes.setdefault(node_id, _NodeTimes(now, now))
        times.data_at = now
        if can_send:
            times.sendable_at = now

    @property
    def has_slow(self) -> bool:
        """Whether any node's data has waited for longer than the timeout."""
        return any(map(self.is_slow, self._nodes))

    def keep(self, node_ids: Collection[int]) -> None:
        """Forget the nodes that are not among those for which data waits."""
        self._nodes = {node: times for node, times in self._nodes.items() if node in node_ids}

    def is_slow(self, node_id: int) -> bool:
        """Whether a node's data has waited for longer than the timeout."""
        times = self._nodes.get(node_id)
        return times is not None and times.data_at - times.sendable_at > self._timeout_s

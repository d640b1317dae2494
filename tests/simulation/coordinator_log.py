"""The logs of coordinators: the leader of such a log is the coordinator, once it has read the log.

They are partitions like any other, so coordinators fail, move and lag as leaders do. One partition
each is enough here: for transactions, and for group offsets.
"""

from __future__ import annotations

from typing import Final

from simulation.controller import NO_LEADER, Broker, Controller, Reply
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.transactions.requests import GROUP
from spark_kafka_sink.wire.transaction_messages import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

TXN_LOG: Final = TopicPartition("__transaction_state", 0)
OFFSETS_LOG: Final = TopicPartition("__consumer_offsets", 0)
LOAD_IN_PROGRESS: Final = 14


def find_coordinator(broker: Broker, request: FindCoordinatorRequest, reply: Reply) -> None:
    """Send the coordinator that a broker knows."""
    leader = broker.known[OFFSETS_LOG if request.key_type == GROUP else TXN_LOG].leader
    found = leader != NO_LEADER and broker.transient_error == codes.NONE
    code = codes.NONE if found else codes.COORDINATOR_NOT_AVAILABLE
    node, host, port = (leader, f"b{leader}", 9000 + leader) if found else (-1, "", -1)
    named = Coordinator(key=request.key, node_id=node, host=host, port=port, error_code=code)
    reply(
        FindCoordinatorResponse(
            error_code=code, node_id=node, host=host, port=port, coordinators=[named]
        )
    )


class CoordinatorLog:
    """One of the logs, with the check that a broker can be its coordinator."""

    def __init__(self, cluster: Controller, tp: TopicPartition) -> None:
        self._cluster = cluster
        self._tp = tp
        self._loaded_at: dict[int, float] = {}

    def refusal(self, broker: Broker) -> int:
        """Return the error of a broker that cannot be the coordinator, NONE if it can."""
        truth = self._cluster.truth[self._tp]
        if truth.leader != broker.id or broker.known[self._tp].epoch != truth.epoch:
            return codes.NOT_COORDINATOR
        if not self.is_loaded:
            return LOAD_IN_PROGRESS
        if broker.transient_error != codes.NONE and self._cluster.random.random() < 0.5:
            return codes.COORDINATOR_NOT_AVAILABLE
        return codes.NONE

    @property
    def is_loaded(self) -> bool:
        """Whether there is a coordinator that has read its log."""
        truth, now = self._cluster.truth[self._tp], self._cluster.scheduler.now
        leader = self._cluster.brokers.get(truth.leader)
        if leader is None or not leader.is_alive or leader.paused_until > now:
            return False
        longest = 0.2 if truth.epoch else 0.0
        ready_at = self._loaded_at.setdefault(
            truth.epoch, now + self._cluster.random.uniform(0, longest)
        )
        return now >= ready_at

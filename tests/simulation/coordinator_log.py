"""The logs of coordinators: the leader of such a log is the coordinator, once it has read the log.

They are partitions like any other, so coordinators fail, move and lag as leaders do. Group offsets
have one partition, and transactions as many as the cluster's shape says.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

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


def transaction_logs(count: int) -> list[TopicPartition]:
    """Return the logs of transactions."""
    return [TXN_LOG._replace(partition=number) for number in range(count)]


def log_of(transactional_id: str, count: int) -> TopicPartition:
    """Return the log, one of `count`, that has the transactions of an id."""
    return TXN_LOG._replace(partition=crc32(transactional_id.encode()) % count)


def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, reply: Reply, *, transaction_logs: int
) -> None:
    """Send the coordinator that a broker knows."""
    is_group = request.key_type == GROUP
    log = OFFSETS_LOG if is_group else log_of(request.key, transaction_logs)
    leader = broker.known[log].leader
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
        self.tp = tp
        self._loaded_at: dict[int, float] = {}

    def refusal(self, broker: Broker) -> int:
        """Return the error of a broker that cannot be the coordinator, NONE if it can."""
        if not self.is_led_by(broker):
            return codes.NOT_COORDINATOR
        if not self.is_loaded:
            return LOAD_IN_PROGRESS
        if broker.transient_error != codes.NONE and self._cluster.random.random() < 0.5:
            return codes.COORDINATOR_NOT_AVAILABLE
        return codes.NONE

    def is_led_by(self, broker: Broker) -> bool:
        """Whether a broker leads the log and knows that."""
        truth = self._cluster.truth[self.tp]
        return truth.leader == broker.id and broker.known[self.tp].epoch == truth.epoch

    @property
    def is_loaded(self) -> bool:
        """Whether there is a coordinator that has read its log."""
        truth, now = self._cluster.truth[self.tp], self._cluster.scheduler.now
        leader = self._cluster.brokers.get(truth.leader)
        if leader is None or not leader.is_alive or leader.paused_until > now:
            return False
        longest = 0.2 if truth.epoch else 0.0
        ready_at = self._loaded_at.setdefault(
            truth.epoch, now + self._cluster.random.uniform(0, longest)
        )
        return now >= ready_at

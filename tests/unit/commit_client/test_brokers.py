"""The brokers that commits use: after a call was interrupted, and shared look-ups of leaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.pure.interrupts import InterruptError, interrupt_first

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit_client.brokers import Brokers
from spark_kafka_sink.commit_client.generators import NoReplyError, UnderWay
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.request_client import RequestFuture
from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.messages import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID
from spark_kafka_sink.wire.transaction_messages import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)


class Cluster:
    """Answers at once that node 1 exists, and that node 2 is the coordinator."""

    def __init__(self) -> None:
        self.nodes: Mapping[int, Node] = {}

    def set_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Remember the brokers."""
        self.nodes = dict(nodes)

    def send(self, node_id: int | None, message: Any, *_: object) -> RequestFuture:  # noqa: ANN401 - a request
        """Answer a request."""
        future = RequestFuture(ClientRequest(node_id=node_id, message=message), 0.0)
        if isinstance(message, MetadataRequest):
            broker = MetadataResponseBroker(node_id=1, host="a", port=1)
            future.complete(MetadataResponse(brokers=[broker], topics=[]))
        elif isinstance(message, FindCoordinatorRequest):
            found = Coordinator(
                key=message.key, node_id=2, host="b", port=2, error_code=0, error_message=None
            )
            future.complete(FindCoordinatorResponse(coordinators=[found]))
        return future


class SlowCluster(Cluster):
    """Answers a Metadata request when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.look_ups: list[RequestFuture] = []

    def send(self, node_id: int | None, message: Any, *_: object) -> RequestFuture:  # noqa: ANN401 - a request
        """Take a request."""
        self.look_ups.append(RequestFuture(ClientRequest(node_id=node_id, message=message), 0.0))
        return self.look_ups[-1]

    def answer(self, number: int, leader: int) -> None:
        """Answer a Metadata request: `leader` leads both partitions of the topic."""
        brokers = [MetadataResponseBroker(node_id=n, host="a", port=n) for n in (1, 2)]
        partitions = [
            MetadataResponsePartition(
                error_code=0, partition_index=n, leader_id=leader, replica_nodes=[], isr_nodes=[]
            )
            for n in (0, 1)
        ]
        topic = MetadataResponseTopic(
            error_code=0, name="t", topic_id=ZERO_UUID, partitions=partitions
        )
        self.look_ups[number].complete(MetadataResponse(brokers=brokers, topics=[topic]))


def leaders(brokers: Brokers) -> tuple[UnderWay[int], UnderWay[int]]:
    """Return the look-ups of the leaders of two partitions, which wait for a response."""
    one, other = (UnderWay(brokers.leader(TopicPartition("t", number))) for number in (0, 1))
    assert (one.resume(0.0), other.resume(0.0)) == (None, None)
    return one, other


def test_a_look_up_that_was_sent_before_a_failure_does_not_find_the_leader_after_it() -> None:
    cluster = SlowCluster()
    brokers = Brokers(cluster)  # type: ignore[arg-type]  # all of it that is used here
    one, other = leaders(brokers)
    brokers.forget(TopicPartition("t", 1))
    cluster.answer(0, leader=1)
    assert (one.resume(0.0), other.resume(0.0)) == (1, None)
    cluster.answer(1, leader=2)
    assert other.resume(0.0) == 2
    assert len(cluster.look_ups) == 2


def test_a_shared_look_up_goes_on_without_the_one_who_began_it() -> None:
    cluster = SlowCluster()
    _, other = leaders(Brokers(cluster))  # type: ignore[arg-type]  # all of it that is used here
    cluster.answer(0, leader=2)
    assert other.resume(0.0) == 2
    assert len(cluster.look_ups) == 1


def test_a_shared_look_up_that_fails_fails_for_all_and_the_next_is_sent() -> None:
    cluster = SlowCluster()
    brokers = Brokers(cluster)  # type: ignore[arg-type]  # all of it that is used here
    waiting = leaders(brokers)
    cluster.look_ups[0].fail(codes.NETWORK_EXCEPTION, "connection lost", 1)
    for each in waiting:
        with pytest.raises(NoReplyError, match="connection lost"):
            each.resume(0.0)
    one, other = leaders(brokers)
    cluster.answer(1, leader=2)
    assert (one.resume(0.0), other.resume(0.0)) == (2, 2)


@pytest.mark.parametrize("calls_before", [0, 1], ids=["all brokers", "coordinator"])
def test_the_client_learns_the_brokers_also_after_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    cluster = Cluster()
    brokers = Brokers(cluster)  # type: ignore[arg-type]  # all of it that is used here
    if calls_before:
        UnderWay(brokers.metadata([])).resume(0.0)
    interrupt_first(monkeypatch, cluster, "set_nodes")
    with pytest.raises(InterruptError):
        UnderWay(brokers._coordinator("id")).resume(0.0)
    assert UnderWay(brokers._coordinator("id")).resume(0.0) == 2
    assert cluster.nodes.keys() == {1, 2}

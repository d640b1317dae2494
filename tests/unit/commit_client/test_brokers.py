"""The brokers that commits use, after a call was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.pure.interrupts import InterruptError, interrupt_first

from spark_kafka_sink.commit_client.brokers import Brokers
from spark_kafka_sink.commit_client.generators import UnderWay
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.request_client import RequestFuture
from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.messages import MetadataRequest, MetadataResponse, MetadataResponseBroker
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

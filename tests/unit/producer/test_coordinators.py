"""What is known of coordinators: where they are, where they were, and what they can do."""

from __future__ import annotations

from support.transaction_answers import versions_of

from spark_kafka_sink.model import Node
from spark_kafka_sink.producer.coordinators import Coordinators
from spark_kafka_sink.producer.transaction_requests import CoordinatorKey

TRANSACTION, GROUP = CoordinatorKey(1, "tid"), CoordinatorKey(0, "group")
NODES = {number: Node(id=number, host="h", port=number) for number in (1, 2, 3)}


def test_connections_are_kept_to_the_last_coordinator_of_each_key() -> None:
    known = Coordinators()
    known.learn(TRANSACTION, NODES[1])
    known.learn(GROUP, NODES[2])
    assert known.nodes == {1: NODES[1], 2: NODES[2]}
    known.node_down(1)
    known.forget(GROUP)
    assert (known.node_id(TRANSACTION), known.node_id(GROUP)) == (None, None)
    assert known.nodes == {1: NODES[1], 2: NODES[2]}, "nothing newer is known"
    known.learn(TRANSACTION, NODES[3])
    known.learn(GROUP, NODES[3])
    assert known.nodes == {3: NODES[3]}


def test_to_begin_anew_leaves_no_broker_to_keep() -> None:
    known = Coordinators()
    known.learn(TRANSACTION, NODES[1])
    known.node_down(1)
    known.learn(GROUP, NODES[2])
    known.forget_all()
    assert (known.nodes, known.node_id(GROUP)) == ({}, None)


def test_a_coordinator_that_cannot_be_reached_still_raises_epochs() -> None:
    known = Coordinators()
    known.node_ready(1, versions_of(2))
    known.learn(TRANSACTION, NODES[1])
    known.node_down(1)
    assert known.raises_epoch(TRANSACTION)

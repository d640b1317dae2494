"""The known coordinators: their nodes, previous nodes, and versions."""

from __future__ import annotations

import pytest
from support.pure.transaction_answers import versions_of

from spark_kafka_sink.model import Node
from spark_kafka_sink.producer.transactions.queue import Coordinators
from spark_kafka_sink.producer.transactions.requests import CoordinatorKey
from spark_kafka_sink.wire.versions import NodeApiVersions

TRANSACTION, GROUP = CoordinatorKey(1, "tid"), CoordinatorKey(0, "group")
NODES = {number: Node(id=number, host="h", port=number) for number in (1, 2, 3)}
OLD = versions_of(0, init_producer_id=2)


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


# -- who raises epochs ----------------------------------------------------------------------------


def known_to_raise() -> Coordinators:
    """Return coordinators that are connected and bump epochs."""
    known = Coordinators()
    known.learn(TRANSACTION, NODES[1])
    assert not known.bumps_epoch(TRANSACTION), "it has not said so yet"
    known.node_ready(1, versions_of(1))
    assert known.bumps_epoch(TRANSACTION)
    return known


def test_what_the_coordinator_raised_counts_until_the_next_one_is_connected() -> None:
    known = known_to_raise()
    known.node_down(1)
    assert known.bumps_epoch(TRANSACTION), "it cannot be reached"
    known.forget_all()
    assert known.bumps_epoch(TRANSACTION), "it is looked up again"
    known.learn(TRANSACTION, NODES[3])
    known.node_ready(2, OLD)
    assert known.bumps_epoch(TRANSACTION), "the next one has not said anything yet"
    known.node_ready(3, OLD)
    assert not known.bumps_epoch(TRANSACTION)


@pytest.mark.parametrize(("versions", "raises"), [(OLD, False), (versions_of(1), True)])
def test_a_coordinator_that_is_connected_already_counts_once_it_is_found(
    versions: NodeApiVersions, *, raises: bool
) -> None:
    known = Coordinators() if raises else known_to_raise()
    known.node_ready(3, versions)
    known.learn(TRANSACTION, NODES[3])
    assert known.bumps_epoch(TRANSACTION) is raises


def test_what_a_broker_could_before_its_connection_broke_does_not_count() -> None:
    known = known_to_raise()
    known.node_ready(3, OLD)
    known.node_down(3)
    known.learn(TRANSACTION, NODES[3])
    assert known.bumps_epoch(TRANSACTION), "it may have been upgraded meanwhile"


def test_the_coordinator_of_a_group_raises_no_epoch() -> None:
    known = Coordinators()
    known.node_ready(2, versions_of(1))
    known.learn(GROUP, NODES[2])
    assert not known.bumps_epoch(TRANSACTION)

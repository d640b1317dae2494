"""Brokers that die, freeze, restart and hand over under a steady load: every row once, in order.

The cluster has three nodes, each broker and controller, so that harm to a node is harm to the
quorum too. FAULT_ROUNDS says how many disasters the random test has (make test-faults), FAULT_SEED
repeats a run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from random import Random, SystemRandom

import pytest
from conftest import NewTopic
from support.fault_proxy import PRODUCE, Fault, FaultProxy, Kind
from support.kafka_cluster import KafkaCluster
from support.readers import read_with_confluent, read_with_kafka_python
from support.steady_load import (
    SteadyLoad,
    leader_of,
    move_leaders,
    steady_load,
    wait_for_leader_but,
    wait_for_replicas,
)

pytestmark = pytest.mark.kafka

_PARTITIONS = 6
_ROUNDS = int(os.environ.get("FAULT_ROUNDS", "1"))
_SEED = int(os.environ.get("FAULT_SEED", SystemRandom().randrange(10**9)))


def kill(kafka: KafkaCluster, topic: str, victim: int, load: SteadyLoad) -> None:
    """SIGKILL a node; the others go on; it comes back."""
    kafka.kill(victim)
    try:
        load.wait_for_progress()
    finally:
        kafka.start_node(victim)
    wait_for_replicas(kafka.bootstrap, topic)
    load.wait_for_progress()


def freeze(kafka: KafkaCluster, topic: str, victim: int, load: SteadyLoad) -> None:
    """SIGSTOP a node until the others have taken over; then it wakes with what it was sent."""
    os.kill(kafka.pid(victim), signal.SIGSTOP)
    try:
        load.wait_for_progress()
    finally:
        os.kill(kafka.pid(victim), signal.SIGCONT)
    wait_for_replicas(kafka.bootstrap, topic)
    load.wait_for_progress()


def restart(kafka: KafkaCluster, topic: str, victim: int, load: SteadyLoad) -> None:
    """End a node as for an upgrade; it comes back."""
    kafka.terminate(victim)
    try:
        load.wait_for_progress()
    finally:
        kafka.start_node(victim)
    wait_for_replicas(kafka.bootstrap, topic)


def elect(kafka: KafkaCluster, topic: str, victim: int, load: SteadyLoad) -> None:
    """Move every partition's leader to another node."""
    before = leader_of(kafka.bootstrap, topic)
    move_leaders(kafka.bootstrap, topic)
    # A node that has just woken up may still tell of the old leader.
    wait_for_leader_but(before, kafka.bootstrap, topic)
    load.wait_for_progress()


DISASTERS: list[Callable[[KafkaCluster, str, int, SteadyLoad], None]] = [
    kill,
    freeze,
    restart,
    elect,
]


@pytest.mark.parametrize("disaster", [kill, freeze], ids=["kill", "freeze"])
def test_the_leader_of_a_partition_goes_and_comes_back(
    frail_kafka: KafkaCluster,
    new_topic: NewTopic,
    disaster: Callable[[KafkaCluster, str, int, SteadyLoad], None],
) -> None:
    topic = new_topic(_PARTITIONS)
    with steady_load(frail_kafka.bootstrap, topic, _PARTITIONS) as load:
        disaster(frail_kafka, topic, leader_of(frail_kafka.bootstrap, topic), load)
    load.rows.check(read_with_confluent(frail_kafka.bootstrap, topic))


@pytest.mark.long
def test_every_node_is_restarted_one_after_another(
    frail_kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(_PARTITIONS)
    with steady_load(frail_kafka.bootstrap, topic, _PARTITIONS) as load:
        for node in frail_kafka.ports:
            restart(frail_kafka, topic, node, load)
    load.rows.check(read_with_kafka_python(frail_kafka.bootstrap, topic))


def test_leaders_move_again_and_again(frail_kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(_PARTITIONS)
    with steady_load(frail_kafka.bootstrap, topic, _PARTITIONS) as load:
        for _ in range(5):
            elect(frail_kafka, topic, 0, load)
    load.rows.check(read_with_confluent(frail_kafka.bootstrap, topic))


def test_random_disasters_behind_a_network_with_random_faults(
    frail_kafka: KafkaCluster, proxies: dict[int, FaultProxy], new_topic: NewTopic
) -> None:
    print(f"FAULT_SEED={_SEED}")
    random = Random(_SEED)
    topic = new_topic(_PARTITIONS)
    bootstrap = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies.values())
    with steady_load(bootstrap, topic, _PARTITIONS) as load:
        for _ in range(_ROUNDS):
            for proxy in proxies.values():
                proxy.clear()
                proxy.inject(
                    Fault(
                        kind=random.choice(list(Kind)),
                        nth=random.randint(1, 300),
                        times=random.randint(1, 3),
                        delay_s=random.random(),
                    )
                )
            disaster, victim = random.choice(DISASTERS), random.choice(list(proxies))
            print(disaster.__name__, victim)
            disaster(frail_kafka, topic, victim, load)
        for proxy in proxies.values():
            proxy.clear()
    assert all(proxy.requests[PRODUCE] for proxy in proxies.values())
    load.rows.check(read_with_confluent(frail_kafka.bootstrap, topic))

"""The clusters of exactly once: both levels of transactions, and clients for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeAlias

import pytest
from conftest import NewTopic, topic_maker
from support.brokers.kafka_cluster import KafkaCluster

from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.task_producer import TaskProducer

NewClient: TypeAlias = Callable[[], CommitClient]
NewTaskProducer: TypeAlias = Callable[[], TaskProducer]
LOG: str = "__pykafka_commits"


@pytest.fixture(scope="session", params=["kafka", "old_kafka"], ids=["level 2", "level 1"])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """Kafka 4 with transaction.version 2, and Kafka 3.9, which does not have the feature."""
    found: KafkaCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def new_topic(cluster: KafkaCluster) -> NewTopic:
    """Makes a topic in the cluster of the test."""
    return topic_maker(cluster)


@pytest.fixture
def config(cluster: KafkaCluster) -> ProducerConfig:
    """The configuration of all clients."""
    return producer_config({"bootstrap.servers": cluster.bootstrap, "linger.ms": "5"})


@pytest.fixture
def log(new_topic: NewTopic) -> str:
    """The topic of a commit log that no other test uses."""
    return new_topic(1)


@pytest.fixture
def new_client(config: ProducerConfig, log: str) -> Iterator[NewClient]:
    """Makes clients, each with connections of its own, as another process has them."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(CommitClient(config, log))


@pytest.fixture
def client(new_client: NewClient) -> CommitClient:
    """The client of the driver."""
    return new_client()


@pytest.fixture
def new_producer(config: ProducerConfig) -> Iterator[NewTaskProducer]:
    """Makes producers of tasks."""
    made: list[TaskProducer] = []

    def make() -> TaskProducer:
        made.append(TaskProducer(config, allow_auto_create_topics=False))
        return made[-1]

    yield make
    for producer in made:
        producer.close(0)

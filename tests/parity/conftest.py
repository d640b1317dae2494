"""The sinks that every test here runs with: this one, and Spark's own on the Spark that has it."""

from __future__ import annotations

import pytest
from conftest import need_kafka, topic_maker
from support.brokers import fetch_kafka
from support.brokers.kafka_cluster import KafkaCluster
from support.spark.peer import OURS, THEIRS, Sink

_BOTH = [
    OURS,
    pytest.param(
        THEIRS,
        marks=pytest.mark.long(reason="what Spark's own sink does changes with Spark alone"),
    ),
]


@pytest.fixture(params=_BOTH if fetch_kafka.takes_jvm_sink() else [OURS])
def sink(request: pytest.FixtureRequest) -> Sink:
    """Each of the sinks."""
    if request.param == THEIRS:
        need_kafka(fetch_kafka.missing_jvm_sink())
    kafka: KafkaCluster = request.getfixturevalue("kafka")
    return Sink(request.param, kafka.bootstrap)


@pytest.fixture(scope="session")
def untouched(kafka: KafkaCluster) -> str:
    """A topic for rejected writes, in which there must never be a record."""
    return topic_maker(kafka)(3)

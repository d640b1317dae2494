"""The sinks that every test here runs with: this one, and Spark's own on the Spark that has it."""

from __future__ import annotations

import os

import pytest
from conftest import topic_maker
from support import fetch_kafka
from support.kafka_cluster import KafkaCluster
from support.peer import OURS, THEIRS, Sink


@pytest.fixture(params=[OURS, THEIRS] if fetch_kafka.takes_jvm_sink() else [OURS])
def sink(request: pytest.FixtureRequest) -> Sink:
    """Each of the sinks."""
    problem = fetch_kafka.missing_jvm_sink()
    if request.param == THEIRS and problem is not None:
        if os.environ.get("REQUIRE_KAFKA") == "1":
            pytest.fail(problem)
        pytest.skip(problem)
    kafka: KafkaCluster = request.getfixturevalue("kafka")
    return Sink(request.param, kafka.bootstrap)


@pytest.fixture(scope="session")
def untouched(kafka: KafkaCluster) -> str:
    """A topic for what is refused: nothing may ever be in it."""
    return topic_maker(kafka)(3)

"""What the driver asks before a job takes max.block.ms at most, to the moment, whoever answers how.

Time passes in waits alone, and a network that the test makes up answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest
from support.timed_waits import Clock
from support.unreachable import NOBODY, TOPIC

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.admin import KafkaAdmin, NewTopic
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.consumer.network_client import ConsumerNetworkClient, RequestFuture
from spark_kafka_sink.errors import TimeoutException
from spark_kafka_sink.wire.admin_messages import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.messages import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
    Request,
    Response,
)

MAX_BLOCK_S = 1.0


class Network:
    """Stands for ConsumerNetworkClient: every request is answered after a while, or never."""

    def __init__(self, clock: Clock, answer_s: float | None) -> None:
        self._clock = clock
        self._answer_s = answer_s

    def send(self, node_id: int | None, message: Request, *, min_version: int = 0) -> RequestFuture:
        """Take a request; it is answered when its time comes."""
        request = ClientRequest(node_id=node_id, message=message, min_version=min_version)
        future = RequestFuture(request, float("inf"))
        self._clock.after(self._answer_s, lambda: future.complete(_answer(message)))
        return future

    def poll(self, timeout_s: float) -> None:
        """Let time pass up to the next answer, or to the end of the time limit."""
        happen = self._clock.next_until(self._clock.now + timeout_s)
        if happen is not None:
            happen()

    def set_nodes(self, nodes: object) -> None:
        """Do nothing."""

    def last_errors(self) -> str:
        """Nothing went wrong."""
        return ""

    def close(self) -> None:
        """Do nothing."""


def _answer(message: Request) -> Response:
    """Know no topic, and make none."""
    if isinstance(message, CreateTopicsRequest):
        error = CreatableTopicResult(name=TOPIC, error_code=codes.REQUEST_TIMED_OUT)
        return CreateTopicsResponse(topics=[error])
    unknown = MetadataResponseTopic(
        error_code=codes.UNKNOWN_TOPIC_OR_PARTITION, name=TOPIC, partitions=[]
    )
    broker = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=1)
    return MetadataResponse(brokers=[broker], topics=[unknown])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the admin goes by; to sleep is to let its time pass."""
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", sleep)
    return clock


@pytest.mark.parametrize("new", [None, NewTopic(partitions=1, replication=1)])
@pytest.mark.parametrize("answer_s", [None, 0.0, 0.07, 0.4, 0.999, 5.0])
def test_a_topic_that_does_not_come_takes_max_block_ms(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, answer_s: float | None, new: NewTopic | None
) -> None:
    def network(_: ProducerConfig, __: Callable[[], float], ___: Random) -> Network:
        return Network(clock, answer_s)

    monkeypatch.setattr(ConsumerNetworkClient, "of", network)
    began = clock.now
    config = producer_config({"bootstrap.servers": NOBODY, "max.block.ms": MAX_BLOCK_S * 1000})
    with KafkaAdmin(config) as asked, pytest.raises(TimeoutException, match=r"max\.block\.ms=1000"):
        asked.topics([TOPIC], new)
    assert clock.now - began == pytest.approx(MAX_BLOCK_S)

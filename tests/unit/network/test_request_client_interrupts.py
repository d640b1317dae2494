"""Ctrl-C in a call of TopicReader or KafkaAdmin: the next call does not wait for what was lost."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from support.brokers.mock_cluster import MockCluster
from support.pure.interrupts import InterruptError
from support.pure.unreachable import TOPIC

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.network.selector import Received, Selector, SelectorEvent

# Less than request.timeout.ms, after which a response that was lost would be requested again.
WAITS_MS = 10_000


def made(kind: type, bootstrap: str) -> Any:  # noqa: ANN401 - one of the two
    """Make one."""
    configs: dict[str, object] = {"bootstrap.servers": bootstrap}
    if kind is TopicReader:
        return TopicReader(configs | {"default.api.timeout.ms": WAITS_MS})
    return KafkaAdmin(producer_config(configs | {"max.block.ms": WAITS_MS}))


def use(thing: TopicReader | KafkaAdmin) -> int:
    """Return the number of rows, or of partitions."""
    if isinstance(thing, TopicReader):
        return sum(batch.num_rows for batch in thing.read(TOPIC))
    return thing.topics([TOPIC])[TOPIC].partitions


@pytest.mark.parametrize("kind", [TopicReader, KafkaAdmin])
def test_a_call_after_an_interrupt_does_not_wait_for_what_was_lost(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll, received = Selector.poll, count(1)
    lost_at = 0

    def lose(selector: Selector, timeout_s: float) -> list[SelectorEvent]:
        events = poll(selector, timeout_s)
        if any(isinstance(event, Received) for event in events) and next(received) == lost_at:
            raise InterruptError
        return events

    with MockCluster() as cluster:
        cluster.create_topic(TOPIC)
        with KafkaProducer({"bootstrap.servers": cluster.bootstrap}) as producer:
            producer.send(TOPIC, b"v")
        monkeypatch.setattr(Selector, "poll", lose)
        while True:
            lost_at, received = lost_at + 1, count(1)
            with made(kind, cluster.bootstrap) as thing:
                try:
                    assert use(thing) == 1
                    break
                except InterruptError:
                    assert use(thing) == 1
    assert lost_at > 2, "no response was lost"


def test_other_iterators_of_a_reader_go_on_after_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poll, is_armed = Selector.poll, False

    def lose(selector: Selector, timeout_s: float) -> list[SelectorEvent]:
        events = poll(selector, timeout_s)
        if is_armed and any(isinstance(event, Received) for event in events):
            raise InterruptError
        return events

    with MockCluster() as cluster:
        cluster.create_topic(TOPIC)
        with KafkaProducer({"bootstrap.servers": cluster.bootstrap}) as producer:
            for _ in range(2):
                producer.send(TOPIC, bytes(1000))
                producer.flush(10)
        monkeypatch.setattr(Selector, "poll", lose)
        configs = {
            "bootstrap.servers": cluster.bootstrap,
            "default.api.timeout.ms": WAITS_MS,
            "max.partition.fetch.bytes": 500,
        }
        with TopicReader(configs) as reader:
            rows = reader.read(TOPIC)
            assert next(rows).column("offset").to_pylist() == [0]
            is_armed = True
            with pytest.raises(InterruptError):
                next(reader.read(TOPIC))
            is_armed = False
            assert [o for batch in rows for o in batch.column("offset").to_pylist()] == [1]

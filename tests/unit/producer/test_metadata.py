"""What is known of the cluster, and when to ask again."""

from __future__ import annotations

from random import Random
from uuid import UUID

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import InvalidTopicException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.wire.messages import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

BACKOFF_S = 0.1


def metadata() -> ClusterMetadata:
    """Make metadata that goes stale after 300 s and backs off about 0.1 s."""
    return ClusterMetadata(300.0, ExponentialBackoff(BACKOFF_S, 1.0), Random(1))


def answer(*topics: MetadataResponseTopic, brokers: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    """Make an answer."""
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"host-{n}", port=9092) for n in brokers],
        topics=list(topics),
    )


def topic(
    name: str = "t", *leaders: int, code: int = 0, epoch: int = 0, number: int = 1
) -> MetadataResponseTopic:
    """Describe a topic by its partitions' leaders."""
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=UUID(int=number),
        partitions=[
            MetadataResponsePartition(
                error_code=0,
                partition_index=index,
                leader_id=leader,
                leader_epoch=epoch,
                replica_nodes=[],
                isr_nodes=[],
            )
            for index, leader in enumerate(leaders)
        ],
    )


def leaders_of(known: ClusterMetadata, name: str = "t") -> list[int | None]:
    """Give the leaders' ids as the sender would find them."""
    found = known.topic(name)
    assert found is not None
    nodes = (known.leader(TopicPartition(name, p)) for p in range(len(found.leaders)))
    return [None if node is None else node.id for node in nodes]


def test_nothing_is_asked_before_a_topic_is_of_interest() -> None:
    known = metadata()
    assert known.request(0.0) is None
    assert known.next_update_at() == float("inf")


def test_a_new_topic_is_asked_for_at_once_and_only_once() -> None:
    known = metadata()
    known.track("t")
    request = known.request(0.0)
    assert request is not None
    assert request.topics is not None
    assert [t.name for t in request.topics] == ["t"]
    assert known.request(1.0) is None, "asked again while a request is under way"


def test_what_is_known_is_asked_again_after_max_age() -> None:
    known = metadata()
    known.track("t")
    known.request(0.0)
    known.update(answer(topic("t", 1, 2)), 0.0)
    assert leaders_of(known) == [1, 2]
    assert known.request(299.0) is None
    assert known.request(300.0) is not None


def test_stale_metadata_is_asked_again_after_the_back_off() -> None:
    known = metadata()
    known.track("t")
    known.request(0.0)
    known.update(answer(topic("t", 1)), 0.0)
    known.request_update()
    assert known.request(BACKOFF_S / 2) is None
    assert known.request(BACKOFF_S * 2) is not None


def test_an_incomplete_answer_is_asked_again_and_what_is_there_is_used() -> None:
    known = metadata()
    known.track("t")
    known.request(0.0)
    known.update(answer(topic("t", 1, -1)), 0.0)
    assert leaders_of(known) == [1, None]
    found = known.topic("t")
    assert found is not None
    assert found.available == [0]
    assert known.request(10.0) is not None


def test_failures_back_off_further_each_time() -> None:
    known = metadata()
    known.track("t")
    waits, now = [], 0.0
    for _ in range(6):
        assert known.request(now) is not None
        known.failed(now)
        waits.append(known.next_update_at() - now)
        now = known.next_update_at()
    assert waits[0] < waits[1] < waits[2] < waits[3]
    assert max(waits) <= 1.2


def test_an_answer_without_brokers_counts_as_none() -> None:
    known = metadata()
    known.track("t")
    known.request(0.0)
    known.update(answer(brokers=()), 0.0)
    assert known.version == 0
    assert known.request(10.0) is not None


def test_an_older_leader_epoch_does_not_undo_a_newer_one_unless_the_topic_is_new() -> None:
    known = metadata()
    known.track("t")
    known.update(answer(topic("t", 2, epoch=7)), 0.0)
    known.update(answer(topic("t", 1, epoch=6)), 1.0)
    assert leaders_of(known) == [2]
    known.update(answer(topic("t", 1, epoch=0, number=2)), 2.0)
    assert leaders_of(known) == [1]


def test_a_topic_that_may_yet_come_is_waited_for_and_one_that_cannot_is_an_error() -> None:
    known = metadata()
    known.track("t")
    known.request(0.0)
    known.update(answer(topic("t", code=3)), 0.0)
    assert known.topic("t") is None
    assert known.request(10.0) is not None
    known.update(answer(topic("t", code=17)), 10.0)
    assert isinstance(known.topic_error("t"), InvalidTopicException)
    known.update(answer(topic("t", 1)), 20.0)
    assert known.topic_error("t") is None


def test_a_leader_that_is_not_among_the_brokers_is_no_leader() -> None:
    known = metadata()
    known.track("t")
    known.update(answer(topic("t", 9)), 0.0)
    assert leaders_of(known) == [None]


def test_partition_numbers_beyond_reason_are_left_out() -> None:
    known = metadata()
    wild = topic("t", 1, 2)
    wild.partitions[1].partition_index = 2**31 - 1
    known.update(answer(wild), 0.0)
    assert leaders_of(known) == [1, None]

"""Offsets are asked of the partitions' leaders, until each has one."""

from __future__ import annotations

from random import Random

import pytest
from support.pure.reading_cluster import BACKOFF, TOPIC, lead, metadata_of

from spark_kafka_sink.consumer.list_offsets import OffsetsLookup, OffsetsQuery
from spark_kafka_sink.errors import TopicAuthorizationException, UnsupportedVersionException
from spark_kafka_sink.network.request_client import RequestFuture
from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.fetch_messages import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

NOT_LEADER, UNAUTHORIZED, OFFSET_NOT_AVAILABLE = 6, 29, 78


class World:
    """A lookup of the latest offsets, and the cluster it asks."""

    def __init__(self, leaders: list[int]) -> None:
        self.now = 0.0
        self.metadata = metadata_of(leaders)
        self.lookup = OffsetsLookup(
            OffsetsQuery(TOPIC, list(range(len(leaders))), -1, 1),
            metadata=self.metadata,
            retry_backoff=BACKOFF,
            random=Random(1),
        )

    def sent(self) -> dict[int, RequestFuture]:
        """Send the requests that are due, and return them by node."""
        sent = {}
        for node_id, message in self.lookup.requests(self.now):
            sent[node_id] = RequestFuture(ClientRequest(node_id=node_id, message=message), 30.0)
            self.lookup.sent(node_id, sent[node_id])
        return sent

    def answer(self, future: RequestFuture, code: int = 0, left_out: int | None = None) -> None:
        """Answer for the requested partitions: the offset is ten times the partition."""
        message = future.request.message
        assert isinstance(message, ListOffsetsRequest)
        answers = [
            ListOffsetsPartitionResponse(
                partition_index=p.partition_index, error_code=code, offset=10 * p.partition_index
            )
            for p in message.topics[0].partitions
            if p.partition_index != left_out
        ]
        topic = ListOffsetsTopicResponse(name=TOPIC, partitions=answers)
        future.complete(ListOffsetsResponse(topics=[topic]))
        self.lookup.collect(self.now)


def test_of_many_partitions_without_an_offset_ten_are_named() -> None:
    world = World([1] * 1000)
    assert world.lookup.missing() == "partitions 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 990 more"


def test_each_leader_is_asked_once_for_its_partitions() -> None:
    world = World([1, 2, 1])
    sent = world.sent()
    message = sent[1].request.message
    assert isinstance(message, ListOffsetsRequest)
    assert message.isolation_level == 1
    asked = [(p.partition_index, p.timestamp) for p in message.topics[0].partitions]
    assert asked == [(0, -1), (2, -1)]
    assert world.sent() == {}
    world.answer(sent[1])
    assert not world.lookup.is_done
    assert world.lookup.missing() == "partitions 1"
    world.answer(sent[2])
    assert world.lookup.is_done
    assert world.lookup.found == {0: 0, 1: 10, 2: 20}


@pytest.mark.parametrize("code", [NOT_LEADER, OFFSET_NOT_AVAILABLE])
def test_a_partition_that_moved_is_asked_for_again_where_it_is(code: int) -> None:
    world = World([1, 1])
    world.answer(world.sent()[1], code)
    assert world.sent() == {}
    assert "ListOffsets to node 1" in world.lookup.missing()
    assert world.metadata.next_update_at() < float("inf")
    lead(world.metadata, [1, 2], world.now, epoch=1)
    assert 0.07 < world.lookup.next_due_at(world.now) < 0.13
    world.now = world.lookup.next_due_at(world.now)
    sent = world.sent()
    assert sent.keys() == {1, 2}
    for future in sent.values():
        world.answer(future)
    assert world.lookup.found == {0: 0, 1: 10}


def test_a_partition_without_a_leader_waits_for_one() -> None:
    world = World([1, -1])
    world.answer(world.sent()[1])
    assert world.lookup.missing() == "partitions 1 (no leader is known)"
    lead(world.metadata, [1, 2], world.now, epoch=1)
    world.now += 1
    assert world.sent().keys() == {2}


def test_a_partition_that_the_response_leaves_out_is_asked_for_again_after_a_wait() -> None:
    world = World([1, 1])
    world.answer(world.sent()[1], left_out=1)
    assert world.lookup.missing() == "partitions 1 (node 1 left partition 1 out of its response)"
    assert world.sent() == {}, "the broker is asked without a pause"
    world.now = world.lookup.next_due_at(world.now)
    world.answer(world.sent()[1])
    assert world.lookup.found == {0: 0, 1: 10}


def test_a_partition_that_was_not_asked_for_is_ignored() -> None:
    world = World([1, 2])
    sent = world.sent()
    other = ListOffsetsPartitionResponse(partition_index=7, error_code=0, offset=70)
    topic = ListOffsetsTopicResponse(name=TOPIC, partitions=[other])
    sent[2].complete(ListOffsetsResponse(topics=[topic]))
    world.answer(sent[1])
    assert not world.lookup.is_done
    assert world.lookup.found == {0: 0}


def test_a_lost_request_is_made_again_and_a_hopeless_one_is_raised() -> None:
    world = World([1])
    world.sent()[1].fail(13, "lost", 1)
    world.lookup.collect(world.now)
    world.now += 1
    future = world.sent()[1]
    future.fail(35, "too old", 1)
    with pytest.raises(UnsupportedVersionException, match="ListOffsets to node 1 failed"):
        world.lookup.collect(world.now)


def test_what_no_retry_helps_is_raised_with_its_partition() -> None:
    world = World([1])
    future = world.sent()[1]
    with pytest.raises(
        TopicAuthorizationException, match=r"t-0 cannot be read: ListOffsets .* grant READ"
    ) as refused:
        world.answer(future, UNAUTHORIZED)
    assert (
        f"--allow-principal User:alice --operation READ --operation DESCRIBE --topic {TOPIC}"
        in (str(refused.value))
    )
    assert (refused.value.topic, refused.value.partition, refused.value.node_id) == (TOPIC, 0, 1)

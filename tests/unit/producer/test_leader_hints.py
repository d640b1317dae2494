"""A Produce response with the new leader (KIP-951): it is used at once, and once without a wait."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest
from support.pure.pure_producer import TOPIC, PureProducer, Settings, batches

from spark_kafka_sink.errors import UnsupportedVersionException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, NodeReady, RequestFailed
from spark_kafka_sink.wire.messages import (
    LeaderIdAndEpoch,
    MetadataResponse,
    MetadataResponseBroker,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.wire.versions import NodeApiVersions

NOT_LEADER, FENCED, CORRUPT, UNSUPPORTED_VERSION = 6, 74, 2, 35
FULL = [b"x" * 400, b"y" * 400]


@dataclass
class Cluster(PureProducer):
    """Brokers whose Metadata answers carry this leader epoch and topic id, 0 for none."""

    epoch: int = 5
    topic_number: int = 0

    def metadata_response(self) -> MetadataResponse:
        """Describe the cluster with epochs, and with every broker that there is."""
        response = super().metadata_response()
        response.brokers += [MetadataResponseBroker(node_id=9, host="127.0.0.1", port=9)]
        response.topics[0].topic_id = UUID(int=self.topic_number)
        for partition in response.topics[0].partitions:
            partition.leader_epoch = self.epoch
        return response

    def refuse(
        self,
        request: ClientRequest,
        code: int,
        leader: tuple[int, int] | None,
        *nodes: int,
        topic_number: int = 0,
    ) -> None:
        """Reject all partitions, with a leader (id, epoch) and the addresses of nodes.

        topic_number: the topic's id in the request, 0 if it has the name.
        """
        assert request.node_id is not None
        hint = None if leader is None else LeaderIdAndEpoch(
            leader_id=leader[0], leader_epoch=leader[1]
        )  # fmt: skip
        answers = [
            PartitionProduceResponse(
                index=b.topic_partition.partition, error_code=code, current_leader=hint
            )
            for b in batches(request)
        ]
        topic = TopicProduceResponse(
            name="" if topic_number else TOPIC,
            topic_id=UUID(int=topic_number),
            partition_responses=answers,
        )
        response = ProduceResponse(
            responses=[topic],
            node_endpoints=[NodeEndpoint(node_id=n, host="127.0.0.1", port=n) for n in nodes],
        )
        self.sender.handle(Answered(request, request.node_id, response, 10), self.now)


def leader_of(producer: Cluster) -> int | None:
    """Return the id of the assumed leader."""
    found = producer.metadata.leader(TopicPartition(TOPIC, 0))
    return None if found is None else found.id


def one_request(*, topic_number: int = 0) -> tuple[Cluster, ClientRequest]:
    """Return a producer with one batch in flight to node 1, long after the last metadata."""
    producer = Cluster([1], Settings(retry_backoff=0.5), topic_number=topic_number)
    producer.append(0, FULL)
    producer.ready(1)
    (request,) = producer.poll()
    producer.now = 100.0
    return producer, request


@pytest.mark.parametrize("code", [NOT_LEADER, FENCED])
def test_a_named_leader_is_connected_to_and_sent_to_without_a_pause(code: int) -> None:
    producer, request = one_request()
    producer.refuse(request, code, (8, 6), 8)
    work = producer.sender.poll(producer.now)
    assert work.connect == {8}
    assert [n.port for n in producer.metadata.nodes.values() if n.id == 8] == [8]
    producer.sender.handle(NodeReady(8, NodeApiVersions({})), producer.now)
    (drained,) = producer.sender.poll(producer.now).drained
    assert (drained.node_id, drained.batches[0].attempts) == (8, 1)


@pytest.mark.parametrize("node_id", [-1, -2])
def test_a_named_leader_with_the_id_of_a_bootstrap_address_is_ignored(node_id: int) -> None:
    producer, request = one_request()
    producer.refuse(request, NOT_LEADER, (node_id, 6), node_id)
    assert leader_of(producer) == 1
    producer, request = one_request()
    producer.refuse(request, NOT_LEADER, (9, 6), 9, node_id)
    assert leader_of(producer) == 9
    assert node_id not in producer.metadata.nodes


def test_a_broker_that_lags_behind_does_not_undo_the_named_leader() -> None:
    producer, request = one_request()
    producer.refuse(request, NOT_LEADER, (9, 6), 9)
    assert producer.poll() == [], "which asked for metadata, and learned the old leader"
    assert producer.sender.poll(producer.now).connect == {9}


def test_the_pause_is_left_out_once_for_each_change_of_the_leader() -> None:
    producer, request = one_request()
    producer.refuse(request, NOT_LEADER, (9, 6), 9)
    producer.sender.handle(NodeReady(9, NodeApiVersions({})), producer.now)
    (again,) = producer.poll()
    producer.refuse(again, NOT_LEADER, (9, 6), 9)
    assert producer.poll() == [], "the leader is the same as at the attempt before"
    producer.now += 2.0
    assert len(producer.poll()) == 1


@pytest.mark.parametrize(
    ("code", "leader", "nodes"),
    [
        (NOT_LEADER, None, ()),  # the broker does not know
        (NOT_LEADER, (-1, -1), ()),
        (NOT_LEADER, (8, 6), ()),  # no address
        (NOT_LEADER, (9, 5), (9,)),  # not newer
        (CORRUPT, (9, 6), (9,)),  # another error has no leader
    ],
)
def test_without_a_newer_leader_the_pause_is_kept(
    code: int, leader: tuple[int, int] | None, nodes: tuple[int, ...]
) -> None:
    producer, request = one_request()
    producer.refuse(request, code, leader, *nodes)
    assert producer.poll() == []
    producer.now += 2.0
    (again,) = producer.poll()
    assert again.node_id == 1


@pytest.mark.parametrize("by_name", [True, False])
def test_a_leader_of_a_topic_that_was_made_anew_meanwhile_is_left_out(*, by_name: bool) -> None:
    producer, request = one_request(topic_number=7)
    producer.topic_number, producer.epoch = 8, 0
    producer.metadata.request_update()
    assert producer.poll() == []
    producer.refuse(request, NOT_LEADER, (9, 50), 9, topic_number=0 if by_name else 7)
    assert leader_of(producer) == 1
    producer.leaders, producer.epoch = [2], 1
    producer.now += 10.0
    producer.metadata.request_update()
    producer.poll()
    assert leader_of(producer) == 2, "an epoch of the topic that is gone made this one older"


@pytest.mark.parametrize("by_name", [True, False])
def test_a_leader_of_a_topic_with_an_id_is_taken(*, by_name: bool) -> None:
    producer, request = one_request(topic_number=7)
    producer.refuse(request, NOT_LEADER, (9, 6), 9, topic_number=0 if by_name else 7)
    assert leader_of(producer) == 9


def test_metadata_that_tells_of_a_new_leader_ends_the_pause_too() -> None:
    producer, request = one_request()
    producer.leaders, producer.epoch = [2], 6
    producer.sender.handle(NodeReady(2, NodeApiVersions({})), producer.now)
    producer.refuse(request, NOT_LEADER, None)
    (again,) = producer.poll()
    assert again.node_id == 2


def test_a_leader_that_moved_while_the_answer_was_awaited_is_not_waited_for() -> None:
    producer, request = one_request()
    producer.leaders, producer.epoch = [2], 6
    producer.metadata.request_update()
    assert producer.poll() == []
    producer.sender.handle(NodeReady(2, NodeApiVersions({})), producer.now)
    producer.lose(request)
    (again,) = producer.poll()
    assert again.node_id == 2


def test_brokers_without_epochs_are_paused_for() -> None:
    producer = Cluster([1], Settings(retry_backoff=0.5), epoch=-1)
    producer.append(0, FULL)
    producer.ready(1)
    (request,) = producer.poll()
    producer.now = 100.0
    producer.refuse(request, NOT_LEADER, None)
    assert producer.poll() == []


def test_a_topic_that_was_idle_is_asked_for_again_while_batches_wait_for_its_leader() -> None:
    producer = Cluster([-1])
    producer.append(0, FULL)
    producer.ready(1)
    producer.metadata._topics.clear()  # as after metadata.max.idle.ms
    producer.leaders = [1]
    producer.now = 10.0
    assert producer.poll() == []
    assert producer.sender.poll(producer.now).requests, "nothing was asked for"


@pytest.mark.parametrize(("version", "leader"), [(8, 1), (9, 9), (13, 9)])
def test_epochs_are_relied_on_from_the_version_on_that_makes_them_reliable(
    version: int, leader: int
) -> None:
    producer = Cluster([9])
    producer.ready(1)
    producer.leaders, producer.epoch = [1], 4
    producer.now = 400.0
    (asked,) = producer.sender.poll(producer.now).requests
    producer.sender.handle(Answered(asked, 1, producer.metadata_response(), version), producer.now)
    assert leader_of(producer) == leader


def test_brokers_that_speak_no_metadata_of_this_client_end_a_wait_with_that() -> None:
    producer = Cluster([1])
    (asked,) = producer.sender.poll(producer.now).requests
    failed = RequestFailed(asked, 1, UNSUPPORTED_VERSION, "it accepts 0 to 1")
    producer.sender.handle(failed, producer.now)
    error = producer.metadata.take_error(TOPIC)
    assert isinstance(error, UnsupportedVersionException)
    assert "it accepts 0 to 1" in str(error)
    producer.now = 10.0
    (asked,) = producer.sender.poll(producer.now).requests
    producer.sender.handle(RequestFailed(asked, None, 7, "no broker"), producer.now)
    assert producer.metadata.take_error(TOPIC) is None

"""The brokers of a cluster: find the broker for a request, and send the request once.

`Brokers` looks up the coordinators of transactional ids and the leaders of partitions. It remembers
them until `forget` is called, or until they do not respond. It never retries a request.

The leaders of all partitions of a topic are looked up by one Metadata request, because its response
lists all of them. Generators that need a leader of this topic meanwhile wait for this response.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit_client.generators import (
    NoReplyError,
    Steps,
    left_out,
    refused,
)
from spark_kafka_sink.errors import AuthenticationException, error_code
from spark_kafka_sink.model import Node, TopicPartition, nodes_of
from spark_kafka_sink.network.request_client import ConsumerNetworkClient, RequestFuture
from spark_kafka_sink.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    Request,
    Response,
)
from spark_kafka_sink.wire.transaction_messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_sink.wire.versions import NodeApiVersions

_TRANSACTION: Final = 1

# A transactional id, which has a coordinator, or a partition, which has a leader.
Subject: TypeAlias = str | TopicPartition

_R = TypeVar("_R", bound=Response)


class _LeaderLookUp:
    """A Metadata request for the leaders of a topic, and the content of its response.

    forgotten: the partitions whose leaders were forgotten after the request was sent. The response
    may contain their old leaders, so it is not used for them. is_read: whether the response has
    arrived. Then `error` is the error code of the topic, `leaders` contains the node ids of leaders
    by partition number, and `leaderless` contains the partitions without a leader.
    """

    def __init__(self, future: RequestFuture) -> None:
        self.future = future
        self.forgotten: set[int] = set()
        self.is_read = False
        self.error = codes.UNKNOWN_TOPIC_OR_PARTITION
        self.leaders: dict[int, int] = {}
        self.leaderless: set[int] = set()

    def read(self, response: MetadataResponse, nodes: Collection[int]) -> None:
        """Read the response. nodes: the ids of the brokers in it."""
        for topic in response.topics:
            self.error = topic.error_code
            for each in topic.partitions:
                if each.leader_id >= 0 and each.leader_id in nodes:
                    self.leaders[each.partition_index] = each.leader_id
                else:
                    self.leaderless.add(each.partition_index)
        self.is_read = True

    def leader(self, partition: TopicPartition) -> int:
        """Return the node id of a partition's leader. Raise NoReplyError if there is none."""
        what = _look_up_of(partition)
        if self.error != codes.NONE:
            raise refused(self.error, what)
        if partition.partition in self.leaderless:
            raise refused(codes.LEADER_NOT_AVAILABLE, what)
        if partition.partition not in self.leaders:
            raise refused(codes.UNKNOWN_TOPIC_OR_PARTITION, what)
        return self.leaders[partition.partition]


class Brokers:
    """The brokers of one cluster."""

    def __init__(self, client: ConsumerNetworkClient) -> None:
        self._client = client
        self._nodes: dict[int, Node] = {}
        self._answered: set[int] = set()
        self._coordinators: dict[str, int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        # The look-ups of leaders that are under way, by topic.
        self._look_ups: dict[str, _LeaderLookUp] = {}
        # The partitions that have no leader in the last response about their topic. Each is removed
        # when a generator has used this result, and by `forget`.
        self._leaderless: dict[str, set[int]] = {}

    @property
    def nodes(self) -> dict[int, Node]:
        """The known brokers by node id."""
        return self._nodes

    def versions(self) -> dict[int, NodeApiVersions]:
        """Return the API versions of all brokers that have responded, by node id."""
        return {node_id: self._client.versions(node_id) for node_id in sorted(self._answered)}

    # -- one request ------------------------------------------------------------------------------

    def send(self, node_ids: Iterable[int], message: Request) -> dict[int, RequestFuture]:
        """Send a request to each node. Return futures by node id; pass each to `response_to`."""
        return {node_id: self._client.send(node_id, message) for node_id in node_ids}

    def ask(
        self,
        node_id: int | None,
        message: Request,
        kind: type[_R],
        max_version: int | None = None,
        min_version: int = 0,
        send_by: float = float("inf"),
    ) -> Steps[_R]:
        """Send one request to a node and return its response, an instance of `kind`.

        node_id: the node, or None for any node. If it does not respond, it is forgotten as the
        coordinator and the leader of all subjects. send_by: as in `ConsumerNetworkClient.send`.
        Raise NoReplyError if there is no response, and AuthenticationException if the client and a
        broker cannot authenticate each other.
        """
        future = self._client.send(node_id, message, max_version, min_version, send_by)
        try:
            return (yield from self.response_to(future, kind))
        except NoReplyError as error:
            if error.is_unanswered and node_id is not None:
                self._forget_node(node_id)
            raise

    def ask_coordinator(
        self,
        transactional_id: str,
        message: Request,
        kind: type[_R],
        version: int | None = None,
        send_by: float = float("inf"),
    ) -> Steps[tuple[int, _R]]:
        """Send one request to a transaction coordinator. Return its node id and the response.

        version: the only API version that may be sent, or None for any version. send_by: as in
        `ConsumerNetworkClient.send`. Raise the exceptions of `ask`.
        """
        node_id = yield from self._coordinator(transactional_id)
        response = yield from self.ask(node_id, message, kind, version, version or 0, send_by)
        return node_id, response

    def response_to(self, future: RequestFuture, kind: type[_R]) -> Steps[_R]:
        """Wait for the response to a request. Raise the exceptions of `ask`."""
        while not future.is_done:
            yield future
        error = future.error
        if isinstance(error, AuthenticationException):
            raise error
        if error is not None:
            is_unanswered = error_code(error.code).retriable
            raise NoReplyError(error.code, str(error), is_unanswered=is_unanswered)
        if future.node_id is not None:
            self._answered.add(future.node_id)
        response = future.response
        if not isinstance(response, kind):
            message = f"expected {kind.__name__}, found {response!r}"
            raise TypeError(message)
        return response

    # -- which broker to ask ----------------------------------------------------------------------

    def metadata(self, topics: Sequence[str]) -> Steps[MetadataResponse]:
        """Return the metadata of topics, and remember the brokers in the response.

        Raise the exceptions of `ask`, and NoReplyError if the response lists no brokers.
        """
        response = yield from self.ask(None, _metadata_of(topics), MetadataResponse)
        self._take_nodes(response)
        return response

    def _take_nodes(self, response: MetadataResponse) -> None:
        nodes = nodes_of(response.brokers)
        if not nodes:
            reason = "Metadata lists no brokers: the broker that was asked is still starting"
            raise NoReplyError(codes.REQUEST_TIMED_OUT, reason, is_unanswered=True)
        self._set_nodes(nodes)

    def _set_nodes(self, nodes: dict[int, Node]) -> None:
        """Pass the brokers to the network client, and then remember them.

        Because of this order, an interrupt between the two steps does no harm: the network client
        still knows all brokers in `nodes`.
        """
        self._client.set_nodes(nodes)
        self._nodes = nodes

    def _coordinator(self, transactional_id: str) -> Steps[int]:
        known = self._coordinators.get(transactional_id)
        if known is not None:
            return known
        if not self._nodes:
            yield from self.metadata([])
        request = FindCoordinatorRequest(
            key=transactional_id, key_type=_TRANSACTION, coordinator_keys=[transactional_id]
        )
        response = yield from self.ask(None, request, FindCoordinatorResponse)
        found = response.coordinators[0] if response.coordinators else response
        code = found.error_code
        if code == codes.NONE and not (found.host and found.node_id >= 0):
            code = codes.COORDINATOR_NOT_AVAILABLE
        if code != codes.NONE:
            what = f"the look-up of the coordinator of {transactional_id}"
            raise refused(code, what, found.error_message)
        node = Node(id=found.node_id, host=found.host or "", port=found.port)
        if self._nodes.get(node.id) != node:
            self._set_nodes({**self._nodes, node.id: node})
        self._coordinators[transactional_id] = node.id
        return node.id

    def leader(self, partition: TopicPartition) -> Steps[int]:
        """Return the node id of a partition's leader. Raise NoReplyError if it is not found."""
        topic, number = partition
        while (known := self._leaders.get(partition)) is None:
            leaderless = self._leaderless.get(topic, set())
            if number in leaderless:
                leaderless.discard(number)
                raise refused(codes.LEADER_NOT_AVAILABLE, _look_up_of(partition))
            look_up = self._shared_look_up(topic)
            yield from self._finish(topic, look_up)
            if number not in look_up.forgotten:
                return look_up.leader(partition)
        return known

    def _shared_look_up(self, topic: str) -> _LeaderLookUp:
        """Return the look-up of a topic's leaders that is under way, or begin one."""
        look_up = self._look_ups.get(topic)
        # A look-up that failed is done, too.
        if look_up is None or look_up.future.is_done:
            look_up = _LeaderLookUp(self._client.send(None, _metadata_of([topic])))
            self._look_ups[topic] = look_up
        return look_up

    def _finish(self, topic: str, look_up: _LeaderLookUp) -> Steps[None]:
        """Wait for the response to a look-up. The first generator that gets it remembers it."""
        response = yield from self.response_to(look_up.future, MetadataResponse)
        if look_up.is_read:
            return
        self._take_nodes(response)
        look_up.read(response, self._nodes.keys())
        for number, node_id in look_up.leaders.items():
            if number not in look_up.forgotten:
                self._leaders[TopicPartition(topic, number)] = node_id
        self._leaderless[topic] = look_up.leaderless - look_up.forgotten
        if self._look_ups.get(topic) is look_up:
            del self._look_ups[topic]

    def drop_look_ups(self) -> None:
        """Forget the look-ups of leaders under way, and which partitions have no leader."""
        self._look_ups.clear()
        self._leaderless.clear()

    def topic_id(self, topic: str, node_id: int) -> Steps[UUID]:
        """Return the id of a topic, from the metadata of one node. Raise the exceptions of `ask`.

        A topic that is deleted and created again gets a new id.
        """
        response = yield from self.ask(node_id, _metadata_of([topic]), MetadataResponse)
        for found in response.topics:
            if found.error_code != codes.NONE:
                raise refused(found.error_code, f"the look-up of topic {topic}")
            return found.topic_id
        raise left_out("Metadata", node_id)

    def node_of(self, subject: Subject) -> Steps[int]:
        """Return the coordinator or the leader. Raise NoReplyError if it is not found."""
        if isinstance(subject, TopicPartition):
            return (yield from self.leader(subject))
        return (yield from self._coordinator(subject))

    def known_node_of(self, subject: Subject) -> int | None:
        """Return the coordinator or the leader, or None if it has to be looked up."""
        if isinstance(subject, TopicPartition):
            return self._leaders.get(subject)
        return self._coordinators.get(subject)

    def forget(self, subject: Subject) -> None:
        """Forget the coordinator or the leader, so that the next request looks it up again."""
        if isinstance(subject, TopicPartition):
            self._leaders.pop(subject, None)
            self._leaderless.get(subject.topic, set()).discard(subject.partition)
            look_up = self._look_ups.get(subject.topic)
            if look_up is not None:
                look_up.forgotten.add(subject.partition)
        else:
            self._coordinators.pop(subject, None)

    def _forget_node(self, node_id: int) -> None:
        self._coordinators = {id_: at for id_, at in self._coordinators.items() if at != node_id}
        self._leaders = {each: at for each, at in self._leaders.items() if at != node_id}


def _look_up_of(partition: TopicPartition) -> str:
    return f"the look-up of the leader of {partition}"


def _metadata_of(topics: Sequence[str]) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
    )

"""The brokers of a cluster: find the broker for a request, and send the request once.

`Brokers` looks up the coordinators of transactional ids and the leaders of partitions. It remembers
them until `forget` is called, or until they do not respond. It never retries a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class Brokers:
    """The brokers of one cluster."""

    def __init__(self, client: ConsumerNetworkClient) -> None:
        self._client = client
        self._nodes: dict[int, Node] = {}
        self._answered: set[int] = set()
        self._coordinators: dict[str, int] = {}
        self._leaders: dict[TopicPartition, int] = {}

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
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        response = yield from self.ask(None, request, MetadataResponse)
        nodes = nodes_of(response.brokers)
        if not nodes:
            reason = "Metadata lists no brokers: the broker that was asked is still starting"
            raise NoReplyError(codes.REQUEST_TIMED_OUT, reason, is_unanswered=True)
        self._set_nodes(nodes)
        return response

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
        known = self._leaders.get(partition)
        if known is not None:
            return known
        response = yield from self.metadata([partition.topic])
        what = f"the look-up of the leader of {partition}"
        for topic in response.topics:
            if topic.error_code != codes.NONE:
                raise refused(topic.error_code, what)
            for each in topic.partitions:
                if each.leader_id >= 0 and each.leader_id in self._nodes:
                    at = TopicPartition(topic.name or "", each.partition_index)
                    self._leaders[at] = each.leader_id
                elif each.partition_index == partition.partition:
                    raise refused(codes.LEADER_NOT_AVAILABLE, what)
        if partition not in self._leaders:
            raise refused(codes.UNKNOWN_TOPIC_OR_PARTITION, what)
        return self._leaders[partition]

    def topic_id(self, topic: str, node_id: int) -> Steps[UUID]:
        """Return the id of a topic, from the metadata of one node. Raise the exceptions of `ask`.

        A topic that is deleted and created again gets a new id.
        """
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        response = yield from self.ask(node_id, request, MetadataResponse)
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
        else:
            self._coordinators.pop(subject, None)

    def _forget_node(self, node_id: int) -> None:
        self._coordinators = {id_: at for id_, at in self._coordinators.items() if at != node_id}
        self._leaders = {each: at for each, at in self._leaders.items() if at != node_id}

"""ClusterMetadata: the brokers, and who leads which partition, as last told.

Owns what is known, which topics are of interest, and when to ask again. It never asks: the sender
turns `request` into a network request and hands the answer to `update`.

Asking again is due when something turned out to be stale (`request_update`), or after
metadata.max.age.ms; never sooner than retry.backoff.ms after the attempt before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from spark_kafka_sink import error_codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.error_codes import error_code
from spark_kafka_sink.errors import ADVICE, ApiException, api_exception
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID

_NO_NODE = -1


@dataclass(slots=True, kw_only=True)
class TopicMetadata:
    """One topic: its id, and leader and leader epoch by partition (leader -1: none known)."""

    topic_id: UUID
    leaders: list[int]
    leader_epochs: list[int]
    available: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.available = [p for p, leader in enumerate(self.leaders) if leader != _NO_NODE]


class ClusterMetadata:
    """What is known of the cluster. Times are seconds of the producer's clock."""

    def __init__(self, max_age_s: float, retry_backoff: ExponentialBackoff, random: Random) -> None:
        self.nodes: Mapping[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = _NO_NODE
        self.version = 0
        self._max_age_s = max_age_s
        self._backoff = retry_backoff
        self._random = random
        self._tracked: dict[str, None] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._errors: dict[str, int] = {}
        self._update_wanted = False
        self._in_progress = False
        self._failed_attempts = 0
        self._not_before = 0.0
        self._refreshed_at: float | None = None

    def track(self, topic: str) -> None:
        """Have `topic` described by the next request, which is wanted if it is new."""
        if topic not in self._tracked:
            self._tracked[topic] = None
            self.request_update()

    def request_update(self) -> None:
        """Want an update soon: something turned out to be stale."""
        self._update_wanted = True

    def topic(self, name: str) -> TopicMetadata | None:
        """Give what is known of a topic, None if nothing."""
        return self._topics.get(name)

    def topic_error(self, name: str) -> ApiException | None:
        """Give the error that the last answer gave for a topic, None if there was none."""
        code = self._errors.get(name)
        if code is None:
            return None
        row = error_code(code)
        message = f"topic {name}: {row.name} ({code})"
        if code in ADVICE:
            message += f"; {ADVICE[code]}"
        return api_exception(code, message, topic=name, api="Metadata")

    def leader(self, topic_partition: TopicPartition) -> Node | None:
        """Give the node that leads a partition, None if that is not known."""
        topic = self._topics.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.leaders):
            return None
        return self.nodes.get(topic.leaders[topic_partition.partition])

    def age_s(self, now: float) -> float:
        """Give how long ago the last answer came; NaN before the first."""
        return float("nan") if self._refreshed_at is None else now - self._refreshed_at

    def next_update_at(self) -> float:
        """Give when `request` will have a request; infinity while one is under way."""
        if self._in_progress or not self._tracked:
            return float("inf")
        if self._update_wanted or self._refreshed_at is None:
            return self._not_before
        return max(self._not_before, self._refreshed_at + self._max_age_s)

    def request(self, now: float) -> MetadataRequest | None:
        """Give the request that is due, or None; it counts as under way from here on."""
        if not self._tracked or now < self.next_update_at():
            return None
        self._in_progress = True
        self._update_wanted = False
        topics = [MetadataRequestTopic(name=name) for name in self._tracked]
        return MetadataRequest(topics=topics, allow_auto_topic_creation=True)

    def failed(self, now: float) -> None:
        """Note that the request under way was not answered; it is wanted again after a wait."""
        self._in_progress = False
        self._update_wanted = True
        self._wait(now)

    def update(self, response: MetadataResponse, now: float) -> None:
        """Take an answer. An answer without brokers counts as none (a broker starting up)."""
        if not response.brokers:
            self.failed(now)
            return
        self._in_progress = False
        self.nodes = {
            b.node_id: Node(id=b.node_id, host=b.host, port=b.port, rack=b.rack)
            for b in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        for topic in response.topics:
            self._update_topic(topic)
        self.version += 1
        self._refreshed_at = now
        if self._update_wanted or not self._is_complete():
            self._update_wanted = True
            self._wait(now)
        else:
            self._failed_attempts = 0
            self._not_before = now + self._backoff.delay_s(0, self._random)

    def _wait(self, now: float) -> None:
        self._not_before = now + self._backoff.delay_s(self._failed_attempts, self._random)
        self._failed_attempts += 1

    def _is_complete(self) -> bool:
        """Whether every tracked topic is known, or known never to be, with all its leaders."""
        for name in self._tracked:
            code = self._errors.get(name)
            if code is not None:
                if error_code(code).retriable:
                    return False
            elif name not in self._topics or _NO_NODE in self._topics[name].leaders:
                return False
        return True

    def _update_topic(self, answer: MetadataResponseTopic) -> None:
        name = answer.name
        if name is None:
            return
        if answer.error_code != error_codes.NONE:
            self._errors[name] = answer.error_code
            if not error_code(answer.error_code).retriable:
                self._topics.pop(name, None)
            return
        self._errors.pop(name, None)
        size = len(answer.partitions)
        leaders, epochs = [_NO_NODE] * size, [-1] * size
        before = self._topics.get(name)
        if before is not None and before.topic_id != answer.topic_id:
            before = None
        for partition in answer.partitions:
            index = partition.partition_index
            if not 0 <= index < size:
                continue
            leader, epoch = partition.leader_id, partition.leader_epoch
            known = -1 if before is None or index >= len(before.leaders) else index
            # An answer from a broker that lags behind must not undo a newer one.
            if before is not None and known >= 0 and 0 <= epoch < before.leader_epochs[known]:
                leader, epoch = before.leaders[known], before.leader_epochs[known]
            leaders[index], epochs[index] = leader, epoch
        self._topics[name] = TopicMetadata(
            topic_id=answer.topic_id, leaders=leaders, leader_epochs=epochs
        )

    def topic_id(self, name: str) -> UUID:
        """Give a topic's id; all zeros where brokers do not say (before Metadata version 10)."""
        topic = self._topics.get(name)
        return ZERO_UUID if topic is None else topic.topic_id

"""ClusterMetadata: the brokers, and the leader of each partition, from the latest response.

This module stores the metadata and the topics in use, and computes the time of the next request. It
sends nothing: the sender sends the result of `request`, and passes the response to `update`.

A request is due when metadata turned out to be stale (`request_update`), or after
metadata.max.age.ms. It is never sent sooner than retry.backoff.ms after the last attempt, and the
back-off grows while attempts fail or responses contain nothing new (KIP-580). A new topic is
requested at once. That request contains the known topics only if their metadata is stale. A topic
that is unused for metadata.max.idle.ms is dropped (KIP-526). The Java client has the classes
Metadata and ProducerMetadata for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final
from uuid import UUID

from spark_kafka_sink import error_codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import (
    INTERNAL_TOPICS,
    ApiException,
    KafkaException,
    error_code,
    topic_advice,
    topic_refusal,
)
from spark_kafka_sink.model import Node, TopicPartition, nodes_of
from spark_kafka_sink.wire.messages import (
    LeaderIdAndEpoch,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID

NO_NODE: Final = -1
NO_LEADER_EPOCH: Final = -1


@dataclass(slots=True, kw_only=True)
class TopicMetadata:
    """A topic: its id, and the leader and leader epoch of each partition (leader -1: not known).

    A caller may still use this object when a newer response arrives. So it is never changed, only
    replaced.
    """

    topic_id: UUID
    leaders: list[int]
    leader_epochs: list[int]
    available: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.available = [p for p, leader in enumerate(self.leaders) if leader != NO_NODE]


def newer(
    before: TopicMetadata | None, answer: MetadataResponseTopic, *, reliable_epochs: bool
) -> tuple[TopicMetadata, bool]:
    """Return a topic's metadata after a response, and whether any leader is new.

    before: the metadata before the response, None if there was none. reliable_epochs: see
    ClusterMetadata.update.
    """
    if before is not None and answer.topic_id not in (ZERO_UUID, before.topic_id):
        before = None  # the topic was deleted and recreated, so its epochs start again
    size = len(answer.partitions)
    leaders, epochs = [NO_NODE] * size, [NO_LEADER_EPOCH] * size
    has_news = False
    for partition in answer.partitions:
        index = partition.partition_index
        if not 0 <= index < size:
            continue
        leaders[index], epochs[index], is_news = _newer_leader(
            before, partition, reliable_epochs=reliable_epochs
        )
        has_news = has_news or is_news
    topic = TopicMetadata(topic_id=answer.topic_id, leaders=leaders, leader_epochs=epochs)
    return topic, has_news


def _newer_leader(
    before: TopicMetadata | None, partition: MetadataResponsePartition, *, reliable_epochs: bool
) -> tuple[int, int, bool]:
    """Return the leader and its epoch, and whether they are new.

    A response of a broker that lags behind must not replace a newer leader.
    """
    index, epoch = partition.partition_index, partition.leader_epoch
    if not reliable_epochs or epoch < 0:
        return partition.leader_id, NO_LEADER_EPOCH, True
    known = NO_LEADER_EPOCH
    if before is not None and index < len(before.leader_epochs):
        known = before.leader_epochs[index]
        if epoch < known:
            return before.leaders[index], known, False
    return partition.leader_id, epoch, epoch > known


# The first version of Metadata with reliable leader epochs (KAFKA-9212).
RELIABLE_EPOCHS_SINCE: Final = 9


@dataclass(slots=True)
class _Topic:
    """The state of one topic in use.

    idle_at: the time of the topic's last use plus metadata.max.idle.ms. known: the topic's
    metadata, None before the first response and while brokers return an error for the topic. error:
    the code of that error. before_error: the metadata before the error. Its leader epochs show
    whether the next response without an error is outdated. request: the number of the latest
    request whose response contained the topic, 0 if there is none.
    """

    idle_at: float
    known: TopicMetadata | None = None
    error: int | None = None
    before_error: TopicMetadata | None = None
    request: int = 0

    def refused(self, code: int) -> None:
        """Replace the topic's metadata with a broker's error.

        Usually, the metadata before the error is kept, to detect outdated responses. It is not kept
        if brokers send no topic ids: if the topic is recreated, its leader epochs start again, so a
        correct response would look outdated.
        """
        self.error = code
        if self.known is not None and self.known.topic_id != ZERO_UUID:
            self.before_error = self.known
        self.known = None

    def described(self, answer: MetadataResponseTopic, *, reliable_epochs: bool) -> bool:
        """Store the topic's metadata from a response. Return whether any leader is new."""
        before = self.known or self.before_error
        self.known, has_news = newer(before, answer, reliable_epochs=reliable_epochs)
        self.error = self.before_error = None
        return has_news


@dataclass(frozen=True, slots=True)
class _RequestInFlight:
    """The request in flight: its number, its topics, and whether these are only the new topics.

    If the topics were forgotten after it was sent, `topics` is empty, and the response updates no
    topic.
    """

    number: int
    topics: frozenset[str]
    partial: bool

    def voided(self) -> _RequestInFlight:
        """Return this request without topics, so that its response updates no topic."""
        return replace(self, topics=frozenset(), partial=True)


class ClusterMetadata:
    """The metadata of the cluster. Times are seconds of the producer's clock.

    max_idle_s: how long an unused topic is kept. rebootstrap_after_s: the seconds without a
    response after which the client forgets the known brokers and uses the bootstrap servers
    (KIP-899, KIP-1102), or None for never. advice: a function that returns what a user can do about
    an error code of a topic or a transactional id. allow_auto_topic_creation: whether brokers may
    create a requested topic that does not exist; before version 4 of Metadata, a request cannot
    forbid it.
    """

    def __init__(
        self,
        max_age_s: float,
        retry_backoff: ExponentialBackoff,
        random: Random,
        *,
        max_idle_s: float = float("inf"),
        rebootstrap_after_s: float | None = None,
        advice: Callable[[int, str], str | None] = topic_advice,
        allow_auto_topic_creation: bool = True,
    ) -> None:
        self.nodes: Mapping[int, Node] = {}
        self.before_change: Callable[[], None] = lambda: None  # called before any leader changes
        self._max_age_s = max_age_s
        self._max_idle_s = max_idle_s
        self._rebootstrap_after_s = rebootstrap_after_s
        self._backoff = retry_backoff
        self._random = random
        self.advice = advice
        self._allow_auto_topic_creation = allow_auto_topic_creation
        # The topics in use. _new: the topics to request at once, and for each the number of the
        # first request whose response is new enough.
        self._topics: dict[str, _Topic] = {}
        self._new: dict[str, int] = {}
        self._fatal_error: KafkaException | None = None
        self._needs_update = False
        self._in_flight: _RequestInFlight | None = None
        self._requests = self._failed_attempts = self._same_answers = 0
        self._not_before = 0.0
        self._refreshed_at: float | None = None
        self._trying_since: float | None = None
        # The number of times that the known brokers were forgotten.
        self.rebootstraps = 0

    # -- the topics in use ------------------------------------------------------------------------

    def track(self, topic: str, now: float) -> None:
        """Mark a topic as used; request its metadata if it is unknown."""
        tracked = self._topics.get(topic)
        if tracked is None:
            self.refresh_topic(topic, now)
            return
        tracked.idle_at = now + self._max_idle_s
        if tracked.known is None and not self._is_awaited(topic, tracked):
            self.request_update()

    def refresh_topic(self, topic: str, now: float) -> int:
        """Mark a topic as used, and request its metadata at once, even if it is known.

        Return the number of the last request so far, as `request_update` does.
        """
        self._topics.setdefault(topic, _Topic(now)).idle_at = now + self._max_idle_s
        self._new[topic] = self._requests + 1
        self._same_answers = 0
        self._not_before = now
        return self._requests

    def track_all(self, topics: Iterable[str], now: float) -> bool:
        """Mark topics as used; request unknown topics; return whether all are known."""
        is_known = True
        for name in topics:
            self.track(name, now)
            is_known = is_known and self.topic(name) is not None
        return is_known

    def forget_topics(self) -> None:
        """Forget every topic, so that each is requested at its next use; keep the brokers."""
        self._topics.clear()
        self._new.clear()
        self._fatal_error = None
        # Topics now need a new request, because the request in flight is older than this call.
        if self._in_flight is not None:
            self._in_flight = self._in_flight.voided()

    def _is_awaited(self, name: str, topic: _Topic) -> bool:
        """Return whether a topic's request is in flight or queued, or its name is invalid."""
        is_asked = self._in_flight is not None and name in self._in_flight.topics
        return is_asked or topic.error == error_codes.INVALID_TOPIC_EXCEPTION or name in self._new

    def request_update(self) -> int:
        """Request the metadata of all topics again soon, after some of it turned out to be stale.

        Return the number of the last request so far. The response to that request may be older than
        this call. Only the responses to requests with higher numbers are certainly newer.
        """
        self._needs_update = True
        return self._requests

    @property
    def is_update_requested(self) -> bool:
        """Whether `request_update` was called, and no request has been sent since."""
        return self._needs_update

    @property
    def is_in_flight(self) -> bool:
        """Whether a request has no response yet."""
        return self._in_flight is not None

    # -- metadata from responses ------------------------------------------------------------------

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a topic's metadata, None if it is not known."""
        topic = self._topics.get(name)
        return None if topic is None else topic.known

    def last_request_about(self, name: str) -> int:
        """Return the number of the latest request whose response contained a topic, 0 if none."""
        topic = self._topics.get(name)
        return 0 if topic is None else topic.request

    def topic_id(self, name: str) -> UUID:
        """Return a topic's id. It is all zeros if unknown, and before version 10 of Metadata."""
        topic = self._topics.get(name)
        return ZERO_UUID if topic is None or topic.known is None else topic.known.topic_id

    def leader(self, topic_partition: TopicPartition) -> Node | None:
        """Return the leader of a partition, None if it is not known."""
        name, partition = topic_partition
        topic = self._topics.get(name)
        if topic is None or topic.known is None or partition >= len(topic.known.leaders):
            return None
        return self.nodes.get(topic.known.leaders[partition])

    def nodes_in(self, rack: str) -> set[int]:
        """Return the ids of the nodes whose broker.rack is `rack`."""
        return {node.id for node in self.nodes.values() if node.rack == rack}

    def leader_epoch(self, topic_partition: TopicPartition) -> int:
        """Return the leader epoch of a partition, -1 if it is not known."""
        name, partition = topic_partition
        topic = self._topics.get(name)
        if topic is None or topic.known is None or partition >= len(topic.known.leader_epochs):
            return NO_LEADER_EPOCH
        return topic.known.leader_epochs[partition]

    def topic_error(self, name: str) -> ApiException | None:
        """Return the error of a topic in the latest response, None if there was no error."""
        topic = self._topics.get(name)
        if topic is None or topic.error is None:
            return None
        code, hint = topic.error, self.advice(topic.error, name)
        may_be_created = self._allow_auto_topic_creation and name not in INTERNAL_TOPICS
        if code == error_codes.UNKNOWN_TOPIC_OR_PARTITION and may_be_created:
            hint = f"{hint}, or let the brokers do it (auto.create.topics.enable)"
        return topic_refusal(code, name, hint)

    def take_error(self, name: str) -> KafkaException | None:
        """Return the error that makes waiting for a topic useless, None if waiting may help.

        The error of an invalid topic name is returned every time. Any other error is returned only
        once, and the next caller requests the topic again.
        """
        if self._fatal_error is not None:
            fatal, self._fatal_error = self._fatal_error, None
            return fatal
        error = self.topic_error(name)
        if error is None or error_code(error.code).retriable:
            return None
        if error.code != error_codes.INVALID_TOPIC_EXCEPTION:
            self._topics[name].error = None
        return error

    # -- requests ---------------------------------------------------------------------------------

    def age_s(self, now: float) -> float:
        """Return how many seconds ago the last response came; NaN before the first response."""
        return float("nan") if self._refreshed_at is None else now - self._refreshed_at

    def next_update_at(self) -> float:
        """Return when `request` will return a request; infinity while one is in flight."""
        if self._in_flight is not None or not self._topics:
            return float("inf")
        if self._needs_update or self._new or self._refreshed_at is None:
            return self._not_before
        return max(self._not_before, self._refreshed_at + self._max_age_s)

    def request(self, now: float) -> MetadataRequest | None:
        """Return the request that is due, or None. A returned request counts as in flight."""
        if not self._topics or now < self.next_update_at():
            return None
        expired = self._refreshed_at is None or now >= self._refreshed_at + self._max_age_s
        if expired:
            self._same_answers = 0
        partial = not expired and not self._needs_update
        names = list(self._new if partial else self._topics)
        self._requests += 1
        self._in_flight = _RequestInFlight(self._requests, frozenset(names), partial)
        if not partial:
            self._needs_update = False
        if self._trying_since is None:
            self._trying_since = now
        topics = [MetadataRequestTopic(name=name) for name in names]
        allow = self._allow_auto_topic_creation
        return MetadataRequest(topics=topics, allow_auto_topic_creation=allow)

    def failed(self, now: float, error: KafkaException | None = None) -> None:
        """Record that the request in flight got no response; it is repeated after a wait.

        error: set if a retry cannot help. Callers that wait for a topic get this error from
        `take_error`.
        """
        if self._in_flight is None or self._in_flight.topics:
            self._fatal_error = error or self._fatal_error
        self._not_answered(now)
        started, limit = self._trying_since, self._rebootstrap_after_s
        if started is not None and limit is not None and now - started >= limit:
            self._rebootstrap(now)

    def _not_answered(self, now: float) -> None:
        # New topics are still in `_new`, so they are requested anyway.
        self._needs_update |= self._in_flight is None or not self._in_flight.partial
        self._in_flight = None
        self._not_before = now + self._backoff.delay_s(self._failed_attempts, self._random)
        self._failed_attempts += 1

    def _rebootstrap(self, now: float) -> None:
        """Forget the brokers, but not the topics. The next request goes to a bootstrap server."""
        self.before_change()
        self.nodes = {}
        self.rebootstraps += 1
        self._needs_update = True
        self._trying_since = now

    # -- responses --------------------------------------------------------------------------------

    def update(
        self, response: MetadataResponse, now: float, *, reliable_epochs: bool = True
    ) -> None:
        """Store a response. A response that lists no brokers counts as no response.

        A broker that is starting sends such responses. reliable_epochs: False before version 9 of
        Metadata, because brokers may then return the epoch of a different leader (KAFKA-9212).
        """
        if response.error_code == error_codes.REBOOTSTRAP_REQUIRED:
            self._not_answered(now)
            if self._rebootstrap_after_s is not None:
                self._rebootstrap(now)
            return
        nodes = nodes_of(response.brokers)
        if not nodes:
            self.failed(now)
            return
        asked, self._in_flight = self._in_flight, None
        self.before_change()
        self.nodes = nodes
        self._same_answers += 1
        for topic in response.topics:
            if asked is None or topic.name in asked.topics:
                number = 0 if asked is None else asked.number
                self._take_topic(topic, number, reliable_epochs=reliable_epochs)
        if asked is None or not asked.partial:
            self._refreshed_at = now
            self._forget_idle(now)
        if asked is not None and not asked.topics <= {topic.name for topic in response.topics}:
            self._needs_update = True
            for name in asked.topics:
                self._new.pop(name, None)
        self._failed_attempts, self._trying_since = 0, None
        # Topics that were added while this request was in flight are requested at once.
        wait = self._backoff.delay_s(max(0, self._same_answers - 1), self._random)
        self._not_before = now if self._new else now + wait

    def _forget_idle(self, now: float) -> None:
        for name, topic in list(self._topics.items()):
            if topic.idle_at <= now and name not in self._new:
                del self._topics[name]

    def _take_topic(
        self, answer: MetadataResponseTopic, number: int, *, reliable_epochs: bool
    ) -> None:
        topic = None if answer.name is None else self._topics.get(answer.name)
        if answer.name is None or topic is None:
            return
        is_outdated = 0 < number < self._new.get(answer.name, 0)
        if not is_outdated:
            self._new.pop(answer.name, None)
        topic.request = number
        code = answer.error_code
        if code == error_codes.NONE and not answer.partitions:
            # The Java client, too, waits until the topic has partitions.
            code = error_codes.LEADER_NOT_AVAILABLE
        if code != error_codes.NONE:
            topic.refused(code)
            self._needs_update |= error_code(code).retriable
            return
        if topic.described(answer, reliable_epochs=reliable_epochs):
            self._same_answers = 0
        is_complete = topic.known is not None and NO_NODE not in topic.known.leaders
        self._needs_update |= not is_complete or any(
            error_code(partition.error_code).refresh_metadata for partition in answer.partitions
        )

    def update_leaders(
        self, leaders: Mapping[TopicPartition, LeaderIdAndEpoch], endpoints: Iterable[Node]
    ) -> bool:
        """Store the leaders that a Produce response names (KIP-951). Return whether any is new.

        A leader is ignored if it is not newer than the known leader, or if its node or its
        partition is not known.
        """
        nodes = {**self.nodes, **{node.id: node for node in endpoints}}
        changed: dict[str, TopicMetadata] = {}
        for (name, partition), leader in leaders.items():
            topic = changed.get(name) or self.topic(name)
            if topic is None or not 0 <= partition < len(topic.leaders):
                continue
            if leader.leader_id not in nodes:
                continue
            if leader.leader_epoch <= topic.leader_epochs[partition]:
                continue
            if name not in changed:
                topic = replace(
                    topic, leaders=list(topic.leaders), leader_epochs=list(topic.leader_epochs)
                )
                changed[name] = topic
            topic.leaders[partition] = leader.leader_id
            topic.leader_epochs[partition] = leader.leader_epoch
        if not changed:
            return False
        self.before_change()
        for name, topic in changed.items():
            # `replace` also computes the available partitions again.
            self._topics[name].known = replace(topic)
        self.nodes = nodes
        return True

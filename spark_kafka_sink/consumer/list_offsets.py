"""Look up the offsets of partitions by timestamp (ListOffsets). Pure: no clock, no sockets.

Requests are sent to the leader of each partition until the offset of the partition is known. After
a retriable error, for example because the leader has moved, the partition is requested again after
a back-off. Errors that are not retriable are raised.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple, TypeAlias

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import READ, READ_ADVICE, Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from spark_kafka_sink.errors import ApiException, advice, api_exception, error_code, listed
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.request_client import RequestFuture
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.wire.fetch_messages import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

# Advice for readers, for the errors where the advice for writers (`errors.advice`) does not fit.
_ADVICE: Final = {
    UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or check its name",
    TOPIC_AUTHORIZATION_FAILED: READ_ADVICE,
}


def reader_advice(acls: Acls) -> Callable[[int, str], str | None]:
    """Return a function that takes an error code and a topic, and returns advice for the user.

    The function returns None if there is no advice. acls: adds the kafka-acls.sh command that
    grants the missing permission.
    """

    def of(code: int, topic: str) -> str | None:
        parts = (_ADVICE.get(code) or advice(code), acls.hint(code, topic, READ))
        return "; ".join(part for part in parts if part) or None

    return of


def partition_error(
    topic_partition: TopicPartition,
    code: int,
    node_id: int,
    api: str,
    topic_advice: Callable[[int, str], str | None],
) -> ApiException:
    """Return the exception for the error code of one partition in a response.

    topic_advice: the result of `reader_advice`.
    """
    row = error_code(code)
    text = f"{topic_partition} cannot be read: {api} to node {node_id} returned {row.name} ({code})"
    topic, partition = topic_partition
    hint = topic_advice(code, topic)
    if hint is not None:
        text += f"; {hint}"
    return api_exception(code, text, topic=topic, partition=partition, node_id=node_id, api=api)


def _partitions_in(future: RequestFuture) -> set[int]:
    """Return the partitions that a ListOffsets request contains."""
    message = future.request.message
    topics = message.topics if isinstance(message, ListOffsetsRequest) else []
    return {partition.partition_index for topic in topics for partition in topic.partitions}


OffsetsByPartition: TypeAlias = dict[int, int]


class OffsetsQuery(NamedTuple):
    """The offsets to look up.

    timestamp: in ms; -1 means the latest offset, and -2 the earliest.
    """

    topic: str
    partitions: list[int]
    timestamp: int
    isolation_level: int


class OffsetsLookup:
    """Looks up offsets of partitions of one topic; times are seconds of the reader's clock."""

    def __init__(
        self,
        query: OffsetsQuery,
        *,
        metadata: ClusterMetadata,
        retry_backoff: ExponentialBackoff,
        random: Random,
    ) -> None:
        self._query = query
        self._metadata = metadata
        self._retry_backoff = retry_backoff
        self._random = random
        self._in_flight: dict[int, RequestFuture] = {}
        self._attempts = 0
        self._retry_at = 0.0
        self._last_error = ""
        self.found: OffsetsByPartition = {}

    @property
    def is_done(self) -> bool:
        """Whether the offsets of all partitions are known."""
        return len(self.found) == len(set(self._query.partitions))

    def next_due_at(self, now: float) -> float:
        """Return the time at which to call `requests` again; infinity if no back-off is running."""
        return self._retry_at if self._retry_at > now else float("inf")

    def requests(self, now: float) -> list[tuple[int, ListOffsetsRequest]]:
        """Return the requests to send now, each with its node id.

        Each node has at most one request in flight.
        """
        if now < self._retry_at:
            return []
        by_node: dict[int, list[int]] = {}
        leaderless = False
        for number in self._query.partitions:
            leader = self._metadata.leader(TopicPartition(self._query.topic, number))
            if number in self.found:
                continue
            if leader is None:
                leaderless = True
            elif leader.id not in self._in_flight:
                by_node.setdefault(leader.id, []).append(number)
        if leaderless:
            self._wait("no leader is known", now)
        return [(node_id, self._request(numbers)) for node_id, numbers in by_node.items()]

    def _request(self, numbers: list[int]) -> ListOffsetsRequest:
        topic, _, timestamp, isolation_level = self._query
        known = self._metadata.topic(topic)
        epochs = [] if known is None else known.leader_epochs
        partitions = [
            ListOffsetsPartition(
                partition_index=number, current_leader_epoch=epochs[number], timestamp=timestamp
            )
            for number in numbers
        ]
        return ListOffsetsRequest(
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=topic, partitions=partitions)],
        )

    def sent(self, node_id: int, future: RequestFuture) -> None:
        """Record that a request, which `requests` has returned, was sent to a node."""
        self._in_flight[node_id] = future

    def collect(self, now: float) -> None:
        """Process the responses that have arrived. Raise errors that are not retriable."""
        for node_id, future in list(self._in_flight.items()):
            if not future.is_done:
                continue
            del self._in_flight[node_id]
            if future.error is not None:
                if not error_code(future.error.code).retriable:
                    raise future.error
                self._wait(str(future.error), now)
            elif isinstance(future.response, ListOffsetsResponse):
                self._answered(future.response, _partitions_in(future), node_id, now)

    def _answered(
        self, response: ListOffsetsResponse, asked: set[int], node_id: int, now: float
    ) -> None:
        answers = {
            answer.partition_index: answer
            for topic in response.topics
            for answer in topic.partitions
        }
        for number in sorted(asked):
            if number in answers:
                self._handle(answers[number], node_id, now)
            else:
                self._wait(f"node {node_id} left partition {number} out of its response", now)

    def _handle(self, answer: ListOffsetsPartitionResponse, node_id: int, now: float) -> None:
        code = answer.error_code
        if code == codes.NONE:
            self.found[answer.partition_index] = answer.offset
            return
        partition = TopicPartition(self._query.topic, answer.partition_index)
        error = partition_error(partition, code, node_id, "ListOffsets", self._metadata.advice)
        if not error_code(code).retriable:
            raise error
        self._wait(str(error), now)

    def _wait(self, reason: str, now: float) -> None:
        self._metadata.request_update()
        self._last_error = reason
        if self._retry_at > now:  # several partitions of one response count as one attempt
            return
        self._retry_at = now + self._retry_backoff.delay_s(self._attempts, self._random)
        self._attempts += 1

    def missing(self) -> str:
        """Return as text the first ten partitions with an unknown offset, and the last error."""
        numbers = map(str, sorted(set(self._query.partitions) - self.found.keys()))
        error = f" ({self._last_error})" if self._last_error else ""
        return f"partitions {listed(numbers)}{error}"

"""TopicWait: the topics that one call waits for, and the metadata requests that it needs.

An answer to a request from before the call does not count: the topic may have grown since. This
module takes no lock and does not wait; see `ProducerState.wait_for`.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.producer.metadata import ClusterMetadata, TopicMetadata


class TopicWait:
    """A wait for topics. Callers of its methods hold the producer's lock.

    partitions, must_grow: see `ProducerState.wait_for`. missing: the first topic that `find` did
    not find.
    """

    def __init__(
        self, metadata: ClusterMetadata, partitions: Mapping[str, int], *, must_grow: bool
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._must_grow = must_grow
        self._asked_at: int | None = None
        self.missing = ""

    def find(self) -> list[TopicMetadata] | None:
        """Return the topics if all are known; otherwise None, and request those that are too small.

        Raise a broker's error about a topic.
        """
        found = []
        for name, least in self._partitions.items():
            topic = self._metadata.topic(name)
            if topic is None or (len(topic.leaders) < least and not self._has_no_more(name)):
                self.missing = name
                error = self._metadata.take_error(name)
                if error is not None:
                    raise error
                return None
            found.append(topic)
        return found

    def _has_no_more(self, name: str) -> bool:
        """Return whether a topic certainly has no more partitions; request it otherwise."""
        asked_at = self._asked_at
        is_answered = asked_at is not None and self._metadata.last_request_about(name) > asked_at
        if asked_at is None or (is_answered and self._must_grow):
            self._asked_at = self._metadata.request_update()
        return is_answered and not self._must_grow

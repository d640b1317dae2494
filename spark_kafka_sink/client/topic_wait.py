"""TopicWait: whether the topics of one call are known, and which of them to request.

It decides which responses count. A response to an earlier request does not: a topic may have grown
since. It has no lock and does not wait; see `ProducerState.wait_for`.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.producer.metadata import ClusterMetadata, TopicMetadata


class TopicWait:
    """A wait for topics. The caller of its methods holds the producer's lock.

    partitions, must_grow: as of `ProducerState.wait_for`. missing: the topic that was not there
    when `find` looked.
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
        """Return the topics if all are known, otherwise None; request topics that are too small.

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
        """Return whether a counting response has no more partitions; else request the topic."""
        asked_at = self._asked_at
        is_told = asked_at is not None and self._metadata.told_for(name) > asked_at
        if asked_at is None or (is_told and self._must_grow):
            self._asked_at = self._metadata.request_update()
        return is_told and not self._must_grow

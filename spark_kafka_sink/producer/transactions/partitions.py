"""TransactionPartitions: the partitions that are in the open transaction.

With transaction.version 1, a partition must be added with a request before anything is sent to it.
Such a partition is first "requested", then "being added", then "added". With version 2, brokers add
a partition when a batch is written to it, so it counts as "added" from the start.
`TransactionManager` determines when requests are sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafka_sink.model import TopicPartition


class TransactionPartitions:
    """The partitions of one transaction.

    has_begun: whether brokers may know the transaction. If so, it must be ended with an EndTxn
    request.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self._requested: set[TopicPartition] = set()
        self._being_added: set[TopicPartition] = set()
        self._added: set[TopicPartition] = set()

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._added

    def begin(self) -> None:
        """Record that brokers may know the transaction from now on."""
        self.has_begun = True

    def add_at_once(self, topic_partition: TopicPartition) -> None:
        """Add a partition without a request, because its broker adds it to the transaction."""
        self._added.add(topic_partition)
        self.has_begun = True

    def request(self, topic_partition: TopicPartition) -> None:
        """Record that a partition must be added with a request."""
        if topic_partition not in self._being_added:
            self._requested.add(topic_partition)

    def take_requested(self) -> set[TopicPartition]:
        """Return the partitions to add with a request; they count as being added from now on."""
        requested, self._requested = self._requested, set()
        self._being_added |= requested
        return requested

    def drop_requested(self) -> None:
        """Forget the requested partitions, because nothing will be sent to them."""
        self._requested.clear()

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the coordinator has added partitions, or the offsets of a consumer group."""
        added = set(partitions)
        self._being_added -= added
        self._added |= added
        self.has_begun = True

    def not_added(self, *, some_were: bool) -> None:
        """Record that the coordinator did not add all partitions.

        some_were: whether it has added some of them.
        """
        self._being_added.clear()
        self.has_begun = self.has_begun or some_were

    def clear(self) -> None:
        """Reset everything for the next transaction."""
        self.has_begun = False
        self._requested.clear()
        self._being_added.clear()
        self._added.clear()

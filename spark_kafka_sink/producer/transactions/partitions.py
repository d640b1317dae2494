"""TransactionPartitions: which partitions are part of the open transaction.

With transaction.version 1 a partition is added by a request before anything is sent to it:
requested, then being added, then part of the transaction. With version 2 the brokers add what is
written, so that it is part of the transaction at once. When requests go is the business of
`TransactionManager`.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafka_sink.model import TopicPartition


class TransactionPartitions:
    """The partitions of one transaction.

    has_begun: whether brokers may know of the transaction, so that it has to be ended there.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self._requested: set[TopicPartition] = set()
        self._being_added: set[TopicPartition] = set()
        self._added: set[TopicPartition] = set()

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._added

    def begin(self) -> None:
        """Note that brokers may know of the transaction from here on."""
        self.has_begun = True

    def add_at_once(self, topic_partition: TopicPartition) -> None:
        """Make a partition part of the transaction that its broker adds when it is written to."""
        self._added.add(topic_partition)
        self.has_begun = True

    def request(self, topic_partition: TopicPartition) -> None:
        """Note that a partition has to be added by a request."""
        if topic_partition not in self._being_added:
            self._requested.add(topic_partition)

    def take_requested(self) -> set[TopicPartition]:
        """Return the partitions to add by a request; they count as being added from here on."""
        requested, self._requested = self._requested, set()
        self._being_added |= requested
        return requested

    def drop_requested(self) -> None:
        """Forget what was requested: nothing will be sent there."""
        self._requested.clear()

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the coordinator has added partitions, or the offsets of a group."""
        added = set(partitions)
        self._being_added -= added
        self._added |= added
        self.has_begun = True

    def not_added(self, *, some_were: bool) -> None:
        """Note that the coordinator refused to add partitions, or added only some."""
        self._being_added.clear()
        self.has_begun = self.has_begun or some_were

    def clear(self) -> None:
        """Make ready for the next transaction."""
        self.has_begun = False
        self._requested.clear()
        self._being_added.clear()
        self._added.clear()

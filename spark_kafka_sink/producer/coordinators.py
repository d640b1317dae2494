"""What brokers told of themselves that transactions depend on: coordinators, versions, features.

Owns which node coordinates what, as last looked up, and which transaction.version the cluster has
agreed on. It asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_kafka_sink.errors import UnsupportedVersionException
from spark_kafka_sink.model import Node
from spark_kafka_sink.producer.transaction_requests import CoordinatorKey
from spark_kafka_sink.wire.messages import INIT_PRODUCER_ID
from spark_kafka_sink.wire.versions import NodeApiVersions

# The first version of InitProducerId that takes a producer id and its epoch (KIP-360).
_RAISES_EPOCHS: Final = 3


class Coordinators:
    """Coordinators by key, and what the connected brokers can do."""

    def __init__(self) -> None:
        self._by_key: dict[CoordinatorKey, int] = {}
        # Where each was found last, also while it has to be looked up again.
        self._last: dict[CoordinatorKey, Node] = {}
        # Whether each connected broker raises epochs, and each coordinator when it last was one.
        self._connected: dict[int, bool] = {}
        self._raises: dict[CoordinatorKey, bool] = {}
        self._features: Mapping[str, int] = {}
        self._features_epoch = -1

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The brokers to keep connections to."""
        return {node.id: node for node in self._last.values()}

    @property
    def transaction_version(self) -> int:
        """The finalized feature transaction.version; 0 where the brokers do not have it.

        Brokers may lag behind: the features with the highest epoch count.
        """
        return self._features.get("transaction.version", 0)

    def node_ready(self, node_id: int, versions: NodeApiVersions) -> None:
        """Take what a broker said when the connection to it came up."""
        if versions.finalized_features_epoch >= self._features_epoch:
            self._features_epoch = versions.finalized_features_epoch
            self._features = versions.finalized_features
        try:
            version = versions.latest_usable_version(INIT_PRODUCER_ID)
        except UnsupportedVersionException:
            version = -1
        self._connected[node_id] = version >= _RAISES_EPOCHS
        for key, coordinator in self._by_key.items():
            if coordinator == node_id:
                self._raises[key] = self._connected[node_id]

    def raises_epoch(self, key: CoordinatorKey) -> bool:
        """Whether the coordinator of `key` raises epochs where it is asked to.

        What the last one said that was connected counts until the next one is, however long that
        takes: an error meanwhile is no worse than any other.
        """
        return self._raises.get(key, False)

    def node_id(self, key: CoordinatorKey) -> int | None:
        """Give the coordinator of `key`, None if it has to be looked up."""
        return self._by_key.get(key)

    def learn(self, key: CoordinatorKey, node: Node) -> None:
        """Take the answer to a look-up."""
        self._by_key[key] = node.id
        self._last[key] = node
        if node.id in self._connected:
            self._raises[key] = self._connected[node.id]

    def forget(self, key: CoordinatorKey) -> None:
        """Have `key` looked up again: the broker asked does not coordinate it."""
        self._by_key.pop(key, None)

    def forget_all(self) -> None:
        """Have everything looked up again, by whichever broker can be found."""
        self._by_key.clear()
        self._last.clear()

    def node_down(self, node_id: int) -> None:
        """Have all that a broker coordinated looked up again: it cannot be reached."""
        self._connected.pop(node_id, None)
        for key in [key for key, node in self._by_key.items() if node == node_id]:
            del self._by_key[key]

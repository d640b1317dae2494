"""The API versions that exactly-once writes require of brokers, and the transaction.version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit_client.leader_requests import LISTS_RELIABLE_ENDS_SINCE
from spark_kafka_sink.errors import ApiException, api_exception
from spark_kafka_sink.model import Node
from spark_kafka_sink.wire.messages import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    Api,
)
from spark_kafka_sink.wire.versions import NodeApiVersions

_FEATURE: Final = "transaction.version"
# The lowest versions of APIs that every broker must support. Brokers without AddPartitionsToTxn 4
# do not verify that a partition is part of the transaction. So a late batch could stay in a
# transaction that is never ended.
_NEEDED: Final[Mapping[Api, int]] = {
    INIT_PRODUCER_ID: 0,
    ADD_PARTITIONS_TO_TXN: 4,
    END_TXN: 0,
    DESCRIBE_PRODUCERS: 0,
    DESCRIBE_TRANSACTIONS: 0,
    LIST_TRANSACTIONS: 0,
    LIST_OFFSETS: LISTS_RELIABLE_ENDS_SINCE,
}


def check_versions(node: Node, versions: NodeApiVersions) -> None:
    """Raise UnsupportedVersionException if a broker lacks a version that exactly once needs."""
    for api, version in _NEEDED.items():
        if versions.latest_version(api) < version:
            raise _too_old(node, api, version, versions)


def transaction_version(known: Iterable[NodeApiVersions]) -> int:
    """Return 2 if the cluster has finalized transaction.version 2, else 1.

    Brokers learn finalized features at different times. So the response with the highest finalized
    features epoch is used.
    """
    newest = max(known, key=lambda each: each.finalized_features_epoch)
    return 2 if newest.finalized_features.get(_FEATURE, 0) >= 2 else 1


def _too_old(node: Node, api: Api, version: int, versions: NodeApiVersions) -> ApiException:
    latest = versions.latest_version(api)
    has = f"{api.name} up to version {latest}" if latest >= 0 else f"no {api.name}"
    message = (
        f"exactlyOnce needs {api.name} {version} or later, which brokers support since Kafka 3.6: "
        f"{node} has {has}"
    )
    return api_exception(codes.UNSUPPORTED_VERSION, message, node_id=node.id, api=api.name)

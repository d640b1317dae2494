"""Choose the version of an API to use with a broker (NodeApiVersions).

A broker lists the versions that it supports in its ApiVersions response. The client uses the
highest version that both support, within the limits that the caller sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_kafka_sink.error_codes import UNSUPPORTED_VERSION
from spark_kafka_sink.errors import api_exception
from spark_kafka_sink.wire.messages import METADATA, Api, ApiVersionsResponse

# The key of the API BrokerRegistration, which only the listeners of controllers support (KIP-631).
_BROKER_REGISTRATION: Final = 62


class NodeApiVersions:
    """The version ranges and the finalized features that one broker announced."""

    __slots__ = ("_ranges", "finalized_features", "finalized_features_epoch")

    def __init__(
        self,
        ranges: Mapping[int, tuple[int, int]],
        finalized_features: Mapping[str, int] | None = None,
        finalized_features_epoch: int = -1,
    ) -> None:
        self._ranges = dict(ranges)
        self.finalized_features = dict(finalized_features or {})
        self.finalized_features_epoch = finalized_features_epoch

    @classmethod
    def of(cls, response: ApiVersionsResponse) -> NodeApiVersions:
        """Return the versions and features that a broker's ApiVersions response lists."""
        return cls(
            {api.api_key: (api.min_version, api.max_version) for api in response.api_keys},
            {f.name: f.max_version_level for f in response.finalized_features},
            response.finalized_features_epoch,
        )

    @property
    def is_controller(self) -> bool:
        """Whether the node is a KRaft controller, which does not serve clients."""
        return METADATA.key not in self._ranges and _BROKER_REGISTRATION in self._ranges

    def latest_version(self, api: Api) -> int:
        """Return the highest version of `api` that the broker supports, -1 if it supports none."""
        return self._ranges.get(api.key, (0, -1))[1]

    def latest_usable_version(
        self, api: Api, max_version: int | None = None, min_version: int = 0
    ) -> int:
        """Return the highest version of `api` that broker, client and the limits allow.

        Raise UnsupportedVersionException if there is no such version. Its message shows the ranges
        of broker and client.
        """
        lowest = max(api.min_version, min_version)
        highest = api.max_version if max_version is None else min(api.max_version, max_version)
        low, high = self._ranges.get(api.key, (0, -1))
        version = min(highest, high)
        if version < max(lowest, low):
            has = f"{low} to {high}" if high >= 0 else "none"
            message = (
                f"the broker has no usable version of {api.name}: it supports {has}, "
                f"this client supports {lowest} to {highest}"
            )
            if self.is_controller:
                message += "; this is the listener of a KRaft controller: use a broker's listener"
            raise api_exception(UNSUPPORTED_VERSION, message, api=api.name)
        return version

"""Which version of an API to speak with a broker (NodeApiVersions).

A broker lists the versions it accepts in its ApiVersions answer; the version spoken is the highest
that both sides have, under the caps a caller gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_kafka_sink.error_codes import UNSUPPORTED_VERSION
from spark_kafka_sink.errors import api_exception
from spark_kafka_sink.wire.messages import METADATA, Api, ApiVersionsResponse

# Brokers send it to controllers (KIP-631); it is on the listeners of controllers only.
_BROKER_REGISTRATION: Final = 62


class NodeApiVersions:
    """The version ranges and the finalized features one broker announced."""

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
        """Read a broker's answer."""
        return cls(
            {api.api_key: (api.min_version, api.max_version) for api in response.api_keys},
            {f.name: f.max_version_level for f in response.finalized_features},
            response.finalized_features_epoch,
        )

    @property
    def is_controller(self) -> bool:
        """Whether it is a KRaft controller, which answers no clients, that listens there."""
        return METADATA.key not in self._ranges and _BROKER_REGISTRATION in self._ranges

    def latest_usable_version(
        self, api: Api, max_version: int | None = None, min_version: int = 0
    ) -> int:
        """Give the highest version of `api` that the broker, this client and the limits allow.

        Raises UnsupportedVersionException, naming both ranges, where there is none.
        """
        lowest = max(api.min_version, min_version)
        highest = api.max_version if max_version is None else min(api.max_version, max_version)
        low, high = self._ranges.get(api.key, (0, -1))
        version = min(highest, high)
        if version < max(lowest, low):
            has = f"{low} to {high}" if high >= 0 else "none"
            message = (
                f"the broker has no usable version of {api.name}: it accepts {has}, "
                f"this client speaks {lowest} to {highest}"
            )
            if self.is_controller:
                message += "; this is a KRaft controller's listener: clients need that of a broker"
            raise api_exception(UNSUPPORTED_VERSION, message, api=api.name)
        return version

"""What the sender is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.backoff import ExponentialBackoff


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    """The sender's part of the configuration; acks as they travel, -1 for all."""

    acks: int
    max_in_flight: int
    max_request_size_bytes: int
    request_timeout_ms: int
    retry_backoff: ExponentialBackoff

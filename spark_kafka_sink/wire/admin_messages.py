"""The requests and responses that create topics and describe their configuration.

The classes are declared in the same way as in `messages`.

DescribeConfigs version 0 is not supported, because brokers since 1.1 support later versions. From
version 4 on, CreateTopics takes -1 for the brokers' default number of partitions and replicas
(KIP-464).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final
from uuid import UUID

from spark_kafka_sink.wire.message_codecs import Bool, Int8, Int16, Int32, Nullable, Since, Tag
from spark_kafka_sink.wire.primitives import ZERO_UUID

TOPIC_RESOURCE: Final = 2
BROKERS_DEFAULT: Final = -1
BROKERS_DEFAULTS_SINCE: Final = 4


@dataclass(slots=True, kw_only=True)
class CreatableReplicaAssignment:
    """The brokers that hold the replicas of one partition."""

    partition_index: Int32
    broker_ids: list[Int32]


@dataclass(slots=True, kw_only=True)
class CreatableTopicConfig:
    """A configuration entry of the new topic."""

    name: str
    value: Annotated[str | None, Nullable(0)]


@dataclass(slots=True, kw_only=True)
class CreatableTopic:
    """A topic to create. Without assignments, the controller assigns its replicas to brokers."""

    name: str
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    configs: list[CreatableTopicConfig] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class CreateTopicsRequest:
    """The request to create topics, which is sent to the controller."""

    topics: list[CreatableTopic]
    timeout_ms: Int32 = 60_000
    validate_only: Annotated[Bool, Since(1)] = False


@dataclass(slots=True, kw_only=True)
class CreatableTopicConfigs:
    """A configuration entry of the created topic."""

    name: Annotated[str, Since(5)]
    value: Annotated[str | None, Since(5), Nullable(5)]
    read_only: Annotated[Bool, Since(5)]
    config_source: Annotated[Int8, Since(5)] = -1
    is_sensitive: Annotated[Bool, Since(5)]


@dataclass(slots=True, kw_only=True)
class CreatableTopicResult:
    """The result for one topic."""

    name: str
    topic_id: Annotated[UUID, Since(7)] = ZERO_UUID
    error_code: Int16
    error_message: Annotated[str | None, Since(1), Nullable(0)] = ""
    topic_config_error_code: Annotated[Int16, Since(5), Tag(0)] = 0
    num_partitions: Annotated[Int32, Since(5)] = -1
    replication_factor: Annotated[Int16, Since(5)] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, Since(5), Nullable(5)] = field(
        default_factory=list
    )


@dataclass(slots=True, kw_only=True)
class CreateTopicsResponse:
    """The results of creating topics, one per topic."""

    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    topics: list[CreatableTopicResult]


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResource:
    """A resource to describe, and the names of the configuration entries to return.

    resource_type: `TOPIC_RESOURCE` for a topic.
    """

    resource_type: Int8
    resource_name: str
    configuration_keys: Annotated[list[str] | None, Nullable(0)]


@dataclass(slots=True, kw_only=True)
class DescribeConfigsRequest:
    """The request for configuration entries of resources."""

    resources: list[DescribeConfigsResource]
    include_synonyms: Annotated[Bool, Since(1)] = False
    include_documentation: Annotated[Bool, Since(3)] = False


@dataclass(slots=True, kw_only=True)
class DescribeConfigsSynonym:
    """One of the sources of an entry's value, such as a broker's default."""

    name: Annotated[str, Since(1)]
    value: Annotated[str | None, Since(1), Nullable(0)]
    source: Annotated[Int8, Since(1)]


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResourceResult:
    """A configuration entry."""

    name: str
    value: Annotated[str | None, Nullable(0)]
    read_only: Bool
    config_source: Annotated[Int8, Since(1)] = -1
    is_sensitive: Bool
    synonyms: Annotated[list[DescribeConfigsSynonym], Since(1)] = field(default_factory=list)
    config_type: Annotated[Int8, Since(3)] = 0
    documentation: Annotated[str | None, Since(3), Nullable(0)] = ""


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResult:
    """The configuration of one resource, or an error code."""

    error_code: Int16
    error_message: Annotated[str | None, Nullable(0)]
    resource_type: Int8
    resource_name: str
    configs: list[DescribeConfigsResourceResult]


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResponse:
    """The configurations, one per resource."""

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult]

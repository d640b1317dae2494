"""The protocol's messages, declared as data: one class per struct, one row per API in `APIS`.

Names, types, versions, tags and null rules are the same as in Kafka's message schemas
(clients/src/main/resources/common/message/*.json, release 4.1). A test compares every class with
its schema. Versions below the first version in `APIS` are not supported: all brokers since 0.10
support later ones. `repr` of the SASL messages never shows a token, because a PLAIN token contains
the password.

The classes are dataclasses that are not frozen. Constructing a frozen dataclass takes twice the
time, and the I/O thread constructs responses with hundreds of partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple, TypeAlias
from uuid import UUID

from spark_kafka_sink.wire.admin_messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from spark_kafka_sink.wire.delegation_token_messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from spark_kafka_sink.wire.describe_messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from spark_kafka_sink.wire.fetch_messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from spark_kafka_sink.wire.message_codecs import (
    Bool,
    Int16,
    Int32,
    Int64,
    Nullable,
    Since,
    Tag,
    Until,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID, Records
from spark_kafka_sink.wire.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

UNKNOWN_OFFSET: Final = -1


@dataclass(slots=True, kw_only=True)
class ApiVersionsRequest:
    """The first request of a connection. It asks which versions a broker supports (KIP-511)."""

    client_software_name: Annotated[str, Since(3)] = ""
    client_software_version: Annotated[str, Since(3)] = ""


@dataclass(slots=True, kw_only=True)
class ApiVersion:
    """The range of versions of one API that a broker supports."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


@dataclass(slots=True, kw_only=True)
class SupportedFeatureKey:
    """A feature and the levels that a broker supports."""

    name: Annotated[str, Since(3)]
    min_version: Annotated[Int16, Since(3)]
    max_version: Annotated[Int16, Since(3)]


@dataclass(slots=True, kw_only=True)
class FinalizedFeatureKey:
    """A feature and the level that the cluster has finalized (KIP-584)."""

    name: Annotated[str, Since(3)]
    max_version_level: Annotated[Int16, Since(3)]
    min_version_level: Annotated[Int16, Since(3)]


@dataclass(slots=True, kw_only=True)
class ApiVersionsResponse:
    """The API versions that a broker supports.

    Error 35 (UNSUPPORTED_VERSION) means that the broker does not support the version of the
    request. The response is then in version 0 and lists the supported versions. The client sends
    the request again with one of these versions.
    """

    error_code: Int16
    api_keys: list[ApiVersion]
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], Since(3), Tag(0)] = field(
        default_factory=list
    )
    finalized_features_epoch: Annotated[Int64, Since(3), Tag(1)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], Since(3), Tag(2)] = field(
        default_factory=list
    )
    zk_migration_ready: Annotated[Bool, Since(3), Tag(3)] = False


@dataclass(slots=True, kw_only=True)
class MetadataRequestTopic:
    """A topic to describe, by name. This client does not use the topic ids of later versions."""

    topic_id: Annotated[UUID, Since(10)] = ZERO_UUID
    name: Annotated[str | None, Nullable(10)]


@dataclass(slots=True, kw_only=True)
class MetadataRequest:
    """The request for the brokers and for topics; topics: an empty list for none, None for all."""

    topics: Annotated[list[MetadataRequestTopic] | None, Nullable(1)]
    allow_auto_topic_creation: Annotated[Bool, Since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, Since(8), Until(10)] = False
    include_topic_authorized_operations: Annotated[Bool, Since(8)] = False


@dataclass(slots=True, kw_only=True)
class MetadataResponseBroker:
    """A broker and its address."""

    node_id: Int32
    host: str
    port: Int32
    rack: Annotated[str | None, Nullable(1)] = None


@dataclass(slots=True, kw_only=True)
class MetadataResponsePartition:
    """A partition and its leader."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, Since(7)] = -1
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    offline_replicas: Annotated[list[Int32], Since(5)] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MetadataResponseTopic:
    """A topic and its partitions, or an error code."""

    error_code: Int16
    name: Annotated[str | None, Nullable(12)]
    topic_id: Annotated[UUID, Since(10)] = ZERO_UUID
    is_internal: Bool = False
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: Annotated[Int32, Since(8)] = -(2**31)


@dataclass(slots=True, kw_only=True)
class MetadataResponse:
    """The brokers of the cluster, and the requested topics."""

    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    brokers: list[MetadataResponseBroker]
    cluster_id: Annotated[str | None, Since(2), Nullable(2)] = None
    controller_id: Int32 = -1
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: Annotated[Int32, Since(8), Until(10)] = -(2**31)
    error_code: Annotated[Int16, Since(13)] = 0


@dataclass(slots=True, kw_only=True)
class InitProducerIdRequest:
    """The request for a producer id, or for the next epoch of a known one (KIP-98, KIP-360)."""

    transactional_id: Annotated[str | None, Nullable(0)] = None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1


@dataclass(slots=True, kw_only=True)
class InitProducerIdResponse:
    """A producer id and its epoch."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


@dataclass(slots=True, kw_only=True)
class PartitionProduceData:
    """One record batch for one partition."""

    index: Int32
    records: Annotated[Records | None, Nullable(0)]


@dataclass(slots=True, kw_only=True)
class TopicProduceData:
    """The batches for one topic. From version 13 on, the topic is set by id (KIP-516)."""

    name: Annotated[str, Until(12)] = ""
    topic_id: Annotated[UUID, Since(13)] = ZERO_UUID
    partition_data: list[PartitionProduceData]


@dataclass(slots=True, kw_only=True)
class ProduceRequest:
    """Record batches (message sets before version 3) for partitions that one broker leads."""

    transactional_id: Annotated[str | None, Since(3), Nullable(3)] = None
    acks: Int16
    timeout_ms: Int32
    topic_data: list[TopicProduceData]


@dataclass(slots=True, kw_only=True)
class BatchIndexAndErrorMessage:
    """A record that made the broker reject the batch, and the reason (KIP-467)."""

    batch_index: Annotated[Int32, Since(8)]
    batch_index_error_message: Annotated[str | None, Since(8), Nullable(8)] = None


@dataclass(slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """The current leader, in the response of a broker that is not the leader (KIP-951)."""

    leader_id: Annotated[Int32, Since(10)] = -1
    leader_epoch: Annotated[Int32, Since(10)] = -1


@dataclass(slots=True, kw_only=True)
class PartitionProduceResponse:
    """The result for one partition's batch; `log_append_time_ms` is -1 on CreateTime topics."""

    index: Int32
    error_code: Int16
    base_offset: Int64 = UNKNOWN_OFFSET
    log_append_time_ms: Annotated[Int64, Since(2)] = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], Since(8)] = field(
        default_factory=list
    )
    error_message: Annotated[str | None, Since(8), Nullable(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, Since(10), Tag(0)] = None


@dataclass(slots=True, kw_only=True)
class TopicProduceResponse:
    """The results for one topic's batches."""

    name: Annotated[str, Until(12)] = ""
    topic_id: Annotated[UUID, Since(13)] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse]


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    """The address of a leader in `current_leader`."""

    node_id: Annotated[Int32, Since(10)]
    host: Annotated[str, Since(10)]
    port: Annotated[Int32, Since(10)]
    rack: Annotated[str | None, Since(10), Nullable(10)] = None


@dataclass(slots=True, kw_only=True)
class ProduceResponse:
    """The results of a Produce request, one per partition."""

    responses: list[TopicProduceResponse]
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    node_endpoints: Annotated[list[NodeEndpoint], Since(10), Tag(0)] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class SaslHandshakeRequest:
    """Selects a SASL mechanism.

    With version 0, tokens follow without headers. With 1, SaslAuthenticate requests contain them.
    """

    mechanism: str


@dataclass(slots=True, kw_only=True)
class SaslHandshakeResponse:
    """Whether the listener supports the mechanism, and which mechanisms it supports."""

    error_code: Int16
    mechanisms: list[str]


@dataclass(slots=True, kw_only=True)
class SaslAuthenticateRequest:
    """One SASL token of the client."""

    auth_bytes: bytes = field(repr=False)


@dataclass(slots=True, kw_only=True)
class SaslAuthenticateResponse:
    """One SASL token of the broker.

    session_lifetime_ms: set in the last response of an authentication, 0 for no limit.
    """

    error_code: Int16
    error_message: Annotated[str | None, Nullable(0)]
    auth_bytes: bytes = field(repr=False)
    session_lifetime_ms: Annotated[Int64, Since(1)] = 0


Request: TypeAlias = (
    ApiVersionsRequest
    | MetadataRequest
    | InitProducerIdRequest
    | ProduceRequest
    | ListOffsetsRequest
    | FetchRequest
    | FindCoordinatorRequest
    | AddPartitionsToTxnRequest
    | AddOffsetsToTxnRequest
    | EndTxnRequest
    | TxnOffsetCommitRequest
    | DescribeProducersRequest
    | DescribeTransactionsRequest
    | ListTransactionsRequest
    | CreateTopicsRequest
    | DescribeConfigsRequest
    | SaslHandshakeRequest
    | SaslAuthenticateRequest
    | CreateDelegationTokenRequest
    | RenewDelegationTokenRequest
    | ExpireDelegationTokenRequest
    | DescribeDelegationTokenRequest
)
Response: TypeAlias = (
    ApiVersionsResponse
    | MetadataResponse
    | InitProducerIdResponse
    | ProduceResponse
    | ListOffsetsResponse
    | FetchResponse
    | FindCoordinatorResponse
    | AddPartitionsToTxnResponse
    | AddOffsetsToTxnResponse
    | EndTxnResponse
    | TxnOffsetCommitResponse
    | DescribeProducersResponse
    | DescribeTransactionsResponse
    | ListTransactionsResponse
    | CreateTopicsResponse
    | DescribeConfigsResponse
    | SaslHandshakeResponse
    | SaslAuthenticateResponse
    | CreateDelegationTokenResponse
    | RenewDelegationTokenResponse
    | ExpireDelegationTokenResponse
    | DescribeDelegationTokenResponse
)


class Api(NamedTuple):
    """One API of the protocol: the versions that this client supports, and the message classes.

    flexible_version: the first version with compact types and tagged fields (KIP-482).
    """

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_version: int
    request: type[Request]
    response: type[Response]

    def is_flexible(self, version: int) -> bool:
        """Whether `version` uses compact types and tagged fields (KIP-482)."""
        return version >= self.flexible_version


PRODUCE: Final = Api(0, "Produce", 0, 13, 9, ProduceRequest, ProduceResponse)
FETCH: Final = Api(1, "Fetch", 4, 17, 12, FetchRequest, FetchResponse)
LIST_OFFSETS: Final = Api(2, "ListOffsets", 1, 10, 6, ListOffsetsRequest, ListOffsetsResponse)
METADATA: Final = Api(3, "Metadata", 1, 13, 9, MetadataRequest, MetadataResponse)
API_VERSIONS: Final = Api(18, "ApiVersions", 0, 4, 3, ApiVersionsRequest, ApiVersionsResponse)
INIT_PRODUCER_ID: Final = Api(
    22, "InitProducerId", 0, 5, 2, InitProducerIdRequest, InitProducerIdResponse
)
FIND_COORDINATOR: Final = Api(
    10, "FindCoordinator", 1, 6, 3, FindCoordinatorRequest, FindCoordinatorResponse
)
ADD_PARTITIONS_TO_TXN: Final = Api(
    24, "AddPartitionsToTxn", 0, 3, 3, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
)
ADD_OFFSETS_TO_TXN: Final = Api(
    25, "AddOffsetsToTxn", 0, 4, 3, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
)
END_TXN: Final = Api(26, "EndTxn", 0, 5, 3, EndTxnRequest, EndTxnResponse)
TXN_OFFSET_COMMIT: Final = Api(
    28, "TxnOffsetCommit", 0, 5, 3, TxnOffsetCommitRequest, TxnOffsetCommitResponse
)
DESCRIBE_PRODUCERS: Final = Api(
    61, "DescribeProducers", 0, 0, 0, DescribeProducersRequest, DescribeProducersResponse
)
DESCRIBE_TRANSACTIONS: Final = Api(
    65, "DescribeTransactions", 0, 0, 0, DescribeTransactionsRequest, DescribeTransactionsResponse
)
LIST_TRANSACTIONS: Final = Api(
    66, "ListTransactions", 0, 2, 0, ListTransactionsRequest, ListTransactionsResponse
)
CREATE_TOPICS: Final = Api(19, "CreateTopics", 2, 7, 5, CreateTopicsRequest, CreateTopicsResponse)
DESCRIBE_CONFIGS: Final = Api(
    32, "DescribeConfigs", 1, 4, 4, DescribeConfigsRequest, DescribeConfigsResponse
)
SASL_HANDSHAKE: Final = Api(
    17, "SaslHandshake", 0, 1, 2, SaslHandshakeRequest, SaslHandshakeResponse
)
SASL_AUTHENTICATE: Final = Api(
    36, "SaslAuthenticate", 0, 2, 2, SaslAuthenticateRequest, SaslAuthenticateResponse
)
CREATE_DELEGATION_TOKEN: Final = Api(
    38,
    "CreateDelegationToken",
    1,
    3,
    2,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
RENEW_DELEGATION_TOKEN: Final = Api(
    39, "RenewDelegationToken", 1, 2, 2, RenewDelegationTokenRequest, RenewDelegationTokenResponse
)
EXPIRE_DELEGATION_TOKEN: Final = Api(
    40,
    "ExpireDelegationToken",
    1,
    2,
    2,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
DESCRIBE_DELEGATION_TOKEN: Final = Api(
    41,
    "DescribeDelegationToken",
    1,
    3,
    2,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

_ALL: Final = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    FIND_COORDINATOR,
    API_VERSIONS,
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
    CREATE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
)
APIS: Final = {api.key: api for api in _ALL}
API_OF: Final[dict[type[Request], Api]] = {api.request: api for api in APIS.values()}

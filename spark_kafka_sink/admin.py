"""KafkaAdmin: the calls of a driver: describe and create topics, create and end delegation tokens.

Everything happens in the caller's thread, over connections of its own. It takes at most
max.block.ms from the construction of a `KafkaAdmin` on. Errors that may pass (no broker is
available yet, a broker does not know a new topic yet) are retried until then; all others are raised
at once.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, Self, TypeVar

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    NO_BROKER,
    NO_TOPIC,
    ApiException,
    IllegalArgumentException,
    IllegalStateException,
    Option,
    ProtocolError,
    TimeoutException,
    UnsupportedVersionException,
    advice,
    api_exception,
    error_code,
    topic_refusal,
)
from spark_kafka_sink.model import (
    LARGEST_INT16,
    LARGEST_INT32,
    LARGEST_INT64,
    DelegationToken,
    Node,
    Secret,
    check_text,
    check_topic_name,
    checked,
    checked_brokers,
    checked_list,
    checked_number,
)
from spark_kafka_sink.network.option_values import find_shipped_files, name_process
from spark_kafka_sink.network.request_client import (
    ConsumerNetworkClient,
    OneCaller,
    RequestFuture,
    by_one_caller,
)
from spark_kafka_sink.network.security import login_identity
from spark_kafka_sink.producer.feature_level import check_feature_level
from spark_kafka_sink.wire.admin_messages import (
    BROKERS_DEFAULT,
    BROKERS_DEFAULTS_SINCE,
    TOPIC_RESOURCE,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from spark_kafka_sink.wire.delegation_token_messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from spark_kafka_sink.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
    Request,
    Response,
)

__all__ = [
    "KafkaAdmin",
    "NewTopic",
    "TopicDescription",
    "find_shipped_files",
    "login_identity",
    "name_process",
]

logger = logging.getLogger(__name__)

# The values of org.apache.kafka.common.acl.AclOperation that apply to topics; they are bit numbers.
_OPERATIONS: Final = {
    3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER", 8: "DESCRIBE",
    10: "DESCRIBE_CONFIGS", 11: "ALTER_CONFIGS",
}  # fmt: skip
# The errors about a new topic's configuration, as opposed to its name.
_CONFIG_ERRORS: Final = frozenset(
    (codes.INVALID_PARTITIONS, codes.INVALID_REPLICATION_FACTOR, codes.INVALID_CONFIG)
)
# select() does not accept infinity.
_MAX_WAIT_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic that exists.

    replication: the number of replicas of each partition, the smallest if they differ. allowed: the
    operations that this client may perform on it, None if the brokers do not report them. is_new:
    whether this `KafkaAdmin` created it. is_internal: whether it is an internal topic of the
    brokers.
    """

    name: str
    partitions: int
    replication: int
    allowed: frozenset[str] | None
    is_new: bool = False
    is_internal: bool = False

    @property
    def may_be_written(self) -> bool:
        """False only if the brokers report that this client may not write to the topic."""
        return self.allowed is None or "WRITE" in self.allowed


@dataclass(frozen=True, slots=True)
class NewTopic:
    """The properties of topics to create; None for the brokers' defaults.

    Raise IllegalArgumentException for properties that no topic can have.
    """

    partitions: int | None = None
    replication: int | None = None
    configs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.partitions is not None:
            checked_number("partitions", self.partitions, 1, LARGEST_INT32)
        if self.replication is not None:
            checked_number("replication", self.replication, 1, LARGEST_INT16)
        for setting in checked("configs", self.configs, tuple, "pairs of name and value"):
            pair = checked("one of configs", setting, tuple, "a pair of name and value")
            if len(pair) != 2:
                message = f"one of configs has {len(pair)} parts: expected name and value"
                raise IllegalArgumentException(message)
            for text in pair:
                check_text("one of configs", text)

    def named(self, name: str) -> CreatableTopic:
        """Return the topic of this name as a CreateTopics request has it."""
        check_topic_name(name)
        return CreatableTopic(
            name=name,
            num_partitions=self.partitions or BROKERS_DEFAULT,
            replication_factor=self.replication or BROKERS_DEFAULT,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in self.configs],
        )

    @property
    def options(self) -> dict[str, str]:
        """The properties that are set, by the names of the Spark sink's options."""
        counts = {"topic.partitions": self.partitions, "topic.replication": self.replication}
        given = {name: str(count) for name, count in counts.items() if count is not None}
        return given | {f"topic.config.{name}": value for name, value in self.configs}

    @property
    def min_version(self) -> int:
        """The first version of CreateTopics that supports these properties."""
        return 0 if self.partitions and self.replication else BROKERS_DEFAULTS_SINCE


class KafkaAdmin:
    """Describes and creates topics of one cluster; a context manager.

    has_headers: whether the rows to write have headers; None if nothing will be written. A broker
    that does not support headers, or another feature that the configuration needs, is rejected as
    soon as it describes topics, before any is created. brokers: brokers that another client learned
    from the cluster. They are used instead of bootstrap.servers, unless they cannot be reached.
    identity: `login_identity` of the configuration; no other principal may log in then.

    Use it from one thread at a time, in the process that created it. While a call runs, a call of
    another thread raises IllegalStateException. So does every call in a forked child; leaving the
    block does nothing there.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        has_headers: bool | None = None,
        brokers: Iterable[Node] = (),
        identity: str = "",
    ) -> None:
        self._config = checked("config", config, ProducerConfig, "a ProducerConfig")
        if has_headers is not None:
            checked("has_headers", has_headers, bool, "True, False or None")
        brokers = checked_brokers(brokers)
        checked("identity", identity, str, "a str")
        self._has_headers = has_headers
        self._clock = time.monotonic
        self._random = Random()  # noqa: S311 - jitter, not secrets
        self._deadline = self._clock() + config.max_block_ms / 1000
        self._backoff = ExponentialBackoff.of_ms(
            config.retry_backoff_ms, config.retry_backoff_max_ms
        )
        self._client = ConsumerNetworkClient.of(
            config, self._clock, self._random, identity=identity
        )
        self.acls = Acls.of(config, lambda: self._client.principal)
        """Makes the commands that allow this client what brokers deny."""
        self._nodes = {node.id: node for node in config.bootstrap_nodes}
        self.brokers = brokers
        """The cluster's, as it has named them last."""
        self._client.set_initial_nodes(self.brokers)
        self._controller_id: int | None = None
        self._created: set[str] = set()
        self._is_closed = False
        self._caller = OneCaller("KafkaAdmin")

    def __enter__(self) -> Self:
        return self._caller.run(lambda: self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._caller.is_forked:
            self._close()

    @by_one_caller
    def _close(self) -> None:
        self._is_closed = True
        self._client.close()

    # -- questions --------------------------------------------------------------------------------

    @by_one_caller
    def topics(
        self, names: Sequence[str], new: NewTopic | None = None
    ) -> dict[str, TopicDescription]:
        """Wait until all the topics exist, and return their descriptions.

        Without names, check that a broker answers. new: the properties with which missing topics
        are created; None to wait until somebody else creates them. Brokers do not create topics on
        this request, even if auto.create.topics.enable is set (brokers before 0.11 always do). A
        topic that another client creates meanwhile is used as it is. Raise TimeoutException, and
        the brokers' errors about a topic or its creation.
        """
        for name in checked_list("names", names, "names of topics"):
            check_topic_name(name)
        if new is not None:
            checked("new", new, NewTopic, "a NewTopic or None")
        found: dict[str, TopicDescription] = {}
        attempts = 0
        while True:
            missing = [name for name in names if name not in found]
            last_error = None
            for answer in self._metadata(missing):
                error = _topic_error(answer, self.acls)
                if error is None:
                    is_new = answer.name in self._created
                    found[answer.name or ""] = _description(answer, is_new=is_new)
                elif not error_code(error.code).retriable:
                    raise error
                last_error = error or last_error
            missing = [name for name in names if name not in found]
            if not missing:
                return found
            if new is not None:
                last_error = self._create(missing, new) or last_error
            if not self._pause(attempts):
                raise self._missing_topic_error(missing[0], last_error)
            attempts += 1

    @by_one_caller
    def topic_configs(self, topic: str, names: Sequence[str]) -> dict[str, str | None]:
        """Return configuration entries of a topic, its own or the brokers' defaults.

        The request is sent once. Raise the broker's error, for example TopicAuthorizationException
        without DESCRIBE_CONFIGS, and UnsupportedVersionException before Kafka 1.1.
        """
        check_topic_name(topic)
        found = self._configs([topic], names)[topic]
        if isinstance(found, ApiException):
            raise found
        return found

    @by_one_caller
    def configs_of_topics(
        self, topics: Sequence[str], names: Sequence[str]
    ) -> dict[str, dict[str, str | None]]:
        """Return settings of several topics, in one request; an unreadable topic's are empty.

        Raise UnsupportedVersionException before Kafka 1.1.
        """
        for topic in checked_list("topics", topics, "names of topics"):
            check_topic_name(topic)
        found = self._configs(topics, names)
        return {
            topic: {} if isinstance(configs, ApiException) else configs
            for topic, configs in found.items()
        }

    def _configs(
        self, topics: Sequence[str], names: Sequence[str]
    ) -> dict[str, dict[str, str | None] | ApiException]:
        for name in checked_list("names", names, "names of settings"):
            check_text("one of names", name)
        resources = [
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=list(names)
            )
            for topic in topics
        ]
        response = self._send(None, DescribeConfigsRequest(resources=resources))
        found: dict[str, dict[str, str | None] | ApiException] = {topic: {} for topic in topics}
        results = response.results if isinstance(response, DescribeConfigsResponse) else []
        for result in results:
            topic = result.resource_name
            if result.error_code != codes.NONE:
                row = error_code(result.error_code)
                message = f"the settings of topic {topic} cannot be read: {row.name} ({row.code})"
                hint = self.acls.hint(row.code, topic, ("DESCRIBE_CONFIGS",))
                found[topic] = api_exception(
                    row.code,
                    f"{message}; {hint}" if hint else message,
                    topic=topic,
                    api="DescribeConfigs",
                )
            else:
                found[topic] = {config.name: config.value for config in result.configs}
        return found

    # -- creating ---------------------------------------------------------------------------------

    def _create(self, names: Sequence[str], new: NewTopic) -> ApiException | None:
        """Ask the controller once to create topics. Return the last retriable error, if any."""
        request = CreateTopicsRequest(
            topics=[new.named(name) for name in names], timeout_ms=self._config.request_timeout_ms
        )
        try:
            response = self._send(self._controller_id, request, new.min_version)
        except ApiException as error:
            if not error_code(error.code).retriable:
                raise
            return error
        last_error = None
        for result in response.topics if isinstance(response, CreateTopicsResponse) else []:
            if result.error_code == codes.NONE:
                self._created.add(result.name)
            if result.error_code in (codes.NONE, codes.TOPIC_ALREADY_EXISTS):
                continue
            last_error = _creation_error(result, self.acls)
            if not error_code(result.error_code).retriable:
                raise last_error
        return last_error

    @by_one_caller
    def check_creation(self, new: NewTopic) -> None:
        """Raise the brokers' errors about topics with these properties, whatever their names.

        The request is sent once, after `topics`, and creates nothing; its topic name is unused.
        Errors about the name (rights, policies) and errors that may pass are ignored: they are
        reported when a topic is created.
        """
        checked("new", new, NewTopic, "a NewTopic")
        request = CreateTopicsRequest(
            topics=[new.named(f"pykafka-{uuid.uuid4().hex}")],
            timeout_ms=self._config.request_timeout_ms,
            validate_only=True,
        )
        given = ", ".join(f"{name}={value}" for name, value in new.options.items())
        failure = f"topics cannot be created with {given or 'the defaults of the brokers'}: "
        try:
            response = self._send(self._controller_id, request, new.min_version)
        except UnsupportedVersionException as error:
            hint = "; brokers before 2.4 need topic.partitions and topic.replication"
            message = f"{failure}{error}{hint if new.min_version else ''}"
            raise api_exception(error.code, message, api="CreateTopics") from None
        except ApiException as error:
            logger.info("the settings of new topics were not checked: %s", error)
            return
        for result in response.topics if isinstance(response, CreateTopicsResponse) else []:
            if result.error_code in _CONFIG_ERRORS:
                message = failure + _reason(result)
                raise api_exception(result.error_code, message, api="CreateTopics")

    # -- delegation tokens ------------------------------------------------------------------------

    @by_one_caller
    def create_delegation_token(self, max_lifetime_ms: int | None = None) -> DelegationToken:
        """Create a delegation token for the principal of this client, and return it.

        max_lifetime_ms: None for the brokers' maximum. A retry after a lost response creates a
        second token, which expires by itself. Raise the brokers' errors.
        """
        if max_lifetime_ms is not None:
            checked_number("max_lifetime_ms", max_lifetime_ms, 1, LARGEST_INT64)
        request = CreateDelegationTokenRequest(max_lifetime_ms=max_lifetime_ms or -1)
        made = self._about_tokens("created", request, CreateDelegationTokenResponse)
        return _token(
            made, made.issue_timestamp_ms, made.expiry_timestamp_ms, made.max_timestamp_ms
        )

    @by_one_caller
    def renew_delegation_token(self, hmac: Secret) -> int:
        """Renew a token for the brokers' period, and return its expiry in ms since 1970."""
        request = RenewDelegationTokenRequest(hmac=_bytes(hmac))
        return self._about_tokens(
            "renewed", request, RenewDelegationTokenResponse
        ).expiry_timestamp_ms

    @by_one_caller
    def expire_delegation_token(self, hmac: Secret) -> None:
        """Expire a token now: no client can log in with it any longer."""
        request = ExpireDelegationTokenRequest(hmac=_bytes(hmac))
        self._about_tokens("expired", request, ExpireDelegationTokenResponse)

    @by_one_caller
    def describe_delegation_token(
        self, owners: Sequence[str] | None = None
    ) -> list[DelegationToken]:
        """Return the tokens that this client may see; owners: only theirs, such as ``User:alice``.

        An empty list of owners checks that the brokers have delegation tokens at all.
        """
        asked = None
        if owners is not None:
            asked = [_owner(owner) for owner in checked_list("owners", owners, "names")]
        request = DescribeDelegationTokenRequest(owners=asked)
        found = self._about_tokens("described", request, DescribeDelegationTokenResponse)
        return [
            _token(each, each.issue_timestamp, each.expiry_timestamp, each.max_timestamp)
            for each in found.tokens
        ]

    def _about_tokens(
        self, done: str, request: Request, kind: type[_TokenResponse]
    ) -> _TokenResponse:
        """Send a request about tokens until a broker answers it. Raise the broker's error."""
        attempts = 0
        while True:
            try:
                response = self._send(None, request)
            except ApiException as error:
                if not error_code(error.code).retriable:
                    raise
            else:
                if not isinstance(response, kind):
                    raise ProtocolError(f"a broker answered {type(response).__name__}")
                row = error_code(response.error_code)
                if row.code == codes.NONE:
                    return response
                if not row.retriable:
                    raise _token_error(done, row.code)
            if not self._pause(attempts):
                raise self._timeout_error()
            attempts += 1

    # -- the network ------------------------------------------------------------------------------

    def _metadata(self, names: Sequence[str]) -> list[MetadataResponseTopic]:
        """Request metadata until a broker answers, and learn the brokers from the response."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        attempts = 0
        while True:
            try:
                answered = self._wait_for(None, request)
                response = answered.response
            except ApiException as error:
                if not error_code(error.code).retriable:
                    raise
            else:
                # A broker that is starting lists no brokers yet.
                if isinstance(response, MetadataResponse) and response.brokers:
                    self._check_feature_level(answered.node_id)
                    self._update_nodes(response)
                    return response.topics
            if not self._pause(attempts):
                raise self._timeout_error()
            attempts += 1

    def _update_nodes(self, response: MetadataResponse) -> None:
        nodes = {b.node_id: Node(id=b.node_id, host=b.host, port=b.port) for b in response.brokers}
        self._client.set_nodes(nodes)
        self._nodes.update(nodes)
        self.brokers = tuple(nodes.values())
        self._controller_id = response.controller_id if response.controller_id in nodes else None

    def _check_feature_level(self, node_id: int | None) -> None:
        if node_id is None or self._has_headers is None:
            return
        name = str(self._nodes.get(node_id, f"node {node_id}"))
        versions = self._client.versions(node_id)
        check_feature_level(name, versions, self._config, has_headers=self._has_headers)

    def _send(self, node_id: int | None, message: Request, min_version: int = 0) -> Response:
        """Send one request and return its response. Raise the error if there is none."""
        return self._wait_for(node_id, message, min_version).response

    def _wait_for(
        self, node_id: int | None, message: Request, min_version: int = 0
    ) -> RequestFuture:
        """Send one request, and wait until it has a response or an error."""
        if self._is_closed:
            raise IllegalStateException("this KafkaAdmin has been closed: create a new one")
        future = self._client.send(node_id, message, min_version=min_version)
        while not future.is_done:
            remaining = self._deadline - self._clock()
            if remaining <= 0:
                raise self._timeout_error()
            self._client.poll(min(remaining, _MAX_WAIT_S))
        return future

    def _pause(self, attempts: int) -> bool:
        """Wait before a retry; return False if the time is over."""
        delay = self._backoff.delay_s(attempts, self._random)
        time.sleep(max(0.0, min(delay, self._deadline - self._clock())))
        return self._clock() < self._deadline

    def _timeout_error(self) -> ApiException:
        trouble = self._client.last_errors()
        if not self._config.max_block_ms:
            return TimeoutException(f"no broker can answer within {self._limit()}: increase it")
        servers = Option("bootstrap.servers", self._config.bootstrap_servers)
        said = f" ({trouble})" if trouble else ""
        return NO_BROKER.error(limit=self._limit(), servers=servers, trouble=said)

    def _missing_topic_error(self, name: str, error: ApiException | None) -> ApiException:
        found = f"topic {name} is not among them" if error is None else str(error)
        late = NO_TOPIC.error(topic=name, api="Metadata", limit=self._limit(), found=found)
        late.__cause__ = error
        return late

    def _limit(self) -> str:
        return str(Option("max.block.ms", self._config.max_block_ms))


_TokenResponse = TypeVar(
    "_TokenResponse",
    CreateDelegationTokenResponse,
    RenewDelegationTokenResponse,
    ExpireDelegationTokenResponse,
    DescribeDelegationTokenResponse,
)


def _owner(owner: object) -> DescribeDelegationTokenOwner:
    what = f"one of owners, {owner!r:.60},"
    check_text(what, owner)
    kind, colon, name = str(owner).partition(":")
    if not (kind and colon and name):
        message = f"{what} is no principal: expected its type and name, such as User:alice"
        raise IllegalArgumentException(message)
    return DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)


def _token(
    answer: CreateDelegationTokenResponse | DescribedDelegationToken,
    issue_timestamp_ms: int,
    expiry_timestamp_ms: int,
    max_timestamp_ms: int,
) -> DelegationToken:
    """Return a broker's token; the two responses have other names for the times."""
    return DelegationToken(
        token_id=answer.token_id,
        hmac=Secret(base64.b64encode(answer.hmac).decode()),
        owner=f"{answer.principal_type}:{answer.principal_name}",
        issue_timestamp_ms=issue_timestamp_ms,
        expiry_timestamp_ms=expiry_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
    )


def _bytes(hmac: Secret) -> bytes:
    if not isinstance(hmac, Secret):  # what else it is may be a secret, and is not shown
        kind = type(hmac).__name__
        message = f"hmac is of type {kind}: expected the hmac of a DelegationToken"
        raise IllegalArgumentException(message)
    return base64.b64decode(hmac.value)


def _token_error(done: str, code: int) -> ApiException:
    row = error_code(code)
    message = f"the delegation token cannot be {done}: {row.name} ({row.code})"
    hint = advice(row.code)
    return api_exception(row.code, f"{message}; {hint}" if hint else message)


def _topic_error(answer: MetadataResponseTopic, acls: Acls) -> ApiException | None:
    if answer.error_code == codes.NONE:
        return None
    name = answer.name or ""
    return topic_refusal(answer.error_code, name, acls.writer_advice(answer.error_code, name))


def _description(answer: MetadataResponseTopic, *, is_new: bool) -> TopicDescription:
    bits = answer.topic_authorized_operations
    allowed = frozenset(name for bit, name in _OPERATIONS.items() if bits >> bit & 1)
    # A client that sees a topic may describe it. Without DESCRIBE, the broker did not check rights.
    known = "DESCRIBE" in allowed
    return TopicDescription(
        name=answer.name or "",
        partitions=len(answer.partitions),
        replication=min((len(each.replica_nodes) for each in answer.partitions), default=0),
        allowed=allowed if known else None,
        is_new=is_new,
        is_internal=answer.is_internal,
    )


def _creation_error(result: CreatableTopicResult, acls: Acls) -> ApiException:
    row = error_code(result.error_code)
    message = f"topic {result.name} does not exist and cannot be created: {_reason(result)}"
    if row.code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED):
        message += "; grant CREATE on the topic or the cluster to this client"
        message += f"; {acls.hint(row.code, result.name, ('CREATE',))}"
    return api_exception(row.code, message, topic=result.name, api="CreateTopics")


def _reason(result: CreatableTopicResult) -> str:
    row = error_code(result.error_code)
    return f"{row.name} ({row.code})" + (
        f", {result.error_message}" if result.error_message else ""
    )

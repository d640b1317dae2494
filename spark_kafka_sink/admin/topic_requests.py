"""Send the requests of `KafkaAdmin` that describe, create and configure topics."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.admin.admin_requests import AdminRequests
from spark_kafka_sink.admin.topic_descriptions import NewTopic, TopicDescription
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.errors import (
    NO_TOPIC,
    ApiException,
    TimeoutException,
    UnsupportedVersionException,
    api_exception,
    error_code,
    listed,
    one_line,
    topic_refusal,
)
from spark_kafka_sink.wire.admin_messages import (
    TOPIC_RESOURCE,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from spark_kafka_sink.wire.messages import MetadataResponseTopic

logger = logging.getLogger(__name__)

# The operations (org.apache.kafka.common.acl.AclOperation) that apply to topics. The key is the
# number of the operation's bit in a metadata response.
_OPERATIONS: Final = {
    3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER", 8: "DESCRIBE",
    10: "DESCRIBE_CONFIGS", 11: "ALTER_CONFIGS",
}  # fmt: skip
# How long a broker that restarts may be missing for the replication factor of new topics.
_RESTART_S: Final = 15.0
# The error codes about the configuration of a new topic, not about its name.
_CONFIG_ERRORS: Final = frozenset(
    (codes.INVALID_PARTITIONS, codes.INVALID_REPLICATION_FACTOR, codes.INVALID_CONFIG)
)


class TopicRequests:
    """Sends requests about topics; acls: makes the hints about missing permissions in errors."""

    def __init__(self, requests: AdminRequests, acls: Acls, request_timeout_ms: int) -> None:
        self._requests = requests
        self._acls = acls
        self._request_timeout_ms = request_timeout_ms
        self._created: set[str] = set()

    def describe(self, names: Sequence[str], new: NewTopic | None) -> dict[str, TopicDescription]:
        """Wait until all the topics exist, and return their descriptions.

        new: the properties for creating missing topics; None to create no topics.
        """
        found: dict[str, TopicDescription] = {}
        last_error: ApiException | None = None
        attempts = 0
        while True:
            missing = [name for name in names if name not in found]
            try:
                last_error = self._describe(missing, found) or last_error
                missing = [name for name in missing if name not in found]
                if not missing:
                    return found
                if new is not None:
                    last_error = self._create(missing, new) or last_error
            except TimeoutException:
                # If there was an error about a topic before, raise the error about the missing
                # topic instead of this timeout.
                if last_error is None:
                    raise
                break
            if not self._requests.pause(attempts):
                break
            attempts += 1
        raise self._missing_topic_error(missing[0], last_error) from last_error

    def _describe(
        self, names: Sequence[str], found: dict[str, TopicDescription]
    ) -> ApiException | None:
        """Add to `found` the descriptions of the topics that exist.

        Return the last retriable error about a topic; None if there is none. Raise errors that are
        not retriable.
        """
        last_error = None
        for answer in self._requests.metadata(names):
            error = _topic_error(answer, self._acls)
            if error is None:
                is_new = answer.name in self._created
                found[answer.name or ""] = _description(answer, is_new=is_new)
            elif not error_code(error.code).retriable:
                raise error
            last_error = error or last_error
        return last_error

    def describe_existing(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """Return the descriptions of topics; omit each topic that the broker does not describe."""
        return {
            answer.name or "": _description(answer, is_new=False)
            for answer in self._requests.metadata(names)
            if answer.error_code == codes.NONE
        }

    def configs(
        self, topics: Sequence[str], names: Sequence[str]
    ) -> dict[str, dict[str, str | None] | ApiException]:
        """Return config values by topic: the topics' own values, or else the brokers' defaults.

        If the configuration of a topic cannot be read, the value for this topic is the exception.
        """
        resources = [
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=list(names)
            )
            for topic in topics
        ]
        response = self._requests.send(DescribeConfigsRequest(resources=resources))
        found: dict[str, dict[str, str | None] | ApiException] = {topic: {} for topic in topics}
        results = response.results if isinstance(response, DescribeConfigsResponse) else []
        for result in results:
            topic = result.resource_name
            if result.error_code != codes.NONE:
                row = error_code(result.error_code)
                message = f"the settings of topic {topic} cannot be read: {row.name} ({row.code})"
                hint = self._acls.hint(row.code, topic, ("DESCRIBE_CONFIGS",))
                found[topic] = api_exception(
                    row.code,
                    f"{message}; {hint}" if hint else message,
                    topic=topic,
                    api="DescribeConfigs",
                )
            else:
                found[topic] = {config.name: config.value for config in result.configs}
        return found

    def _create(self, names: Sequence[str], new: NewTopic) -> ApiException | None:
        """Send one CreateTopics request to the controller.

        If the request fails with a retriable error, or its response contains one, return the last
        of these errors; otherwise, return None. Raise errors that are not retriable.
        """
        request = CreateTopicsRequest(
            topics=[new.named(name) for name in names], timeout_ms=self._request_timeout_ms
        )
        try:
            response = self._requests.send(request, new.min_version, to_controller=True)
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
            last_error = _creation_error(result, self._acls)
            if not error_code(result.error_code).retriable:
                raise last_error
        return last_error

    def check_creation(self, new: NewTopic) -> None:
        """Raise the brokers' error if they reject topics with these properties.

        Brokers return INVALID_REPLICATION_FACTOR even while another broker restarts. So repeat the
        request after this error, and raise the error only after `_RESTART_S`.
        """
        error = self._rejection(new, None)
        attempts, until = 0, self._requests.time_in(_RESTART_S)
        while error is not None and error.code == codes.INVALID_REPLICATION_FACTOR:
            if not self._requests.pause(attempts, until):
                break
            error = self._rejection(new, error)
            attempts += 1
        if error is not None:
            raise error

    def _rejection(self, new: NewTopic, last_error: ApiException | None) -> ApiException | None:
        """Send one validate-only request, and return the brokers' error about the properties.

        Return None if there is none. last_error: the error of the last request; it is returned if
        this request times out.
        """
        request = CreateTopicsRequest(
            topics=[new.named(f"pykafka-{uuid.uuid4().hex}")],
            timeout_ms=self._request_timeout_ms,
            validate_only=True,
        )
        given = listed(f"{name}={value}" for name, value in new.options.items())
        failure = f"topics cannot be created with {given or 'the defaults of the brokers'}: "
        try:
            response = self._requests.send(request, new.min_version, to_controller=True)
        except UnsupportedVersionException as error:
            hint = "; brokers before 2.4 need topic.partitions and topic.replication"
            message = f"{failure}{error}{hint if new.min_version else ''}"
            raise api_exception(error.code, message, api="CreateTopics") from None
        except ApiException as error:
            if last_error is not None and isinstance(error, TimeoutException):
                return last_error
            logger.info("the settings of new topics were not checked: %s", error)
            return None
        for result in response.topics if isinstance(response, CreateTopicsResponse) else []:
            if result.error_code in _CONFIG_ERRORS:
                message = failure + _reason(result)
                return api_exception(result.error_code, message, api="CreateTopics")
        return None

    def _missing_topic_error(self, name: str, error: ApiException | None) -> ApiException:
        found = f"no broker listed topic {name}" if error is None else str(error)
        found += self._requests.trouble()
        limit = self._requests.limit()
        return NO_TOPIC.error(topic=name, api="Metadata", limit=limit, found=found)


def _topic_error(answer: MetadataResponseTopic, acls: Acls) -> ApiException | None:
    if answer.error_code == codes.NONE:
        return None
    name = answer.name or ""
    return topic_refusal(answer.error_code, name, acls.writer_advice(answer.error_code, name))


def _description(answer: MetadataResponseTopic, *, is_new: bool) -> TopicDescription:
    bits = answer.topic_authorized_operations
    allowed = frozenset(name for bit, name in _OPERATIONS.items() if bits >> bit & 1)
    # Brokers describe a topic only to clients with DESCRIBE permission. So if DESCRIBE is missing
    # here, the response does not contain the operations.
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
        f", {one_line(result.error_message)}" if result.error_message else ""
    )

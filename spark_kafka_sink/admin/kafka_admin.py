"""KafkaAdmin: the public class; it checks arguments, and rejects concurrent calls.

All work is done in the caller's thread. Each KafkaAdmin has its own connections (see
`admin_requests`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from spark_kafka_sink.admin.admin_requests import AdminRequests
from spark_kafka_sink.admin.token_requests import TokenRequests
from spark_kafka_sink.admin.topic_descriptions import NewTopic, TopicDescription
from spark_kafka_sink.admin.topic_requests import TopicRequests
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ApiException
from spark_kafka_sink.model import (
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
from spark_kafka_sink.network.request_client import OneCaller, by_one_caller


class KafkaAdmin:
    """Describes and creates topics of one cluster; a context manager.

    has_headers: whether the rows to write have headers; None if nothing will be written. If it is
    set, `topics` and `existing_topics` check the features of the broker. If the rows or the
    configuration need a feature that the broker lacks, such as headers, these methods raise an
    error and create no topic. brokers: brokers of the cluster that a different client has found.
    They are used instead of bootstrap.servers, unless they cannot be reached. identity: the result
    of `login_identity` for the configuration; if it is set, logging in as a different principal
    fails.

    Use it from one thread at a time, in the process that created it. A call raises
    IllegalStateException while another thread's call is running. In a forked child, every call
    raises this error, but the end of the ``with`` block does nothing there.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        has_headers: bool | None = None,
        brokers: Iterable[Node] = (),
        identity: str = "",
    ) -> None:
        checked("config", config, ProducerConfig, "a ProducerConfig")
        if has_headers is not None:
            checked("has_headers", has_headers, bool, "True, False or None")
        checked("identity", identity, str, "a str")
        self.brokers = checked_brokers(brokers)
        """The brokers that `topics` or `existing_topics` found last; at first, the given ones."""
        self._requests = AdminRequests(
            config, has_headers=has_headers, brokers=self.brokers, identity=identity
        )
        self.acls = Acls.of(config, lambda: self._requests.principal)
        """Makes kafka-acls.sh commands that grant this client the permissions that it lacks."""
        self._topics = TopicRequests(self._requests, self.acls, config.request_timeout_ms)
        self._tokens = TokenRequests(self._requests)
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
        self._requests.close()

    # -- topics -----------------------------------------------------------------------------------

    @by_one_caller
    def topics(
        self, names: Sequence[str], new: NewTopic | None = None
    ) -> dict[str, TopicDescription]:
        """Wait until all the topics exist, and return their descriptions.

        If `names` is empty, only wait until a broker responds. new: the properties with which to
        create missing topics; None to wait until another client creates them. With brokers of Kafka
        0.11 and newer, the metadata request itself creates no topics, even if
        auto.create.topics.enable is set. If another client creates a topic meanwhile, that topic is
        used, even if its properties differ from `new`. Raise TimeoutException after max.block.ms.
        Raise the error of a broker that rejects a topic or its creation.
        """
        for name in checked_list("names", names, "names of topics"):
            check_topic_name(name)
        if new is not None:
            checked("new", new, NewTopic, "a NewTopic or None")
        found = self._topics.describe(names, new)
        self.brokers = self._requests.brokers
        return found

    @by_one_caller
    def existing_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """Return the descriptions of the topics that exist, as one broker knows them now.

        A topic for which the broker returns an error is omitted, for example if the topic does not
        exist or if this client has no DESCRIBE permission for it. No topic is created. Raise
        TimeoutException if no broker answers within max.block.ms.
        """
        for name in checked_list("names", names, "names of topics"):
            check_topic_name(name)
        found = self._topics.describe_existing(names)
        self.brokers = self._requests.brokers
        return found

    @by_one_caller
    def topic_configs(self, topic: str, names: Sequence[str]) -> dict[str, str | None]:
        """Return config values of a topic: the topic's own values, or else the brokers' defaults.

        The request is sent once. Raise the broker's error, for example TopicAuthorizationException
        if this client has no DESCRIBE_CONFIGS permission. Raise UnsupportedVersionException if the
        brokers are older than Kafka 1.1.
        """
        check_topic_name(topic)
        found = self._topics.configs([topic], _settings(names))[topic]
        if isinstance(found, ApiException):
            raise found
        return found

    @by_one_caller
    def configs_of_topics(
        self, topics: Sequence[str], names: Sequence[str]
    ) -> dict[str, dict[str, str | None]]:
        """Return config values of several topics, with one request.

        If the configuration of a topic cannot be read, the dict of this topic is empty. Raise
        UnsupportedVersionException if the brokers are older than Kafka 1.1.
        """
        for topic in checked_list("topics", topics, "names of topics"):
            check_topic_name(topic)
        found = self._topics.configs(topics, _settings(names))
        return {
            topic: {} if isinstance(configs, ApiException) else configs
            for topic, configs in found.items()
        }

    @by_one_caller
    def check_creation(self, new: NewTopic) -> None:
        """Raise the brokers' error if the brokers reject topics with these properties.

        Call it after `topics`. It sends one CreateTopics request for a topic name that does not
        exist, with validate_only, so that nothing is created. Errors that are not about the
        properties are ignored here, because they are reported when a topic is created. Examples are
        retriable errors, and errors about the topic name (permissions, policies). While a broker
        restarts, there may be too few brokers for the replication factor. So the error about it is
        raised only after 15 s, or max.block.ms if that is shorter.
        """
        checked("new", new, NewTopic, "a NewTopic")
        self._topics.check_creation(new)

    # -- delegation tokens ------------------------------------------------------------------------

    @by_one_caller
    def create_delegation_token(self, max_lifetime_ms: int | None = None) -> DelegationToken:
        """Create a delegation token for the principal of this client, and return it.

        max_lifetime_ms: None for the brokers' maximum lifetime. If a response is lost, the retry
        creates a second token, and the first token expires unused. Raise the brokers' errors.
        """
        if max_lifetime_ms is not None:
            checked_number("max_lifetime_ms", max_lifetime_ms, 1, LARGEST_INT64)
        return self._tokens.create(max_lifetime_ms)

    @by_one_caller
    def renew_delegation_token(self, hmac: Secret) -> int:
        """Renew a token, and return its new expiry time in ms since 1970.

        The brokers' configuration determines the new lifetime.
        """
        return self._tokens.renew(hmac)

    @by_one_caller
    def expire_delegation_token(self, hmac: Secret) -> None:
        """Expire a token now. After that, no client can log in with the token."""
        self._tokens.expire(hmac)

    @by_one_caller
    def describe_delegation_token(
        self, owners: Sequence[str] | None = None
    ) -> list[DelegationToken]:
        """Return the tokens that this client may see.

        owners: the principals whose tokens to return, such as ``User:alice``; None for all owners.
        With an empty list, the call only checks that delegation tokens are enabled on the brokers.
        """
        return self._tokens.describe(
            None if owners is None else checked_list("owners", owners, "names")
        )


def _settings(names: Sequence[str]) -> Sequence[str]:
    for name in checked_list("names", names, "names of settings"):
        check_text("one of names", name)
    return names

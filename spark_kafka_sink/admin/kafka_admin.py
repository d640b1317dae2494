"""KafkaAdmin: the public class, which checks arguments and refuses a second thread.

Everything happens in the caller's thread, over connections of its own (see `requests`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from spark_kafka_sink.admin.requests import AdminRequests
from spark_kafka_sink.admin.token_requests import TokenRequests
from spark_kafka_sink.admin.topic_requests import TopicRequests
from spark_kafka_sink.admin.topics import NewTopic, TopicDescription
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
        checked("config", config, ProducerConfig, "a ProducerConfig")
        if has_headers is not None:
            checked("has_headers", has_headers, bool, "True, False or None")
        checked("identity", identity, str, "a str")
        self.brokers = checked_brokers(brokers)
        """The brokers of the cluster, as the last call of `topics` has found them."""
        self._requests = AdminRequests(
            config, has_headers=has_headers, brokers=self.brokers, identity=identity
        )
        self.acls = Acls.of(config, lambda: self._requests.principal)
        """Makes the commands that allow this client what brokers deny."""
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
        found = self._topics.describe(names, new)
        self.brokers = self._requests.brokers
        return found

    @by_one_caller
    def topic_configs(self, topic: str, names: Sequence[str]) -> dict[str, str | None]:
        """Return configuration entries of a topic, its own or the brokers' defaults.

        The request is sent once. Raise the broker's error, for example TopicAuthorizationException
        without DESCRIBE_CONFIGS, and UnsupportedVersionException before Kafka 1.1.
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
        """Return settings of several topics, in one request; an unreadable topic's are empty.

        Raise UnsupportedVersionException before Kafka 1.1.
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
        """Raise the brokers' errors about topics with these properties, whatever their names.

        The request is sent once, after `topics`, and creates nothing; its topic name is unused.
        Errors about the name (rights, policies) and errors that may pass are ignored: they are
        reported when a topic is created.
        """
        checked("new", new, NewTopic, "a NewTopic")
        self._topics.check_creation(new)

    # -- delegation tokens ------------------------------------------------------------------------

    @by_one_caller
    def create_delegation_token(self, max_lifetime_ms: int | None = None) -> DelegationToken:
        """Create a delegation token for the principal of this client, and return it.

        max_lifetime_ms: None for the brokers' maximum. A retry after a lost response creates a
        second token, which expires by itself. Raise the brokers' errors.
        """
        if max_lifetime_ms is not None:
            checked_number("max_lifetime_ms", max_lifetime_ms, 1, LARGEST_INT64)
        return self._tokens.create(max_lifetime_ms)

    @by_one_caller
    def renew_delegation_token(self, hmac: Secret) -> int:
        """Renew a token for the brokers' period, and return its expiry in ms since 1970."""
        return self._tokens.renew(hmac)

    @by_one_caller
    def expire_delegation_token(self, hmac: Secret) -> None:
        """Expire a token now: no client can log in with it any longer."""
        self._tokens.expire(hmac)

    @by_one_caller
    def describe_delegation_token(
        self, owners: Sequence[str] | None = None
    ) -> list[DelegationToken]:
        """Return the tokens that this client may see; owners: only theirs, such as ``User:alice``.

        An empty list of owners checks that the brokers have delegation tokens at all.
        """
        return self._tokens.describe(
            None if owners is None else checked_list("owners", owners, "names")
        )


def _settings(names: Sequence[str]) -> Sequence[str]:
    for name in checked_list("names", names, "names of settings"):
        check_text("one of names", name)
    return names

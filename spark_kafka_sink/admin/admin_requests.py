"""Send the requests of one `KafkaAdmin`. All of them share one time limit, max.block.ms.

Everything is done in the caller's thread. After retriable errors, `until_answered` sends a request
again within the time limit, for example if no broker is available yet or a broker is starting.
Other errors are raised at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    NO_TOPIC,
    NOT_AWAITED,
    ApiException,
    IllegalStateException,
    Option,
    TimeoutException,
    error_code,
)
from spark_kafka_sink.model import Node, nodes_of
from spark_kafka_sink.network.request_client import ConsumerNetworkClient, RequestFuture
from spark_kafka_sink.producer.feature_level import check_feature_level
from spark_kafka_sink.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
    Request,
    Response,
)

# select() does not accept infinity.
_MAX_WAIT_S: Final = 3600.0

_T = TypeVar("_T")


class AdminRequests:
    """Sends requests over its own connections.

    The time limit max.block.ms begins when the object is constructed. has_headers, brokers,
    identity: see `KafkaAdmin`.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        has_headers: bool | None,
        brokers: tuple[Node, ...],
        identity: str,
    ) -> None:
        self._config = config
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
        self._nodes = {node.id: node for node in config.bootstrap_nodes}
        self.brokers = brokers
        self._client.set_initial_nodes(self.brokers)
        self._controller_id: int | None = None
        self._is_closed = False

    @property
    def principal(self) -> str:
        """The name of the principal of this client; an empty string if it is unknown."""
        return self._client.principal

    def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        self._client.close()

    def metadata(self, names: Sequence[str]) -> list[MetadataResponseTopic]:
        """Return the metadata of topics. Repeat the request until a broker responds.

        Later requests go to the brokers in the response.
        """
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        return self.until_answered(request, self._topics_of)

    def _topics_of(self, answered: RequestFuture) -> list[MetadataResponseTopic] | None:
        response = answered.response
        # A broker that is starting lists no brokers yet.
        if not isinstance(response, MetadataResponse) or not (nodes := nodes_of(response.brokers)):
            return None
        self._check_feature_level(answered.node_id)
        self._client.set_nodes(nodes)
        self._nodes.update(nodes)
        self.brokers = tuple(nodes.values())
        self._controller_id = response.controller_id if response.controller_id in nodes else None
        return response.topics

    def _check_feature_level(self, node_id: int | None) -> None:
        if node_id is None or self._has_headers is None:
            return
        name = str(self._nodes.get(node_id, f"node {node_id}"))
        versions = self._client.versions(node_id)
        check_feature_level(name, versions, self._config, has_headers=self._has_headers)

    def until_answered(self, request: Request, answer: Callable[[RequestFuture], _T | None]) -> _T:
        """Send a request to any broker, and repeat it until `answer` returns a result.

        answer: a function that takes the completed request. It returns the result, or None if the
        request must be sent again. The request is also sent again if it fails with a retriable
        error, or if `answer` raises one. Other errors are raised at once. Raise TimeoutException
        after max.block.ms.
        """
        attempts, refusal = 0, None
        while True:
            future: RequestFuture | None = None
            try:
                future = self._wait_for(None, request)
                found = answer(future)
            except ApiException as error:
                is_over = future is None and self._clock() >= self._deadline
                if not (is_over or error_code(error.code).retriable):
                    raise
                if future is not None and future.error is None:
                    refusal = error
            else:
                if found is not None:
                    return found
            if not self.pause(attempts):
                if refusal is None:
                    raise self._timeout_error(request)
                message = f"{self.limit()} has passed"
                raise TimeoutException.after(refusal, message, api=refusal.api)
            attempts += 1

    def send(
        self, message: Request, min_version: int = 0, *, to_controller: bool = False
    ) -> Response:
        """Send one request, and return its response. Raise an error if there is no response.

        to_controller: whether to send it to the controller. If it is False, or if the controller is
        unknown, the request is sent to any broker.
        """
        node_id = self._controller_id if to_controller else None
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
                raise self._timeout_error(message)
            self._client.poll(min(remaining, _MAX_WAIT_S))
        return future

    def pause(self, attempts: int, until: float = float("inf")) -> bool:
        """Wait before a retry. Return False if max.block.ms or the time `until` has passed."""
        deadline = min(self._deadline, until)
        delay = self._backoff.delay_s(attempts, self._random)
        time.sleep(max(0.0, min(delay, deadline - self._clock())))
        return self._clock() < deadline

    def time_in(self, seconds: float) -> float:
        """Return the time in so many seconds, on the clock of `pause`."""
        return self._clock() + seconds

    def limit(self) -> str:
        """Return max.block.ms and its value, for error messages."""
        return str(Option("max.block.ms", self._config.max_block_ms))

    def trouble(self) -> str:
        """Return connection errors in brackets, for error messages; empty if there are none."""
        trouble = self._client.last_errors()
        return f" ({trouble})" if trouble else ""

    def _timeout_error(self, message: Request) -> ApiException:
        servers = Option("bootstrap.servers", self._config.bootstrap_servers)
        said = self.trouble()
        if not self._config.max_block_ms and isinstance(message, MetadataRequest):
            for topic in message.topics or ():
                return NO_TOPIC.error(
                    topic=topic.name, api="Metadata", limit=self.limit(), found=NOT_AWAITED + said
                )
        return self._client.no_broker.error(limit=self.limit(), servers=servers, trouble=said)

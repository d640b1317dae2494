"""ConsumerNetworkClient: futures for requests to nodes that may not be connected yet.

`NetworkClient` accepts requests only for nodes that are ready. This client queues a request until
its node is ready. The future is done when the response arrives or the connection breaks. It is also
done when request.timeout.ms passes, even if the request was not sent yet. The caller checks its
futures after each `poll`. There are no callbacks, and a single thread uses the client. The object
that owns the client uses `OneCaller` to reject calls from a second thread, as Java's KafkaConsumer
does.

This thread may be the main thread, in which Ctrl-C raises KeyboardInterrupt at any point. Received
bytes may then be lost, and the client may not know what was sent. After an interrupted call, the
next call therefore closes every connection, fails the requests without a response, and begins with
new connections.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

from spark_kafka_sink import error_codes
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    ApiException,
    Cause,
    IllegalStateException,
    api_exception,
    error_code,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.network.node_state import NetworkConfig
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    Event,
    NodeDown,
    NodeReady,
    NodeThrottled,
    RequestFailed,
)
from spark_kafka_sink.wire.messages import API_OF, Request, Response
from spark_kafka_sink.wire.versions import NodeApiVersions

_NEVER: Final = float("inf")


class RequestFuture:
    """The future response to a request; it is done once it has a response or an error.

    version: the version of the response. node_id: the node that responded. Both are None before the
    response.
    """

    __slots__ = ("_response", "error", "expires_at", "node_id", "request", "version")

    def __init__(self, request: ClientRequest, expires_at: float) -> None:
        self.request = request
        self.expires_at = expires_at
        self.error: ApiException | None = None
        self.version: int | None = None
        self.node_id: int | None = None
        self._response: Response | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is a response or an error."""
        return self._response is not None or self.error is not None

    @property
    def response(self) -> Response:
        """The response. Raise the error if the request failed.

        Raise IllegalStateException if there is neither a response nor an error yet.
        """
        if self.error is not None:
            raise self.error
        if self._response is None:
            message = "the request has no response yet"
            raise IllegalStateException(message)
        return self._response

    def complete(
        self, response: Response, version: int | None = None, node_id: int | None = None
    ) -> None:
        """Set the response."""
        self._response, self.version, self.node_id = response, version, node_id

    def fail(self, code: int, reason: str, node_id: int | None) -> None:
        """Set the error. code: the error code, as in `RequestFailed`."""
        api = API_OF[type(self.request.message)].name
        at = "" if node_id is None else f" to node {node_id}"
        message = f"{api}{at} failed: {error_code(code).name} ({code}); {reason}"
        self.error = api_exception(code, message, node_id=node_id, api=api)


class ConsumerNetworkClient:
    """Queues each request until its node is ready. Times are seconds of `clock`.

    connect: returns a network client. It is called again after an interrupted call.
    """

    def __init__(
        self,
        connect: Callable[[], NetworkClient],
        clock: Callable[[], float],
        request_timeout_s: float,
    ) -> None:
        self._connect = connect
        self._client = connect()
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._unsent: dict[int, deque[RequestFuture]] = {}
        self._ready: set[int] = set()
        self._versions: dict[int, NodeApiVersions] = {}
        self._throttled_until: dict[int, float] = {}
        self._nodes: Mapping[int, Node] = {}
        self._initial_nodes: tuple[Node, ...] = ()
        # The requests that are not done. At its end, each poll removes the requests that are done.
        self._open: list[RequestFuture] = []
        self._is_interrupted = False
        # Whether requests have failed since the last poll, so that the next poll must not wait.
        self._has_failed = False

    @classmethod
    def of(
        cls,
        config: ProducerConfig,
        clock: Callable[[], float],
        random: Random,
        *,
        identity: str = "",
    ) -> Self:
        """Return a client with its own network client. identity: as in `Security`."""
        security = Security.of(config, identity=identity)

        def connect() -> NetworkClient:
            # After an interrupt, the client must log in as the same user as before.
            if security is not None:
                security.reopen()
            selector_class = Selector if security is None else security.selector_class
            return NetworkClient(
                selector_class(
                    send_buffer_bytes=config.send_buffer_bytes,
                    receive_buffer_bytes=config.receive_buffer_bytes,
                ),
                NetworkConfig.of(config, config.client_id),
                config.bootstrap_nodes,
                clock,
                random,
                security=security,
            )

        return cls(connect, clock, config.request_timeout_ms / 1000)

    def set_initial_nodes(self, brokers: Iterable[Node]) -> None:
        """Use brokers that another client learned from the cluster (see `NetworkClient`)."""
        with self._guarded_call():
            self._initial_nodes = tuple(brokers)
            self._client.set_initial_nodes(self._initial_nodes)

    def set_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Replace the known brokers with those in the cluster's metadata."""
        with self._guarded_call():
            self._nodes, self._initial_nodes = nodes, ()
            self._client.set_nodes(nodes)
            for node_id in self._unsent.keys() - nodes.keys():
                self._fail_unsent(node_id, "the cluster no longer lists this broker")
                self._has_failed = True

    def send(
        self,
        node_id: int | None,
        message: Request,
        max_version: int | None = None,
        min_version: int = 0,
        send_by: float = _NEVER,
    ) -> RequestFuture:
        """Send a request as soon as its node is ready. node_id: None if any node may answer.

        send_by: the last time at which a request to a given node may be sent.
        """
        with self._guarded_call():
            request = ClientRequest(
                node_id=node_id,
                message=message,
                max_version=max_version,
                min_version=min_version,
                send_by=send_by,
            )
            expires_at = min(self._clock() + self._request_timeout_s, send_by)
            future = RequestFuture(request, expires_at)
            request.context = future
            self._open.append(future)
            if node_id is None:
                self._client.send(request)
            else:
                self._unsent.setdefault(node_id, deque()).append(future)
                self._try_send(self._clock())
        return future

    def versions(self, node_id: int) -> NodeApiVersions:
        """Return the API versions that a node supported at its last connection."""
        return self._versions[node_id]

    def poll(self, timeout_s: float) -> None:
        """Send queued requests, and wait at most `timeout_s` seconds for an event."""
        with self._guarded_call():
            now = self._clock()
            self._try_send(now)
            self._client.connect(set(self._unsent))
            wait = 0.0 if self._has_failed else max(0.0, min(timeout_s, self._next_due() - now))
            for event in self._client.poll(wait):
                self._handle(event)
            now = self._clock()
            self._expire(now)
            self._try_send(now)
            self._open = [future for future in self._open if not future.is_done]
            self._has_failed = False

    @contextmanager
    def _guarded_call(self) -> Iterator[None]:
        """Context manager: a call counts as interrupted unless its ``with`` block ends normally.

        If the last call was interrupted, the network client is replaced before the block runs. If
        the replacement is interrupted, too, the next call repeats it.
        """
        if self._is_interrupted:
            self._client.close()
            self._ready.clear()
            self._unsent.clear()
            self._has_failed = True
            for future in self._open:
                if not future.is_done:
                    reason = "its connection was closed, because a call was interrupted"
                    node_id = future.request.node_id
                    future.fail(error_codes.NETWORK_EXCEPTION, reason, node_id)
            self._client = self._connect()
            if self._nodes:
                self._client.set_nodes(self._nodes)
            else:
                self._client.set_initial_nodes(self._initial_nodes)
        self._is_interrupted = True
        yield
        self._is_interrupted = False  # not reached if the block raises

    def last_errors(self) -> str:
        """Return a description of the nodes with errors."""
        return self._client.last_errors()

    @property
    def no_broker(self) -> Cause:
        """The error of a call that no broker has answered in time."""
        return self._client.no_broker

    @property
    def principal(self) -> str:
        """The name of the client's principal, or an empty string if unknown."""
        return self._client.principal

    def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def _try_send(self, now: float) -> None:
        for node_id in list(self._unsent):
            if node_id in self._ready and self._throttled_until.get(node_id, 0.0) <= now:
                for future in self._unsent.pop(node_id):
                    if now < future.expires_at:
                        self._client.send(future.request)
                    else:  # for example because this process was suspended
                        self._give_up(future)

    def _next_due(self) -> float:
        """Return the earliest time at which a queued request expires or a throttle time ends."""
        due = [future.expires_at for queue in self._unsent.values() for future in queue]
        due += [self._throttled_until.get(n, _NEVER) for n in self._unsent if n in self._ready]
        return min(due, default=_NEVER)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Answered):
            if event.response is not None:
                _future(event.request).complete(event.response, event.version, event.node_id)
        elif isinstance(event, RequestFailed):
            if event.error is not None:
                _future(event.request).error = event.error
            else:
                _future(event.request).fail(event.code, event.reason, event.node_id)
        elif isinstance(event, NodeReady):
            self._ready.add(event.node_id)
            self._versions[event.node_id] = event.versions
        elif isinstance(event, NodeDown):
            self._ready.discard(event.node_id)
            self._fail_unsent(event.node_id, f"connection lost: {event.reason}")
        elif isinstance(event, NodeThrottled):
            self._throttled_until[event.node_id] = event.until

    def _fail_unsent(self, node_id: int, reason: str) -> None:
        for future in self._unsent.pop(node_id, ()):
            future.fail(error_codes.NETWORK_EXCEPTION, reason, node_id)

    def _expire(self, now: float) -> None:
        for node_id, queue in list(self._unsent.items()):
            for future in queue:
                if now >= future.expires_at:
                    self._give_up(future)
            still = deque(future for future in queue if not future.is_done)
            if still:
                self._unsent[node_id] = still
            else:
                del self._unsent[node_id]

    def _give_up(self, future: RequestFuture) -> None:
        """Fail a request that was not sent in time."""
        if future.expires_at >= future.request.send_by:
            limit = "the last time at which the request may be sent"
        else:
            limit = f"request.timeout.ms={round(self._request_timeout_s * 1000)}"
        reason = f"the node was not ready within {limit}"
        future.fail(error_codes.REQUEST_TIMED_OUT, reason, future.request.node_id)
        self._has_failed = True


def _future(request: ClientRequest) -> RequestFuture:
    if not isinstance(request.context, RequestFuture):
        message = f"{request!r} is not a request of this client"
        raise TypeError(message)
    return request.context


_P = ParamSpec("_P")
_R = TypeVar("_R")
_CALLER: Final = "caller"


class OneCaller:
    """Lets only one thread at a time call an object. That thread's calls may be nested.

    kind: the class of the object, for error messages.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._pid = os.getpid()
        # A dict with one entry, because setdefault reads and writes in one atomic step.
        self._threads: dict[str, int] = {}

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child's copy. If so, its connections belong to the parent."""
        return os.getpid() != self._pid

    def run(self, call: Callable[[], _R]) -> _R:
        """Run a call.

        Raise IllegalStateException in a forked child, or while another thread runs a call.
        """
        if self.is_forked:
            raise IllegalStateException(
                f"this {self._kind} was created before a fork: create one in the process that "
                "uses it"
            )
        me = threading.get_ident()
        is_outer = self._threads.get(_CALLER) != me
        try:
            if self._threads.setdefault(_CALLER, me) != me:
                raise IllegalStateException(
                    f"this {self._kind} is in use by another thread: use it from one thread at a "
                    "time, or create one per thread"
                )
            return call()
        finally:
            # This also runs after an interrupt between setdefault and the call.
            if is_outer and self._threads.get(_CALLER) == me:
                del self._threads[_CALLER]


class _HasOneCaller(Protocol):
    _caller: OneCaller


_S = TypeVar("_S", bound=_HasOneCaller)


def by_one_caller(
    method: Callable[Concatenate[_S, _P], _R],
) -> Callable[Concatenate[_S, _P], _R]:
    """Decorate a method so that its calls go through `OneCaller.run`."""

    @functools.wraps(method)
    def alone(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._caller.run(lambda: method(self, *args, **kwargs))

    return alone

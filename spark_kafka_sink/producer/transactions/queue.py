"""The waiting requests of a transaction: their order, their retries and their coordinators.

The request with the lowest priority number is sent first; requests of equal priority are sent in
the order in which they were added. Only one request is in flight at a time, so that brokers see the
steps of a transaction in order. If the coordinator of a request is unknown, FindCoordinator is sent
first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Container, Mapping
from random import Random
from typing import Final, TypeGuard

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import KafkaException, UnsupportedVersionException
from spark_kafka_sink.model import Node
from spark_kafka_sink.producer.transactions.answers import coordinator_of
from spark_kafka_sink.producer.transactions.requests import (
    CoordinatorKey,
    Priority,
    TransactionalRequest,
    find_coordinator,
)
from spark_kafka_sink.wire.messages import INIT_PRODUCER_ID
from spark_kafka_sink.wire.transaction_messages import FindCoordinatorResponse
from spark_kafka_sink.wire.versions import NodeApiVersions

# The first version of InitProducerId that takes a producer id and its epoch (KIP-360).
_BUMPS_EPOCHS: Final = 3


class Coordinators:
    """The node of each coordinator, and what the brokers support.

    A key is a pair: the type of the coordinator, and the transactional.id or the group id.
    """

    def __init__(self) -> None:
        self._by_key: dict[CoordinatorKey, int] = {}
        # The last known node of each coordinator, also while the coordinator is being looked up:
        # the look-up may return the same node, whose reconnect back-off must not start again.
        self._last: dict[CoordinatorKey, Node] = {}
        # Whether a broker can bump epochs, by node id of the connected brokers (_connected), and by
        # coordinator as of the last time that its connection was ready (_bumps).
        self._connected: dict[int, bool] = {}
        self._bumps: dict[CoordinatorKey, bool] = {}
        self._features: Mapping[str, int] = {}
        self._features_epoch = -1

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The coordinators, by node id. The producer keeps a connection to each of them."""
        return {node.id: node for node in self._last.values()}

    @property
    def transaction_version(self) -> int:
        """The finalized level of the feature transaction.version; 0 if brokers do not support it.

        A broker may return outdated levels, so those with the highest finalized epoch are used.
        """
        return self._features.get("transaction.version", 0)

    def node_ready(self, node_id: int, versions: NodeApiVersions) -> None:
        """Store the API versions of a broker whose connection is ready."""
        if versions.finalized_features_epoch >= self._features_epoch:
            self._features_epoch = versions.finalized_features_epoch
            self._features = versions.finalized_features
        try:
            version = versions.latest_usable_version(INIT_PRODUCER_ID)
        except UnsupportedVersionException:
            version = -1
        self._connected[node_id] = version >= _BUMPS_EPOCHS
        for key, coordinator in self._by_key.items():
            if coordinator == node_id:
                self._bumps[key] = self._connected[node_id]

    def bumps_epoch(self, key: CoordinatorKey) -> bool:
        """Return whether the coordinator of `key` can bump an epoch on request.

        Until a new coordinator is connected, the result is about the previous coordinator. If only
        that one can bump an epoch, the new one returns an error, which is handled like any other.
        """
        return self._bumps.get(key, False)

    def node_id(self, key: CoordinatorKey) -> int | None:
        """Return the node id of the coordinator of `key`, None if it must be looked up."""
        return self._by_key.get(key)

    def learn(self, key: CoordinatorKey, node: Node) -> None:
        """Store the coordinator that a look-up found."""
        self._by_key[key] = node.id
        self._last[key] = node
        if node.id in self._connected:
            self._bumps[key] = self._connected[node.id]

    def forget(self, key: CoordinatorKey) -> None:
        """Forget the coordinator of `key`, because a different broker is its coordinator now."""
        self._by_key.pop(key, None)

    def forget_all(self) -> None:
        """Forget all coordinators. The next FindCoordinator goes to any available broker."""
        self._by_key.clear()
        self._last.clear()

    def drop_unlisted(self, listed: Container[int]) -> None:
        """Drop the previous coordinators that are not in the metadata: they may be gone for ever.

        listed: the node ids in the metadata.
        """
        self._last = {
            key: node
            for key, node in self._last.items()
            if key in self._by_key or node.id in listed
        }

    def node_down(self, node_id: int) -> None:
        """Record that a broker cannot be reached, and forget it as a coordinator."""
        self._connected.pop(node_id, None)
        for key in [key for key, node in self._by_key.items() if node == node_id]:
            del self._by_key[key]


class TransactionQueue:
    """The requests of a transaction that wait to be sent, and the request that is in flight.

    coordinators: the brokers that get the requests. Times are seconds of the producer's clock.
    """

    def __init__(self, retry_backoff: ExponentialBackoff, random: Random) -> None:
        self.coordinators = Coordinators()
        self._retry_backoff = retry_backoff
        self._random = random
        self._waiting: list[tuple[Priority, int, TransactionalRequest]] = []
        self._order = itertools.count()
        self._in_flight: TransactionalRequest | None = None

    def add(self, request: TransactionalRequest) -> None:
        """Add `request` behind the waiting requests of the same priority."""
        if request.order < 0:
            request.order = next(self._order)
        heapq.heappush(self._waiting, (request.priority, request.order, request))

    @property
    def is_busy(self) -> bool:
        """Whether a request is in flight."""
        return self._in_flight is not None

    @property
    def waiting(self) -> list[TransactionalRequest]:
        """The waiting requests, in no particular order."""
        return [request for _, _, request in self._waiting]

    @property
    def last_error(self) -> KafkaException | None:
        """The brokers' last error about a request that is retried, None if there is none."""
        in_flight = [] if self._in_flight is None else [self._in_flight]
        waiting = (request for _, _, request in sorted(self._waiting, key=lambda each: each[:2]))
        errors = (request.last_error for request in (*in_flight, *waiting))
        return next(filter(None, errors), None)

    def first(self) -> TransactionalRequest | None:
        """Return the request to send next. None if none waits, or if one is still in flight."""
        if self._in_flight is not None or not self._waiting:
            return None
        return self._waiting[0][2]

    def due(self, now: float) -> TransactionalRequest | None:
        """Return the request to send now, None if there is none.

        It is FindCoordinator if the coordinator of the first request is unknown. The caller sends
        it and calls `sent`.
        """
        request = self.first()
        if request is None:
            return None
        if request.coordinator is not None and self.node_id(request) is None:
            request = find_coordinator(request.coordinator)
            self.add(request)
        return None if now < request.retry_at else request

    def node_id(self, request: TransactionalRequest) -> int | None:
        """Return the node to which `request` is sent, None for any broker."""
        key = request.coordinator
        return None if key is None else self.coordinators.node_id(key)

    def next_due_at(self) -> float:
        """Return the time at which the retry of the first request is due.

        Return infinity if the first request is not a retry, or if no request can be sent next.
        """
        request = self.first()
        return float("inf") if request is None or not request.attempts else request.retry_at

    def sent(self) -> None:
        """Record that the first request is in flight."""
        self._in_flight = self.drop_first()
        self._in_flight.is_sent = True

    def has_sent(self, context: object) -> TypeGuard[TransactionalRequest]:
        """Return whether this queue sent the request with the given context.

        context: the object that was passed with the request. It is a TransactionalRequest if the
        request comes from this queue.
        """
        return isinstance(context, TransactionalRequest)

    def drop(
        self, is_refused: Callable[[TransactionalRequest], bool]
    ) -> list[TransactionalRequest]:
        """Remove the waiting requests for which `is_refused` is true; return them in order."""
        refused = [each for each in self._waiting if is_refused(each[2])]
        if refused:
            self._waiting = [each for each in self._waiting if each not in refused]
            heapq.heapify(self._waiting)
        return [request for _, _, request in sorted(refused, key=lambda each: each[:2])]

    def drop_first(self) -> TransactionalRequest:
        """Remove and return the first request."""
        return heapq.heappop(self._waiting)[2]

    def back(self, request: TransactionalRequest) -> bool:
        """Record that `request` is no longer in flight.

        Return False if `clear` had already removed it.
        """
        if self._in_flight is not request:
            return False
        self._in_flight = None
        return True

    def retry(
        self,
        request: TransactionalRequest,
        now: float,
        error: KafkaException | None = None,
        *,
        longest_wait_s: float = float("inf"),
    ) -> None:
        """Add `request` again, to be sent after a wait of at most longest_wait_s.

        error: the brokers' error, None if they did not respond.
        """
        request.last_error = error or request.last_error
        wait = self._retry_backoff.delay_s(request.attempts, self._random)
        request.retry_at = now + min(wait, longest_wait_s)
        request.attempts += 1
        self.add(request)

    def looked_up(self, request: TransactionalRequest, response: FindCoordinatorResponse) -> None:
        """Store the coordinator from a FindCoordinator response without an error."""
        if request.looks_up is not None:
            _, node = coordinator_of(response)
            self.coordinators.learn(request.looks_up, node)

    def look_up_again(self, request: TransactionalRequest) -> None:
        """Forget the coordinator of `request`, so that it is looked up before the retry."""
        if request.coordinator is not None:
            self.coordinators.forget(request.coordinator)

    def clear(self) -> list[TransactionalRequest]:
        """Remove all requests and return them in order, first the request in flight."""
        gone = [request for _, _, request in sorted(self._waiting, key=lambda entry: entry[:2])]
        if self._in_flight is not None:
            gone.insert(0, self._in_flight)
        self._waiting, self._in_flight = [], None
        return gone

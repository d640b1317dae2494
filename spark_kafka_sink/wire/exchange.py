"""The requests of a producer to the network client, and the events that the client returns.

These classes contain only data. The producer's state machines and the network client both import
them, and so need not import each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from spark_kafka_sink.errors import AuthenticationException
from spark_kafka_sink.wire.messages import Request, Response
from spark_kafka_sink.wire.versions import NodeApiVersions


@dataclass(slots=True, kw_only=True, eq=False)
class ClientRequest:
    """One request to one node.

    node_id: None for the least loaded node. max_version: the highest version to use, even if client
    and broker support later versions. min_version: the first version with all fields that the
    message sets. send_by: the request must not be sent after this time, in seconds of the client's
    clock. expects_response: False for a Produce request with acks=0, which is complete when
    it is written to the socket. context: any value. The event about the request contains the
    request, and so also this value.
    """

    node_id: int | None
    message: Request
    max_version: int | None = None
    min_version: int = 0
    send_by: float = float("inf")
    expects_response: bool = True
    context: object = None


@dataclass(frozen=True, slots=True)
class NodeReady:
    """A connection is established and the broker's versions are known."""

    node_id: int
    versions: NodeApiVersions


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A connection broke, or could not be established.

    This event comes after a `RequestFailed` for each request of the connection. error: the reason
    if node and client could not authenticate each other, None otherwise.
    """

    node_id: int
    reason: str
    error: AuthenticationException | None = None


@dataclass(frozen=True, slots=True)
class NodeThrottled:
    """The broker throttles this client (KIP-219).

    until: the end of the throttle time, in seconds of the clock that the network client uses.
    """

    node_id: int
    until: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A request is complete.

    response: None if the request expects no response and was written to the socket. version: the
    version of the API that was used, or None if there is no response. latency_s: the time from
    sending the request to receiving the complete response, in seconds.
    """

    request: ClientRequest
    node_id: int
    response: Response | None
    version: int | None = None
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request failed, and no response will come.

    code: NETWORK_EXCEPTION, REQUEST_TIMED_OUT, UNSUPPORTED_VERSION, or INVALID_REQUEST for a
    request that cannot be encoded. error: set if no later request can succeed either, because node
    and client could not authenticate each other; None otherwise. was_sent: whether any bytes of the
    request may have been sent. A broker may then have processed it.
    """

    request: ClientRequest
    node_id: int | None
    code: int
    reason: str
    error: AuthenticationException | None = None
    was_sent: bool = True


Event: TypeAlias = NodeReady | NodeDown | NodeThrottled | Answered | RequestFailed

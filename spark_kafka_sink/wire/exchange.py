"""The requests that a producer gives to the network client, and the events it gets back.

These are values without behaviour. The producer's state machines and the network client never
import each other; both use these types.
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

    node_id: None for the least loaded node. max_version: an upper limit below what client and
    broker support. min_version: the first version that has all the fields the message sets.
    expects_response: False for a Produce request with acks=0, which is complete once it is written.
    context: any value that the sender of the request wants back with the response.
    """

    node_id: int | None
    message: Request
    max_version: int | None = None
    min_version: int = 0
    expects_response: bool = True
    context: object = None


@dataclass(frozen=True, slots=True)
class NodeReady:
    """A connection is established and the broker's versions are known."""

    node_id: int
    versions: NodeApiVersions


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A connection broke or could not be made. It comes after the failures of its requests.

    error: set if node and client could not authenticate each other.
    """

    node_id: int
    reason: str
    error: AuthenticationException | None = None


@dataclass(frozen=True, slots=True)
class NodeThrottled:
    """The broker throttles this client (KIP-219) until `until`, in seconds of the same clock."""

    node_id: int
    until: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A response, or None for a request that expects no response and was written.

    version: the version of the API that was used, None if there is no response. latency_s: the time
    from sending the request to having the complete response.
    """

    request: ClientRequest
    node_id: int
    response: Response | None
    version: int | None = None
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request will get no response.

    code: NETWORK_EXCEPTION, REQUEST_TIMED_OUT, UNSUPPORTED_VERSION, or INVALID_REQUEST, which is
    never sent. error: the reason why no later request can succeed either, because the brokers
    reject the client's login or certificate; None in all other cases.
    """

    request: ClientRequest
    node_id: int | None
    code: int
    reason: str
    error: AuthenticationException | None = None


Event: TypeAlias = NodeReady | NodeDown | NodeThrottled | Answered | RequestFailed

"""What the producer asks of the network, and what it is told: values, no behaviour.

The producer's state machines and the network client never import each other; both speak in these.
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

    node_id: None for whichever node is least loaded. max_version: a cap below what client and
    broker speak. min_version: the first version that can say what the message says.
    expects_response: False for a Produce with acks=0, which is answered by having been written.
    context: what the sender of the request wants back with the answer.
    """

    node_id: int | None
    message: Request
    max_version: int | None = None
    min_version: int = 0
    expects_response: bool = True
    context: object = None


@dataclass(frozen=True, slots=True)
class NodeReady:
    """A connection is up and the broker's versions are known."""

    node_id: int
    versions: NodeApiVersions


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A connection broke or could not be made; it comes after the failures of its requests."""

    node_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeThrottled:
    """The broker asked to be left alone (KIP-219) until `until`, in the clock's seconds."""

    node_id: int
    until: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A response; None for a request that expects none and has been written.

    version: of the API, as it was spoken; None where there is no response. latency_s: from sending
    the request to having the response, whole.
    """

    request: ClientRequest
    node_id: int
    response: Response | None
    version: int | None = None
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No response will come.

    code: NETWORK_EXCEPTION, REQUEST_TIMED_OUT, UNSUPPORTED_VERSION, or INVALID_REQUEST, which is
    never sent. error: why no request will ever be answered, as the brokers do not let the client
    in; None in all other cases.
    """

    request: ClientRequest
    node_id: int | None
    code: int
    reason: str
    error: AuthenticationException | None = None


Event: TypeAlias = NodeReady | NodeDown | NodeThrottled | Answered | RequestFailed

"""InFlightRequests: what was asked on one connection and not answered yet, in order.

A broker answers the requests of a connection in the order they came, so the oldest is always the
one that is answered next (InFlightRequests.completeNext). Their frames are written in the same
order; a request that expects no response is complete when its own frame is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.messages import Api


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request on the wire; `request` is None for the connection's own ApiVersions.

    throttled_s: how long the broker has said it will not read from the connection meanwhile.
    """

    request: ClientRequest | None
    api: Api
    version: int
    correlation_id: int
    sent_at: float
    expects_response: bool
    throttled_s: float = 0.0


class InFlightRequests:
    """One connection's requests, oldest first; times are seconds of the producer's clock."""

    def __init__(self, request_timeout_s: float) -> None:
        self._request_timeout_s = request_timeout_s
        self._requests: deque[InFlightRequest] = deque()
        # Those whose frames are not written yet.
        self._unwritten: deque[InFlightRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: InFlightRequest) -> None:
        """Note a request that is being sent."""
        self._requests.append(request)
        self._unwritten.append(request)

    def oldest(self) -> InFlightRequest | None:
        """Give the request that is answered next, None if no answer can come now."""
        if not self._requests or not self._requests[0].expects_response:
            return None
        return self._requests[0]

    def complete_oldest(self) -> InFlightRequest:
        """Remove the oldest request and give it."""
        return self._requests.popleft()

    def written(self) -> InFlightRequest | None:
        """Note that the next frame is written; give its request if that completes it."""
        request = self._unwritten.popleft()
        if request.expects_response:
            return None
        self._requests.remove(request)
        return request

    def throttle(self, pause_s: float) -> None:
        """Give what is in flight more time: a broker that throttles reads it later (KIP-219)."""
        for request in self._requests:
            request.throttled_s += pause_s

    def expires_at(self) -> float:
        """Give when the oldest request times out; infinity if nothing is in flight."""
        if not self._requests:
            return float("inf")
        oldest = self._requests[0]
        return oldest.sent_at + self._request_timeout_s + oldest.throttled_s

    def clear(self) -> list[InFlightRequest]:
        """Remove all and give them, oldest first."""
        requests = list(self._requests)
        self._requests.clear()
        self._unwritten.clear()
        return requests

"""NetworkMetrics: traffic on the connections, and the time that the I/O thread spends on it.

It owns the sensors of the Java client's Selector (SelectorMetrics), with the same metric names. A
sensor is updated once per new connection, per request sent, per read, or per select. `fold` moves
the new values into the time windows, at most once a second. All values that one call of `fold`
moves are recorded with the same time (see `Metrics.fold`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_kafka_sink.metrics import (
    Metrics,
    MetricTemplate,
    Sensor,
    count_meter,
    mean_and_maximum,
    meter,
)

GROUP: Final = "producer-metrics"
NODE_GROUP: Final = "producer-node-metrics"

SENSORS: Final[Mapping[str, tuple[MetricTemplate, ...]]] = {
    "connections_closed": meter(
        "connection-close", "connections", "connections closed, including those never established"
    ),
    "connections_created": meter("connection-creation", "connections", "connections established"),
    "authentications": (
        *meter(
            "successful-authentication",
            "connections",
            "connections whose TLS handshake and first login succeeded",
        ),
        MetricTemplate(
            "successful-authentication-no-reauth-total",
            Sensor.total,
            "connections",
            "connections whose TLS handshake and first login succeeded, in total",
        ),
    ),
    "failed_authentications": meter(
        "failed-authentication",
        "connections",
        "connections that failed at the TLS handshake or the first login, even before they opened",
    ),
    # The recorded value is the time in ms.
    "reauthentications": (
        *count_meter("successful-reauthentication", "logins", "re-authentications that succeeded"),
        *mean_and_maximum("reauthentication-latency", "ms", "time to re-authenticate"),
    ),
    "failed_reauthentications": meter(
        "failed-reauthentication", "logins", "re-authentications that were rejected"
    ),
    # The recorded value is the request's size. One sensor serves all these metrics, because the
    # count and the size are known at the same time.
    "requests": (
        *meter("outgoing-byte", "bytes", "bytes of requests written"),
        *count_meter("request", "requests", "requests written"),
        *mean_and_maximum("request-size", "bytes", "size of a request"),
    ),
    "bytes_received": meter("incoming-byte", "bytes", "bytes read"),
    "responses": meter("response", "responses", "responses received"),
    "select_time": (
        *count_meter("select", "calls", "polls of the I/O thread"),
        MetricTemplate(
            "io-wait-time-ns-avg",
            Sensor.average,
            "ns",
            "time spent waiting for sockets per poll, on average",
        ),
        MetricTemplate(
            "io-wait-ratio", Sensor.ratio, "ratio", "fraction of time spent waiting for sockets"
        ),
        MetricTemplate(
            "io-wait-time-ns-total", Sensor.total, "ns", "time spent waiting for sockets"
        ),
    ),
    "io_time": (
        MetricTemplate(
            "io-time-ns-avg",
            Sensor.average,
            "ns",
            "time spent reading and writing per poll, on average",
        ),
        MetricTemplate(
            "io-ratio", Sensor.ratio, "ratio", "fraction of time spent reading and writing"
        ),
        MetricTemplate("io-time-ns-total", Sensor.total, "ns", "time spent reading and writing"),
    ),
}
# The rate and the total are gauges: each adds the values of two sensors, requests and responses.
OPERATIONS: Final = count_meter(
    "network-io", "operations", "requests written and responses received"
)
NODE_SENSORS: Final[Mapping[str, tuple[MetricTemplate, ...]]] = {
    "requests": (
        *meter("outgoing-byte", "bytes", "bytes of requests written to the node"),
        *count_meter("request", "requests", "requests written to the node"),
        *mean_and_maximum("request-size", "bytes", "size of a request to the node"),
    ),
    "bytes_received": meter("incoming-byte", "bytes", "bytes read from the node"),
    "responses": meter("response", "responses", "responses of the node"),
    "latency": mean_and_maximum(
        "request-latency", "ms", "time from a Produce request until the node's response"
    ),
}


@dataclass(frozen=True, slots=True)
class _Sensors:
    connections_closed: Sensor
    connections_created: Sensor
    authentications: Sensor
    failed_authentications: Sensor
    reauthentications: Sensor
    failed_reauthentications: Sensor
    requests: Sensor
    bytes_received: Sensor
    responses: Sensor
    select_time: Sensor
    io_time: Sensor


@dataclass(frozen=True, slots=True)
class _NodeSensors:
    requests: Sensor
    bytes_received: Sensor
    responses: Sensor
    latency: Sensor


class NetworkMetrics:
    """The network's sensors. Only the I/O thread updates them. Times are seconds of its clock."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        made = {name: metrics.sensor(GROUP, templates) for name, templates in SENSORS.items()}
        self._all = _Sensors(**made)
        rate, total = OPERATIONS
        metrics.gauge(GROUP, rate, self._operation_rate)
        metrics.gauge(GROUP, total, self._operation_total)
        self._nodes: dict[int, _NodeSensors] = {}

    def fold(self, now: float) -> None:
        """Move the new values into the time windows; call this after each wait (`Metrics.fold`)."""
        self._metrics.fold(now)

    def connected(self) -> None:
        """Record an established connection."""
        self._all.connections_created.add(1)

    def authenticated(self) -> None:
        """Record that a connection with TLS or SASL is ready for requests."""
        self._all.authentications.add(1)

    def reauthenticated(self, latency_ms: float) -> None:
        """Record a re-authentication, and its duration in ms."""
        self._all.reauthentications.add(latency_ms)

    def authentication_failed(self, *, is_renewal: bool) -> None:
        """Record a failed login. is_renewal: whether it was a re-authentication."""
        if is_renewal:
            self._all.failed_reauthentications.add(1)
        else:
            self._all.failed_authentications.add(1)

    def closed(self) -> None:
        """Record that a connection was closed, or that an attempt to connect failed."""
        self._all.connections_closed.add(1)

    def sent(self, node_id: int, size_bytes: int) -> None:
        """Record a request that was completely written."""
        self._all.requests.add(size_bytes)
        self._node(node_id).requests.add(size_bytes)

    def received(self, node_id: int, size_bytes: int, responses: int) -> None:
        """Record a read and the number of responses that it completed."""
        node = self._node(node_id)
        self._all.bytes_received.add(size_bytes)
        node.bytes_received.add(size_bytes)
        if responses:
            self._all.responses.add(responses)
            node.responses.add(responses)

    def produced(self, node_id: int, latency_ms: float) -> None:
        """Record the latency of a node's Produce response, in ms."""
        self._node(node_id).latency.add(latency_ms)

    def polled(self, started: float, selected: float, ended: float) -> None:
        """Record the times at which a poll began to wait, began to read and write, and ended."""
        self.fold(selected)
        self._all.select_time.add((selected - started) * 1e9)
        self._all.io_time.add((ended - selected) * 1e9)

    def _operation_rate(self, now: float) -> float:
        return self._all.requests.count_rate(now) + self._all.responses.rate(now)

    def _operation_total(self, now: float) -> float:
        return self._all.requests.count(now) + self._all.responses.total(now)

    def _node(self, node_id: int) -> _NodeSensors:
        node = self._nodes.get(node_id)
        if node is None:
            tags = {"node-id": f"node-{node_id}"}
            made = {
                name: self._metrics.sensor(NODE_GROUP, templates, tags)
                for name, templates in NODE_SENSORS.items()
            }
            node = self._nodes[node_id] = _NodeSensors(**made)
        return node

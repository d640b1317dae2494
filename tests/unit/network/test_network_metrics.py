"""The traffic of connections is measured per client and per node."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from support.pure.in_memory_selector import InMemorySelector

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.node_state import NetworkConfig
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.wire.exchange import Answered, ClientRequest
from spark_kafka_sink.wire.messages import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.wire.primitives import Buffer

NODES = {1: Node(id=1, host="127.0.0.1", port=2001), 2: Node(id=2, host="127.0.0.1", port=2002)}


class StuckSelector(InMemorySelector):
    """Takes requests as long as `stuck`, and never writes them."""

    stuck = False

    def send(self, channel_id: int, buffers: Sequence[Buffer]) -> None:
        """Take a request."""
        if not self.stuck:
            super().send(channel_id, buffers)


class World:
    """A client with a selector without sockets, and its metrics."""

    def __init__(self) -> None:
        self.registry = Metrics()
        self.now = 0.0
        self.selector = StuckSelector()
        self.client = NetworkClient(
            self.selector,  # type: ignore[arg-type]  # the same calls, without sockets
            NetworkConfig(
                client_id="client",
                request_timeout_s=30.0,
                retry_backoff_max_s=1.0,
                reconnect_backoff=ExponentialBackoff(0.05, 1.0),
                connection_setup_timeout=ExponentialBackoff(10.0, 30.0),
                connections_max_idle_s=540.0,
            ),
            [],
            lambda: self.now,
            Random(1),
            metrics=NetworkMetrics(self.registry),
        )
        self.client.set_nodes(NODES)

    def bring_up(self, *nodes: int) -> None:
        """Connect nodes and let their brokers answer."""
        self.client.connect(set(nodes))
        self.poll()

    def poll(self) -> None:
        """Poll until no request is in flight."""
        for _ in range(5):
            self.client.poll(0.0)

    def values(self, node: str | None = None) -> dict[str, float]:
        """Measure the metrics of the client, or of one node."""
        tags = {"node-id": node} if node else {}
        return {n.name: v for n, v in self.registry.measure(0.0).items() if n.tags == tags}


def request_to(node: int, topic: str) -> ClientRequest:
    """Make a request whose size is that of the topic's name and a constant."""
    message = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return ClientRequest(node_id=node, message=message)


def test_connections_are_counted_when_they_come_up_and_when_they_are_gone() -> None:
    world = World()
    world.selector.refuse = {2002}
    world.bring_up(1, 2)
    assert world.values()["connection-creation-total"] == 1
    # A refused connection counts as closed, too.
    assert world.values()["connection-close-total"] == 1
    assert world.client.connection_count() == 1
    world.client.connect(set())
    world.selector.break_port(2001)
    world.poll()
    assert world.values()["connection-close-total"] == 2
    assert world.client.connection_count() == 0


def test_closing_the_client_closes_its_connections() -> None:
    world = World()
    world.bring_up(1, 2)
    assert world.client.connection_count() == 2
    world.client.close()
    assert world.values()["connection-close-total"] == 2
    assert world.client.connection_count() == 0


def test_requests_and_responses_are_counted_by_node_with_their_bytes() -> None:
    world = World()
    world.bring_up(1, 2)
    # Every connection has asked for the versions.
    both = [world.values("node-1"), world.values("node-2")]
    assert [(v["request-total"], v["response-total"]) for v in both] == [(1, 1)] * 2
    size = both[0]["request-size-max"]
    world.client.send(request_to(1, "t"))
    world.client.send(request_to(1, "t" * 101))
    assert world.client.in_flight_count() == 2
    world.poll()
    assert world.client.in_flight_count() == 0
    one, two, all_nodes = world.values("node-1"), world.values("node-2"), world.values()
    assert two == both[1]
    assert (one["request-total"], one["response-total"]) == (3, 3)
    assert one["request-total"] + two["request-total"] == all_nodes["request-total"]
    for name in ("outgoing-byte-total", "incoming-byte-total", "response-total"):
        assert one[name] + two[name] == all_nodes[name]
    assert one["outgoing-byte-total"] == one["request-size-avg"] * 3
    longest = one["request-size-max"]
    assert one["outgoing-byte-total"] == size + longest + (longest - 100)
    assert all_nodes["request-size-max"] == longest
    # Each request was written, and each answer read, once.
    assert all_nodes["network-io-total"] == 8


def test_a_request_lost_with_its_connection_is_counted_once_it_was_written() -> None:
    world = World()
    world.bring_up(1)
    world.selector.silent = True
    world.client.send(request_to(1, "t"))
    world.selector.break_port(2001)
    world.poll()
    assert world.values("node-1")["request-total"] == 2
    assert world.values("node-1")["response-total"] == 1
    world.selector.silent = False
    world.client.send(request_to(1, "t"))
    assert world.values("node-1")["request-total"] == 2


def test_a_request_that_was_never_written_is_not_counted() -> None:
    world = World()
    world.bring_up(1)
    world.selector.stuck = True
    world.client.send(request_to(1, "t" * 101))
    world.selector.break_port(2001)
    world.poll()
    assert world.values("node-1")["request-total"] == 1
    world.selector.stuck = False
    world.now = 10.0
    world.bring_up(1)
    # The versions were asked again, and nothing of the old connection was taken for that.
    values = world.values("node-1")
    assert values["request-total"] == 2
    assert values["outgoing-byte-total"] == 2 * values["request-size-max"]


def test_an_answer_tells_how_long_it_took() -> None:
    world = World()
    world.bring_up(1)
    world.client.send(request_to(1, "t"))
    world.now = 2.5
    events = [event for event in world.client.poll(0.0) if isinstance(event, Answered)]
    assert [event.latency_s for event in events] == [2.5]


def test_a_read_may_bring_no_response_or_several() -> None:
    registry = Metrics()
    metrics = NetworkMetrics(registry)
    metrics.received(1, 10, 0)
    metrics.fold(40.0)
    metrics.received(1, 30, 3)
    found = {(n.name, *n.tags.values()): value for n, value in registry.measure(40.0).items()}
    for node in ((), ("node-1",)):
        assert found["incoming-byte-total", *node] == 40
        assert found["incoming-byte-rate", *node] == 1
        assert found["response-total", *node] == 3


def test_a_selector_measures_its_waiting_and_its_work() -> None:
    registry = Metrics()
    metrics = NetworkMetrics(registry)
    selector = Selector(send_buffer_bytes=-1, receive_buffer_bytes=-1, metrics=metrics)
    selector.wakeup()
    for _ in range(3):
        selector.poll(0.0)
    selector.close_all()
    found = {name.name: value for name, value in registry.measure(0.0).items()}
    assert found["select-total"] == 3
    assert found["io-wait-time-ns-total"] == found["io-wait-time-ns-avg"] * 3 > 0
    assert found["io-time-ns-total"] == found["io-time-ns-avg"] * 3 > 0


def test_shares_of_time_are_of_the_time_since_the_first_poll() -> None:
    registry = Metrics(num_samples=1)
    metrics = NetworkMetrics(registry)
    metrics.polled(0.0, 0.0, 0.0)
    metrics.polled(0.0, 6.0, 8.0)
    metrics.fold(8.0)
    found = {name.name: value for name, value in registry.measure(8.0).items()}
    assert (found["io-wait-ratio"], found["io-ratio"]) == (0.75, 0.25)


def test_logins_and_renewals_are_measured_by_java_s_names() -> None:
    registry = Metrics()
    metrics = NetworkMetrics(registry)
    for _ in range(3):
        metrics.authenticated()
    metrics.authentication_failed(is_renewal=False)
    for latency_ms in (100.0, 300.0):
        metrics.reauthenticated(latency_ms)
    for _ in range(4):
        metrics.authentication_failed(is_renewal=True)
    metrics.fold(0.0)
    found = {name.name: value for name, value in registry.measure(1.0).items()}
    assert found["successful-authentication-total"] == 3
    assert found["successful-authentication-no-reauth-total"] == 3
    assert found["failed-authentication-total"] == 1
    assert found["successful-reauthentication-total"] == 2
    assert found["failed-reauthentication-total"] == 4
    assert found["reauthentication-latency-avg"] == 200
    assert found["reauthentication-latency-max"] == 300

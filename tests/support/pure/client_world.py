"""A network client with a simulated selector, simulated brokers and a clock."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.network.node_state import NetworkConfig
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.network.selector import HostResolver
from spark_kafka_sink.wire.exchange import ClientRequest, Event, NodeReady
from spark_kafka_sink.wire.messages import MetadataRequest
from support.pure.in_memory_selector import InMemorySelector

BOOTSTRAP = [
    Node(id=-1, host="127.0.0.1", port=1001),
    Node(id=-2, host="127.0.0.1", port=1002),
]
NODES = {1: Node(id=1, host="127.0.0.1", port=2001), 2: Node(id=2, host="127.0.0.1", port=2002)}
CONFIG = NetworkConfig(
    client_id="client",
    request_timeout_s=30.0,
    retry_backoff_max_s=1.0,
    reconnect_backoff=ExponentialBackoff(0.05, 1.0),
    connection_setup_timeout=ExponentialBackoff(10.0, 30.0),
    connections_max_idle_s=540.0,
)


class World:
    """A client, its selector and its clock."""

    def __init__(
        self,
        bootstrap: Sequence[Node] = BOOTSTRAP,
        config: NetworkConfig = CONFIG,
        resolver: HostResolver | None = None,
        seed: int = 1,
        security: Security | None = None,
    ) -> None:
        self.now = 0.0
        self.selector = InMemorySelector()
        self.client = NetworkClient(
            self.selector,  # type: ignore[arg-type]  # the same calls, without sockets
            config,
            list(bootstrap),
            lambda: self.now,
            Random(seed),
            resolver=resolver,
            security=security,
        )
        self.events: list[Event] = []

    def poll(self) -> list[Event]:
        """Poll once and return the events."""
        happened = self.client.poll(0.0)
        self.events += happened
        return happened

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def poll_for(self, seconds: float) -> list[Event]:
        """Poll once, wait that many seconds in it, and return the events."""
        self.selector.pass_time = lambda _: self.pass_time(seconds)
        happened = self.poll()
        self.selector.pass_time = lambda _: None
        return happened

    def bring_up(self, *nodes: int) -> None:
        """Connect to nodes until they are ready."""
        self.client.set_nodes(NODES)
        self.client.connect(set(nodes))
        for _ in range(4):
            self.poll()
        assert {e.node_id for e in self.events if isinstance(e, NodeReady)} >= set(nodes)
        self.events.clear()


def metadata(node_id: int | None = None) -> ClientRequest:
    """Return a Metadata request."""
    return ClientRequest(node_id=node_id, message=MetadataRequest(topics=[]))


def poll_until(world: World, end: float, *needed: int) -> None:
    """Poll as long as rows wait for these nodes."""
    while world.now < end:
        world.client.connect(set(needed))
        world.poll()
        world.now += 0.1


def named_by_bootstrap(nodes: dict[int, Node]) -> tuple[World, str]:
    """Return a world whose bootstrap address has named these brokers, and that address."""
    world = World()
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    world.client.set_nodes(nodes)
    return world, f"bootstrap (127.0.0.1:{world.selector.connects[0]})"

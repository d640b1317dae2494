"""Sockets and a selector instead of the system's, and the brokers' ends of the connections.

A `Socket` behaves as a non-blocking socket of Linux, as far as `selector.py` uses it. Data that
arrived before a reset can be read, and then the reset is reported; a later write fails. The seed
determines the size of reads and writes, and the order of ready sockets.
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from simulation.cluster import FIRST_PORT, Cluster
from simulation.controller import Broker, Session
from simulation.network import Asked, frame_of, read_request
from simulation.threads.world import World
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.wire.messages import ProduceResponse

_SIZE: Final = 4
_RESET: Final = "reset"
_END: Final = "end"


class Weather(NamedTuple):
    """The quality of connections: buffer sizes, and the rate of faults.

    room: the bytes of the send buffer. breaks_behind: how often a connection breaks right after a
    response. breaks_before: how often right before one. moves: how many times a broker moves to
    another address. Its old connections keep working.
    """

    delay_s: float
    room: int
    breaks_behind: float
    breaks_before: float
    refused: float
    until: float
    moves: int = 0


class Network:
    """The connections of a run. heard: the responses that arrived before a connection broke."""

    def __init__(self, world: World, cluster: Cluster, weather: Weather) -> None:
        self.world = world
        self.cluster = cluster
        self.weather = weather
        self.arrived: set[tuple[TopicPartition, int]] = set()
        self.sockets: set[Socket] = set()
        for _ in range(weather.moves):
            broker = world.random.choice(list(cluster.brokers.values()))
            world.events.at(world.random.uniform(0.0, weather.until), self._move, broker)

    def _move(self, broker: Broker) -> None:
        broker.host += "x"

    def delay_s(self) -> float:
        """Draw a transit time."""
        return self.world.random.uniform(0.0001, self.weather.delay_s)

    def goes_wrong(self, chance: float) -> bool:
        """Draw whether a fault happens; none does after the faults have ended."""
        is_bad = self.world.now < self.weather.until
        return is_bad and self.world.random.random() < chance

    def pair(self) -> tuple[Pipe, Pipe]:
        """Replace socket.socketpair."""
        pipe: list[bytes] = []
        return Pipe(self.world, pipe), Pipe(self.world, pipe)

    def names(self) -> tuple[SimpleNamespace, SimpleNamespace]:
        """Return the replacements of the modules `socket` and `selectors`."""
        sockets = {**vars(socket), "socket": lambda *_: Socket(self), "socketpair": self.pair}
        sockets["getaddrinfo"] = lambda host, port, **_: [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))
        ]
        poller = {**vars(selectors), "DefaultSelector": lambda: Poller(self.world)}
        return SimpleNamespace(**sockets), SimpleNamespace(**poller)


class Pipe:
    """One end of the pair that wakes a selector.

    It has room for one byte; further bytes are lost.
    """

    def __init__(self, world: World, bytes_in: list[bytes]) -> None:
        self._world = world
        self._bytes = bytes_in
        self._is_open = True

    def setblocking(self, _: bool) -> None:  # noqa: FBT001 - as the real one
        """Do nothing."""

    def fileno(self) -> int:
        """Return -1 if it is closed."""
        return 1 if self._is_open else -1

    def send(self, data: bytes) -> int:
        """Write a byte."""
        self._world.step("wake")
        if not self._is_open:
            raise OSError(errno.EBADF, "closed")
        if self._bytes:
            raise BlockingIOError
        self._bytes.append(data)
        return len(data)

    def recv(self, _: int) -> bytes:
        """Read all bytes."""
        self._world.step("drain")
        if not self._bytes:
            raise BlockingIOError
        return self._bytes.pop()

    def close(self) -> None:
        """Close this end."""
        self._is_open = False

    def ready(self) -> int:
        """Return the events it is ready for."""
        return selectors.EVENT_READ if self._bytes else 0


class Socket:
    """One connection to a broker, and the data in transit on it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._world = network.world
        self._session: Session | None = None
        self._is_up = False
        self._is_closed = False
        self._broken = ""
        self._code = 0
        self._came = bytearray()
        self._taken = bytearray()
        self._room = network.weather.room
        self._there_at = self._back_at = 0.0
        network.sockets.add(self)

    # -- the calls of a socket --------------------------------------------------------------------

    def setblocking(self, _: bool) -> None:  # noqa: FBT001 - as the real one
        """Do nothing."""

    def setsockopt(self, *_: int) -> None:
        """Do nothing."""

    def getsockopt(self, *_: int) -> int:
        """Return the connection error, 0 if it is established."""
        return self._code

    def connect_ex(self, target: tuple[str, int]) -> int:
        """Start connecting."""
        self._world.step("connect")
        broker = self._network.cluster.brokers[target[1] - FIRST_PORT]
        self._session = Session(broker, self._answer, lambda: self.break_off(_END))
        self._world.events.after(self._network.delay_s(), self._connected)
        return errno.EINPROGRESS

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Accept some bytes, while more may arrive."""
        self._world.step("write")
        if self._world.random.random() < 0.3:
            self._world.lapse(self._network.delay_s())
        if self._broken:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if not self._room:
            raise BlockingIOError
        data = b"".join(buffers)[: self._room]
        if self._world.random.random() < 0.3:
            data = data[: self._world.random.randint(1, len(data))]
        self._room -= len(data)
        self._there_at = max(self._there_at, self._world.now + self._network.delay_s())
        self._world.events.at(self._there_at, self._arrive, data)
        return len(data)

    def recv_into(self, buffer: bytearray) -> int:
        """Read some bytes; those that arrived before the connection broke come first."""
        self._world.step("read")
        if not self._came:
            if self._broken == _RESET:
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            if self._broken:
                return 0
            raise BlockingIOError
        size = min(len(self._came), len(buffer))
        buffer[:size] = self._came[:size]
        del self._came[:size]
        return size

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        self._network.sockets.discard(self)
        self._end_session()

    def ready(self) -> int:
        """Return the events it is ready for."""
        if self._code or self._broken:
            return selectors.EVENT_READ | selectors.EVENT_WRITE
        if not self._is_up:
            return 0
        readable = selectors.EVENT_READ if self._came else 0
        return readable | (selectors.EVENT_WRITE if self._room else 0)

    # -- the other end ----------------------------------------------------------------------------

    def _connected(self) -> None:
        if self._network.goes_wrong(self._network.weather.refused):
            self._code = errno.ECONNREFUSED
        self._is_up = not self._code

    def _arrive(self, data: bytes) -> None:
        self._room += len(data)
        session = self._session
        if session is None or not session.is_open:
            return
        self._taken += data
        while len(self._taken) >= _SIZE:
            end = _SIZE + int.from_bytes(self._taken[:_SIZE], "big")
            if len(self._taken) < end:
                break
            frame = bytes(self._taken[:end])
            del self._taken[:end]
            self._network.cluster.receive(session, read_request(frame))

    def _answer(self, asked: Asked, response: Any) -> None:  # noqa: ANN401 - any response type
        """Send a response, in one or two parts, and possibly break."""
        network, weather = self._network, self._network.weather
        if network.goes_wrong(weather.breaks_before):
            self.break_off(_RESET)
            return
        frame = frame_of(asked, response)
        cut = self._world.random.randint(0, len(frame)) if self._world.random.random() < 0.2 else 0
        self._back(self._come, frame[:cut], None)
        self._back(self._come, frame[cut:], response)
        if network.goes_wrong(weather.breaks_behind):
            later_s = self._world.random.choice([0.0, 0.0, 0.001])
            self._world.events.at(self._back_at + later_s, self.break_off, _RESET)

    def _back(self, call: Callable[..., None], *arguments: object) -> None:
        self._back_at = max(self._back_at, self._world.now + self._network.delay_s())
        self._world.events.at(self._back_at, call, *arguments)

    def _come(self, data: bytes, response: object) -> None:
        if self._is_closed or self._broken:
            return
        self._came += data
        if isinstance(response, ProduceResponse):
            self._network.arrived |= {
                (TopicPartition(topic.name, partition.index), partition.base_offset)
                for topic in response.responses
                for partition in topic.partition_responses
            }

    def break_off(self, how: str = _RESET) -> None:
        """Break or end the connection at the broker's end."""
        self._broken = self._broken or how
        self._end_session()

    def _end_session(self) -> None:
        if self._session is not None and self._session.is_open:
            self._network.cluster.closed(self._session, [])


class Poller:
    """Replaces a selector of `selectors`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: object = None) -> None:  # noqa: ANN401 - Socket or Pipe
        """Watch an object."""
        self._keys[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)

    modify = register

    def unregister(self, fileobj: object) -> None:
        """Stop watching an object."""
        del self._keys[fileobj]

    def get_key(self, fileobj: object) -> selectors.SelectorKey:
        """Return the events that an object is watched for."""
        return self._keys[fileobj]

    def select(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for ready objects and return them in any order; sometimes return none, too early."""
        world = self._world
        world.step("select")
        if world.random.random() < 0.02:
            return []
        world.block(lambda: bool(self._ready()), "the network", world.now + timeout)
        ready = self._ready()
        world.random.shuffle(ready)
        return ready

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        found = [(key, key.events & key.fileobj.ready()) for key in self._keys.values()]  # type: ignore[union-attr] # a Socket or a Pipe
        return [(key, mask) for key, mask in found if mask]

    def close(self) -> None:
        """Stop watching everything."""
        self._keys.clear()

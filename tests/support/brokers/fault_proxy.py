"""A TCP proxy between a client and one broker that injects faults at exact frames.

It parses Kafka's frames (an int32 size first), and the API and correlation id of each request. A
test can therefore say: drop the response to the third Produce request. Without a fault, bytes pass
unchanged. The broker has to advertise the proxy's port (`KafkaCluster(proxies=…)`).

One thread does everything and also runs the calls of tests, so no lock is needed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue

from support.brokers.server import Server

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22

_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">ihhi")  # size, api key, version, correlation id
_ANSWER = struct.Struct(">ii")  # size, correlation id
_RST = struct.pack("ii", 1, 0)
# Returns another body of the same size: of the version, and the body, after the correlation id.
Change = Callable[[int, bytes], bytes]
_CALL_TIMEOUT_S = 30.0


class Kind(Enum):
    """The kinds of faults of a request or its response."""

    DELAY_REQUEST = "the request is held back, and what follows it"
    CUT_REQUEST = "half of the request reaches the broker, then the connection closes"
    DELAY_ANSWER = "the answer is held back, and what follows it"
    CUT_ANSWER = "half of the answer reaches the client, then the connection closes"
    DROP_ANSWER = "the broker has answered; the connection closes instead"
    RESET = "the broker has answered; the connection is reset instead"
    SILENCE = "the broker has answered; from here on the client hears nothing"
    GARBAGE = "the answer's body is replaced by as many other bytes"
    WRONG_CORRELATION_ID = "the answer is to another request"
    NEGATIVE_SIZE = "the answer's size is -1"
    OVERSIZED = "the answer's size is 2 GiB"


ON_REQUEST = {Kind.DELAY_REQUEST, Kind.CUT_REQUEST}


@dataclass(eq=False, kw_only=True)
class Fault:
    """A fault for the `nth` request of an API from now on, counted over all connections.

    times: the number of requests, starting with that one. happened: set when all faults have
    happened.
    """

    kind: Kind
    api_key: int = PRODUCE
    nth: int = 1
    times: int = 1
    delay_s: float = 0.0
    happened: threading.Event = field(default_factory=threading.Event)
    _seen: int = 0
    _taken: int = 0
    _done: int = 0

    def __str__(self) -> str:
        """Return the values that a seed draws."""
        which = f"request {self.nth} of API {self.api_key}, {self.times} times"
        return f"{self.kind.name} to {which}, after {self.delay_s:.3f} s"

    def takes(self, api_key: int) -> bool:
        """Count a request; return whether the fault applies to it."""
        if api_key != self.api_key:
            return False
        self._seen += 1
        if self._seen < self.nth or self._taken == self.times:
            return False
        self._taken += 1
        return True

    def note(self) -> None:
        """Count one occurrence."""
        self._done += 1
        if self._done == self.times:
            self.happened.set()

    def give_back(self) -> None:
        """Apply the fault to another request, because the connection closed before the response."""
        self._taken -= 1


@dataclass(eq=False, slots=True)
class _End:
    """One socket of a pair, with its incomplete frame and the data to write to it."""

    socket: socket.socket
    pair: _Pair
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: deque[tuple[float, bytes]] = field(default_factory=deque)
    closes_when_written: bool = False
    is_over: bool = False


@dataclass(eq=False, slots=True)
class _Pair:
    """A client's connection and the proxy's own to the broker."""

    ends: list[_End] = field(default_factory=list)
    asked: dict[int, Fault | None] = field(default_factory=dict)
    # API and version of what was asked.
    calls: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Nothing more is forwarded to the client, or to the broker.
    is_silent: bool = False
    is_deaf: bool = False

    @property
    def client(self) -> _End:
        return self.ends[0]

    @property
    def broker(self) -> _End:
        return self.ends[1]


class FaultProxy(Server):
    """Listens on a free `port` of 127.0.0.1, and forwards to `broker_port`."""

    def __init__(self) -> None:
        self.port = 0
        self.broker_port = 0
        self.requests: Counter[int] = Counter()
        self._selector = selectors.DefaultSelector()
        self._pairs: set[_Pair] = set()
        self._faults: list[Fault] = []
        self._changes: dict[int, Change] = {}
        self._calls: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        self._wake_out, self._wake_in = socket.socketpair()
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._run_calls)
        self._listener = self._bind()
        self.port = self._listener.getsockname()[1]
        self._listen()
        self._stopping = False
        self._thread = threading.Thread(
            target=self._run, name=f"fault proxy {self.port}", daemon=True
        )
        self._thread.start()

    # -- for tests --------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> Fault:
        """Schedule a fault, and return it."""
        self._call(lambda: self._faults.append(fault))
        return fault

    def change_answers(self, api_key: int, change: Change) -> None:
        """Change the answers to an API from now on; the change may return what it was given."""
        self._call(lambda: self._changes.update({api_key: change}))

    def clear(self) -> None:
        """Remove the faults that have not happened yet, and changes of answers."""
        self._call(self._clear)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Close all connections and refuse new ones, as if no broker were running."""
        self._call(self._refuse)
        try:
            yield
        finally:
            self._call(self._listen)

    def stop(self) -> None:
        """Close everything and end the thread."""
        self._call(self._stop)
        self._thread.join(_CALL_TIMEOUT_S)
        for each in (self._wake_out, self._wake_in, self._listener):
            each.close()
        self._selector.close()

    def _call(self, action: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._calls.put((action, done))
        self._wake_out.send(b"\0")
        done.result(_CALL_TIMEOUT_S)

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            for key, mask in self._selector.select(self._wait_s()):
                if isinstance(key.data, _End):
                    self._ready(key.data, mask)
                else:
                    key.data()
            for pair in list(self._pairs):
                for end in pair.ends:
                    self._write(end)

    def _wait_s(self) -> float | None:
        due = [e.outgoing[0][0] for pair in self._pairs for e in pair.ends if e.outgoing]
        late = [at for at in due if at > time.monotonic()]
        return max(0.0, min(late) - time.monotonic()) if late else None

    def _run_calls(self) -> None:
        self._wake_in.recv(4096)
        while not self._calls.empty():
            action, done = self._calls.get()
            try:
                action()
            except BaseException as error:  # noqa: BLE001 - the test that called gets it
                done.set_exception(error)
            else:
                done.set_result(None)

    def _clear(self) -> None:
        self._faults.clear()
        self._changes.clear()

    def _stop(self) -> None:
        self._stopping = True
        for pair in list(self._pairs):
            self._close(pair)

    def _bind(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)  # noqa: FBT003 - the only form there is
        listener.bind(("127.0.0.1", self.port))
        return listener

    def _listen(self) -> None:
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _refuse(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()
        # Bound, so that no other process takes the port; not listening, so that connections are
        # refused.
        self._listener = self._bind()
        for pair in list(self._pairs):
            self._close(pair)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # the connection was closed, or `refusing` came first
            return
        try:
            broker = socket.create_connection(("127.0.0.1", self.broker_port))
        except OSError:
            client.close()
            return
        pair = _Pair()
        self._pairs.add(pair)
        for each in (client, broker):
            each.setblocking(False)  # noqa: FBT003 - the only form there is
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end = _End(each, pair)
            pair.ends.append(end)
            self._selector.register(each, selectors.EVENT_READ, end)

    def _close(self, pair: _Pair) -> None:
        self._pairs.discard(pair)
        for fault in filter(None, pair.asked.values()):
            fault.give_back()
        pair.asked.clear()
        for end in pair.ends:
            with contextlib.suppress(KeyError):
                self._selector.unregister(end.socket)
            end.socket.close()

    # -- bytes ------------------------------------------------------------------------------------

    def _ready(self, end: _End, mask: int) -> None:
        if end.pair not in self._pairs or not mask & selectors.EVENT_READ:
            return
        try:
            data = end.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(end)
            return
        end.incoming += data
        for frame in _frames(end.incoming):
            if end.pair in self._pairs:
                if end is end.pair.client:
                    self._request(end.pair, frame)
                else:
                    self._answer(end.pair, frame)

    def _end(self, end: _End) -> None:
        """Handle a side that closed; what it sent before is still forwarded."""
        end.is_over = True
        self._selector.unregister(end.socket)
        other = end.pair.broker if end is end.pair.client else end.pair.client
        other.closes_when_written = True

    def _write(self, end: _End) -> None:
        if end.pair not in self._pairs or end.is_over:
            return
        try:
            while end.outgoing and end.outgoing[0][0] <= time.monotonic():
                due, data = end.outgoing.popleft()
                written = end.socket.send(data)
                if written < len(data):
                    end.outgoing.appendleft((due, data[written:]))
        except BlockingIOError:
            end.outgoing.appendleft((due, data))
        except OSError:
            self._close(end.pair)
            return
        if end.closes_when_written and not end.outgoing:
            self._close(end.pair)
            return
        blocked = bool(end.outgoing) and end.outgoing[0][0] <= time.monotonic()
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0)
        if self._selector.get_key(end.socket).events != interest:
            self._selector.modify(end.socket, interest, end)

    # -- frames -----------------------------------------------------------------------------------

    def _request(self, pair: _Pair, frame: bytes) -> None:
        if pair.is_deaf:
            return
        _, api_key, version, correlation_id = _REQUEST.unpack_from(frame)
        self.requests[api_key] += 1
        pair.calls[correlation_id] = api_key, version
        taking = [fault for fault in self._faults if fault.takes(api_key)]
        fault = taking[0] if taking else None
        if fault is None or fault.kind not in ON_REQUEST:
            pair.asked[correlation_id] = fault
            _put(pair.broker, frame)
            return
        pair.asked[correlation_id] = None
        if fault.kind is Kind.DELAY_REQUEST:
            _put(pair.broker, frame, fault.delay_s)
        else:
            _put(pair.broker, frame[: len(frame) // 2])
            pair.broker.closes_when_written = True
            pair.is_deaf = True
        fault.note()

    def _answer(self, pair: _Pair, frame: bytes) -> None:
        _, correlation_id = _ANSWER.unpack_from(frame)
        fault = pair.asked.pop(correlation_id)
        api_key, version = pair.calls.pop(correlation_id)
        change = self._changes.get(api_key)
        if change is not None:
            frame = frame[: _ANSWER.size] + change(version, frame[_ANSWER.size :])
        if pair.is_silent:
            if fault is not None:
                fault.give_back()
            return
        if fault is None:
            _put(pair.client, frame)
            return
        fault.note()
        self._damage(pair, frame, fault)

    def _damage(self, pair: _Pair, frame: bytes, fault: Fault) -> None:
        match fault.kind:
            case Kind.DELAY_ANSWER:
                _put(pair.client, frame, fault.delay_s)
            case Kind.CUT_ANSWER:
                _put(pair.client, frame[: len(frame) // 2])
                pair.client.closes_when_written = True
                pair.is_silent = True
            case Kind.DROP_ANSWER:
                self._close(pair)
            case Kind.RESET:
                pair.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
                self._close(pair)
            case Kind.SILENCE:
                pair.is_silent = True
            case _:
                _put(pair.client, _spoiled(frame, fault.kind))


def _put(end: _End, data: bytes, delay_s: float = 0.0) -> None:
    end.outgoing.append((time.monotonic() + delay_s if delay_s else 0.0, data))


def _spoiled(frame: bytes, kind: Kind) -> bytes:
    size, correlation_id = _ANSWER.unpack_from(frame)
    if kind is Kind.GARBAGE:
        # An unterminated varint as a compact length, negative as an int16 or int32.
        return frame[:8] + b"\xa5" * (len(frame) - 8)
    if kind is Kind.WRONG_CORRELATION_ID:
        return _ANSWER.pack(size, correlation_id + 1000) + frame[8:]
    return _SIZE.pack(-1 if kind is Kind.NEGATIVE_SIZE else 2**31 - 1) + frame[4:]


def _frames(buffer: bytearray) -> Iterator[bytes]:
    """Remove the complete frames, including their sizes, from the front of `buffer`."""
    while len(buffer) >= 4:
        end = 4 + _SIZE.unpack_from(buffer)[0]
        if len(buffer) < end:
            return
        yield bytes(buffer[:end])
        del buffer[:end]

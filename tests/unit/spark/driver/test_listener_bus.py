"""Listeners leave Spark Connect's bus at any time, and no thread keeps a program from its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any, Final
from uuid import UUID

import pytest
from pyspark.sql.connect import proto
from pyspark.sql.connect.session import SparkSession as ConnectSession
from pyspark.sql.connect.streaming.query import StreamingQueryListenerBus
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_kafka_sink import FailedQueryRecord, KafkaStreamListener
from spark_kafka_sink.spark.driver.listener_bus import ListenerBus, patch_listener_bus

LIMIT_S: Final = 60
ENDED: Final = proto.StreamingQueryListenerEvent(
    event_json=json.dumps(
        {
            "id": str(UUID(int=1)),
            "runId": str(UUID(int=2)),
            "exception": "broken",
            "errorClassOnException": None,
        }
    ),
    event_type=proto.StreamingQueryEventType.QUERY_TERMINATED_EVENT,
)
_RESULT: Final = "streaming_query_listener_events_result"


class Client:
    """A client whose server sends the events that a test puts into a queue; None ends them.

    at_removal: called before the events end, as the server may send some until then.
    """

    def __init__(self) -> None:
        self.events = Queue[proto.StreamingQueryListenerEvent | Exception | None]()
        self.at_removal: Callable[[], object] = lambda: None
        self.registrations = 0

    def execute_command_as_iterator(self, command: proto.Command) -> Iterator[dict[str, Any]]:
        """Yield the events."""
        assert command.streaming_query_listener_bus_command.add_listener_bus_listener
        self.registrations += 1
        added = proto.StreamingQueryListenerEventsResult(listener_bus_listener_added=True)
        yield {_RESULT: added}
        while (event := self.events.get(timeout=LIMIT_S)) is not None:
            if isinstance(event, Exception):
                raise event
            yield {_RESULT: proto.StreamingQueryListenerEventsResult(events=[event])}

    def execute_command(self, command: proto.Command) -> None:
        """End the events."""
        assert command.streaming_query_listener_bus_command.remove_listener_bus_listener
        self.at_removal()
        self.events.put(None)


@pytest.fixture
def client() -> Client:
    """A client of Spark Connect."""
    return Client()


@pytest.fixture
def session(client: Client) -> ConnectSession:
    """A session of Spark Connect, with this client."""
    session = ConnectSession.__new__(ConnectSession)
    session._client = client  # type: ignore[assignment]  # it has what the bus calls
    session._session_id = "0"
    return session


def in_time(call: Callable[..., object], *args: object) -> None:
    """Call a function in a thread, and fail the test if it does not return."""
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), f"{call} did not return"


def listener_of(records: Queue[FailedQueryRecord]) -> KafkaStreamListener:
    """Return a listener that puts its records into a queue."""
    return KafkaStreamListener(lambda _: None, records.put)


def test_the_last_listener_gets_the_events_that_come_while_it_is_removed(
    client: Client, session: ConnectSession
) -> None:
    records = Queue[FailedQueryRecord]()
    listener = listener_of(records)
    session.streams.addListener(listener)
    for _ in range(2):  # it may be added again
        client.at_removal = lambda: client.events.put(ENDED)
        in_time(session.streams.removeListener, listener)
        assert records.get_nowait().id == UUID(int=1)
        in_time(session.streams.removeListener, listener)
        session.streams.addListener(listener)
    assert client.registrations == 3
    client.at_removal = lambda: None
    in_time(session.streams.removeListener, listener)
    assert records.empty()


def test_events_are_read_for_all_listeners_by_one_thread_that_keeps_no_program(
    client: Client, session: ConnectSession
) -> None:
    kept, removed = Queue[FailedQueryRecord](), Queue[FailedQueryRecord]()
    first, second = listener_of(removed), listener_of(kept)
    for listener in (first, second):
        session.streams.addListener(listener)
    thread = session.streams._sqlb._execution_thread
    assert thread is not None
    assert thread.daemon
    in_time(session.streams.removeListener, first)
    client.events.put(ENDED)
    assert kept.get(timeout=LIMIT_S).id == UUID(int=1)
    assert removed.empty()
    in_time(session.streams.removeListener, second)
    assert client.registrations == 1
    assert not thread.is_alive()


def test_a_listener_that_is_added_while_the_last_one_is_removed_gets_later_events(
    client: Client, session: ConnectSession
) -> None:
    records = Queue[FailedQueryRecord]()
    first, second = listener_of(Queue()), listener_of(records)
    adding = threading.Thread(target=session.streams.addListener, args=(second,), daemon=True)
    session.streams.addListener(first)
    client.at_removal = adding.start
    in_time(session.streams.removeListener, first)
    adding.join(LIMIT_S)
    client.events.put(ENDED)
    assert records.get(timeout=LIMIT_S).id == UUID(int=1)
    client.at_removal = lambda: None
    in_time(session.streams.removeListener, second)


def test_a_listener_that_removes_itself_is_told_so(
    client: Client, session: ConnectSession, recwarn: pytest.WarningsRecorder
) -> None:
    calls = Queue[int]()

    def remove(_: object) -> None:
        calls.put(1)
        session.streams.removeListener(listener)

    listener = KafkaStreamListener(lambda _: None, remove)
    session.streams.addListener(listener)
    client.events.put(ENDED)
    calls.get(timeout=LIMIT_S)
    in_time(session.streams.removeListener, listener)
    (warning,) = recwarn
    assert "cannot call removeListener with Spark Connect" in str(warning.message)


def test_a_server_that_cannot_be_reached_is_a_warning(
    client: Client, session: ConnectSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Queue[FailedQueryRecord]()
    listener = listener_of(records)

    def fail(_: object) -> None:
        raise ConnectionError("no server")

    with monkeypatch.context() as broken:
        broken.setattr(client, "execute_command_as_iterator", fail)
        with pytest.warns(UserWarning, match=r"not added, please add it again: no server"):
            session.streams.addListener(listener)
    session.streams.addListener(listener)
    with monkeypatch.context() as broken:
        broken.setattr(client, "execute_command", fail)
        with pytest.warns(UserWarning, match=r"not removed, please remove it again: no server"):
            session.streams.removeListener(listener)
    client.events.put(ENDED)
    assert records.get(timeout=LIMIT_S).error == "broken"
    in_time(session.streams.removeListener, listener)


@pytest.mark.filterwarnings("ignore:StreamingQueryListenerBus Handler thread received exception")
def test_a_connection_that_is_lost_while_a_listener_is_removed_ends_it(
    client: Client, session: ConnectSession
) -> None:
    listener = listener_of(Queue())
    session.streams.addListener(listener)
    client.at_removal = lambda: client.events.put(ConnectionError("lost"))
    in_time(session.streams.removeListener, listener)
    client.events.get_nowait()  # what the server would have sent
    client.at_removal = lambda: None
    session.streams.addListener(listener)
    in_time(session.streams.removeListener, listener)
    assert client.events.empty()


def test_a_bus_in_use_is_mended_once_and_another_kind_of_bus_is_not(
    session: ConnectSession, client: Client
) -> None:
    class Others(StreamingQueryListener):
        """A listener of the user."""

        def onQueryStarted(self, event: object) -> None:  # noqa: N802 - Spark's name
            """Do nothing."""

        onQueryProgress = onQueryTerminated = onQueryStarted  # noqa: N815 - Spark's names

    others, listener = Others(), listener_of(Queue())
    bus = session.streams._sqlb
    session.streams.addListener(others)
    assert type(bus) is StreamingQueryListenerBus
    session.streams.addListener(listener)
    changing = vars(bus)["_changing"]
    patch_listener_bus(session)
    assert type(bus) is ListenerBus
    assert vars(bus)["_changing"] is changing
    in_time(session.streams.removeListener, listener)
    client.at_removal = lambda: client.events.put(ENDED)
    in_time(session.streams.removeListener, others)
    other = session.streams._sqlb = StreamingQueryListenerBus(session.streams)
    del other._lock
    patch_listener_bus(session)
    assert type(other) is StreamingQueryListenerBus

"""Patches Spark Connect's bus of stream listeners, so that a program with a listener can exit.

Spark's client has a thread that reads the events of all streams and calls the listeners
(StreamingQueryListenerBus in pyspark/sql/connect/streaming/query.py, Spark 4.0 to 4.3). It has
two errors:

- ``remove`` of the last listener waits for the end of that thread, and holds the lock of the bus
  while it waits. The thread takes the same lock for each event. If an event arrives during
  the wait, both threads wait for ever (SPARK-59623).
- The thread is not a daemon. If the program does not remove its listener, for example because of
  an exception, its process never exits.

This module can be deleted when no supported Spark version has these errors.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import suppress
from typing import Any, Final

from pyspark.sql.connect import proto
from pyspark.sql.connect.streaming.query import StreamingQueryListenerBus
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_kafka_sink.errors import IllegalStateException

# ruff: noqa: SLF001 - Spark has no public way to its bus

_PARTS: Final = frozenset(("_sqm", "_listener_bus", "_execution_thread", "_lock"))
_patching: Final = threading.Lock()


class ListenerBus(StreamingQueryListenerBus):
    """A bus whose listeners can be removed at any time, and whose thread is a daemon.

    _changing: a lock that is held while a listener is added or removed. _lock: Spark's own lock.
    The thread that calls the listeners also takes `_lock`. So a thread that waits for that thread
    to end must not hold `_lock`.
    """

    _sqm: Any
    _listener_bus: list[StreamingQueryListener]
    _execution_thread: threading.Thread | None
    _lock: threading.Lock
    _changing: threading.Lock

    def append(self, listener: StreamingQueryListener) -> None:
        """Add a listener. If it is the first one, begin to read events.

        As in Spark, warn and do not add the listener if the events cannot be read.
        """
        with self._changing, self._lock:
            if not self._listener_bus:
                try:
                    events = self._register_server_side_listener()
                except Exception as error:  # noqa: BLE001 - as in Spark
                    message = f"The listener is not added, please add it again: {error}"
                    warnings.warn(message, stacklevel=2)
                    return
                self._execution_thread = threading.Thread(
                    target=self._query_event_handler, args=(events,), daemon=True
                )
                self._execution_thread.start()
            self._listener_bus.append(listener)

    def remove(self, listener: StreamingQueryListener) -> None:
        """Remove a listener. If it is the last one, it first gets all events that were sent.

        Warn and do not remove the listener if the server cannot be reached. Raise
        IllegalStateException if called in the thread that calls the listeners, because this method
        waits for that thread to end.
        """
        thread = self._execution_thread
        if thread is threading.current_thread():
            message = (
                "a function of a stream listener cannot call removeListener with Spark Connect: "
                "call it in another thread"
            )
            raise IllegalStateException(message)
        with self._changing:
            with self._lock:
                if self._listener_bus != [listener]:
                    with suppress(ValueError):
                        self._listener_bus.remove(listener)
                    return
                thread = self._execution_thread
            try:
                self._sqm._session.client.execute_command(_end_of_events())
            except Exception as error:  # noqa: BLE001 - as in Spark
                message = f"The listener is not removed, please remove it again: {error}"
                warnings.warn(message, stacklevel=2)
                return
            if thread is not None:
                thread.join()
            with self._lock:
                self._execution_thread = None
                self._listener_bus.clear()  # _changing is held, so no listener was added


def _end_of_events() -> proto.Command:
    """Return the command that tells the server to send no more events."""
    command = proto.Command()
    command.streaming_query_listener_bus_command.remove_listener_bus_listener = True
    return command


def patch_listener_bus(session: object) -> None:
    """Make the bus of a Spark Connect session a `ListenerBus`.

    Do nothing if the bus is a `ListenerBus` already, or if this version of Spark has another class.
    """
    bus: Any = getattr(getattr(session, "streams", None), "_sqlb", None)
    with _patching:
        if type(bus) is StreamingQueryListenerBus and vars(bus).keys() >= _PARTS:
            bus._changing = threading.Lock()  # type: ignore[attr-defined]
            bus.__class__ = ListenerBus  # the bus may be in use

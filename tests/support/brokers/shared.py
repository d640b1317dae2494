"""Things that the workers of a test run share; the pytest process starts each of them once.

With pytest-xdist, that process runs no tests itself. A worker asks it over a socket and gets a copy
of the value: a cluster that it can use, but not stop.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Final

import pytest

Maker = Callable[[], AbstractContextManager[object]]
Address = tuple[str, int, str]
_HOST: Final = "127.0.0.1"


class Shared:
    """Starts each thing when it is first requested, and stops all of them at the end."""

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        self._makers = dict(makers)
        self._locks = {name: threading.Lock() for name in makers}
        self._started: dict[str, object] = {}
        self._stack = ExitStack()
        key = secrets.token_hex(16)
        self._listener = Listener((_HOST, 0), authkey=key.encode())
        # Plain values, because pytest-xdist passes them to its workers.
        self.address: Address = (_HOST, self._listener.address[1], key)
        threading.Thread(target=self._serve, daemon=True).start()

    def get(self, name: str) -> object:
        """Return the thing with that name; start it at the first request."""
        with self._locks[name]:
            if name not in self._started:
                self._started[name] = self._stack.enter_context(self._makers[name]())
            return self._started[name]

    def close(self) -> None:
        """Stop everything that was started."""
        self._listener.close()
        self._stack.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                connection = self._listener.accept()
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: Connection[Any, Any]) -> None:
        with connection:
            try:
                answer: tuple[object, str | None] = (self.get(connection.recv()), None)
            except Exception as error:  # noqa: BLE001 - the worker that asked raises it
                answer = (None, f"{type(error).__name__}: {error}")
            connection.send(answer)


#: The process's own `Shared` in the stash of pytest's configuration. Not in conftest.py, of which
#: tests import another copy than pytest does.
IN_STASH: Final = pytest.StashKey[Shared]()


def ask(address: Address, name: str) -> object:
    """Return a copy of a thing that the process at `address` shares; wait until it is started."""
    host, port, key = address
    with Client((host, port), authkey=key.encode()) as connection:
        connection.send(name)
        value, problem = connection.recv()
    if problem is not None:
        raise RuntimeError(problem)
    return value

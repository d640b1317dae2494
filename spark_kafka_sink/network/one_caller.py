"""OneCaller: rejects a second thread that uses an object made for one thread.

It works as in Java's KafkaConsumer: the second thread gets an exception, and no thread waits.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from spark_kafka_sink.errors import IllegalStateException

_P = ParamSpec("_P")
_R = TypeVar("_R")
_CALLER: Final = "caller"


class OneCaller:
    """The thread that currently calls an object; it may call the object again within a call.

    kind: the class of the object, for messages.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._pid = os.getpid()
        # A dict with one entry, because setdefault reads and writes in one atomic step.
        self._threads: dict[str, int] = {}

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked process; its connections belong to the parent."""
        return os.getpid() != self._pid

    def run(self, call: Callable[[], _R]) -> _R:
        """Run a call.

        Raise IllegalStateException in a forked child, or if another thread is inside.
        """
        if self.is_forked:
            raise IllegalStateException(
                f"this {self._kind} was created before a fork: create one in the process that "
                "uses it"
            )
        me = threading.get_ident()
        is_outer = self._threads.get(_CALLER) != me
        try:
            if self._threads.setdefault(_CALLER, me) != me:
                raise IllegalStateException(
                    f"this {self._kind} is in use by another thread: use it from one thread at a "
                    "time, or create one per thread"
                )
            return call()
        finally:
            # Also after an interrupt between setdefault and the call.
            if is_outer and self._threads.get(_CALLER) == me:
                del self._threads[_CALLER]


class _HasOneCaller(Protocol):
    _caller: OneCaller


_S = TypeVar("_S", bound=_HasOneCaller)


def by_one_caller(
    method: Callable[Concatenate[_S, _P], _R],
) -> Callable[Concatenate[_S, _P], _R]:
    """Decorate a method so that `OneCaller.run` runs its calls."""

    @functools.wraps(method)
    def alone(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._caller.run(lambda: method(self, *args, **kwargs))

    return alone

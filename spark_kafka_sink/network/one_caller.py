"""OneCaller: lets one thread of one process at a time use an object that is made for one thread.

As Java's KafkaConsumer does: a second thread is told so, and nobody waits for anybody.
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
    """Who calls the object at present; the same thread may call it within a call.

    kind: the class of the object, for messages.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._pid = os.getpid()
        # One entry, since setdefault finds and sets in one step.
        self._threads: dict[str, int] = {}

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked process, whose connections are its parent's."""
        return os.getpid() != self._pid

    def run(self, call: Callable[[], _R]) -> _R:
        """Make a call. Raise IllegalStateException in a forked child and beside another thread."""
        if self.is_forked:
            raise IllegalStateException(
                f"this {self._kind} was made before a fork; make one in the process that uses it"
            )
        me = threading.get_ident()
        is_outer = self._threads.get(_CALLER) != me
        try:
            if self._threads.setdefault(_CALLER, me) != me:
                raise IllegalStateException(
                    f"this {self._kind} is in use by another thread: let one thread use it at a "
                    "time, or make one for each thread"
                )
            return call()
        finally:
            # Also where an interrupt came between the two.
            if is_outer and self._threads.get(_CALLER) == me:
                del self._threads[_CALLER]


class _HasOneCaller(Protocol):
    _caller: OneCaller


_S = TypeVar("_S", bound=_HasOneCaller)


def by_one_caller(
    method: Callable[Concatenate[_S, _P], _R],
) -> Callable[Concatenate[_S, _P], _R]:
    """Have `OneCaller.run` make the calls of a method."""

    @functools.wraps(method)
    def alone(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._caller.run(lambda: method(self, *args, **kwargs))

    return alone

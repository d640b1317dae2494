"""Generators that send the requests of state machines, and return the replies.

A reply may need several responses, for example a response that names the coordinator and then the
coordinator's own response. So a generator yields either a `RequestFuture` or the time until which
it waits. `UnderWay` resumes the generator in the caller's thread when the wait is over. The
generator raises `NoReplyError` if there is no reply.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, Generic, TypeAlias, TypeVar

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import error_code, one_line
from spark_kafka_sink.network.request_client import RequestFuture

_LOOK_UP_WAIT_S: Final = 0.05
_LONGEST_LOOK_UP_WAIT_S: Final = 1.0

T = TypeVar("T")
# The objects that a generator yields: the response that it waits for, or the time until which it
# waits.
Wait: TypeAlias = RequestFuture | float
Steps: TypeAlias = Generator[Wait, None, T]


class NoReplyError(Exception):
    """A request failed: a broker returned an error, or did not respond.

    is_unanswered: whether there is no usable response. If so, a broker may have processed the
    request nevertheless.
    """

    def __init__(self, code: int, reason: str, *, is_unanswered: bool) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.is_unanswered = is_unanswered


class UnderWay(Generic[T]):
    """A generator, and the response or the time that it waits for.

    The generator must not return None, because `resume` returns None before the end.
    """

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._wait: Wait = 0.0

    @property
    def resumes_at(self) -> float:
        """The time at which the generator can be resumed; infinity if it waits for a response."""
        return self._wait if isinstance(self._wait, float) else float("inf")

    def resume(self, now: float) -> T | None:
        """Resume the generator until it waits or ends. Return its result, or None if it waits."""
        while True:
            wait = self._wait
            is_over = wait <= now if isinstance(wait, float) else wait.is_done
            if not is_over:
                return None
            try:
                self._wait = next(self._steps)
            except StopIteration as stop:
                found: T = stop.value
                return found


def pause_until(time: float) -> Steps[bool]:
    """Wait until `time`, then return True."""
    yield time
    return True


def look_up_wait_s(attempts: int) -> float:
    """Return how long to wait before a look-up is retried. The time doubles at each attempt."""
    return min(_LOOK_UP_WAIT_S * 2.0**attempts, _LONGEST_LOOK_UP_WAIT_S)


def reason_of(code: int, what: str, node_id: int) -> str:
    """Return a description of a response's error code, or "" if there is no error."""
    if code == codes.NONE:
        return ""
    return f"{what} at node {node_id}: {error_code(code).name} ({code})"


def refused(code: int, what: str, message: str | None = None) -> NoReplyError:
    """Return the exception for an error code.

    what: the request that failed, for the message. message: the broker's own message, if any.
    """
    row = error_code(code)
    reason = f"{what}: {row.name} ({code})" + (f", {one_line(message)}" if message else "")
    return NoReplyError(code, reason, is_unanswered=False)


def left_out(api: str, node_id: int) -> NoReplyError:
    """Return the exception for a response that does not contain what was requested."""
    reason = f"{api} at node {node_id}: the response does not contain what was asked for"
    return NoReplyError(codes.UNKNOWN_SERVER_ERROR, reason, is_unanswered=False)

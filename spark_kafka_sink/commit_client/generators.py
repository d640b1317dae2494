"""A question is a generator that yields what it waits for, and returns its reply.

It may need several responses: first the look-up of a coordinator, then the answer of that broker.
So it yields a `RequestFuture` or a time to wait for. `UnderWay` resumes it when that wait is over,
in the caller's thread. A question that cannot be answered raises `NoReplyError`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, Generic, TypeAlias, TypeVar

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import error_code
from spark_kafka_sink.network.request_client import RequestFuture

_LOOK_UP_WAIT_S: Final = 0.05
_LONGEST_LOOK_UP_WAIT_S: Final = 1.0

T = TypeVar("T")
# What a generator yields: the response that it waits for, or the time until which it pauses.
Wait: TypeAlias = RequestFuture | float
Steps: TypeAlias = Generator[Wait, None, T]


class NoReplyError(Exception):
    """A question has no reply: a broker returned an error code, or did not respond.

    is_unanswered: whether a request got no response, so that a broker may have acted on it.
    """

    def __init__(self, code: int, reason: str, *, is_unanswered: bool) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.is_unanswered = is_unanswered


class UnderWay(Generic[T]):
    """A generator that waits for responses and times. It returns anything but None."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._wait: Wait = 0.0

    @property
    def resumes_at(self) -> float:
        """When it resumes by time alone."""
        return self._wait if isinstance(self._wait, float) else float("inf")

    def resume(self, now: float) -> T | None:
        """Continue while there is nothing to wait for. Return the reply, None before the end."""
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
    """Wait for a time, then return True."""
    yield time
    return True


def look_up_wait_s(attempts: int) -> float:
    """Return the wait before a look-up is repeated, twice as long after each attempt."""
    return min(_LOOK_UP_WAIT_S * 2.0**attempts, _LONGEST_LOOK_UP_WAIT_S)


def reason_of(code: int, what: str, node_id: int) -> str:
    """Return the reason for an error code in a reply, empty if there is no error."""
    if code == codes.NONE:
        return ""
    return f"{what} at node {node_id}: {error_code(code).name} ({code})"


def refused(code: int, what: str, message: str | None = None) -> NoReplyError:
    """Return the error for an error code. message: of the broker."""
    row = error_code(code)
    reason = f"{what}: {row.name} ({code})" + (f", {message}" if message else "")
    return NoReplyError(code, reason, is_unanswered=False)


def left_out(api: str, node_id: int) -> NoReplyError:
    """Return the error for a response that lacks the entry of the request."""
    reason = f"{api} at node {node_id}: the response does not contain what was asked for"
    return NoReplyError(codes.UNKNOWN_SERVER_ERROR, reason, is_unanswered=False)

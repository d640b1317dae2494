"""Python tracebacks without the frames of the sink, as Spark shows them to users.

Spark shows the traceback of a failed write in its exception and several times in its logs. If the
write failed with an exception of the sink, the last line of the traceback says what was found and
what to do. The frames of the sink do not help then, and make that line hard to find. Frames of user
code, such as a partitioner, are always shown. The option ``fullTraceback`` shows all frames.

No frame is shown with the values of its variables, even if Spark is set to show them. The frames of
Spark that call the sink contain its options, with their passwords.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.worker import NEEDED, WITH_LOCALS

_SINK: Final = "spark_kafka_sink"
# The top-level modules that the sink calls. Their frames are only shown if user code called them.
_LIBRARIES: Final = sys.stdlib_module_names | {
    *NEEDED, "botocore", "cryptography", "gssapi", "py4j", "pyspark",
}  # fmt: skip


class _HasTracebacks(Protocol):
    @property
    def full_traceback(self) -> bool: ...


S = TypeVar("S", bound=_HasTracebacks)
P = ParamSpec("P")
T = TypeVar("T")


def short_tracebacks(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Wrap a method that Spark calls, to shorten the tracebacks of the exceptions that it raises.

    They are not shortened if the attribute `full_traceback` of the method's object is true. In any
    case, Spark shows them without variables. A worker of Spark ends after an exception, so this
    changes no other traceback.
    """

    @functools.wraps(method)
    def shortening(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            os.environ.pop(WITH_LOCALS, None)
            if not self.full_traceback:
                shorten(error)
            raise  # `raise error` would add this frame to the traceback again

    return shortening


def shorten(error: BaseException) -> None:
    """Remove the frames of the sink from the traceback of an exception. Raise nothing.

    If a KafkaException has no frames of user code, it keeps at most one of its causes: the first
    one that has frames of user code. The other causes are not needed, because messages of the sink
    name their causes. If an exception of any other class has no frames of user code, it shows a bug
    of the sink, and keeps all its frames.
    """
    with suppress(Exception):  # the class may be a user's
        _shorten(error)


def _shorten(error: BaseException) -> None:
    frames = _without_own(error.__traceback__)
    if frames is None and isinstance(error, KafkaException):
        with_user_code = (each for each in _causes(error) if _without_own(each.__traceback__))
        cause = next(with_user_code, None)
        if cause is not None:
            _set_traceback(cause, _without_own(cause.__traceback__))
        error.__cause__ = cause  # this hides the context, too
    elif frames is None:
        return
    _set_traceback(error, frames)


def _set_traceback(error: BaseException, frames: TracebackType | None) -> None:
    # Classes of users may refuse to set an attribute.
    BaseException.__setattr__(error, "__traceback__", frames)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes of an exception that Python shows with it, in their order, each once."""
    seen = {id(error)}
    while True:
        following = error.__cause__
        if following is None and not error.__suppress_context__:
            following = error.__context__
        if following is None or id(following) in seen:
            return
        seen.add(id(following))
        yield following
        error = following


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of the sink and of the libraries that the sink calls.

    Return None if the traceback has no frames except these.
    """
    kept: list[TracebackType] = []
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if module != _SINK and (kept or module not in _LIBRARIES):
            kept.append(trace)
        trace = trace.tb_next
    shown = None
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown

"""A Python process that has only what the functions need that it is asked to call.

pytest, its plugins and all tests are millions of objects.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from support.brokers.processes import dying_with_parent

_P = ParamSpec("_P")
_R = TypeVar("_R")
_SERVE = """
import pickle, sys

sys.path[:0] = sys.argv[1:]
while True:
    try:
        function, given, named = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    pickle.dump(function(*given, **named), sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


class SmallProcess:
    """The process; its functions are those of modules on the path, and it ends with the block."""

    def __enter__(self) -> Self:
        """Start the process."""
        command = [sys.executable, "-c", _SERVE, *sys.path]
        self._process = subprocess.Popen(
            dying_with_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self._process.communicate()

    def call(self, function: Callable[_P, _R], *given: _P.args, **named: _P.kwargs) -> _R:
        """Return what a function returns there. Raise EOFError if it raises; stderr says what."""
        to_it: Any = self._process.stdin
        pickle.dump((function, given, named), to_it)
        to_it.flush()
        result: _R = pickle.load(self._process.stdout)  # type: ignore[arg-type] # it is a pipe
        return result

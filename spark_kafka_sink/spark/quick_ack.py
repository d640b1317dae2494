"""A task's first rows, without the 40 ms that they are held back for.

The JVM tells a worker what its task is, and then sends the rows, over a TCP connection on which it
has left Nagle's algorithm on: what is small waits until all before it is acknowledged. The worker
has nothing to say yet, so its kernel waits, too, for something that the acknowledgement could go
with; Linux gives up after 40 ms. That is half of what a job of one row takes.

Nothing of Spark's is changed: the kernel is asked, once, to acknowledge now. Over unix domain
sockets (spark.python.unix.domain.socket.enabled) there is no such wait, and nothing is asked.
"""

from __future__ import annotations

import ctypes
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

_OPEN_FILES: Final = Path("/proc/self/fd")


def acknowledge_now() -> None:
    """Have what this process has received over TCP acknowledged; elsewhere than on Linux, nothing.

    Which connection is Spark's is not known here. On others, such as those of a producer that is
    kept, it means an acknowledgement that would have come a little later. What is no connection
    over TCP refuses the option. Python's own sockets are not used: to make one of an open file
    would take it out of blocking where a program has set a default timeout.
    """
    with suppress(OSError, AttributeError):
        setsockopt = ctypes.CDLL(None).setsockopt
        on, option = ctypes.c_int(1), socket.TCP_QUICKACK
        for file in _OPEN_FILES.iterdir():
            setsockopt(
                int(file.name), socket.IPPROTO_TCP, option, ctypes.byref(on), ctypes.sizeof(on)
            )

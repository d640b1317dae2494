"""Reservation: bytes of buffer.memory that a call has taken and not given back yet.

Owns the number alone; `CallerWaits` takes the bytes and `ProducerThread` gives them back.
"""

from __future__ import annotations


class Reservation:
    """size_bytes: 0 before they are taken and again when they are given back.

    So who is interrupted (Ctrl-C) may give back once more what may have been given back.
    """

    __slots__ = ("size_bytes",)

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes

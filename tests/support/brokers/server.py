"""A server that listens while a `with` block runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Server(ABC):
    """A peer of the client under test, which is stopped at the end of its block."""

    @abstractmethod
    def stop(self) -> None:
        """Close everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

"""What listens for the length of a with block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Server(ABC):
    """A peer of the client under test, which is stopped where its block ends."""

    @abstractmethod
    def stop(self) -> None:
        """Close everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

"""Modules of the sink that a process changes as it loads them.

Spark starts its own Python processes, so a test cannot patch what they load. A process that has
called `change_when_loaded` changes the module itself, once it is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Changing(MetaPathFinder, Loader):
    """Finds a module, and changes it once it is loaded."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._change = change
        self._found: ModuleSpec | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with this loader around its own."""
        if name != self._name or self._found is not None:
            return None
        self._found = ModuleSpec("", None)
        self._found = importlib.util.find_spec(name)
        return None if self._found is None else ModuleSpec(name, self, origin=self._found.origin)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module."""
        assert self._found is not None
        assert self._found.loader is not None
        self._found.loader.exec_module(module)
        self._change(module)


def change_when_loaded(name: str, change: Callable[[ModuleType], None]) -> None:
    """Let this process call a function with a module as soon as it has loaded the module."""
    sys.meta_path.insert(0, _Changing(name, change))

"""The methods and properties of a class that users may call."""

from __future__ import annotations

import inspect

CONTEXT = ["__enter__", "__exit__"]


def public_methods(kind: type) -> list[str]:
    """Return their names, including those of a `with` block."""
    own = [name for name, _ in inspect.getmembers(kind) if name in vars(kind)]
    return [*(name for name in own if not name.startswith("_")), *CONTEXT]

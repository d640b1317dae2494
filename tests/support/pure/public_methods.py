"""The methods and properties of a class that users may call."""

from __future__ import annotations

import inspect

CONTEXT = ["__enter__", "__exit__"]


def public_methods(kind: type) -> list[str]:
    """Return their names, including those of a `with` block."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("spark_kafka_sink.")]
    own = [n for n, _ in inspect.getmembers(kind) if any(n in vars(base) for base in ours)]
    return [*(name for name in own if not name.startswith("_")), *CONTEXT]

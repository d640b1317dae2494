"""What the Python of a worker must have besides the sink, named before it is imported in vain.

The package itself travels as a zip; these have C extensions, which do not. It owns the sentence for
a worker without them, which would else be the last line of a traceback.
"""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from typing import Final

NEEDED: Final = ("numpy", "pyarrow", "crc32c", "lz4", "msgspec")


def check_modules() -> None:
    """Raise ModuleNotFoundError where this Python lacks a module that the sink needs."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        message = (
            f"No module named {' or '.join(map(repr, missing))} for {sys.executable} on "
            f"{platform.node()}: spark-kafka-sink needs it wherever Spark runs Python, and "
            "--py-files cannot ship it; install it there, or ship an environment that has it by "
            "--archives"
        )
        raise ModuleNotFoundError(message, name=missing[0])

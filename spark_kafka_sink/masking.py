"""``masked``: a value that may be an address, as messages may show it.

Addresses can have credentials before an ``@``, as ``s3a://key:secret@bucket/a`` has. No address
that an option takes here has any, so they are met only where a value is refused.
"""

from __future__ import annotations

import re
from typing import Final

# A path of this machine, as /a/b@c, is left whole: it has none. A scheme is worth showing.
_CREDENTIALS: Final = re.compile(r"(?!/[^/])([\w+.-]+://)?.*@", re.DOTALL)


def masked(value: str) -> str:
    """Give a value with ``***`` in place of what stands before its last ``@``."""
    found = _CREDENTIALS.match(value)
    return value if found is None else f"{found[1] or ''}***@{value[found.end() :]}"


def without_path(error: BaseException) -> str:
    """Give what an error says; an OSError names the path whole, and is told without."""
    return str(getattr(error, "strerror", None) or error)

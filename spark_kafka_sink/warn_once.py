"""``warn_once``: a warning that a process gives once.

A stream is planned anew for every micro-batch, and would say the same for weeks; so would whoever
makes one producer after the other.
"""

from __future__ import annotations

import logging
from functools import lru_cache


@lru_cache(maxsize=128)
def warn_once(logger: logging.Logger, message: str) -> None:
    """Log a warning, unless this process has logged it lately."""
    logger.warning("%s", message)

"""How many examples a test of the wire format draws: few in `make test`, many in `make soak`."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

# The number for whatever is fast to make; 0 in `make test`.
EXAMPLES: Final = int(os.environ.get("FUZZ_EXAMPLES", "0"))
# Of each API, while there are about forty of them, and most are drawn in all their versions.
_FEW: Final = 10


def one_in(share: int) -> settings:
    """Return settings for a fraction of FUZZ_EXAMPLES, or for a few examples without it."""
    return settings(max_examples=max(1, EXAMPLES // share) if EXAMPLES else _FEW)

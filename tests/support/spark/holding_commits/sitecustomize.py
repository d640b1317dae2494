"""Let every Python process hold commits when a test wants it (`held_commits`).

Python imports a module of this name when it starts, if it is on the path.
"""

from __future__ import annotations

import support.spark.preloaded.sitecustomize  # noqa: F401 - Python imports one of this name
from support.spark.held_commits import hold_commits

hold_commits()

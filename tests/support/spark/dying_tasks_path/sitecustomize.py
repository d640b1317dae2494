"""Let tasks in every Python process die when a test wants it (`dying_tasks`).

Python imports a module of this name when it starts, if it is on the path.
"""

from __future__ import annotations

import support.spark.preloaded.sitecustomize  # noqa: F401 - Python imports one of this name
from support.spark.dying_tasks import die_at_the_end

die_at_the_end()

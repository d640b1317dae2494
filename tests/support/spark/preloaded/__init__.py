"""A folder for the path of Spark's Python daemons, whose module sitecustomize they import.

A daemon forks the workers, and each worker imports Spark's modules and NumPy again, which takes
more processor time than the rows of most tests. Workers find them imported already. The sink is
not among them: each worker imports it, as in a user's job.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping


def put_on_path(environment: MutableMapping[str, str]) -> None:
    """Put the folder on the path of all Python processes that start with this environment."""
    found = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([__path__[0], *found]))

"""Let every Python process use the modes that the sink refuses until they are complete.

Python imports a module of this name when it starts, if it is on the path.
"""

from __future__ import annotations

from spark_kafka_sink.spark import exactly_once
from support.spark.held_commits import hold_commits

exactly_once.UNFINISHED = frozenset()
hold_commits()

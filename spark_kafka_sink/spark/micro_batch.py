"""Which micro-batch a task or a job belongs to, as Spark's local properties tell.

Python data sources get the number of a micro-batch only when it is committed. Its tasks know the
query, too, and so does the thread in which foreachBatch calls a function, in a classic session.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
DESCRIPTION: Final = "spark.job.description"
_RUN_ID: Final = re.compile(r"runId = ([0-9a-f-]{36})")


class MicroBatch(NamedTuple):
    """A micro-batch of a query; run_id: of the query's run, empty if it is not known."""

    query_id: str
    batch_id: int
    run_id: str

    def __str__(self) -> str:
        return f"micro-batch {self.batch_id} of query {self.query_id}"


def micro_batch_of(local_property: Callable[[str], str | None]) -> MicroBatch | None:
    """Return the micro-batch, None outside of one.

    local_property: returns the value of a local property of a task or of a SparkContext.
    """
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if query_id is None or batch_id is None:
        return None
    run = _RUN_ID.search(local_property(DESCRIPTION) or "")
    return MicroBatch(query_id, int(batch_id), run[1] if run else "")

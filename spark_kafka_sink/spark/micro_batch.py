"""The micro-batch that a task or a job belongs to, from Spark's local properties.

Python data sources get the number of a micro-batch only when it is committed. Its tasks know the
query, too, and so does the thread in which foreachBatch calls a function, in a classic session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
DESCRIPTION: Final = "spark.job.description"
# Spark runs the jobs of a query in a job group that has the id of the query's run.
JOB_GROUP: Final = "spark.jobGroup.id"
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_RUN_ID: Final = re.compile(f"runId = ({_UUID})")
_IS_RUN_ID: Final = re.compile(_UUID)
# Spark's description of a micro-batch begins with the query's name, if it has one.
_QUERY_NAME: Final = re.compile(r"(.+?)(?:<br/>|\n)id = ", re.DOTALL)


class MicroBatch(NamedTuple):
    """A micro-batch of a query.

    run_id: of the query's run; query_name: the name that it has. Each is empty if it is not known.
    """

    query_id: str
    batch_id: int
    run_id: str
    query_name: str = ""

    def __str__(self) -> str:
        return f"micro-batch {self.batch_id} of query {self.query_id}"


def micro_batch_of(local_property: Callable[[str], str | None]) -> MicroBatch | None:
    """Return the micro-batch, None outside of one.

    local_property: returns the value of a local property of a task or of a SparkContext.
    """
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if query_id is None or batch_id is None:
        return None
    description = local_property(DESCRIPTION) or ""
    run, name = _RUN_ID.search(description), _QUERY_NAME.match(description)
    if run is not None:
        run_id = run[1]
    else:  # the function of foreachBatch has described its jobs itself
        group = local_property(JOB_GROUP) or ""
        run_id = group if _IS_RUN_ID.fullmatch(group) else ""
    return MicroBatch(query_id, int(batch_id), run_id, name[1] if run and name else "")


# The options by which `write_batch` hands its micro-batch on to the processes of Spark.
BATCH_ID_OPTION: Final = "pykafka.batch.id"
QUERY_OPTION: Final = "pykafka.query"
_FROM_HERE: Final = re.compile("write_batch:(-?[0-9]+)")


def batch_id_option(batch_id: int) -> dict[str, str]:
    """Return the option that carries the number of a micro-batch."""
    return {BATCH_ID_OPTION: f"write_batch:{batch_id}"}


def batch_id_of(options: Mapping[str, str]) -> int | None:
    """Return the number that `batch_id_option` put among options, None if it did not."""
    found = _FROM_HERE.fullmatch(options.get(BATCH_ID_OPTION, ""))
    return int(found[1]) if found else None


def query_option(micro_batch: MicroBatch) -> dict[str, str]:
    """Return the option that carries the query of a micro-batch, its run and its name."""
    query = micro_batch.query_id, micro_batch.run_id, micro_batch.query_name
    return {QUERY_OPTION: " ".join(query)}


def micro_batch_in(options: Mapping[str, str]) -> MicroBatch | None:
    """Return the micro-batch that `write_batch` put among options; None if the query is unknown."""
    batch_id = batch_id_of(options)
    if batch_id is None or QUERY_OPTION not in options:
        return None
    query_id, run_id, name = options[QUERY_OPTION].split(" ", 2)
    return MicroBatch(query_id, batch_id, run_id, name)

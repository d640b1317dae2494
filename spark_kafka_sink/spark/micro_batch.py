"""The micro-batch that a task or a job belongs to, according to Spark's local properties.

Spark passes the batch id of a micro-batch to a Python data source only at the commit. The tasks of
the micro-batch can read the batch id and the query id from their local properties. In a classic
session, the thread that calls the function of foreachBatch can also read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
DESCRIPTION: Final = "spark.job.description"
# Spark runs the jobs of a query in a job group whose id is the run id of the query.
JOB_GROUP: Final = "spark.jobGroup.id"
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_RUN_ID: Final = re.compile(f"runId = ({_UUID})")
_IS_RUN_ID: Final = re.compile(_UUID)
# Spark's job description of a micro-batch begins with the name of the query, if the query has one.
_QUERY_NAME: Final = re.compile(r"(.+?)(?:<br/>|\n)id = ", re.DOTALL)


class MicroBatch(NamedTuple):
    """A micro-batch of a streaming query.

    run_id: the run id of the query. query_name: the name of the query. Both are empty if they are
    not known. is_retry: whether an earlier save of the micro-batch failed in this run of the query.
    """

    query_id: str
    batch_id: int
    run_id: str
    query_name: str = ""
    is_retry: bool = False

    def __str__(self) -> str:
        return f"micro-batch {self.batch_id} of query {self.query_id}"


def _unknown_run(_query_id: str) -> None:
    return None


def micro_batch_of(
    local_property: Callable[[str], str | None],
    active_run: Callable[[str], str | None] = _unknown_run,
) -> MicroBatch | None:
    """Return the micro-batch, or None outside of a streaming query.

    local_property: a function that returns the value of a local property of the task or the
    SparkContext. active_run: a function that returns the run id of the active query with an id, or
    None if it is not known.
    """
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if query_id is None or batch_id is None:
        return None
    description = local_property(DESCRIPTION) or ""
    run, name = _RUN_ID.search(description), _QUERY_NAME.match(description)
    if run is not None:
        run_id = run[1]
    else:  # the function of foreachBatch has set its own job description
        group = local_property(JOB_GROUP) or ""
        # The function may have set a UUID of its own as the job group.
        is_run_id = _IS_RUN_ID.fullmatch(group) and active_run(query_id) in (None, group)
        run_id = group if is_run_id else ""
    return MicroBatch(query_id, int(batch_id), run_id, name[1] if run and name else "")


# With these options, `write_batch`, or ``save()`` in the function of foreachBatch, passes the
# micro-batch to Spark's Python processes.
BATCH_ID_OPTION: Final = "pykafka.batch.id"
QUERY_OPTION: Final = "pykafka.query"
# This value replaces that of an earlier micro-batch, and means that there is no micro-batch.
_NONE: Final = "none:"
_FIRST_TRY: Final = "first"
_RETRY: Final = "retry"
_OF_SAVE: Final = "save:"
_OF_WRITE_BATCH: Final = "write_batch:"
_FROM_HERE: Final = re.compile(f"(?:{_OF_SAVE}|{_OF_WRITE_BATCH})(-?[0-9]+)")


def batch_id_option(batch_id: int, *, is_save: bool = False) -> dict[str, str]:
    """Return the option that passes the id of a micro-batch to a write.

    is_save: True if ``save()`` passes the id, False if `write_batch` does. With exactly once, the
    batch id is also the txnVersion of such a ``save()``.
    """
    return {BATCH_ID_OPTION: f"{_OF_SAVE if is_save else _OF_WRITE_BATCH}{batch_id}"}


def option_of_save(local_property: Callable[[str], str | None]) -> dict[str, str]:
    """Return the option for an at-least-once ``save()`` in the function of foreachBatch.

    With this option, ``save()`` writes like `write_batch`. Outside of such a function, return an
    empty dict. local_property: as in `micro_batch_of`.
    """
    found = micro_batch_of(local_property)
    return {} if found is None else batch_id_option(found.batch_id, is_save=True)


def batch_id_of(options: Mapping[str, str]) -> int | None:
    """Return the batch id that `batch_id_option` put into the options, or None if there is none."""
    found = _FROM_HERE.fullmatch(options.get(BATCH_ID_OPTION, ""))
    return int(found[1]) if found else None


def without_micro_batch(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return options that cancel those of an earlier micro-batch, if the writer still has them.

    Spark's writer keeps options, so they can only be replaced. before: the options that earlier
    calls added to the writer. now: the options of this call. Return an empty dict if there was no
    earlier micro-batch.
    """
    names = (BATCH_ID_OPTION, QUERY_OPTION)
    return {name: _NONE for name in names if name in before and name not in now}


def options_of_user(given: Mapping[str, str], *, is_exactly_once: bool) -> dict[str, str]:
    """Return the options without those that describe a micro-batch.

    given: the options of a write, with names in lower case. is_exactly_once: whether exactlyOnce is
    set in them. If it is set, and ``save()`` was called in the function of foreachBatch, txnVersion
    is also removed, because it is the batch id.
    """
    options = dict(given)
    if is_of_save(given) and is_exactly_once:
        options.pop("txnversion", None)
    is_passed_on = batch_id_of(given) is not None
    for name in (BATCH_ID_OPTION, QUERY_OPTION):
        if is_passed_on or options.get(name) == _NONE:
            options.pop(name, None)
    return options


def has_batch_id(options: Mapping[str, str]) -> bool:
    """Return whether the options contain a batch id."""
    return options.get(BATCH_ID_OPTION, _NONE) != _NONE


def is_of_save(options: Mapping[str, str]) -> bool:
    """Return whether ``save()`` has put a batch id into the options."""
    return options.get(BATCH_ID_OPTION, "").startswith(_OF_SAVE)


def is_of_write_batch(options: Mapping[str, str]) -> bool:
    """Return whether `write_batch` has put a batch id into the options."""
    return options.get(BATCH_ID_OPTION, "").startswith(_OF_WRITE_BATCH)


def query_option(micro_batch: MicroBatch) -> dict[str, str]:
    """Return the option that contains all fields of a micro-batch except its batch id."""
    tries = _RETRY if micro_batch.is_retry else _FIRST_TRY
    query = micro_batch.query_id, micro_batch.run_id, tries, micro_batch.query_name
    return {QUERY_OPTION: " ".join(query)}


def micro_batch_in(options: Mapping[str, str]) -> MicroBatch | None:
    """Return the micro-batch in the options, or None if there is none or its query is unknown."""
    batch_id = batch_id_of(options)
    if batch_id is None or options.get(QUERY_OPTION, _NONE) == _NONE:
        return None
    query_id, run_id, tries, name = options[QUERY_OPTION].split(" ", 3)
    return MicroBatch(query_id, batch_id, run_id, name, is_retry=tries == _RETRY)

"""Hooks into Spark's classes of streaming queries, which `register` installs.

If a query fails because of the sink, the hooks add the message of the sink to the exception that
the program gets. They do so in ``spark.streams.awaitAnyTermination()`` and in the methods of all
queries. These include queries with `foreachBatch`, and queries that ``spark.streams.get()``
returns.

`remember_stream` records the queries that write to the sink. The exception of such a query is added
to the last report of the query. Its exception gets a message even if it does not name the sink, for
example if a worker runs a different version of Python than the driver. The exception of any other
query is changed only if it names the sink.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from spark_kafka_sink.logs import masked
from spark_kafka_sink.spark.driver.hooks.delegation_token_renewal import renew_token_of_query
from spark_kafka_sink.spark.driver.hooks.failed_writes import reporting_error
from spark_kafka_sink.spark.driver.hooks.notes import is_first_time
from spark_kafka_sink.spark.driver.hooks.worker_failures import explained, names_sink, with_sentence

# The keys say whether the session is a Spark Connect session.
MODULES: Final = {
    False: "pyspark.sql.streaming.query",
    True: "pyspark.sql.connect.streaming.query",
}
# The methods of a query that raise the exception with which it failed.
RAISING: Final = ("awaitTermination", "processAllAvailable")
WAITING_FOR_ANY: Final = "awaitAnyTermination"
# Finds the run id of the query in Spark's exception about a failed query.
_RUN: Final = re.compile(r"\brunId = ([0-9a-f-]+)")
# The options of the streams that this process has started, by run id; the oldest are forgotten.
_streams: Final[dict[str, Mapping[str, str]]] = {}
_MOST_STREAMS: Final = 1000
# Several threads may call `register` at once. Each returns only when the hooks are installed.
_hooking: Final = threading.Lock()


def hook_queries(*, is_connect: bool) -> None:
    """Patch Spark's classes of streaming queries, as the docstring of this module describes.

    is_connect: whether to patch the classes of Spark Connect, instead of the classic classes.
    """
    module = import_module(MODULES[is_connect])
    query, manager = module.StreamingQuery, module.StreamingQueryManager
    session = _no_session if is_connect else _classic_session
    with _hooking:
        if is_first_time(query):
            for name in RAISING:
                setattr(query, name, _explaining(getattr(query, name), _run_of_query, session))
            query.exception = with_sentence(query.exception)
        if is_first_time(manager):
            waiting = _explaining(getattr(manager, WAITING_FOR_ANY), _run_in_message, session)
            setattr(manager, WAITING_FOR_ANY, waiting)


def remember_stream(query: Any, options: Mapping[str, str]) -> None:
    """Record that a query writes to the sink, and renew the query's delegation token, if any.

    options: the options of the write, with names in lower case.
    """
    renew_token_of_query(query, options)
    with suppress(Exception):  # the JVM may have ended
        _streams[str(query.runId)] = options
        if len(_streams) > _MOST_STREAMS:
            _streams.pop(next(iter(_streams)), None)


def report_file_of(run_id: str) -> str | None:
    """Return the value of the option reportPath of a stream, without credentials.

    Return None if the stream does not have the option, or if `remember_stream` did not record it.
    """
    path = _streams.get(run_id, {}).get("reportpath")
    return None if path is None else masked(path)


def _run_of_query(query: Any, _error: Exception) -> str:
    return str(query.runId)


def _run_in_message(_manager: Any, error: Exception) -> str:
    found = _RUN.search(str(error))
    return "" if found is None else found[1]


def _classic_session() -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the package pyspark-client has another

    return SparkSession._instantiatedSession  # noqa: SLF001 - a thread may have no active session


def _no_session() -> None:
    """Return None, because a Spark Connect session does not know the Python of its workers."""


def _explaining(
    method: Any, run_of: Callable[[Any, Exception], str], session: Callable[[], Any]
) -> Any:
    """Wrap a method of Spark that raises the exception of a failed query.

    The wrapper explains the exception, and adds it to the report of the query.

    run_of: returns the run id of the failed query. Its arguments are the object whose method was
    called, and the exception.
    """

    @functools.wraps(method)
    def raising(waiting: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(waiting, *args, **kwargs)
        except Exception as error:
            options = None
            with suppress(Exception):  # the JVM may have ended
                options = _streams.get(run_of(waiting, error))
            if options is None and not names_sink(error):
                raise
            with reporting_error(options or {}, has_lines=True), explained(session()):
                raise

    return raising

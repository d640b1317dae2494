"""Hooks into Spark's classes of streaming queries, which `register` installs.

If a query fails because of the sink, the hooks add the sink's error message to the exception that
the program gets. They do so in ``spark.streams.awaitAnyTermination()`` and in the methods of all
queries. These include queries with `foreachBatch`, and queries that ``spark.streams.get()``
returns. Exceptions that do not name the sink are left as they are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from spark_kafka_sink.spark.driver.hooks.failed_writes import report_error_of_run
from spark_kafka_sink.spark.driver.hooks.notes import is_first_time
from spark_kafka_sink.spark.driver.hooks.worker_failures import (
    RAISING,
    explained_if_named,
    with_sentence,
)

# The key: whether the session is one of Spark Connect.
MODULES: Final = {
    False: "pyspark.sql.streaming.query",
    True: "pyspark.sql.connect.streaming.query",
}
WAITING_FOR_ANY: Final = "awaitAnyTermination"
# Several threads may call `register` at once, and none may return before the hooks are there.
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
                setattr(query, name, _naming(getattr(query, name), session))
            query.exception = with_sentence(query.exception)
        if is_first_time(manager):
            waiting = _reporting(getattr(manager, WAITING_FOR_ANY))
            setattr(manager, WAITING_FOR_ANY, _naming(waiting, session))


def _classic_session() -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the package pyspark-client has another

    return SparkSession._instantiatedSession  # noqa: SLF001 - a thread may have no active session


def _no_session() -> None:
    """Return None: a session of Spark Connect does not know the Python of its workers."""


def _naming(method: Any, session: Callable[[], Any]) -> Any:
    @functools.wraps(method)
    def raising(*args: Any, **kwargs: Any) -> Any:
        with explained_if_named(session()):
            return method(*args, **kwargs)

    return raising


def _reporting(method: Any) -> Any:
    """Return a method of Spark with an addition: it adds a query's error to the query's report."""

    @functools.wraps(method)
    def raising(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            report_error_of_run(error)
            raise

    return raising

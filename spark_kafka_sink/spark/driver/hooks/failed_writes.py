"""Adds the error of a failed job or stream to its report.

Spark does not pass the error to the process that aborts the job and makes its report. Only the
user's process gets it. The report is found by an id that the write has as an option.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from spark_kafka_sink.spark.committing.job_commit import add_error
from spark_kafka_sink.spark.driver.hooks.worker_failures import RAISING, sentence_of_sink
from spark_kafka_sink.spark.options import report_path
from spark_kafka_sink.spark.report import WRITE_ID_OPTION

# The last line of a Python traceback inside of Spark's message: the first one that is not indented.
_CAUSE: Final = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE
)
_LONGEST: Final = 2000
# How Spark's exception about a failed query names its run.
_RUN: Final = re.compile(r"\brunId = ([0-9a-f-]+)")
# The options of the streams that this process has started, by run id; the oldest are forgotten.
_streams: Final[dict[str, Mapping[str, str]]] = {}
_MOST_STREAMS: Final = 1000


def new_write_id() -> dict[str, str]:
    """Return the option with the id of a new write."""
    return {WRITE_ID_OPTION: uuid.uuid4().hex}


@contextmanager
def reporting_error(options: Mapping[str, str], *, is_stream: bool) -> Iterator[None]:
    """Add an exception of this block to the report of the write, if it has one.

    options: the options of the write, with names in lower case.
    """
    try:
        yield
    except Exception as error:
        _report(error, options, is_stream=is_stream)
        raise


def _report(error: Exception, options: Mapping[str, str], *, is_stream: bool) -> None:
    write_id = options.get(WRITE_ID_OPTION)
    if write_id is None:
        return
    with suppress(Exception):  # the error itself says more
        path = options.get("reportpath")
        where = None if path is None else report_path(path)
        said = cause_of(str(error) or type(error).__name__)
        add_error(write_id, said, where, is_stream=is_stream)


def report_errors_of(query: Any, options: Mapping[str, str]) -> None:
    """Make those methods of a streaming query that raise its failure add it to its last report."""
    for name in RAISING:
        setattr(query, name, _reporting(getattr(query, name), options))
    with suppress(Exception):  # a query of Spark Connect may ask its server
        _streams[str(query.runId)] = options
        if len(_streams) > _MOST_STREAMS:
            _streams.pop(next(iter(_streams)), None)


def report_error_of_run(error: Exception) -> None:
    """Add an exception to the last report of the stream that it is about, if that is known."""
    found = _RUN.search(str(error))
    options = None if found is None else _streams.get(found[1])
    if options is not None:
        _report(error, options, is_stream=True)


def _reporting(method: Any, options: Mapping[str, str]) -> Any:
    @functools.wraps(method)
    def raising(*args: Any, **kwargs: Any) -> Any:
        with reporting_error(options, is_stream=True):
            return method(*args, **kwargs)

    return raising


def cause_of(said: str) -> str:
    """Return the essential line of an exception of Spark: the exception in the Python worker.

    The sentence of the sink is preferred. Without any, return the first lines.
    """
    if (sentence := sentence_of_sink(said)) is not None:
        return sentence[:_LONGEST]
    found = _CAUSE.search(said)
    if found is not None:
        return found[1][:_LONGEST]
    before_frames, *_ = re.split(r"\n\s*at |\n\n", said, maxsplit=1)
    return before_frames.strip()[:_LONGEST]

"""Adds the error of a failed job or stream to its report.

Spark passes the error to the user's process, but not to the process that aborts the job and makes
its report. So the user's process adds the error to the report. It finds the report by the id of the
write, which it has passed to the write as an option.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from spark_kafka_sink.spark.committing.job_commit import add_error
from spark_kafka_sink.spark.driver.hooks.worker_failures import sentence_of_sink
from spark_kafka_sink.spark.options import report_path
from spark_kafka_sink.spark.report import WRITE_ID_OPTION

# The last line of a Python traceback in Spark's message. It is the first line of the traceback that
# is not indented. The traceback of a function of foreachBatch may start in the middle of a line,
# because of py4j.
_CAUSE: Final = re.compile(
    r"(?:^|: )Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE
)
# Matches what Python writes between chained exceptions. The last exception explains the others.
_CHAINED: Final = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
    r"(?=Traceback \(most recent call last\):\n)"
)
# Matches the Java stack frames that follow a Python traceback.
_JAVA_FRAMES: Final = re.compile(r"^(?:\tat |Caused by: )", re.MULTILINE)
_LONGEST: Final = 2000


def new_write_id() -> dict[str, str]:
    """Return the option that passes a new id to a write."""
    return {WRITE_ID_OPTION: uuid.uuid4().hex}


@contextmanager
def reporting_error(options: Mapping[str, str], *, has_lines: bool) -> Iterator[None]:
    """Context manager: if the `with` block raises an exception, add it to the write's report.

    A write that failed before its tasks began has no report.

    options: the options of the write, with names in lower case. has_lines: whether each report is
    a line of the file reportPath, as for streams and micro-batches.
    """
    try:
        yield
    except Exception as error:
        _report(error, options, has_lines=has_lines)
        raise


def _report(error: Exception, options: Mapping[str, str], *, has_lines: bool) -> None:
    write_id = options.get(WRITE_ID_OPTION)
    if write_id is None:
        return
    with suppress(Exception):  # the error itself says more
        path = options.get("reportpath")
        where = None if path is None else report_path(path)
        said = cause_of(str(error) or type(error).__name__)
        add_error(write_id, said, where, has_lines=has_lines)


def cause_of(said: str) -> str:
    """Return the essential part of the text of Spark's exception.

    Return the sentence of the sink, if the text contains one. Otherwise, return the last line of
    the Python traceback. If exceptions are chained, this is the line of the last exception. If
    there is no Python traceback, return the lines before the stack frames.
    """
    if (sentence := sentence_of_sink(said)) is not None:
        return sentence[:_LONGEST]
    found = _CAUSE.search(said)
    if found is not None:
        frames = _JAVA_FRAMES.search(said, found.end())
        chain = _CHAINED.split(said[found.start() : frames and frames.start()])
        last = _CAUSE.search(chain[-1])
        return (last or found)[1][:_LONGEST]
    before_frames, *_ = re.split(r"\n\s*at |\n\n", said, maxsplit=1)
    return before_frames.strip()[:_LONGEST]

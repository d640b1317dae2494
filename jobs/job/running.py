"""How a job runs: its Spark session, and one sentence in place of a stack trace.

Owns the exit codes: what the job returns, 2 for what could not be done, 130 after Ctrl-C and 143
after SIGTERM. Whatever a job holds open in a `with` block is closed on all of these ways out.
"""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from py4j.protocol import (  # type: ignore[import-untyped]
    Py4JError,
    Py4JJavaError,
)
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_kafka_sink.errors import KafkaException

FAILED: Final = 2
_INTERRUPTED: Final = 128 + signal.SIGINT

# They print, as JSON with a stack trace, what PySpark raises as well.
_ECHOES: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# What the sink raised, found in the traceback of the Python process that raised it.
_SINK_ERROR: Final = re.compile(r"^spark_kafka_sink\.errors\.\w+: (.+)$", re.MULTILINE)
# Ctrl-C was pressed: whatever breaks from now on is its doing.
_stopped = threading.Event()


class JobError(Exception):
    """What stands against the job, in one sentence for the user."""


def run(job: Callable[[], int], name: str) -> int:
    """Run a job and give its exit code; what went wrong is said in one sentence on stderr.

    What Spark's JVM logs of tasks that failed comes before it.
    """
    signal.signal(signal.SIGTERM, _leave)
    for echo in _ECHOES:
        PySparkLogger.getLogger(echo).disabled = True
    try:
        return job()
    except KeyboardInterrupt:
        _stopped.set()
    except (JobError, KafkaException) as error:
        reason = str(error)
    except PySparkException as error:
        reason = sentence(str(error))
    except Py4JJavaError as error:
        reason = sentence(str(error.java_exception))
    except (Py4JError, ConnectionError):
        reason = "the connection to Spark's JVM was lost: it was ended, or it ran out of memory"
    if _stopped.is_set():
        _say(name, "stopped by Ctrl-C")
        return _INTERRUPTED
    _say(name, reason)
    return FAILED


@contextlib.contextmanager
def session(name: str, **settings: str) -> Iterator[SparkSession]:
    """Give the Spark session of a job, and end it."""
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield spark
    finally:
        # Ctrl-C reaches the JVM as well, which may be gone before us.
        with contextlib.suppress(Py4JError, ConnectionError):
            spark.stop()


def sentence(message: str) -> str:
    """Give the sentence that tells a user what Spark, or the sink inside Spark, has to say."""
    found = _SINK_ERROR.findall(message)
    if found:
        return str(found[-1])
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed without a message"


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # In place of Spark's handler, which calls the JVM from wherever the signal finds Python, often
    # from inside such a call. That connections break from now on is no news.
    logging.disable()
    _stopped.set()
    raise KeyboardInterrupt


def _leave(number: int, _frame: FrameType | None) -> None:
    logging.disable()
    sys.exit(128 + number)

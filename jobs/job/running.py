"""How a job runs: its Spark session, and one sentence instead of a stack trace.

It defines the exit codes: the job's result, 2 for failures, 130 after Ctrl-C and 143 after SIGTERM.
Whatever a job opens in a `with` block is closed in all of these cases.
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

# These loggers print PySpark's exceptions again, as JSON with a stack trace.
_ECHOES: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# The sink's error, in the traceback of the Python process that raised it.
_SINK_ERROR: Final = re.compile(r"^spark_kafka_sink\.errors\.\w+: (.+)$", re.MULTILINE)
# Ctrl-C was pressed; it causes all failures from now on.
_stopped = threading.Event()


class JobError(Exception):
    """The job cannot run; the message is one sentence for the user."""


def run(job: Callable[[], int], name: str) -> int:
    """Run a job and return its exit code; an error is printed as one sentence on stderr.

    Spark's JVM logs failed tasks before that.
    """
    signal.signal(signal.SIGTERM, _exit_on_signal)
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
    """Yield the Spark session of a job, and stop it."""
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield spark
    finally:
        # Ctrl-C reaches the JVM as well, which may end before this process.
        with contextlib.suppress(Py4JError, ConnectionError):
            spark.stop()


def sentence(message: str) -> str:
    """Return the sentence that explains an error of Spark, or of the sink inside Spark."""
    found = _SINK_ERROR.findall(message)
    if found:
        return str(found[-1])
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed without a message"


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # This replaces Spark's handler, which calls the JVM even if the signal interrupts such a call.
    # Connections that break from now on need no message.
    logging.disable()
    _stopped.set()
    raise KeyboardInterrupt


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    logging.disable()
    sys.exit(128 + number)

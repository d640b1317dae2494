"""Runs a job: makes its Spark session, and prints an error as one sentence, without a stack trace.

The exit code is the job's own result, 2 if the job failed, 130 after Ctrl-C, and 143 after SIGTERM.
In all of these cases, the `with` blocks of the job end, and close what they have opened.
"""

from __future__ import annotations

import contextlib
import logging
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
from spark_kafka_sink.spark.driver.hooks.worker_failures import sentence_of_sink

FAILED: Final = 2
_INTERRUPTED: Final = 128 + signal.SIGINT

# These loggers would print PySpark's exceptions a second time, as JSON with a stack trace.
_ECHOES: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# Set once Ctrl-C was pressed. Any later failure is a consequence of Ctrl-C.
_stopped = threading.Event()


class JobError(Exception):
    """The job cannot run; the message is one sentence for the user."""


def run(job: Callable[[], int], name: str) -> int:
    """Run a job and return its exit code. Print an error as one sentence on stderr.

    Before this sentence, Spark's JVM logs the tasks that failed.
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
    """Make the Spark session of a job for a `with` block, and stop it at the end."""
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
    """Return the sink's error message if Spark's message contains it, else Spark's first line.

    The sink's message may be about user code that has failed.
    """
    if (found := sentence_of_sink(message)) is not None:
        # Remove the class of the exception, or the name of the sink.
        return found.partition(": ")[2]
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed without a message"


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # This replaces Spark's signal handler, which calls the JVM even if the signal has interrupted
    # another call of the JVM. Connections that break from now on need no message in the log.
    logging.disable()
    _stopped.set()
    raise KeyboardInterrupt


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    logging.disable()
    sys.exit(128 + number)

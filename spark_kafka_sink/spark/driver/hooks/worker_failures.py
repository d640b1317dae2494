"""Explains in the user's process why a Python worker of Spark has failed.

Spark's exception contains the whole traceback of its Python worker, in which the message of the
sink is only one line. The hooks of ``save()``, of ``start()`` and of queries repeat this message as
the last line of Spark's exception.

In two cases, the hooks raise an exception of the sink instead, with Spark's exception as its cause.
In the first, a worker's Python cannot run the sink, and the traceback shows neither the worker nor
a remedy. In the second, an exactly-once write has lost rows, and a program must be able to catch
just that exception.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from spark_kafka_sink.errors import (
    KafkaException,
    LostRows,
    TornCommitException,
    add_last_line,
)
from spark_kafka_sink.spark.session import is_connect
from spark_kafka_sink.spark.worker import NEEDED

_SINK: Final = "spark_kafka_sink"
# Python's message about a missing module. `check_modules` appends the Python executable and the
# host.
_MISSING: Final = re.compile(
    rf"No module named '({'|'.join((_SINK, *NEEDED))})'(?:[^\n]*? for (\S+) on (\S+):)?"
)
# The begin of an exception in Spark's text. Without tracebacks (hideTraceback.enabled), Spark puts
# the exception behind its own words in a line.
_BEGIN: Final = r"(?:^|(?<=: ))"
# The messages of `check_versions` and of `check_pyspark`.
_TOO_OLD: Final = re.compile(
    rf"{_BEGIN}ImportError: (the (?:{'|'.join(('pyspark', *NEEDED))}) of .+ needs .+)$",
    re.MULTILINE,
)
_OTHER_VERSION: Final = re.compile(
    r"Python in worker has different version: (\d+\.\d+) than that in driver: (\d+\.\d+)"
)
_NOT_STARTED: Final = re.compile(r'Cannot run program "([^"]+)"')
# These find the executor of a failed task, and a failed planning of a write, in Spark's messages.
_EXECUTOR: Final = re.compile(r"\((\S+) executor (\S+)\)")
_PLANNING: Final = re.compile(r"Failed to \w+ Python data source")
# A TornCommitException begins with the first. The others find the parts of its message, which
# `commit.outcomes.Torn` makes.
_TORN: Final = f"{_SINK}.errors.{TornCommitException.__name__}: "
_TORN_RUN: Final = re.compile(
    r"(.+?) of (txnAppId .+?) was to be committed, but brokers have aborted (\d+) of its (\d+) "
    r"transactions(?: \(the result of (\d+) more is not known\))?"
)
_LOST: Final = re.compile(r"(\d+) records of task (\d+) in (\S+)-(\d+) from offset (\d+) on")
# Finds the sentence of the sink at the end of a worker's traceback. It comes from an exception of
# the sink, or from a failure of user code (`plugins.loading.name_user_code`). The latter has a line
# of its own. A sentence may quote another one, so it is the first match in its line.
_LAST_LINE: Final = re.compile(rf"{_BEGIN}{_SINK}\.errors\.\w+: .+$|^{_SINK}: .+$", re.MULTILINE)
_ON_DRIVER: Final = "on the driver's machine"


@contextmanager
def explained(session: Any) -> Iterator[None]:
    """Context manager: add the message of the sink to Spark's exception about a worker.

    If the worker's Python cannot run the sink, raise KafkaException instead. If a worker raised
    TornCommitException, raise it again here. session: the session of the write, None if it is not
    known. Error messages name the Python that the session's workers run.
    """
    try:
        yield
    except Exception as error:
        if (torn := _torn(str(error))) is not None:
            raise torn from error
        sentence = _sentence(str(error), _python_of(session))
        if sentence is None:
            _add_sentence(error)
            raise
        raise KafkaException(sentence) from error


def names_sink(error: Exception) -> bool:
    """Return whether an exception of Spark names the sink."""
    return _SINK in str(error)


def sentence_of_sink(said: str) -> str | None:
    """Return the sentence of the sink in the text of Spark's exception, or None if there is none.

    The sentence begins with the class of the sink's exception, or with ``spark_kafka_sink:`` if
    user code has failed.
    """
    found = _LAST_LINE.findall(said)
    return found[-1] if found else None


def _add_sentence(error: Exception) -> None:
    sentence = None if isinstance(error, KafkaException) else sentence_of_sink(str(error))
    if sentence is not None:
        add_last_line(error, sentence)


def _torn(said: str) -> TornCommitException | None:
    """Return the TornCommitException of a worker, parsed from Spark's exception.

    Return None if the worker raised a different exception. The field `lost` contains only the lost
    rows that the message lists.
    """
    sentences = _LAST_LINE.findall(said)
    sentence = next((each for each in sentences if each.startswith(_TORN)), None)
    if sentence is None:
        return None
    message = sentence.removeprefix(_TORN)
    run = _TORN_RUN.match(message)
    written, owner, *counts = run.groups("0") if run else ("", "", "0", "0", "0")
    aborted, every, unknown = map(int, counts)
    lost = tuple(
        LostRows(int(task), topic, int(partition), int(first_offset), int(records))
        for records, task, topic, partition, first_offset in _LOST.findall(message)
    )
    committed = every - aborted - unknown
    return TornCommitException(
        message, owner=owner, written=written, committed=committed, lost=lost
    )


def with_sentence(method: Any) -> Any:
    """Return a method that adds the sink's message to the exception that `method` returns."""

    @functools.wraps(method)
    def exception(*args: Any) -> Any:
        error = method(*args)
        if isinstance(error, Exception):
            _add_sentence(error)
        return error

    return exception


def _python_of(session: Any) -> str | None:
    """Return the Python that a session's workers run, or None if it is not known.

    It is not known for Spark Connect.
    """
    if session is None or is_connect(session):
        return None
    return str(session.sparkContext.pythonExec)


def _sentence(said: str, python: str | None) -> str | None:
    """Return what is wrong with a worker's Python, or None if the failure has a different cause.

    said: the text of Spark's exception. python: the Python that the session's workers run.
    """
    runs = f"{python or 'the Python'}, which Spark runs {_where(said)},"
    if missing := _MISSING.search(said):
        module, found, machine = missing.groups()
        runs = f"{found} on {machine}" if found else runs
        package, shipped = (
            ("spark-kafka-sink", "it with --py-files or --archives")
            if module == _SINK
            else (module, "an environment with --archives that contains it")
        )
        return (
            f"{runs} has no module named '{module}': install {package} there with pip, ship "
            f"{shipped}, or set PYSPARK_PYTHON to a Python that has it"
        )
    if old := _TOO_OLD.search(said):
        return old[1]
    if other := _OTHER_VERSION.search(said):
        found, expected = other.groups()
        return (
            f"{runs} is Python {found}, but the driver runs Python {expected}: set PYSPARK_PYTHON "
            f"to a Python {expected} with spark-kafka-sink, on the driver's machine and on every "
            "executor"
        )
    if (failed := _NOT_STARTED.search(said)) and failed[1] == python:
        executor = _EXECUTOR.search(said)
        return (
            f"{python} cannot be started {_named(executor) if executor else _ON_DRIVER}: set "
            "PYSPARK_PYTHON to a Python that is on the driver's machine and on every executor"
        )
    return None


def _where(said: str) -> str:
    """For error messages, return where the failed worker ran, according to Spark's exception."""
    if executor := _EXECUTOR.search(said):
        return _named(executor)
    return f"{_ON_DRIVER} to plan the write" if _PLANNING.search(said) else "on an executor"


def _named(executor: re.Match[str]) -> str:
    return f"on {executor[1]} (executor {executor[2]})"

"""Exceptions that a worker's Python is the reason for: a sentence takes their place."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_kafka_sink.commit.attempts import Run
from spark_kafka_sink.commit.log_record import CommitRecord, DecidedTransaction, RecordState
from spark_kafka_sink.commit.names import TaskSlot, checked_owner
from spark_kafka_sink.commit.outcomes import LostTransaction, Torn
from spark_kafka_sink.errors import KafkaException, TornCommitException
from spark_kafka_sink.model import NO_PRODUCER_ID, TopicPartition
from spark_kafka_sink.spark.driver.hooks.worker_failures import explained

SESSION = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec="/opt/python"))
TRACEBACK = 'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n'
# How Spark begins: 4.3 for a task, 4.1 and 4.2 for a task, and each of them for planning.
TASK = f"An exception was thrown from the Python worker:\n{TRACEBACK}"
JOB = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): "
    f"org.apache.spark.api.python.PythonException: {TRACEBACK}"
)
PLAN = f"[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: {TRACEBACK}"
# How Spark begins without tracebacks, and what it says after the exception, in a line of its own.
BARE_TASK, BARE_PLAN = TASK.removesuffix(TRACEBACK), PLAN.removesuffix(TRACEBACK)
BARE_JOB = JOB.removesuffix(TRACEBACK)
BARE_STREAM = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage "
    "failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in stage 0.0 "
    "(TID 0) (10.0.0.7 executor driver): org.apache.spark.api.python.PythonException: "
    "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
)
BEGINS = [TASK, JOB, PLAN, BARE_TASK, BARE_JOB, BARE_PLAN, BARE_STREAM]
NO_SINK = "ModuleNotFoundError: No module named 'spark_kafka_sink'\n SQLSTATE: 38000"
NO_CRC32C = (
    "ModuleNotFoundError: No module named 'crc32c' and 'lz4' for /usr/bin/python3 on node-7: "
    "spark-kafka-sink needs them wherever Spark runs Python"
)
OLD_ARROW = (
    "the pyarrow of /usr/bin/python3 on node-7 is 15.0.2, but spark-kafka-sink needs 19 or newer: "
    "install a newer pyarrow there with pip"
)
OLD = (
    "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 "
    "than that in driver: 3.11, PySpark cannot run with different minor versions.\n"
)
NOT_THERE = 'java.io.IOException: Cannot run program "/opt/python": error=2, No such file'
GET_SINK = (
    "has no module named 'spark_kafka_sink': install spark-kafka-sink there with pip, ship it with "
    "--py-files or --archives, or set PYSPARK_PYTHON to a Python that has it"
)
SAME_VERSION = (
    "is Python 3.12, but the driver runs Python 3.11: set PYSPARK_PYTHON to a Python 3.11 with "
    "spark-kafka-sink, on the driver's machine and on every executor"
)
JAVA = "\n\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:665)\n"
BE_THERE = "set PYSPARK_PYTHON to a Python that is on the driver's machine and on every executor"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (TASK + NO_SINK, f"/opt/python, which Spark runs on an executor, {GET_SINK}"),
        (JOB + NO_SINK, f"/opt/python, which Spark runs on 10.0.0.7 (executor 1), {GET_SINK}"),
        (
            PLAN + NO_SINK,
            f"/opt/python, which Spark runs on the driver's machine to plan the write, {GET_SINK}",
        ),
        (
            TASK + NO_CRC32C,
            "/usr/bin/python3 on node-7 has no module named 'crc32c': install crc32c there with "
            "pip, ship an environment with --archives that contains it, or set PYSPARK_PYTHON to a "
            "Python that has it",
        ),
        *((f"{begin}ImportError: {OLD_ARROW}{JAVA}", OLD_ARROW) for begin in BEGINS),
        (JOB + OLD, f"/opt/python, which Spark runs on 10.0.0.7 (executor 1), {SAME_VERSION}"),
        (NOT_THERE, f"/opt/python cannot be started on the driver's machine: {BE_THERE}"),
        (JOB + NOT_THERE, f"/opt/python cannot be started on 10.0.0.7 (executor 1): {BE_THERE}"),
    ],
)
def test_the_sentence_says_what_is_missing_where_and_what_to_do(said: str, sentence: str) -> None:
    cause = RuntimeError(said)
    with pytest.raises(KafkaException) as failed, explained(SESSION):
        raise cause
    assert str(failed.value) == sentence
    assert failed.value.__cause__ is cause


def test_over_spark_connect_the_python_has_no_name() -> None:
    with pytest.raises(KafkaException) as failed, explained(None):
        raise RuntimeError(JOB + NO_SINK)
    where = "the Python, which Spark runs on 10.0.0.7 (executor 1),"
    assert str(failed.value) == f"{where} {GET_SINK}"


@pytest.mark.parametrize(
    "said",
    [
        TASK + "ModuleNotFoundError: No module named 'users_own'",
        TASK + "ModuleNotFoundError: No module named 'numpy_financial'",
        TASK + "KafkaException: a broker said no",
        'java.io.IOException: Cannot run program "chmod": error=2',
    ],
)
def test_another_exception_stays_what_it_is(said: str) -> None:
    error = RuntimeError(said)
    with pytest.raises(RuntimeError) as failed, explained(SESSION):
        raise error
    assert failed.value is error


NO_TOPIC = "spark_kafka_sink.errors.TimeoutException: Topic t not present in metadata; create it"
QUOTING = "spark_kafka_sink.errors.KafkaException: the token cannot be renewed: "
IN_USER_CODE = (
    "spark_kafka_sink: choose, specified in kafka.partitioner.class, raised KeyError: 'x'"
)


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (NO_TOPIC, NO_TOPIC),
        (f"{QUOTING}{NO_TOPIC}", f"{QUOTING}{NO_TOPIC}"),
        (f"spark_kafka_sink.errors.KafkaException: first\n\nThe above\n{NO_TOPIC}", NO_TOPIC),
        (f"KeyError: 'x'\n{IN_USER_CODE}", IN_USER_CODE),
    ],
)
def test_the_sentence_of_the_sink_is_the_last_line_of_spark_s_exception(
    begin: str, said: str, sentence: str
) -> None:
    error = RuntimeError(f"{begin}{said}\n SQLSTATE: 38000{JAVA}")
    for _ in range(2):  # a query raises the same exception again
        with pytest.raises(RuntimeError) as failed, explained(SESSION):
            raise error
        assert failed.value is error
    lines = "".join(traceback.format_exception(error)).splitlines()
    assert lines[-1] == sentence
    assert sum(line.endswith(sentence) for line in lines) == 2, "in Spark's text, and at the end"


def test_without_a_sentence_of_the_sink_nothing_is_added() -> None:
    with pytest.raises(RuntimeError) as failed, explained(SESSION):
        raise RuntimeError(f"{JOB}ValueError: spark_kafka_sink: of another: x{JAVA}")
    assert not hasattr(failed.value, "__notes__")
    with pytest.raises(KafkaException) as refused, explained(SESSION):
        raise KafkaException(f"on the driver\n{NO_TOPIC}")
    assert not hasattr(refused.value, "__notes__")


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("unknown", [0, 1])
def test_lost_rows_of_exactly_once_can_be_caught_with_what_is_known(
    begin: str, unknown: int
) -> None:
    owner = checked_owner("pykafka", "a was to be committed", "flights.2")
    lost = tuple(
        LostTransaction(
            DecidedTransaction(
                TaskSlot(task, 1), NO_PRODUCER_ID, TopicPartition("flights.2", 7), 10 * task
            ),
            task + 1,
        )
        for task in range(2)
    )
    record = CommitRecord(RecordState.DECIDED, "run", 5, 0).after_version(3)
    transactions = tuple(each.transaction for each in lost)
    decided = replace(record, transactions=(*transactions, *transactions))
    run = Run(owner, "run", TopicPartition("log", 0), level=2, timeout_ms=1000)
    raised = Torn(decided, lost, unknown).exception(run)
    cause = RuntimeError(f"{begin}spark_kafka_sink.errors.TornCommitException: {raised}\n\n more")
    with pytest.raises(TornCommitException) as failed, explained(SESSION):
        raise cause
    assert str(failed.value) == str(raised)
    assert vars(failed.value) == vars(raised)
    assert failed.value.committed == 2 - unknown
    assert pickle.loads(pickle.dumps(raised)).lost == raised.lost


def test_an_exception_that_quotes_lost_rows_is_not_replaced() -> None:
    error = RuntimeError(f"{BARE_PLAN}{QUOTING}spark_kafka_sink.errors.TornCommitException: run r")
    with pytest.raises(RuntimeError) as failed, explained(SESSION):
        raise error
    assert failed.value is error

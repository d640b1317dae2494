"""The transaction of a task in mode `single` or `two-phase`, and its abort if the task fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.commit.questions import Described, DescribeTransaction
from spark_kafka_sink.errors import ApiException, KafkaException, TransactionAbortedException
from spark_kafka_sink.spark.commit_clients import commit_client, has_newer_run, reply_to
from spark_kafka_sink.spark.exactly_once import Mode
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.tasks.single_task import SingleTask
from spark_kafka_sink.spark.tasks.two_phase_task import TwoPhaseTask
from spark_kafka_sink.task_producer import TaskProducer

# The error codes that brokers return for requests in a transaction that is no longer open.
_ENDED: Final = frozenset(
    (
        codes.INVALID_PRODUCER_EPOCH,
        codes.INVALID_TXN_STATE,
        codes.INVALID_PRODUCER_ID_MAPPING,
        codes.PRODUCER_FENCED,
        codes.TRANSACTION_ABORTABLE,
    )
)

_NOT_VISIBLE: Final = "nothing of the job becomes visible"
_RAISE_IT: Final = "raise the option, up to transaction.max.timeout.ms of the brokers"


@contextmanager
def task_transaction(
    plan: Plan, options: SinkOptions, producer: TaskProducer, partition: int, attempt: int
) -> Iterator[SingleTask | TwoPhaseTask]:
    """Yield the transaction of a task.

    If the task fails in mode `two-phase`, abort its transaction. If it failed because its
    transaction had already ended, raise TransactionAbortedException. partition, attempt: Spark's
    numbers of the task and the attempt.
    """
    began = time.monotonic()
    selected = options.exactly_once
    transaction: SingleTask | TwoPhaseTask
    if selected is not None and selected.mode is Mode.SINGLE:
        transaction = SingleTask(plan, options, producer)
    else:
        transaction = TwoPhaseTask(plan, options, producer, partition, attempt)
    try:
        yield transaction
    except BaseException as error:
        message = None
        if isinstance(error, ApiException) and error.code in _ENDED:
            message = _why_it_ended(plan, options, transaction, time.monotonic() - began)
        transaction.abort()
        if message is None:
            raise
        raise TransactionAbortedException(message) from error


def _why_it_ended(
    plan: Plan, options: SinkOptions, transaction: SingleTask | TwoPhaseTask, task_s: float
) -> str | None:
    """Return why the transaction ended, or None if it is open or its state is unknown."""
    if transaction.transactional_id is None:
        return None
    ask = DescribeTransaction(transaction.transactional_id)
    try:
        with commit_client(options.producer, plan.run.log.topic, options.brokers) as client:
            if has_newer_run(client, plan):
                return f"superseded by a newer run of {plan.run.owner}"
            found = reply_to(client, ask)
    except KafkaException:
        return None
    producer = transaction.producer_id
    if not isinstance(found, Described) or found.error or found.producer == producer:
        return None
    timeout_ms, owner, rows = plan.run.timeout_ms, plan.run.owner, transaction.rows
    if task_s * 1000 >= timeout_ms:
        said = (
            f"the brokers aborted the transaction of {owner} after {rows} rows and {task_s:.0f} s "
            f"of this task: it took longer than kafka.transaction.timeout.ms={timeout_ms}; "
            f"{_NOT_VISIBLE}; {_RAISE_IT}, or write less in one job"
        )
    elif isinstance(transaction, SingleTask):
        # The transaction may have begun long before this task.
        said = (
            f"the transaction of {owner} was aborted after {rows} rows and {task_s:.0f} s of this "
            f"task: it took longer than kafka.transaction.timeout.ms={timeout_ms}, or the job "
            f"failed or was cancelled; {_NOT_VISIBLE}; {_RAISE_IT}, if the job takes longer"
        )
    else:
        said = (
            f"the transaction of {owner} was aborted after {rows} rows and {task_s:.0f} s of this "
            f"task: the job failed or was cancelled; {_NOT_VISIBLE}"
        )
    return said

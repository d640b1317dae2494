"""A task of mode `two-phase`: one transaction for each attempt that has rows.

Before its first row, the attempt claims a transactional id that no other attempt uses. The
transaction stays open when the task ends, so that the driver can commit or abort it. A failed
attempt tries to abort its transaction itself.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import pyarrow as pa

from spark_kafka_sink.commit import two_phase_claim
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
from spark_kafka_sink.commit.outcomes import Claimed
from spark_kafka_sink.commit.questions import EndTxn
from spark_kafka_sink.commit.steps import Failure, end_txn
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.spark.commit_clients import commit_client, exception_of, reply_to
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.tasks.task_rows import TaskWaits
from spark_kafka_sink.task_producer import TaskProducer

logger = logging.getLogger(__name__)


class TwoPhaseTask:
    """One attempt of a task.

    partition, attempt: Spark's numbers of the task and the attempt. rows: the row count so far.
    waits: what the task waits for, which its progress shows.
    """

    def __init__(
        self,
        plan: Plan,
        options: SinkOptions,
        producer: TaskProducer,
        partition: int,
        attempt: int,
    ) -> None:
        self._plan = plan
        self._options = options
        self._producer = producer
        self._partition = partition
        self._attempt = attempt
        self._claimed: Claimed | None = None
        self.waits = TaskWaits()
        self.rows = 0

    @property
    def transactional_id(self) -> str | None:
        """The transactional id that this attempt has claimed, None before its first row."""
        return None if self._claimed is None else self._plan.run.owner.task_id(self._claimed.slot)

    @property
    def producer_id(self) -> ProducerIdAndEpoch:
        """The producer id and epoch of the claimed transactional id."""
        return NO_PRODUCER_ID if self._claimed is None else self._claimed.producer

    def prepare(self, batch: pa.RecordBatch) -> None:
        """Begin the transaction before the first row. Raise KafkaException if that fails."""
        self.rows += batch.num_rows
        if self._claimed is not None:
            return
        run, config = self._plan.run, self._options.producer
        with commit_client(config, run.log.topic, self._options.brokers) as client:
            deadline = client.now() + config.max_block_ms / 1000
            begun = two_phase_claim.begin(
                self._plan, self._partition, self._attempt, deadline=deadline
            )
            with self.waits.waiting_for("the transaction coordinator", client):
                found = client.run(begun, two_phase_claim.step).outcome
        if isinstance(found, Failure):
            raise exception_of(found, run, client.acls)
        if found is None:
            message = "the claim of a transactional id has no outcome; this is a bug"
            raise KafkaException(message)
        self._claimed = found
        self._producer.join_transaction(
            run.owner.task_id(found.slot),
            found.producer,
            run.level,
            adds_partitions=True,
            withholds=False,
            # The driver compares what was acknowledged with what the partitions contain.
            checks_duplicates=False,
        )

    def prepare_good(self, batch: pa.RecordBatch) -> None:
        """Do nothing, because the partitions of good rows need no check in this mode."""

    def end(self) -> AttemptTransaction | None:
        """Wait until all rows are acknowledged, and return what was written.

        Return None if the attempt has no rows.
        """
        if self._claimed is None:
            return None
        written = self._producer.detach_transaction()
        return AttemptTransaction.of(self._claimed.slot, self._claimed.producer, written)

    def abort(self) -> None:
        """Close the producer, and try to abort the transaction.

        If the abort fails, the driver aborts the transaction. The producer is closed first, so that
        it sends nothing after the abort. At transaction.version 1, a late request would open a new
        transaction.
        """
        if self._claimed is None:
            return
        with suppress(KafkaException):  # the error of the task says more
            self._producer.close(0)
        run, claimed = self._plan.run, self._claimed
        ask: EndTxn = end_txn(
            run.owner.task_id(claimed.slot), claimed.producer, run.level, commit=False
        )
        try:
            config = self._options.producer
            with commit_client(config, run.log.topic, self._options.brokers) as client:
                reply_to(client, ask)
        except KafkaException as error:
            logger.info("the transaction of a failed task was not aborted: %s", error)

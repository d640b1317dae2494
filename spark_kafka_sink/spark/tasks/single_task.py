"""A task of mode `single`: it writes in the driver's transaction, to partitions of its own.

Rows are not sent until the input has ended or memory is short. A task that fails before that has
sent nothing, so Spark can run it again. Before its first row for a partition, the task checks
whether a different attempt has already written there. After the last acknowledgement, the task
checks each response (`commit.guards`). The responses are checked because a different attempt may
write to the same partition at the same time. A broker may then treat rows of this attempt as
duplicates of the other attempt's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.commit import single_check
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
from spark_kafka_sink.commit.guards import AckCheck, Acknowledged, check_ack
from spark_kafka_sink.commit.steps import Failure
from spark_kafka_sink.errors import TransactionAbortedException
from spark_kafka_sink.model import LARGEST_INT32, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.spark.commit_clients import commit_client, exception_of
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.tasks.task_rows import TaskWaits
from spark_kafka_sink.task_producer import TaskProducer

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.joined import DuplicateBatch, JoinedPartition


class SingleTask:
    """One attempt of a task, in its job's transaction.

    rows: the number of rows so far. waits: what the task waits for, which its progress shows.
    """

    def __init__(self, plan: Plan, options: SinkOptions, producer: TaskProducer) -> None:
        self._plan = plan
        self._options = options
        self._producer = producer
        self.waits = TaskWaits()
        self._log_ends: dict[TopicPartition, int] = {}
        self.rows = 0
        producer.join_transaction(
            plan.run.driver_id,
            plan.producer,
            plan.run.level,
            adds_partitions=False,  # the driver has added them
            withholds=True,
            checks_duplicates=True,
        )

    @property
    def transactional_id(self) -> str:
        """The driver's transactional id."""
        return self._plan.run.driver_id

    @property
    def producer_id(self) -> ProducerIdAndEpoch:
        """The driver's producer id and epoch."""
        return self._plan.producer

    def prepare(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch. The driver has begun the transaction already."""
        self.rows += batch.num_rows

    def prepare_good(self, batch: pa.RecordBatch) -> None:
        """Check the partitions of good rows before the rows are appended, each partition once.

        Ignore partitions that do not exist, because the append then fails with an error that names
        the row. Raise KafkaException if a different attempt has written to a partition.
        """
        named = _partitions(batch, self._options.topic) - self._log_ends.keys()
        new = {each for each in named if self._may_exist(each)}
        if not new:
            return
        partitions = tuple(sorted(new))
        config = self._options.producer
        with (
            commit_client(config, self._plan.run.log.topic, self._options.brokers) as client,
            self.waits.waiting_for("the check of its partitions", client),
        ):
            deadline = client.now() + config.max_block_ms / 1000
            begun = single_check.begin(self._plan, partitions, deadline=deadline)
            found = client.run(begun, single_check.step).outcome
            if isinstance(found, Failure):
                raise exception_of(found, self._plan.run, client.acls)
            self._log_ends.update(client.log_ends(partitions, deadline))

    def _may_exist(self, partition: TopicPartition) -> bool:
        """Return False for a partition that did not exist when atomic_layout was called."""
        partitions = self._options.laid_out.get(partition.topic, LARGEST_INT32 + 1)
        return 0 <= partition.partition < partitions

    def end(self) -> AttemptTransaction:
        """Wait until all rows are acknowledged, check the responses, and return what was written.

        Raise KafkaException if a row was not written by this attempt.
        """
        written = self._producer.detach_transaction()
        for partition, found in written.items():
            self._check(partition, found)
        return AttemptTransaction.of(None, self._plan.producer, written)

    def abort(self) -> None:
        """Do nothing, because the driver aborts the transaction, which all tasks share."""

    def _check(self, partition: TopicPartition, found: JoinedPartition) -> None:
        log_end = self._log_ends.get(partition, 0)
        base, last = found.went_back or (found.first_offset, -1)
        acknowledged = [Acknowledged(partition, base, log_end, last, False, False)]  # noqa: FBT003 - fields
        acknowledged += [
            Acknowledged(partition, each.base_offset, log_end, -1, True, each.attempts > 0)  # noqa: FBT003 - fields
            for each in found.duplicates
        ]
        checks = [check_ack(each) for each in acknowledged]
        for check in checks:
            if isinstance(check, Failure):
                raise check.exception()
        if AckCheck.READ_BACK in checks:
            self._read_back(partition, found.duplicates)

    def _read_back(self, partition: TopicPartition, duplicates: list[DuplicateBatch]) -> None:
        """Raise TransactionAbortedException if a sent batch is not in the partition's log."""
        config = self._options.producer
        with (
            commit_client(config, self._plan.run.log.topic, self._options.brokers) as client,
            self.waits.waiting_for("the check of repeated batches", client),
        ):
            deadline = client.now() + config.max_block_ms / 1000
            for each in duplicates:
                if not each.is_in(client.batch_at(partition, each.base_offset, deadline)):
                    message = (
                        f"{partition}: a batch was sent again after its response was lost, but the "
                        f"log has a different batch at offset {each.base_offset}, so another "
                        "attempt also writes to this partition; run the job again"
                    )
                    raise TransactionAbortedException(
                        message, topic=partition.topic, partition=partition.partition
                    )


def _partitions(batch: pa.RecordBatch, topic: str | None) -> set[TopicPartition]:
    """Return the partitions in the column partition. Ignore rows where it is null.

    If a topic is not valid UTF-8, the append refuses its rows later.
    """
    partitions = batch.column("partition")
    if topic is not None:
        return {TopicPartition(topic, each) for each in _values(partitions)}
    pairs = pa.table({"topic": batch.column("topic").cast(pa.large_binary()), "at": partitions})
    named = pairs.group_by(["topic", "at"]).aggregate([])
    return {
        TopicPartition(name.decode(errors="replace"), at)
        for name, at in zip(named["topic"].to_pylist(), named["at"].to_pylist(), strict=True)
        if name is not None and at is not None
    }


def _values(column: pa.Array) -> list[int]:
    found: list[int] = pc.unique(column).drop_null().to_pylist()
    return found

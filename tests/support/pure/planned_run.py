"""A run of exactly once as its driver has planned it, for tests of the machines of `commit`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run, WrittenPartition
from spark_kafka_sink.commit.log_record import (
    CommitRecord,
    DecidedTransaction,
    LogReading,
    RecordState,
)
from spark_kafka_sink.commit.names import TaskSlot, checked_owner
from spark_kafka_sink.commit.questions import (
    ONGOING,
    ActiveProducer,
    Added,
    AddPartitions,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    Listed,
    ListTransactions,
    LogRead,
    MarkerRead,
    ProducersDescribed,
    ReadLog,
    ReadMarker,
    Reply,
    WriteRecord,
    Written,
)
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker

OWNER: Final = checked_owner("pykafka", "flights", "t")
LOG: Final = TopicPartition("__pykafka_commits", 0)
PARTITION: Final = TopicPartition("t", 0)
# The driver's, as it planned, and after EndTxn at transaction.version 2.
PRODUCER, RAISED = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(7, 4)
RUN: Final = Run(OWNER, "run 1", LOG, level=2, timeout_ms=900_000)
PLAN: Final = Plan(RUN, PRODUCER)
RECORD: Final = CommitRecord(RecordState.DONE, "run 1", 5, 1).after_version(7)

# Mode two-phase: a task that wrote, and another attempt that left its transaction open.
SLOT: Final = TaskSlot(0, 0)
TASK, LEFT = OWNER.task_id(SLOT), OWNER.task_id(TaskSlot(0, 1))
WRITER, LOSER = ProducerIdAndEpoch(20, 1), ProducerIdAndEpoch(21, 2)
ATTEMPT: Final = AttemptTransaction(SLOT, WRITER, (WrittenPartition(PARTITION, 5, 20, 24, 4),))
DECIDED: Final = replace(
    RECORD,
    state=RecordState.DECIDED,
    transactions=(DecidedTransaction(SLOT, WRITER, PARTITION, 20),),
)
OPEN: Final = Described(ONGOING, WRITER, 900_000, 1000, frozenset({PARTITION}))
DRIVERS: Final = Described(ONGOING, PRODUCER, 900_000, 100_000, frozenset({LOG}))
# The log up to the record that the run has just written; it had no record before.
READ_BACK: Final = LogRead(LogReading(undecided=DECIDED), end=4)
# The replies to a commit or an abort in which nothing fails.
FINE: Final[dict[Any, list[Reply]]] = {
    # C2, the driver's, C3.
    DescribeTransaction: [OPEN, DRIVERS, OPEN],
    DescribeProducers: [ProducersDescribed((ActiveProducer(WRITER, 4, 20),))],
    AddPartitions: [Added()],
    WriteRecord: [Written(3)],
    "commit": [Ended(RAISED)],
    "abort": [Ended()],
    ReadLog: [LogRead()],
    ListTransactions: [Listed()],
    ReadMarker: [MarkerRead(Marker.COMMIT)],
}

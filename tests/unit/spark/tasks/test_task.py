"""A task with a real producer, whose broker and transaction are the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import ScriptedBroker, describe

from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.report import merged
from spark_kafka_sink.spark.tasks import task, task_progress
from spark_kafka_sink.spark.tasks.task_rows import TaskWaits
from spark_kafka_sink.task_producer import DeliveryProgress, TaskProducer
from spark_kafka_sink.wire.messages import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

ROWS = pa.record_batch({"value": ["a", "b"]})


class Transaction:
    """A transaction that the producer joins for all rows."""

    def __init__(self, producer: TaskProducer) -> None:
        self._producer = producer
        self.waits = TaskWaits()
        self.at_end: Callable[[], object] = lambda: None
        self.records = 0
        producer.join_transaction(
            "t",
            ProducerIdAndEpoch(7, 0),
            2,
            adds_partitions=False,
            withholds=False,
            checks_duplicates=False,
        )

    def prepare(self, _: pa.RecordBatch) -> None:
        """Do nothing."""

    prepare_good = prepare

    def end(self) -> None:
        """Detach the producer."""
        written = self._producer.detach_transaction()
        self.records = sum(each.records for each in written.values())
        self.at_end()


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A broker that acknowledges every batch."""
    written = PartitionProduceResponse(index=0, error_code=0, base_offset=0)
    with ScriptedBroker() as made:
        made.metadata = describe(made.port, "t")
        topic = TopicProduceResponse(name="t", partition_responses=[written])
        made.produced = ProduceResponse(responses=[topic])
        yield made


def test_what_a_transaction_has_is_counted_until_the_task_ends(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[Callable[[], DeliveryProgress]] = []
    seen: list[tuple[int, int]] = []
    transactions: list[Transaction] = []

    def join(
        _plan: object, _options: object, producer: TaskProducer, *_: int
    ) -> AbstractContextManager[Transaction]:
        transactions.append(Transaction(producer))
        transactions[0].at_end = see
        return nullcontext(transactions[0])

    def see() -> None:
        progress = printed[0]()
        seen.append((progress.records, progress.bytes))

    def keep(_: str, progress: Callable[[], DeliveryProgress]) -> AbstractContextManager[None]:
        printed.append(progress)
        return nullcontext()

    monkeypatch.setattr(task, "_transaction", join)
    monkeypatch.setattr(task_progress, "printed_progress", keep)
    given = {"kafka.bootstrap.servers": broker.address, "topic": "t", "progress": "true"}
    message = task.write_task(sink_options(given), iter([ROWS]))
    (partition,) = merged([message.partitions])
    assert (message.report.rows, partition.records, transactions[0].records) == (2, 2, 2)
    assert seen == [(2, partition.bytes)]

"""Thousands of micro-batches without Spark, on real brokers: ids and memory stay as they are."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import committed_values

from exactly_once.transactions import wait_for_end
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import plan as planning
from spark_kafka_sink.commit import single, single_check, two_phase, two_phase_claim
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run, WrittenPartition
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState, StreamMark
from spark_kafka_sink.commit.names import TaskSlot, checked_owner
from spark_kafka_sink.commit.outcomes import Claimed, Clear, Committed, Planned
from spark_kafka_sink.commit.questions import Answer
from spark_kafka_sink.commit.steps import Step
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.network.request_client import ConsumerNetworkClient
from spark_kafka_sink.task_producer import TaskProducer
from spark_kafka_sink.wire.transaction_messages import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

_BATCHES = int(os.environ.get("COMMIT_BATCHES", "10000"))
_TASKS = 2
_IN_TIME_S = 60.0
_SETTLED_AFTER = 100
# A task takes the first of its ids whose markers are written. Between two batches, the driver waits
# for the markers of its own id, so those of the tasks are seldom missing for a second batch.
_MOST_IDS_OF_A_TASK = 4
_LOOK_EVERY = 20
_LOOKS = 20
# A block or more a batch would be 10,000.
_MOST_MORE_BLOCKS = 2000


class Stream:
    """A streaming query: it plans, writes and commits one micro-batch after another."""

    def __init__(
        self, client: CommitClient, producers: list[TaskProducer], topic: str, log: str, mode: str
    ) -> None:
        self._client = client
        self._producers = producers
        self._topic = topic
        self._is_single = mode == "single"
        self.waits_for_markers = True
        level = client.level(self._deadline)
        self._run = Run(checked_owner("p", topic, topic), "", TopicPartition(log, 0), level, 60_000)
        self.answers: Counter[tuple[str, int]] = Counter()

    @property
    def driver_id(self) -> str:
        """The id of the driver."""
        return self._run.driver_id

    @property
    def level(self) -> int:
        """The transaction.version of the brokers."""
        return self._run.level

    @property
    def _deadline(self) -> float:
        return self._client.now() + _IN_TIME_S

    @property
    def _partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self._topic, number) for number in range(_TASKS))

    def write(self, batch_id: int) -> None:
        """Write a micro-batch, one row for each task."""
        run = replace(self._run, name=f"run {batch_id}")
        begun = planning.begin(
            run,
            deadline=self._deadline,
            partitions=self._partitions if self._is_single else (),
        )
        planned = self._outcome(begun, planning.step)
        assert isinstance(planned, Planned), planned
        plan = planned.plan
        attempts = tuple(self._attempt(plan, task, batch_id) for task in range(_TASKS))
        nothing = CommitRecord(RecordState.DONE, run.name, rows=0, written_at=0)
        record = replace(plan.record or nothing, run=run.name, rows=_TASKS, written_at=batch_id)
        record = record.after_batch(StreamMark("query", batch_id, _TASKS, "run"))
        committed = self._commit(plan, attempts, record, probes=batch_id == 0)
        assert isinstance(committed, Committed), committed

    def _attempt(self, plan: Plan, task: int, batch_id: int) -> AttemptTransaction:
        slot, producer, name = None, plan.producer, plan.run.driver_id
        if self._is_single:
            looked = single_check.begin(plan, (self._partitions[task],), deadline=self._deadline)
            assert self._outcome(looked, single_check.step) == Clear()
        else:
            # A task takes another id while the markers of the last micro-batch are being written.
            if self.waits_for_markers:
                wait_for_end(self._client, plan.run.owner.task_id(TaskSlot(task, 0)))
            claiming = two_phase_claim.begin(plan, task, 0, deadline=self._deadline)
            claimed = self._outcome(claiming, two_phase_claim.step)
            assert isinstance(claimed, Claimed), claimed
            slot, producer = claimed.slot, claimed.producer
            name = plan.run.owner.task_id(slot)
        return AttemptTransaction(slot, producer, self._written(name, producer, task, batch_id))

    def _written(
        self, name: str, producer: ProducerIdAndEpoch, task: int, batch_id: int
    ) -> tuple[WrittenPartition, ...]:
        tasks = self._producers[task]
        tasks.join_transaction(
            name,
            producer,
            self._run.level,
            adds_partitions=not self._is_single,
            withholds=self._is_single,
            checks_duplicates=self._is_single,
        )
        value = pa.array([f"{batch_id}.{task}"])
        row = {"value": value, "partition": pa.array([task], pa.int32())}
        tasks.append(self._topic, pa.record_batch(row))
        return tuple(
            WrittenPartition(
                partition,
                found.records,
                found.first_offset,
                found.last_offset,
                found.last_sequence,
            )
            for partition, found in tasks.detach_transaction().items()
        )

    def _commit(
        self,
        plan: Plan,
        attempts: tuple[AttemptTransaction, ...],
        record: CommitRecord,
        *,
        probes: bool,
    ) -> object:
        level = self._run.level
        if not self._is_single:
            begun = two_phase.begin(plan, attempts, record, level=level, deadline=self._deadline)
            return self._outcome(begun, two_phase.step)
        begun_single = single.begin_commit(
            plan,
            attempts,
            record,
            level=level,
            targets=self._partitions,
            probes=probes,
            deadline=self._deadline,
        )
        return self._outcome(begun_single, single.step)

    def _outcome(self, begun: Step[Any], step: Callable[..., Step[Any]]) -> object:
        def counting(machine: object, answer: Answer, now: float) -> Step[Any]:
            self.answers[type(answer.ask).__name__, answer.reply.error] += 1
            return step(machine, answer, now)

        return self._client.run(begun, counting).outcome


def ids_of(config: ProducerConfig, prefix: str) -> set[str]:
    """Return the transactional ids that the brokers remember, in whatever state."""
    names: set[str] = set()
    # Each coordinator lists its own ids alone.
    for address in config.bootstrap_servers.split(","):
        one = msgspec.structs.replace(config, bootstrap_servers=address)
        network = ConsumerNetworkClient.of(one, time.monotonic, Random())
        future = network.send(None, ListTransactionsRequest())
        deadline = time.monotonic() + _IN_TIME_S
        while not future.is_done:
            assert time.monotonic() < deadline
            network.poll(1.0)
        network.close()
        response = future.response
        assert isinstance(response, ListTransactionsResponse)
        names |= {each.transactional_id for each in response.transaction_states}
    return {name for name in names if name.startswith(prefix)}


def blocks() -> int:
    """Return how many blocks of memory Python has given to objects."""
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.long(reason="it commits 10,000 micro-batches, which takes minutes")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["two-phase", "single"])
def test_ids_and_memory_are_the_same_after_thousands_of_batches(
    cluster: KafkaCluster,
    client: CommitClient,
    config: ProducerConfig,
    new_producer: Callable[[], TaskProducer],
    new_topic: NewTopic,
    log: str,
    mode: str,
) -> None:
    topic = new_topic(_TASKS)
    stream = Stream(client, [new_producer() for _ in range(_TASKS)], topic, log, mode)
    for batch_id in range(10):
        stream.write(batch_id)
    # Ids are named alike at both levels: a tenth shows it for the other one.
    batches = _BATCHES if stream.level >= 2 else _BATCHES // 10
    ids = ids_of(config, stream.driver_id)
    taken: list[int] = []
    for batch_id in range(10, batches):
        stream.write(batch_id)
        if batch_id % _LOOK_EVERY == 0:
            taken.append(blocks())
    # The number goes up and down by 1,500 within 300 batches, so the least of several counts.
    settled = taken[_SETTLED_AFTER // _LOOK_EVERY :]
    more = min(settled[-_LOOKS:]) - min(settled[:_LOOKS])
    busy = {name: count for (name, error), count in stream.answers.items()
            if error == codes.CONCURRENT_TRANSACTIONS}  # fmt: skip
    print(f"{mode}, level {stream.level}: {batches} batches, {more} more blocks, 51 to {busy}")
    assert ids_of(config, stream.driver_id) == ids
    # A task takes another id if the markers of its own last transaction are not written yet.
    most = 1 if mode == "single" else 1 + 2 * _TASKS
    assert most - _TASKS * (mode == "two-phase") <= len(ids) <= most
    assert more < _MOST_MORE_BLOCKS
    expected = [f"{batch}.{task}" for batch in range(batches) for task in range(_TASKS)]
    assert committed_values(cluster.bootstrap, topic) == sorted(expected)


def test_ids_are_few_also_if_tasks_begin_while_markers_are_written(
    client: CommitClient,
    config: ProducerConfig,
    new_producer: Callable[[], TaskProducer],
    new_topic: NewTopic,
    log: str,
) -> None:
    topic = new_topic(_TASKS)
    stream = Stream(client, [new_producer() for _ in range(_TASKS)], topic, log, "two-phase")
    stream.waits_for_markers = False
    for batch_id in range(30):
        stream.write(batch_id)
    ids = ids_of(config, stream.driver_id)
    print(f"level {stream.level}: {len(ids)} ids of {_TASKS} tasks after 30 batches")
    assert len(ids) <= 1 + _MOST_IDS_OF_A_TASK * _TASKS

"""Trees: what they hold, and that a reply to a machine costs the same with any number of tasks."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pure.planned_run import DRIVERS, OWNER, PLAN, PRODUCER, RAISED, RECORD, RUN

from spark_kafka_sink.commit import (
    plan,
    recovery,
    single,
    single_check,
    two_phase,
    two_phase_abort,
)
from spark_kafka_sink.commit.attempts import AttemptTransaction, WrittenPartition
from spark_kafka_sink.commit.log_record import (
    CommitRecord,
    DecidedTransaction,
    LogReading,
    RecordState,
)
from spark_kafka_sink.commit.names import TaskSlot
from spark_kafka_sink.commit.outcomes import Aborted, Clear, Committed, Planned
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    ONGOING,
    ActiveProducer,
    Answer,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    EndTxn,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
    LogRead,
    MarkerRead,
    OpenTransaction,
    ProducersDescribed,
    ReadLog,
    ReadMarker,
    Reply,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit.recovery import Recovered
from spark_kafka_sink.commit.steps import Step
from spark_kafka_sink.commit.survey import FoundOwner
from spark_kafka_sink.commit.trees import NO_ITEMS, TreeSet, TreeTuple
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker

SIZES: Final = st.sampled_from([0, 1, 2, 8, 9, 31, 32, 33, 100, 1023, 1024, 1025, 3000])


@given(SIZES, st.randoms())
def test_a_tree_tuple_holds_what_a_tuple_holds(size: int, random: Any) -> None:  # noqa: ANN401
    expected = list(range(size))
    found = TreeTuple.of(expected)
    for _ in range(min(size, 10)):
        index = random.randrange(size)
        before = found
        found, expected[index] = found.replacing(index, -1), -1
        assert before.replacing(index, -1) == found
        assert hash(before.replacing(index, -1)) == hash(found)
    assert list(found) == expected
    assert [found[index] for index in range(size)] == expected
    assert bool(found) == bool(expected)
    assert found == TreeTuple.of(expected)


@given(SIZES, st.lists(st.tuples(st.booleans(), st.integers(0, 3100)), max_size=60))
def test_a_tree_set_holds_what_a_set_holds(size: int, changes: list[tuple[bool, int]]) -> None:
    expected = set(range(size))
    found = TreeSet.of(expected)
    for adds, item in changes:
        before, length = found, len(expected)
        found = found.including(item) if adds else found.without(item)
        (expected.add if adds else expected.discard)(item)
        assert len(before) == length, "it has changed"
        assert (item in found) == adds
    assert (len(found), set(found), bool(found)) == (len(expected), expected, bool(expected))
    assert len(list(found)) == len(found)


def test_a_tree_set_is_equal_to_one_with_the_same_items_however_it_came_about() -> None:
    grown, shrunk = NO_ITEMS, TreeSet.of(range(5000))
    for item in range(1000):
        grown = grown.including(item).including(item)
    for item in range(1000, 5000):
        shrunk = shrunk.without(item).without(item)
    assert grown == shrunk == TreeSet.of(range(1000))
    assert len({grown, shrunk, TreeSet.of(range(1000))}) == 1
    assert grown != grown.without(0)
    assert grown != TreeSet.of(range(1, 1001))
    assert grown != set(range(1000))


# -- the cost of a reply --------------------------------------------------------------------------


class Job(NamedTuple):
    """A run of a machine for a job with some number of tasks.

    logs: the replies of the commit log, in order. described: the state of the tasks' transactions.
    """

    begun: Step[Any]
    step: Callable[..., Step[Any]]
    logs: list[LogRead]
    described: str = ONGOING


def _attempts(tasks: int) -> tuple[AttemptTransaction, ...]:
    return tuple(
        AttemptTransaction(
            TaskSlot(task, 0), _writer(task), (WrittenPartition(_partition(task), 5, 20, 24, 4),)
        )
        for task in range(tasks)
    )


def _writer(task: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(1_000_000 + task, 1)


def _partition(task: int) -> TopicPartition:
    return TopicPartition("t", task)


def _decided(tasks: int) -> CommitRecord:
    transactions = tuple(
        DecidedTransaction(TaskSlot(task, 0), _writer(task), _partition(task), 20)
        for task in range(tasks)
    )
    return replace(RECORD, state=RecordState.DECIDED, transactions=transactions)


def _planning(tasks: int) -> Job:
    decided = _decided(tasks)
    logs = [
        LogRead(LogReading(decided, 3)),
        LogRead(LogReading(decided, 3, decided.done()), end=4),
    ]
    return Job(plan.begin(replace(RUN, name="run 2"), deadline=math.inf), plan.step, logs)


def _commit(tasks: int) -> Job:
    begun = two_phase.begin(PLAN, _attempts(tasks), RECORD, level=2, deadline=math.inf)
    logs = [LogRead(LogReading(undecided=_decided(tasks)), end=4)]
    return Job(begun, two_phase.step, logs)


def _abort(tasks: int) -> Job:
    begun = two_phase_abort.begin(PLAN, _attempts(tasks), level=2, deadline=math.inf)
    return Job(begun, two_phase_abort.step, [LogRead()])


def _recovery(tasks: int, *, commits: bool) -> Job:
    found = FoundOwner(OWNER, LogReading(_decided(tasks), 3), ())
    begun = recovery.begin(found, level=2, deadline=math.inf, more_s=1.0, commits=commits)
    return Job(begun, recovery.step, [], COMPLETE_ABORT)


def _single(tasks: int) -> Job:
    begun = single.begin_commit(
        PLAN,
        tuple(replace(each, slot=None, producer=PRODUCER) for each in _attempts(tasks)),
        RECORD,
        level=2,
        targets=(),
        probes=False,
        deadline=math.inf,
    )
    return Job(begun, single.step, [LogRead(LogReading(undecided=RECORD), end=4)])


def _check(tasks: int) -> Job:
    partitions = tuple(map(_partition, range(tasks)))
    return Job(single_check.begin(PLAN, partitions, deadline=math.inf), single_check.step, [])


def _replies(job: Job, tasks: int) -> Callable[[Ask], Reply]:
    """Return what brokers reply: each task has another attempt, whose transaction is open.

    The first response to the commit of a task's transaction does not show whether it is committed.
    """
    covered = frozenset(map(_partition, range(tasks)))
    left = frozenset(
        OpenTransaction(OWNER.task_id(TaskSlot(task, 1)), task) for task in range(tasks)
    )
    lists, logs = [Listed(left)], list(job.logs)
    is_single = job.step is single.step

    def described(transactional_id: str) -> Described:
        slot = OWNER.slot_of(transactional_id)
        if slot is None:
            return replace(DRIVERS, partitions=covered) if is_single else DRIVERS
        producer = ProducerIdAndEpoch(slot.partition, 1) if slot.slot else _writer(slot.partition)
        return Described(job.described, producer, 900_000, 1000)

    def reply(ask: Ask) -> Reply:
        if isinstance(ask, DescribeTransaction):
            return described(ask.transactional_id)
        if isinstance(ask, DescribeProducers):
            writer = PRODUCER if is_single else _writer(ask.partition.partition)
            found = () if job.step is single_check.step else (ActiveProducer(writer, 4, 20),)
            return ProducersDescribed(found)
        if isinstance(ask, EndTxn):
            is_drivers = ask.transactional_id == OWNER.driver_id
            return Ended(RAISED, error=0 if is_drivers or not ask.commit else 48)
        if isinstance(ask, ListTransactions):
            return lists.pop() if lists else Listed()
        if isinstance(ask, ReadLog):
            return logs.pop(0)
        others: dict[type, Reply] = {
            WriteRecord: Written(3),
            InitProducerId: Initialized(PRODUCER),
            ReadMarker: MarkerRead(Marker.COMMIT, 5),
        }
        return others[type(ask)]

    return reply


def _copied_bytes(job: Job, tasks: int) -> tuple[object, int, int]:
    """Run a machine. Return its outcome, the number of replies, and the bytes that steps take."""
    (machine, questions), reply = job.begun, _replies(job, tasks)
    asked, answers, copied = [each.ask for each in questions], 0, 0
    tracemalloc.start()
    try:
        while machine.outcome is None:
            answer = Answer(asked[answers], reply(asked[answers]))
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            machine, questions = job.step(machine, answer, answers / 1e6)
            copied += tracemalloc.get_traced_memory()[1] - before
            asked += (each.ask for each in questions)
            answers += 1
    finally:
        tracemalloc.stop()
    return machine.outcome, answers, copied


JOBS: Final[dict[str, tuple[Callable[[int], Job], type, int]]] = {
    "a plan that commits and cleans up": (_planning, Planned, 5),
    "a commit": (_commit, Committed, 7),
    "an abort": (_abort, Aborted, 3),
    "a recovery": (lambda tasks: _recovery(tasks, commits=True), Recovered, 5),
    "a recovery that only looks": (lambda tasks: _recovery(tasks, commits=False), Recovered, 2),
    "a commit of mode single": (_single, Committed, 1),
    "a check of partitions": (_check, Clear, 1),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_cost_of_a_job_grows_as_its_tasks_do_and_not_as_their_square(name: str) -> None:
    job, outcome, replies_a_task = JOBS[name]

    def cost(tasks: int) -> int:
        found, answers, copied = _copied_bytes(job(tasks), tasks)
        assert isinstance(found, outcome)
        assert answers >= replies_a_task * tasks
        return copied

    # If each reply copied a set of all tasks, it would be at least thirty times as much.
    assert cost(400) < 12 * cost(50)

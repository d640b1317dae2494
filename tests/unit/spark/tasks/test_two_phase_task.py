"""A task of mode `two-phase` that fails: what it does before it aborts its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from support.pure.planned_run import OWNER, PLAN, SLOT, WRITER

from spark_kafka_sink.commit import one_question
from spark_kafka_sink.commit.outcomes import Claimed
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    Answer,
    Described,
    DescribeTransaction,
    Ended,
    EndTxn,
    Unanswered,
)
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.spark import commit_clients
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tasks import task_transaction, two_phase_task
from spark_kafka_sink.spark.tasks.two_phase_task import TwoPhaseTask

OPTIONS = replace(
    sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"}),
    exactly_once=ExactlyOnce(Mode.TWO_PHASE),
)


class _TaskError(Exception):
    """The error of a task."""


class Scene:
    """The task's producer and its commit client. calls: what the brokers and it have seen."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.outcome = Claimed(SLOT, WRITER)
        self.closing_error: KafkaException | None = None
        self.trouble = "the coordinator is not available"
        self.during_run: list[Callable[[], object]] = []

    def now(self) -> float:
        """Return the time."""
        return 0.0

    def run(self, begun: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        """Claim an id, or take the first two requests to abort: the first one has no response."""
        for call in self.during_run:
            call()
        machine, questions = begun
        if step is not one_question.step:
            return self
        for reply in (Unanswered(13, "connection lost"), Ended()):
            (question,) = questions
            self.calls.append(question.ask)
            machine, questions = step(machine, Answer(question.ask, reply), 0.0)
        return machine

    def join_transaction(self, *_: object, **given: object) -> None:
        """Note that the producer joins."""
        assert given["checks_duplicates"] is False, "nobody would read these batches"
        self.calls.append("join")

    def close(self, timeout: float) -> None:
        """Note that the producer closes."""
        self.calls.append(("close", timeout))
        if self.closing_error is not None:
            raise self.closing_error


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The scene of every task of the test."""
    made = Scene()

    @contextmanager
    def lent(*_: object) -> Iterator[Scene]:
        yield made

    for module in (two_phase_task, task_transaction):
        monkeypatch.setattr(module, "commit_client", lent)
    return made


def fail(scene: Any, *batches: pa.RecordBatch) -> None:  # noqa: ANN401 - in place of a producer
    """Run a task that fails after these rows."""
    with (
        suppress(_TaskError),
        task_transaction.task_transaction(PLAN, OPTIONS, scene, 0, 0) as transaction,
    ):
        for batch in batches:
            transaction.prepare(batch)
        raise _TaskError


@pytest.mark.parametrize("closing_error", [None, KafkaException("a partitioner does not close")])
def test_a_task_that_fails_closes_its_producer_before_it_aborts_the_transaction(
    scene: Scene, closing_error: KafkaException | None
) -> None:
    scene.closing_error = closing_error
    fail(scene, pa.record_batch({"value": [b"a"]}))
    abort = EndTxn(OWNER.task_id(SLOT), WRITER, commit=False, version=5)
    assert scene.calls == ["join", ("close", 0), abort, abort]


def test_a_task_that_fails_before_its_first_row_has_nothing_to_abort(scene: Scene) -> None:
    fail(scene)
    assert scene.calls == []


def test_a_task_says_that_it_waits_for_the_coordinator_before_its_first_row(scene: Scene) -> None:
    task = TwoPhaseTask(PLAN, OPTIONS, scene, 0, 0)  # type: ignore[arg-type]
    seen: list[object] = []
    scene.during_run = [lambda: seen.append(task.waits.awaited)]
    task.prepare(pa.record_batch({"value": [b"a"]}))
    task.prepare(pa.record_batch({"value": [b"b"]}))
    assert seen == [{"the transaction coordinator": "the coordinator is not available"}]
    assert task.waits.awaited == {}


def test_a_task_that_gets_no_id_no_longer_waits(scene: Scene) -> None:
    def fail() -> None:
        raise _TaskError

    task = TwoPhaseTask(PLAN, OPTIONS, scene, 0, 0)  # type: ignore[arg-type]
    scene.during_run = [fail]
    with pytest.raises(_TaskError):
        task.prepare(pa.record_batch({"value": [b"a"]}))
    assert task.waits.awaited == {}


@pytest.mark.parametrize(("task_s", "is_timeout"), [(899.0, False), (900.0, True)])
@pytest.mark.parametrize("aborts", [1, 2])
def test_a_task_whose_driver_aborts_the_job_does_not_advise_a_longer_timeout(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, task_s: float, aborts: int, *, is_timeout: bool
) -> None:
    def reply(_: object, ask: DescribeTransaction) -> Described:
        is_driver = ask.transactional_id == PLAN.run.driver_id
        before, times = (PLAN.producer, aborts) if is_driver else (WRITER, 1)
        raised = ProducerIdAndEpoch(before.producer_id, before.epoch + times)
        return Described(COMPLETE_ABORT, raised)

    for module in (commit_clients, task_transaction):
        monkeypatch.setattr(module, "reply_to", reply)
    task = TwoPhaseTask(PLAN, OPTIONS, scene, 0, 0)  # type: ignore[arg-type]
    task._claimed = scene.outcome
    said = task_transaction._why_it_ended(PLAN, OPTIONS, task, task_s) or ""
    assert ("the job failed or was cancelled" in said) != is_timeout
    assert ("raise the option" in said) == is_timeout
    assert "superseded" not in said

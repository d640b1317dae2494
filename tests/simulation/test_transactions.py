"""Transactions of a simulated cluster are atomic for readers; broken producers are detected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from simulation.__main__ import failure, replay_command
from simulation.replica import Replica
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer import accumulator, batch_splitter
from spark_kafka_sink.producer.error_actions import Action, Call
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sender import Sender
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.producer.transactions import answers, manager
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.queue import Coordinators
from spark_kafka_sink.producer.transactions.requests import (
    TransactionalRequest,
    TransactionalResult,
)

SEEDS = 100
CHUNK = 50
SEEDS_OF_BYTES = 20
SEEDS_TO_FIND = 200


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    for seed in range(first, first + CHUNK):
        found = failure(seed, transactions=True)
        assert found is None, f"seed {seed}: {found}\n{replay_command(seed, transactions=True)}"


def test_every_promise_is_kept_when_each_frame_is_encoded_and_decoded() -> None:
    for seed in range(SEEDS_OF_BYTES):
        found = failure(seed, as_bytes=True, transactions=True)
        command = replay_command(seed, as_bytes=True, transactions=True)
        assert found is None, f"seed {seed}: {found}\n{command}"


# -- each way to break the producer is found -----------------------------------------------------
# `first` is the seed to begin with, a little before the one that finds it.


@contextmanager
def _committed_before_all_is_delivered() -> Iterator[None]:
    with mock.patch.object(Sender, "_has_incomplete", return_value=False):
        yield


@contextmanager
def _lost_answers_taken(
    call: Call, take: Callable[[TransactionManager, TransactionalResult], None]
) -> Iterator[None]:
    """Treat a lost response to a call as a response."""
    failed: Any = TransactionManager.request_failed

    def answer(manager: TransactionManager, request: TransactionalRequest, *more: object) -> None:
        if request.call is call and manager.queue.back(request):
            take(manager, request.result)
        else:
            failed(manager, request, *more)

    with mock.patch.object(TransactionManager, "request_failed", answer):
        yield


def _a_lost_answer_taken_for_the_end() -> AbstractContextManager[None]:
    return _lost_answers_taken(Call.COMMIT, TransactionManager._ended)


@contextmanager
def _partitions_that_were_refused_taken_for_added() -> Iterator[None]:
    read: Any = answers.read_answer

    def accept(request: TransactionalRequest, *more: object) -> object:
        answer = read(request, *more)
        if request.call is Call.ADD_PARTITIONS_TO_TXN and answer.action is Action.RETRY:
            return replace(answer, action=Action.SUCCEED)
        return answer

    with mock.patch.object(manager, "read_answer", accept):
        yield


@contextmanager
def _the_next_epoch_forgotten() -> Iterator[None]:
    adopt = Sequences.adopt

    def keep(sequences: Sequences, producer: ProducerIdAndEpoch) -> None:
        if not sequences.has_producer_id:
            adopt(sequences, producer)

    with mock.patch.object(Sequences, "adopt", keep):
        yield


@contextmanager
def _records_that_failed_forgotten() -> Iterator[None]:
    with mock.patch.object(TransactionManager, "batch_failed"):
        yield


@contextmanager
def _a_fenced_producer_that_tries_again() -> Iterator[None]:
    read: Any = answers.read_answer

    def retry(*arguments: object) -> object:
        answer = read(*arguments)
        return replace(answer, action=Action.RETRY) if answer.action is Action.FENCED else answer

    with mock.patch.object(manager, "read_answer", retry):
        yield


@contextmanager
def _parts_of_a_batch_outside_its_transaction() -> Iterator[None]:
    def forget(batch: ProducerBatch) -> list[ProducerBatch]:
        parts = batch_splitter.split(batch)
        for part in parts:
            part.assign_sequence(part.producer, part.base_sequence)
        return parts

    with mock.patch.object(accumulator, "split", forget):
        yield


@contextmanager
def _epochs_that_only_a_known_coordinator_raises() -> Iterator[None]:
    forget: Any = Coordinators.forget_all

    def forget_more(coordinators: Coordinators) -> None:
        forget(coordinators)
        coordinators._bumps.clear()

    with mock.patch.object(Coordinators, "forget_all", forget_more):
        yield


@contextmanager
def _offsets_seen_though_they_were_aborted() -> Iterator[None]:
    mark = Replica.mark

    def commit(log: Replica, producer_id: int, epoch: int, *, is_commit: bool) -> int:
        has_offsets = any(entry.batch.offsets for entry in log.entries)
        return mark(log, producer_id, epoch, is_commit=is_commit or has_offsets)

    with mock.patch.object(Replica, "mark", commit):
        yield


def _offsets_whose_answer_was_lost_taken_for_written() -> AbstractContextManager[None]:
    return _lost_answers_taken(Call.TXN_OFFSET_COMMIT, TransactionManager._finish)


@contextmanager
def _offsets_whose_call_never_ends() -> Iterator[None]:
    finish: Any = TransactionManager._finish

    def forget(manager: TransactionManager, result: TransactionalResult, *more: object) -> None:
        if result.operation != "send_offsets_to_transaction":
            finish(manager, result, *more)

    with mock.patch.object(TransactionManager, "_finish", forget):
        yield


@pytest.mark.parametrize(
    ("broken", "first", "found"),
    [
        (
            _committed_before_all_is_delivered,
            0,
            "lacks records|hang in|though all was well|would change the state",
        ),
        (_a_lost_answer_taken_for_the_end, 0, "lacks records|are seen|though all was well"),
        (_partitions_that_were_refused_taken_for_added, 0, "though all was well"),
        (_the_next_epoch_forgotten, 0, "though all was well"),
        (_records_that_failed_forgotten, 0, "lacks records"),
        (_a_fenced_producer_that_tries_again, 0, "has not ended"),
        (_parts_of_a_batch_outside_its_transaction, 0, "came outside a transaction"),
        (_epochs_that_only_a_known_coordinator_raises, 60, "is over for TransactionAbortable"),
        (_offsets_seen_though_they_were_aborted, 0, "not committed and offsets .* are seen"),
        (_offsets_whose_answer_was_lost_taken_for_written, 0, "lacks offsets"),
        (_offsets_whose_call_never_ends, 0, "has not ended|though all was well"),
    ],
)
def test_what_is_broken_is_found(
    broken: Callable[[], Iterator[None]], first: int, found: str
) -> None:
    with broken():  # type: ignore[attr-defined]
        for seed in range(first, first + SEEDS_TO_FIND):
            sentence = failure(seed, transactions=True)
            if sentence is not None:
                print(f"found by seed {seed}: {sentence}")
                assert re.search(found, sentence)
                return
    pytest.fail(f"not found by {SEEDS_TO_FIND} seeds")

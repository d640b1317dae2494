"""The producer keeps its guarantees in a simulated cluster, and broken producers are detected.

A failing seed is replayed, with a log of all events, by the command in its failure message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from simulation.__main__ import failure, replay_command
from simulation.cluster import Cluster
from simulation.replica import Replica, Rules
from simulation.scenario import scenario
from simulation.simulation import Simulation
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.network import nodes
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.completion import BatchCompletion
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sequences import PartitionSequences, Sequences

SEEDS = 500
CHUNK = 100
SEEDS_OF_BYTES = 100
SEEDS_TO_FIND = 1000
FIRST_TO_FIND_PARTS = 570


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    for seed in range(first, first + CHUNK):
        found = failure(seed)
        assert found is None, f"seed {seed}: {found}\n{replay_command(seed)}"


def test_every_promise_is_kept_when_each_frame_is_encoded_and_decoded() -> None:
    for seed in range(SEEDS_OF_BYTES):
        found = failure(seed, as_bytes=True)
        assert found is None, f"seed {seed}: {found}\n{replay_command(seed, as_bytes=True)}"


def test_batches_that_are_larger_than_a_topic_allows_break_no_other_promise() -> None:
    for seed in range(CHUNK):
        found = failure(seed, topic_bytes=180)
        assert found is None, f"seed {seed}: {found}\n{replay_command(seed)} --topic-bytes 180"


@pytest.mark.parametrize("seed", [7, 8])
def test_a_seed_always_runs_alike(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    logs = []
    for _ in range(2):
        Simulation(scenario(seed), tracing=True).run()
        logs.append(capsys.readouterr().out)
    assert logs[0] == logs[1]
    assert "append records" in logs[0]


# -- each way to break the producer, or a broker, is found ----------------------------------------
# `first` is the seed to begin with, a little before the one that finds it.


@contextmanager
def _no_sequence_checks() -> Iterator[None]:
    def without_checks(replica: Replica, rules: Rules) -> None:
        make(replica, Rules(old=rules.old, check_sequences=False))

    make = Replica.__init__
    with mock.patch.object(Replica, "__init__", without_checks):
        yield


@contextmanager
def _acknowledged_before_it_is_replicated() -> Iterator[None]:
    with mock.patch.object(Cluster, "_is_replicated", return_value=True):
        yield


@contextmanager
def _sent_again_at_the_tail() -> Iterator[None]:
    def at_tail(accumulator: RecordAccumulator, batch: ProducerBatch) -> None:
        accumulator._queues[batch.topic_partition].append(batch)
        accumulator._sealed[batch.topic_partition] = None

    with mock.patch.object(RecordAccumulator, "reenqueue", at_tail):
        yield


@contextmanager
def _sent_again_at_the_head_out_of_order() -> Iterator[None]:
    def at_head(accumulator: RecordAccumulator, batch: ProducerBatch) -> None:
        accumulator._queues[batch.topic_partition].appendleft(batch)
        accumulator._sealed[batch.topic_partition] = None

    with mock.patch.object(RecordAccumulator, "reenqueue", at_head):
        yield


@contextmanager
def _another_sequence_on_every_attempt() -> Iterator[None]:
    assign = Sequences.assign

    def assign_again(sequences: Sequences, batch: ProducerBatch, now: float) -> None:
        known = sequences._partitions.get(batch.topic_partition)
        if batch.has_sequence and known is not None and known.producer == batch.producer:
            known.in_flight.remove(batch)
            batch.assign_sequence(ProducerIdAndEpoch(-1, -1), -1)
        assign(sequences, batch, now)

    with mock.patch.object(Sequences, "assign", assign_again):
        yield


@contextmanager
def _a_lost_answer_taken_for_a_good_one() -> Iterator[None]:
    failed: Any = BatchCompletion.failed

    def acknowledge(
        completion: BatchCompletion,
        batch: ProducerBatch,
        code: int,
        *more: object,
        was_sent: bool = True,
    ) -> None:
        if code == codes.NETWORK_EXCEPTION and was_sent:
            completion.succeeded(batch, -1, -1)
        else:
            failed(completion, batch, code, *more, was_sent=was_sent)

    with mock.patch.object(BatchCompletion, "failed", acknowledge):
        yield


@contextmanager
def _numbered_again_though_it_may_be_written() -> Iterator[None]:
    def nothing_at_a_broker(_: Sequences, known: PartitionSequences) -> bool:
        return all(batch.node_id is None for batch in known.in_flight)

    with mock.patch.object(Sequences, "_can_restart", nothing_at_a_broker):
        yield


@contextmanager
def _one_refusal_taken_for_the_proof_that_no_batch_is_written() -> Iterator[None]:
    def first_was_refused(_: Sequences, known: PartitionSequences) -> bool:
        is_at_broker = any(batch.node_id is not None for batch in known.in_flight)
        return not is_at_broker and not any(b.maybe_written for b in known.in_flight[:1])

    with mock.patch.object(Sequences, "_can_restart", first_was_refused):
        yield


@contextmanager
def _memory_of_late_answers_lost() -> Iterator[None]:
    late = BatchCompletion._late

    def keep(completion: BatchCompletion, batch: ProducerBatch, *, succeeded: bool) -> None:
        with mock.patch.object(RecordAccumulator, "deallocate"):
            late(completion, batch, succeeded=succeeded)

    with mock.patch.object(BatchCompletion, "_late", keep):
        yield


@contextmanager
def _deadlines_forgotten() -> Iterator[None]:
    with mock.patch.object(RecordAccumulator, "expired", return_value=[]):
        yield


@contextmanager
def _initial_brokers_are_never_forgotten() -> Iterator[None]:
    with mock.patch.multiple(
        nodes, _INITIAL_NODES_FAILURES=1_000_000, _INITIAL_NODES_S=float("inf")
    ):
        yield


@pytest.mark.parametrize(
    ("broken", "first", "found"),
    [
        (_no_sequence_checks, 0, "there twice|out of order|now for"),
        (_acknowledged_before_it_is_replicated, 220, "is lost"),
        (_sent_again_at_the_tail, 0, "out of order|all was well"),
        (_sent_again_at_the_head_out_of_order, 0, "out of order|all was well"),
        (_another_sequence_on_every_attempt, 0, "there twice|out of order|all was well"),
        (_a_lost_answer_taken_for_a_good_one, 0, "without an offset|is lost"),
        (_numbered_again_though_it_may_be_written, 140, "is there twice"),
        (_one_refusal_taken_for_the_proof_that_no_batch_is_written, 100, "is there twice"),
        (_memory_of_late_answers_lost, 0, "memory"),
        (_deadlines_forgotten, 0, "after its deadline|busy loop|has not ended"),
        (_initial_brokers_are_never_forgotten, 50, "has not ended|all was well"),
    ],
)
def test_what_is_broken_is_found(
    broken: Callable[[], Iterator[None]], first: int, found: str
) -> None:
    with broken():  # type: ignore[attr-defined]
        for seed in range(first, first + SEEDS_TO_FIND):
            sentence = failure(seed)
            if sentence is not None:
                print(f"found by seed {seed}: {sentence}")
                assert re.search(found, sentence)
                return
    pytest.fail(f"not found by {SEEDS_TO_FIND} seeds")


def test_parts_that_are_numbered_anew_though_the_whole_may_be_written_are_found() -> None:
    with mock.patch.object(ProducerBatch, "is_in_doubt", False):  # noqa: FBT003 - the only form
        for seed in range(FIRST_TO_FIND_PARTS, FIRST_TO_FIND_PARTS + SEEDS_TO_FIND):
            sentence = failure(seed, topic_bytes=180)
            if sentence is not None:
                print(f"found by seed {seed}: {sentence}")
                assert "is there twice" in sentence
                return
    pytest.fail(f"not found by {SEEDS_TO_FIND} seeds")

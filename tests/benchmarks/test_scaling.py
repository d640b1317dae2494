"""The scaling model's formulas, against the real state machines of one small producer."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from bench.scaling import tables as scaling
from bench.scaling import worker_bytes
from bench.scaling.broker_cost import BrokerCost, Seen
from bench.scaling.model import Job, Layout, Settings, load, producer
from bench.scaling.simulated_task import SimulatedTask
from bench.scaling.start_storm import ANSWERED_AFTER_S, BACKLOG, StartStorm

# A row of 100 bytes as a record takes so many, with what is reserved for the widest deltas.
RECORD_BYTES = 109
ROWS = 600
SLICE_BYTES = ROWS * RECORD_BYTES
SLICES = 20
ROUND_TRIP_S = 0.002
SETTINGS = Settings(
    batch_bytes=8192,
    request_bytes=65_536,
    memory_bytes=100_000_000,
    linger_s=0.1,
    slice_bytes=SLICE_BYTES,
)
KEYED, NO_KEYS, BY_PARTITION = Layout.KEYED, Layout.NO_KEYS, Layout.BY_PARTITION


@pytest.mark.parametrize(
    ("layout", "brokers", "partitions", "tasks", "rows_per_s"),
    [
        (KEYED, 3, 3, 1, 5_000),  # batches fill, and the last of a slice lingers out
        (KEYED, 5, 50, 1, 5_000),  # every slice lingers out
        (KEYED, 5, 50, 1, 20_000),  # several slices linger together
        (KEYED, 5, 50, 1, 100_000),  # batches fill before they have lingered
        (NO_KEYS, 4, 4, 1, 5_000),
        (NO_KEYS, 5, 50, 1, 100_000),
        (NO_KEYS, 10, 200, 1, 20_000),
        (BY_PARTITION, 5, 50, 2, 20_000),
        (BY_PARTITION, 5, 50, 100, 20_000),
    ],
)
def test_the_model_says_what_a_real_producer_does(
    layout: Layout, brokers: int, partitions: int, tasks: int, rows_per_s: int
) -> None:
    job = Job(
        executors=tasks,
        cores=1,
        brokers=brokers,
        partitions=partitions,
        task_bytes=SLICES * SLICE_BYTES,
        task_bytes_per_s=rows_per_s * RECORD_BYTES,
        round_trip_s=ROUND_TRIP_S,
    )
    expected = producer(job, layout, SETTINGS)
    chosen = None if layout is NO_KEYS else list(range(max(1, partitions // tasks)))
    task = SimulatedTask(SETTINGS, brokers, partitions, ROUND_TRIP_S, seed=1)
    seen = task.run(SLICES, ROWS, rows_per_s, chosen)

    assert seen.metadata_requests == 1
    assert seen.producer_ids == 1
    assert len(seen.partitions) == pytest.approx(expected.partitions, rel=0.1)
    assert len(seen.nodes) == pytest.approx(expected.brokers, rel=0.1, abs=1)
    batches = len(seen.batch_sizes)
    assert batches == pytest.approx(expected.batches, rel=0.15)
    assert sum(seen.batch_sizes) / batches == pytest.approx(expected.batch_bytes, rel=0.15)
    # When batches fill at the same moment is chance, and decides which go together.
    assert expected.requests / 2 < seen.requests < expected.requests * 2
    # Without keys, the model's memory is the most: as if no later row filled a batch before it has
    # lingered.
    assert seen.memory_bytes < expected.memory_bytes * 1.15
    assert seen.memory_bytes > expected.memory_bytes * (0.4 if layout is NO_KEYS else 0.85)


# With the sink's defaults, buffer.memory has room for four slices or for eight.
@pytest.mark.parametrize(
    ("brokers", "partitions", "slices_in_memory"),
    [(5, 50, 8), (10, 100, 8), (4, 8, 8), (5, 50, 4), (10, 100, 4)],
)
def test_the_model_says_what_a_real_producer_does_whose_brokers_are_slow(
    brokers: int, partitions: int, slices_in_memory: int
) -> None:
    settings = replace(SETTINGS, memory_bytes=slices_in_memory * SLICE_BYTES, linger_s=0.3)
    broker_bytes_per_s = SLICE_BYTES / brokers / 5
    job = Job(
        executors=1,
        cores=1,
        brokers=brokers,
        partitions=partitions,
        task_bytes=3 * SLICES * SLICE_BYTES,
        task_bytes_per_s=1000 * SLICE_BYTES,
        cluster_bytes_per_s=broker_bytes_per_s * brokers,
        round_trip_s=ROUND_TRIP_S,
    )
    expected = producer(job, KEYED, settings)
    task = SimulatedTask(
        settings, brokers, partitions, ROUND_TRIP_S, 1, broker_bytes_per_s=broker_bytes_per_s
    )
    seen = task.run(3 * SLICES, ROWS, 1e9, list(range(partitions)))

    batches = len(seen.batch_sizes)
    assert batches == pytest.approx(expected.batches, rel=0.25)
    assert expected.requests / 2 < seen.requests < expected.requests * 2
    # Counted with the rows of a slice twice, once as they come and once as they are laid out.
    twice = expected.memory_bytes + settings.memory_bytes / slices_in_memory
    assert expected.memory_bytes <= seen.memory_bytes <= twice * 1.01


def test_one_producer_for_an_executor_does_what_its_tasks_together_do() -> None:
    def job(executors: int, cores: int, together: int) -> Job:
        return Job(
            executors=executors,
            cores=cores,
            brokers=5,
            partitions=50,
            task_bytes=together * SLICES * SLICE_BYTES,
            task_bytes_per_s=together * 20_000 * RECORD_BYTES,
        )

    shared, alone = job(2, 4, 1), job(2, 1, 4)
    assert producer(shared, Layout.SHARED, SETTINGS) == producer(alone, KEYED, SETTINGS)
    assert load(shared, Layout.SHARED, SETTINGS) == load(alone, KEYED, SETTINGS)


@pytest.mark.parametrize("clients", [1, BACKLOG, 10 * BACKLOG, 100 * BACKLOG])
def test_all_clients_of_a_storm_are_connected_at_the_brokers_pace(clients: int) -> None:
    storm = StartStorm([0.0] * clients, accepts_per_s=100, seed=1).run()
    connected_at = storm.connected_at

    assert storm.waits_s == connected_at
    assert len(connected_at) == clients
    for before, after in itertools.pairwise(connected_at):
        assert after - before > 0.00999
    # A client that believes it is connected comes too late for some of the queue's places.
    idle_s = connected_at[-1] - (clients - 1) / 100 - ANSWERED_AFTER_S
    assert idle_s == pytest.approx(0) if clients <= BACKLOG else 0 < idle_s < 90


def test_who_is_answered_and_finds_no_place_asks_on_until_its_request_takes_too_long() -> None:
    one_too_many = StartStorm([0.0] * (BACKLOG + 1), accepts_per_s=100, seed=1).run()
    assert one_too_many.connected_at[-1] == pytest.approx(BACKLOG / 100 + ANSWERED_AFTER_S)
    assert one_too_many.given_up_at == []
    # All believe at once. The first 50 have the places, and 20, 40 and five times 50 those that are
    # free when all ask again, 0.2 s later, 0.6, 1.4 and so on to 25.4.
    storm = StartStorm([0.0] * 600, accepts_per_s=100, seed=1).run()
    assert sum(at < 30 for at in storm.connected_at) == pytest.approx(360, abs=5)
    assert storm.given_up_at[:1] == [30 + ANSWERED_AFTER_S]


def test_who_asks_while_the_queue_is_full_asks_again_after_a_second() -> None:
    # The first of the 51 is accepted as it comes; the others leave no place.
    begins = [0.0] * (BACKLOG + 1) + [1.5 * ANSWERED_AFTER_S]
    storm = StartStorm(begins, accepts_per_s=100, seed=1).run()
    assert storm.waits_s[-1] == pytest.approx(1 + ANSWERED_AFTER_S)


def test_a_listener_that_has_room_spreads_nothing() -> None:
    begins = [float(number) for number in range(300)]
    storm = StartStorm(begins, accepts_per_s=100, seed=1).run()
    assert storm.connected_at == pytest.approx([begin + ANSWERED_AFTER_S for begin in begins])
    assert storm.waits_s == pytest.approx([ANSWERED_AFTER_S] * 300)
    assert storm.given_up_at == []


@pytest.mark.long(reason="it computes every table of docs/contributing/scaling.md")
def test_the_document_has_the_models_figures() -> None:
    text = scaling.DOCUMENT.read_text()
    assert text == scaling.refreshed(text), (
        "docs/contributing/scaling.md is stale: "
        "PYTHONPATH=benchmarks:tests:jobs python -m bench.scaling.tables"
    )


def test_what_bytes_and_batches_cost_a_broker_explains_both_cells() -> None:
    few, many = Seen(2.0, 500_000), Seen(5.0, 20_000)
    cost = BrokerCost.of(few, many)
    for seen in (few, many):
        assert cost.ms(seen.batch_bytes) == pytest.approx(seen.ms_per_megabyte)
    assert cost.ms_per_batch == pytest.approx(3.0 / 48)


def test_what_workers_take_is_near_what_was_measured() -> None:
    takes = worker_bytes.reported()
    assert takes.sink > 0
    assert takes.slices > 0
    for seen in worker_bytes.seen():
        its = worker_bytes.reported(seen.machine)
        by_model = its.in_all(seen.slice_bytes, seen.producer_bytes)
        # A cold job of a few megabytes has not grown its worker's heap yet.
        assert by_model == pytest.approx(
            seen.worker_bytes, rel=0.3 if seen.cell == "cold" else 0.05
        )

"""The benchmark's topics: their limits, and the end of a benchmark whose rows are lost or twice."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from types import ModuleType

import bench.topics
import pytest
from bench.cells import CELLS, CONTENDERS, OURS, Cell
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.topic_settings import nodes, setting

PARTITIONS = 3
ROWS = 10


class Cluster:
    """A fake cluster for `Topics` between rounds."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.times_made: Counter[str] = Counter()

    @contextlib.contextmanager
    def made(self, partitions: int) -> Iterator[str]:
        """Yield a topic."""
        name = f"topic-{partitions}"
        self.held[name] = 0
        self.times_made[name] += 1
        try:
            yield name
        finally:
            del self.held[name]

    def begin(self, topic: str, partitions: int) -> None:
        """Add a record to every partition."""
        self.held[topic] += partitions

    def records(self, topic: str) -> int:
        """Return the number of records."""
        return self.held[topic]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def topics(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(bench.topics, "_REMOVAL_S", 0.0)
    monkeypatch.setattr(bench.topics, "_MOST_BYTES", 1)  # topics are made again before every round
    return bench.topics


def write_rounds(topics: ModuleType, cluster: Cluster, counts: Sequence[int]) -> None:
    """Write so many of `ROWS` records in each round to each topic."""
    with topics.RoundTopics(cluster, {1, PARTITIONS}) as rounds:
        for count in counts:
            rounds.before_round()
            assert cluster.held == {"topic-1": 1, "topic-3": PARTITIONS}
            for partitions in (1, PARTITIONS):
                cluster.held[rounds.name(partitions, ROWS, 1)] += count
    assert not cluster.held


def test_rounds_whose_rows_are_there_have_topics_anew(topics: ModuleType, cluster: Cluster) -> None:
    write_rounds(topics, cluster, [ROWS] * 3)
    assert cluster.times_made == {"topic-1": 3, "topic-3": 3}


@pytest.mark.parametrize(
    ("counts", "found"), [((9,), 10), ((11,), 12), ((10, 9, 10), 10), ((10, 11), 12)]
)
def test_rounds_that_lost_rows_or_have_some_twice_are_no_measurement(
    topics: ModuleType, cluster: Cluster, counts: Sequence[int], found: int
) -> None:
    says = f"has {found} records where its rounds wrote 11: a contender lost rows or wrote some"
    with pytest.raises(topics.running.JobError, match=says):
        write_rounds(topics, cluster, counts)
    assert not cluster.held


def test_what_ends_a_round_is_raised_though_rows_are_missing(
    topics: ModuleType, cluster: Cluster
) -> None:
    def write(rounds: ModuleType) -> None:
        with rounds.RoundTopics(cluster, {PARTITIONS}) as round_topics:
            round_topics.before_round()
            round_topics.name(PARTITIONS, ROWS, 1)
            raise OSError("the broker is gone")

    with pytest.raises(OSError, match="the broker is gone"):
        write(topics)
    assert not cluster.held


# The length of a record's own fields, and more than headers have.
OVERHEAD_BYTES = 100


def shares(cell: Cell) -> float:
    """Return how often a round writes a cell's rows."""
    return sum(
        each.share
        for name, each in CONTENDERS.items()
        if name == OURS or cell.exactly_once == (each.exactly_once is not None)
    )


@pytest.mark.parametrize("scale", [0.1, 1, 10])
@pytest.mark.parametrize("partitions", [1, 12, 100, 1000])
def test_a_topic_keeps_all_that_rounds_write_and_no_endless_rows(
    partitions: int, scale: float
) -> None:
    found = {name: int(each) for name, each in bench.topics.limits(partitions, scale).items()}
    kept, segment = found["retention.bytes"], found["segment.bytes"]
    round_bytes = max(
        cell.rows * (cell.value_bytes + cell.key_bytes + OVERHEAD_BYTES) * shares(cell)
        for cell in CELLS.values()
    )
    # The fullest partition may have a quarter more than its share.
    assert kept * partitions > 1.25 * (bench.topics._MOST_BYTES + scale * round_bytes)
    # Retention deletes closed segments only.
    assert (kept + segment) * partitions <= max(1, scale) * (32 << 30)


@pytest.mark.kafka
def test_a_topic_is_made_with_its_limits(kafka: KafkaCluster) -> None:
    with bench.topics.Topics(kafka.bootstrap, 1).made(32) as topic:
        node = nodes(kafka.bootstrap)[0]
        limits = bench.topics.limits(32, 1)
        assert {name: setting(node, topic, name) for name in limits} == limits

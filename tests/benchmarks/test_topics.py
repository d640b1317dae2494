"""The benchmark's topics: what a contender loses, or writes twice, ends the benchmark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import ModuleType

import bench.topics
import pytest

PARTITIONS = 3
ROWS = 10


class Cluster:
    """A fake cluster for `Topics` between rounds."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    @contextlib.contextmanager
    def made(self, partitions: int) -> Iterator[str]:
        """Yield a topic."""
        name = f"topic-{partitions}"
        self.held[name] = 0
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

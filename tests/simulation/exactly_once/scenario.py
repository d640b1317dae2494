"""The scenario of a seed: a cluster with its faults, jobs, and how often attempts and runs fail."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from simulation import scenario as producers
from simulation.controller import ClusterShape
from simulation.exactly_once.asker import LOG
from simulation.exactly_once.job import Job
from simulation.replica import Rules
from simulation.scenario import Fault
from spark_kafka_sink.commit.names import checked_owner
from spark_kafka_sink.model import TopicPartition

TOPIC: Final = "t"
_FAULTS: Final = frozenset(producers.FAULTS) - {"forget"}
_APP_IDS: Final = ("a", "a.1", "a/1", "%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mischief:
    """How likely things are: of each attempt, each commit, and each second of an application.

    fails: an attempt raises an error, at any place. is_lost: the driver takes an attempt for lost,
    which goes on. is_copied: a task is started a second time. repeats_number: a second attempt has
    the number of the first. is_cut: commit() is ended at any time, and abort() is called. kills:
    the application is killed. doubles: another application of the job is started. cancels: the job
    is cancelled while its tasks run.
    """

    fails: float = 0.0
    is_lost: float = 0.0
    is_copied: float = 0.0
    repeats_number: float = 0.0
    is_cut: float = 0.0
    kills: float = 0.0
    doubles: float = 0.0
    cancels: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All parts of a run; `seed` also determines the delays."""

    seed: int
    shape: ClusterShape
    configs: dict[str, Any]
    delay_s: float
    faults: list[Fault]
    heal_at: float
    jobs: list[Job]
    mischief: Mischief
    timeout_ms: int
    task_s: float
    # Of the faults that need one producer, which are none of these.
    in_flight: int = 1

    @property
    def level(self) -> int:
        """The transaction.version of the cluster."""
        return self.shape.transaction_version


def scenario(seed: int, *, versions: int | None = None) -> Scenario:
    """Draw a scenario. versions: of each job; None to draw it."""
    random = Random(f"exactly once {seed}")
    drawn = producers.scenario(random.randrange(2**32))
    partitions = random.randint(2, 4)
    shape = replace(
        drawn.shape,
        partitions=[*(TopicPartition(TOPIC, number) for number in range(partitions)), LOG],
        topic_ids={},
        rules=Rules(),
        topic_bytes=None,
        transaction_version=random.choice([1, 2]),
        transaction_logs=random.choice([1, 2, 3]),
        has_many_writers=True,
    )
    count = versions or random.choice([1, 2, 3])
    heal_at = drawn.heal_at if versions is None else max(drawn.heal_at, 0.5 * versions)
    faults = [each for each in drawn.faults if each.kind in _FAULTS]
    if versions is not None:
        faults = _often(random, heal_at)
    faults += [
        Fault(random.uniform(0, heal_at), "move coordinator", 0.0, random.randrange(60))
        for _ in range(random.choice([0, 1, 3]))
    ]
    faults += [
        Fault(random.uniform(0, heal_at), "isolate", random.uniform(0.5, 5), random.randrange(60))
        for _ in range(random.choice([0, 0, 1, 3]))
    ]
    is_calm = random.random() < 0.2
    return Scenario(
        seed=seed,
        shape=shape,
        configs=_configs(drawn.configs, random),
        delay_s=random.choice([0.002, 0.01, 0.05]),
        faults=sorted(faults),
        heal_at=heal_at,
        jobs=[_job(random, number, partitions, count) for number in range(random.choice([1, 2]))],
        mischief=Mischief() if is_calm else _mischief(random),
        timeout_ms=random.choice([2000, 60_000, 60_000, 60_000, 60_000]),
        task_s=random.choice([0.01, 0.1, 0.5]),
    )


def _often(random: Random, until: float) -> list[Fault]:
    """Draw faults that come all the time."""
    kinds = sorted(_FAULTS)
    times = [random.uniform(0, until) for _ in range(round(until / 2))]
    return [
        Fault(at, random.choice(kinds), random.uniform(0, 1.0), random.randrange(60))
        for at in times
    ]


def _configs(drawn: dict[str, Any], random: Random) -> dict[str, Any]:
    request_ms = random.choice([500, 1000, 2000])
    kept = {name: value for name, value in drawn.items() if name != "retries"}
    return kept | {
        "enable.idempotence": True,
        "acks": "all",
        "request.timeout.ms": request_ms,
        "delivery.timeout.ms": random.choice([5000, 20_000]),
        "max.block.ms": 10_000,
        "linger.ms": random.choice([0, 5]),
        "buffer.memory": 1_000_000,
        "max.in.flight.requests.per.connection": random.choice([1, 5]),
        "batch.size": random.choice([130, 200, 1000]),
        "compression.type": "none",
        "connections.max.idle.ms": 540_000,
    }


def _job(random: Random, number: int, partitions: int, versions: int) -> Job:
    tasks = random.randint(1, partitions)
    of_job = tuple(range(1, versions + 1))
    sizes = {
        (version, task): random.choice([0, 1, 3, 12]) for version in of_job for task in range(tasks)
    }
    return Job(
        number=number,
        owner=checked_owner("p", random.choice(_APP_IDS) + str(number), TOPIC),
        is_single=random.random() < 0.5,
        tasks=tasks,
        partitions=partitions,
        versions=of_job,
        rows_of_tasks=sizes,
        runs=[],
    )


def _mischief(random: Random) -> Mischief:
    def one(*rates: float) -> float:
        return random.choice([0.0, *rates])

    return Mischief(
        fails=one(0.05, 0.2),
        is_lost=one(0.1, 0.3),
        is_copied=one(0.1, 0.3),
        repeats_number=one(0.5),
        is_cut=one(0.1, 0.5),
        kills=one(0.3, 1.0),
        doubles=one(0.2, 1.0),
        cancels=one(0.1),
    )

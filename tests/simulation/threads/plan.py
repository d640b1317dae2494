"""The plan that a seed draws for a run: configuration, cluster, weather and calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final
from uuid import UUID

from simulation.cluster import FIRST_PORT
from simulation.controller import ClusterShape
from simulation.replica import Rules
from simulation.threads.sockets import Weather
from spark_kafka_sink.model import TopicPartition

_TOPICS: Final = ("t", "u", "v")
# The special subject of a run.
_THEMES: Final = ("any", "any", "hasty", "transactions", "resets", "topics", "failures")
_INTERRUPTED: Final = ("interrupts", "interrupts", "interrupted transactions")
_TRANSACTIONAL: Final = ("transactions", "interrupted transactions")
# An append of a quarter of the memory is cut into slices.
_ROOM_FOR_COMPLETE_APPENDS: Final = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. is_hasty: whether limits are so short that calls and rows may exceed them.

    callers: the number of calls of each user thread. mischief: how often user code misbehaves.
    poison: the number of rows that brokers reject. is_forgetful: whether a thread forgets topics
    repeatedly, as a pool of producers does.
    """

    configs: dict[str, Any]
    shape: ClusterShape
    weather: Weather
    is_hasty: bool
    callers: int
    calls: int
    mischief: float
    poison: float
    is_forgetful: bool
    partitioner: bool
    serializers: bool
    interceptor: bool

    @property
    def is_transactional(self) -> bool:
        """Whether rows are in transactions."""
        return "transactional.id" in self.configs

    @property
    def is_idempotent(self) -> bool:
        """Whether duplicates are forbidden."""
        return bool(self.configs["enable.idempotence"])

    @property
    def keeps_order(self) -> bool:
        """Whether rows keep their order."""
        return self.is_idempotent or self.configs["max.in.flight.requests.per.connection"] == 1

    @property
    def has_slices(self) -> bool:
        """Whether an append may be cut into slices, some of which are sent even if it fails."""
        return int(self.configs["buffer.memory"]) < _ROOM_FOR_COMPLETE_APPENDS

    @property
    def patience_s(self) -> float:
        """The longest duration of a call without faults."""
        if not self.is_hasty:
            return 5.0 + float(self.configs["linger.ms"]) / 1000
        return 5.0 + sum(float(self.configs[name]) for name in _LIMITS) / 1000


_LIMITS: Final = ("linger.ms", "max.block.ms", "delivery.timeout.ms", "request.timeout.ms")


def draw(random: Random, *, interrupts: bool = False) -> Plan:
    """Draw a plan; interrupts: one whose user code behaves well."""
    theme = random.choice(_INTERRUPTED if interrupts else _THEMES)
    is_quiet = random.random() < 0.3
    shape = _shape(random, theme)
    plan = Plan(
        configs=_configs(random, shape, theme),
        shape=shape,
        weather=Weather(
            delay_s=random.choice([0.001, 0.02]),
            room=random.choice([60, 500, 1_000_000]),
            breaks_behind=0 if is_quiet else random.choice([0.0, 0.3, 0.7]),
            breaks_before=0 if is_quiet else random.choice([0.0, 0.0, 0.2]),
            refused=0 if is_quiet else random.choice([0.0, 0.0, 0.3]),
            until=random.choice([0.1, 1.0]),
        ),
        is_hasty=theme == "hasty",
        callers=random.choice([1, 2, 3]),
        calls=random.choice([3, 6]),
        mischief=random.choice([0.0, 0.2, 0.5]),
        poison=random.choice([0.0, 0.0, 0.2]),
        is_forgetful=False,
        partitioner=random.random() < 0.3,
        serializers=random.random() < 0.3,
        interceptor=random.random() < 0.2,
    )
    match theme:
        case "transactions":
            return replace(plan, callers=1, poison=0.0, mischief=random.choice([0.0, 0.5]))
        case "interrupts" | "interrupted transactions":
            # A second caller closes the producer meanwhile.
            callers = random.choice([1, 2]) if theme == "interrupts" else 1
            return replace(plan, callers=callers, poison=0.0, mischief=0.0)
        case "resets":
            moves = random.choice([0, 0, 20])
            weather = plan.weather._replace(room=60, breaks_behind=0.7, until=1.0, moves=moves)
            if moves:  # which the metadata says
                weather = weather._replace(breaks_behind=0.1)
                plan.configs["metadata.max.age.ms"] = 20
            return replace(plan, weather=weather, mischief=0.0)
        case "topics":
            return replace(plan, callers=3, poison=0.0, is_forgetful=True)
        case "failures":
            return replace(plan, callers=3, poison=0.3, mischief=0.5)
    return plan


def _shape(random: Random, theme: str) -> ClusterShape:
    topics = _TOPICS[: random.choice([1, 2, 3])]
    return ClusterShape(
        brokers=random.choice([1, 1, 2]),
        partitions=[TopicPartition(t, n) for t in topics for n in range(random.choice([1, 2]))],
        topic_ids={t: UUID(int=n + 1) for n, t in enumerate(topics)},
        replication=1,
        min_in_sync=1,
        first_epoch=0,
        rules=Rules(),
        hints=True,
        transaction_version=random.choice([1, 2]) if theme in _TRANSACTIONAL else 0,
    )


def _configs(random: Random, shape: ClusterShape, theme: str) -> dict[str, Any]:
    idempotent = theme in _TRANSACTIONAL or (theme != "resets" and random.random() < 0.5)
    configs: dict[str, Any] = {
        "bootstrap.servers": ",".join(
            f"b{n}:{FIRST_PORT + n}" for n in range(1, shape.brokers + 1)
        ),
        "client.id": "c",
        "enable.idempotence": idempotent,
        "acks": "all" if idempotent else random.choice(["all", "1"]),
        "max.in.flight.requests.per.connection": random.choice([1, 5]),
        "linger.ms": random.choice([0, 5, 1000]),
        "batch.size": random.choice([150, 400, 16_384]),
        "buffer.memory": random.choice([2500, _ROOM_FOR_COMPLETE_APPENDS, 1_000_000]),
        "compression.type": random.choice(["none", "none", "lz4"]),
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 100,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "metadata.max.age.ms": random.choice([300, 300_000]),
    }
    if theme in _TRANSACTIONAL:
        configs["transactional.id"] = "x"
    match theme:
        case "hasty":
            configs |= {
                "max.block.ms": random.choice([0, 5, 300]),
                "request.timeout.ms": 100,
                "delivery.timeout.ms": configs["linger.ms"] + random.choice([100, 500]),
            }
        case "interrupts" | "interrupted transactions":
            configs["buffer.memory"] = max(_ROOM_FOR_COMPLETE_APPENDS, configs["buffer.memory"])
        case "resets":  # with more to write while a response is pending
            more = {"linger.ms": 0, "batch.size": 150}
            configs |= more | {"max.in.flight.requests.per.connection": 5}
        case "failures":  # for batches with several owners
            configs |= {"linger.ms": 1000, "batch.size": 16_384}
    return configs

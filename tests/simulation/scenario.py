"""The scenario of a seed: a cluster, a configuration, a load, and the times of faults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from simulation.cluster import DROPPING_PORT, FIRST_PORT, REFUSING_PORT
from simulation.controller import ClusterShape
from simulation.logins import OPTIONS as LOGIN_OPTIONS
from simulation.replica import Rules
from spark_kafka_sink.model import Node, TopicPartition

MAX_EPOCH: Final = 2**15 - 1


class Fault(NamedTuple):
    """A temporary fault; `number` selects the broker or partition."""

    at: float
    kind: str
    lasts: float
    number: int


FAULTS: Final = (
    "break", "break", "break", "silence", "silence", "stall", "mute", "mute", "repeat", "kill",
    "power off", "unreachable", "move", "move", "move", "pause broker", "slow broker",
    "slow follower", "shrink", "pause producer", "throttle", "lag", "transient error",
    "transient error", "transient error", "forget",
)  # fmt: skip

# More faults of scenarios with transactions.
TRANSACTION_FAULTS: Final = ("move coordinator", "move coordinator", "rival")

# More faults of scenarios whose transactions commit offsets.
OFFSETS_FAULTS: Final = (
    "move group coordinator", "move group coordinator", "lose offsets", "lose offsets",
    "unknown partition",
)  # fmt: skip

# Limits of topics for their batches: every row fits a batch of its own.
TOPIC_BYTES: Final = (180, 300, 700)

# Limits of waits in send_offsets.
MAX_BLOCK_MS: Final = (2000, 10_000, 60_000)

# Errors that a broker may return for a while without having appended anything.
TRANSIENT_ERRORS: Final = (2, 3, 5, 14, 19, 56)


class Append(NamedTuple):
    """One call of append: its earliest time, and the rows' partitions."""

    at: float
    partitions: list[int]
    value_bytes: int
    poison: int | None


class PlannedOffsets(NamedTuple):
    """One call of send_offsets: the number of appends before it, and its offsets.

    goes_on: whether the caller continues with the transaction after a timeout. The producer allows
    that but requires an abort.
    """

    after: int
    group: str
    partitions: list[int]
    goes_on: bool


class PlannedTransaction(NamedTuple):
    """One transaction: its earliest start, and how the application intends to end it."""

    at: float
    appends: list[Append]
    is_to_commit: bool
    offsets: tuple[PlannedOffsets, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All parts of a run; `seed` also determines the delays.

    close_at: when the producer is closed without waiting, None for at the end. crashes: when the
    application of a transactional scenario abandons its producer. heard_of: brokers that the
    producer knows from the start; those of "elsewhere" cannot be reached. None with transactions.
    """

    seed: int
    shape: ClusterShape
    configs: dict[str, Any]
    delay_s: float
    first_sequence: int
    appends: list[Append]
    flushes: list[float]
    faults: list[Fault]
    heal_at: float
    close_at: float | None
    transactions: list[PlannedTransaction] = field(default_factory=list)
    crashes: list[float] = field(default_factory=list)
    initial_brokers: tuple[Node, ...] = ()

    @property
    def max_block_s(self) -> float:
        """The limit of transactional calls; only that of send_offsets is drawn."""
        return float(self.configs["max.block.ms"]) / 1000

    @property
    def transaction_timeout_s(self) -> float:
        """The transaction timeout in seconds."""
        return float(self.configs["transaction.timeout.ms"]) / 1000

    @property
    def is_idempotent(self) -> bool:
        """Whether the producer guarantees no duplicates and the order of input."""
        return bool(self.configs["enable.idempotence"])

    @property
    def acks(self) -> str:
        """The producer's acks."""
        return str(self.configs["acks"])

    @property
    def in_flight(self) -> int:
        """The limit of requests in flight per connection."""
        return int(self.configs["max.in.flight.requests.per.connection"])

    @property
    def gives_up_early(self) -> bool:
        """Whether a batch may fail before delivery.timeout.ms, because retries are limited."""
        return "retries" in self.configs


def scenario(seed: int, *, topic_bytes: int | None = None) -> Scenario:
    """Draw a scenario. topic_bytes: the batch limit of every topic; None to draw it."""
    random = Random(seed)
    shape = _shape(random)
    heal_at = random.choice([0.5, 2.0, 5.0, 12.0])
    shape = _limited(shape, f"plain {seed}", heal_at, topic_bytes)
    configs = _configs(random, shape)
    storms = [random.uniform(0, heal_at) for _ in range(random.randint(1, 3))]
    appends = _appends(random, shape, storms, heal_at)
    faults = _faults(random, storms, heal_at)
    near_wrap = configs["enable.idempotence"] and not shape.rules.old and random.random() < 0.1
    drawn = Scenario(
        seed=seed,
        shape=shape,
        configs=configs,
        delay_s=random.choice([0.002, 0.02, 0.05, 0.1]),
        first_sequence=2**31 - random.randint(1, 20) if near_wrap else 0,
        appends=appends,
        flushes=[random.uniform(0, heal_at) for _ in range(random.choice([0, 0, 1, 3]))],
        faults=sorted(faults),
        heal_at=heal_at,
        close_at=random.choice(storms) + random.random() if random.random() < 0.06 else None,
        initial_brokers=_initial_brokers(seed, shape),
    )
    return _forgetting(_expiring(random, drawn) if random.random() < 0.25 else drawn)


def sessions_scenario(seed: int, *, topic_bytes: int | None = None) -> Scenario:
    """Draw a scenario with logins whose sessions end: the faults of `scenario`, and a longer load.

    Rows come all the time, so that requests are in flight, and others are held, when sessions are
    renewed.
    """
    random = Random(f"sessions {seed}")
    drawn = scenario(random.randrange(2**32), topic_bytes=topic_bytes)
    session_s = random.choice([1.0, 1.2, 2.5, 4.0, 10.0])
    until = drawn.heal_at + random.uniform(1, 4)
    times = sorted(random.uniform(0, until) for _ in range(random.choice([10, 20, 40])))
    appends = [
        Append(at, random.choice(drawn.appends).partitions[:3], value_bytes=8, poison=None)
        for at in [*times, until]
    ]
    times_s = {
        # It includes the login, which takes four responses.
        "socket.connection.setup.timeout.ms": 1000,
        "socket.connection.setup.timeout.max.ms": 1500,
    }
    return replace(
        drawn,
        seed=seed,
        shape=replace(drawn.shape, session_s=session_s),
        configs=drawn.configs | LOGIN_OPTIONS | times_s,
        delay_s=random.choice([0.002, 0.01, 0.05]),
        appends=appends,
    )


def transactional_scenario(seed: int, *, topic_bytes: int | None = None) -> Scenario:
    """Draw a scenario with transactions: the faults and loads of `scenario`, and more."""
    random = Random(f"transactions {seed}")
    drawn = scenario(random.randrange(2**32))
    configs = drawn.configs | {
        "enable.idempotence": True,
        "acks": "all",
        "transactional.id": "tid",
        "transaction.timeout.ms": random.choice([2000, 60_000]),
        "delivery.timeout.ms": max(2000, drawn.configs["delivery.timeout.ms"]),
    }
    version = random.choice([1, 2])
    rules = Rules(remembers_last=drawn.shape.rules.remembers_last)
    shape = replace(drawn.shape, rules=rules, transaction_version=version)
    shape = _limited(shape, f"transactions {seed}", drawn.heal_at, topic_bytes)
    also = [
        Fault(random.uniform(0, drawn.heal_at), kind, 0.0, random.randrange(60))
        for kind in random.choices(TRANSACTION_FAULTS, k=random.choice([0, 0, 2, 5]))
    ]
    also += _rebootstraps(seed, drawn)
    faults = [fault for fault in drawn.faults if fault.kind != "forget"]
    crashes = [random.uniform(0, drawn.heal_at) for _ in range(random.choice([0, 0, 1, 2]))]
    planned = replace(
        drawn,
        seed=seed,
        shape=shape,
        configs=configs,
        first_sequence=0,
        appends=[],
        flushes=[],
        faults=sorted([*faults, *also]),
        close_at=None,
        transactions=_transactions(random, drawn),
        crashes=crashes,
        initial_brokers=(),
    )
    return _sending_offsets(planned)


def _sending_offsets(drawn: Scenario) -> Scenario:
    """Let the transactions of every other scenario commit offsets, and add faults for them.

    Scenarios without offsets also have no log of offsets, so their runs stay unchanged.
    """
    random = Random(f"offsets of {drawn.seed}")
    if random.random() < 0.5:
        return drawn
    transactions = [
        planned._replace(offsets=_offsets(random, len(planned.appends)))
        for planned in drawn.transactions
    ]
    storms = [planned.at for planned in transactions if planned.at < drawn.heal_at]
    faults = [
        Fault(
            min(random.choice(storms) + random.uniform(0, 0.5), drawn.heal_at),
            random.choice(OFFSETS_FAULTS),
            random.uniform(0, 1),
            random.randrange(60),
        )
        for _ in range(random.choice([0, 2, 4, 8]) if storms else 0)
    ]
    return replace(
        drawn,
        shape=replace(drawn.shape, has_groups=True),
        configs=drawn.configs | {"max.block.ms": random.choice(MAX_BLOCK_MS)},
        faults=sorted([*drawn.faults, *faults]),
        transactions=transactions,
    )


def _offsets(random: Random, appends: int) -> tuple[PlannedOffsets, ...]:
    """Draw the offsets of a transaction: before its first append, between two, or at the end."""
    drawn = [
        PlannedOffsets(
            random.randint(0, appends),
            random.choice("gh"),
            random.sample(range(4), random.randint(1, 3)),
            random.random() < 0.5,
        )
        for _ in range(random.choice([0, 1, 1, 2]))
    ]
    return tuple(sorted(drawn))


def _limited(
    shape: ClusterShape, name: str, heal_at: float, topic_bytes: int | None
) -> ClusterShape:
    """Draw the batch limit of all topics, which a tenth of the scenarios have, and its start.

    It uses its own random source, as every later addition does, so that older seeds stay unchanged.
    """
    random = Random(f"topic bytes of {name}")
    drawn = random.choice(TOPIC_BYTES) if random.random() < 0.1 else None
    since = random.choice([0.0, random.uniform(0, heal_at)])
    return replace(shape, topic_bytes=topic_bytes or drawn, limited_from=since)


def _initial_brokers(seed: int, shape: ClusterShape) -> tuple[Node, ...]:
    """Draw whether the producer knows the brokers at the start, and how many are unreachable."""
    random = Random(f"brokers that {seed} has heard of")
    unreached = random.choice([0.0, 0.0, 0.5, 1.0])
    elsewhere = random.choice([REFUSING_PORT, DROPPING_PORT])
    if random.random() < 0.5:
        return ()
    return tuple(
        Node(id=n, host="elsewhere", port=elsewhere)
        if random.random() < unreached
        else Node(id=n, host=f"b{n}", port=FIRST_PORT + n)
        for n in range(1, shape.brokers + 1)
    )


def _rebootstraps(seed: int, drawn: Scenario) -> list[Fault]:
    """Draw when brokers send the client back to its bootstrap servers, and disappear then."""
    random = Random(f"rebootstraps of {seed}")
    faults: list[Fault] = []
    for _ in range(random.choice([0, 0, 0, 1, 2])):
        at = random.choice(drawn.appends).at + random.uniform(0, 0.2)
        lasts, number = random.uniform(0, 5), random.randrange(60)
        faults.append(Fault(min(at, drawn.heal_at), "rebootstrap", lasts, number))
    return faults


def _transactions(random: Random, drawn: Scenario) -> list[PlannedTransaction]:
    """Draw transactions, some of them empty; the last ones begin after the faults."""
    left, planned = list(drawn.appends[:-1]), []
    while left:
        some = [left.pop(0) for _ in range(min(len(left), random.choice([1, 1, 2, 4])))]
        planned.append(PlannedTransaction(some[0].at, some, random.random() < 0.75))
        if random.random() < 0.1:
            planned.append(PlannedTransaction(some[-1].at, [], random.random() < 0.5))
    last = drawn.appends[-1]._replace(poison=None)
    return [*planned, *(PlannedTransaction(last.at + 6 * n, [last], True) for n in (1, 2, 3, 3))]  # noqa: FBT003 - a field


def _expiring(random: Random, drawn: Scenario) -> Scenario:
    """Let batches expire one by one while their responses, and later ones, are lost."""
    configs = drawn.configs | {
        "enable.idempotence": True,
        "acks": "all",
        "max.in.flight.requests.per.connection": 5,
        "delivery.timeout.ms": drawn.configs["request.timeout.ms"] + drawn.configs["linger.ms"],
        "retry.backoff.ms": 10,
    }
    first = random.uniform(0, drawn.heal_at)
    times = [first + number * random.uniform(0.02, 0.1) for number in range(10)]
    appends = [
        append._replace(at=at)
        for at, append in zip(sorted(times), drawn.appends[:-1], strict=False)
    ]
    lost = [
        Fault(at, random.choice(["mute", "silence"]), 3.0, random.randrange(60))
        for at in random.sample(times, 3)
    ]
    return replace(
        drawn,
        configs=configs,
        delay_s=random.choice([0.002, 0.01]),
        appends=[*appends, drawn.appends[-1]],
        faults=sorted([*drawn.faults[:3], *lost]),
    )


def _forgetting(drawn: Scenario) -> Scenario:
    """In a tenth of the scenarios, lose the responses to several batches, and restart their broker.

    Leaders then know only the last batch of each producer. It uses its own random source.
    """
    random = Random(f"memory of {drawn.seed}")
    if random.random() >= 0.1 or drawn.shape.rules.old:
        return drawn
    configs = drawn.configs | {
        "enable.idempotence": True,
        "acks": "all",
        "max.in.flight.requests.per.connection": 5,
        "linger.ms": 0,
        "delivery.timeout.ms": 10_000,
    }
    at = random.uniform(0.5, 2.0)
    partition = random.randrange(len(drawn.shape.partitions))
    times = [at - 0.4, *(at + random.uniform(0, 0.03) for _ in range(random.randint(2, 5)))]
    appends = [
        Append(time, [partition] * random.choice([1, 5]), value_bytes=12, poison=None)
        for time in sorted(times)
    ]
    muted = at - random.uniform(0, 0.01)
    faults = []
    for number in range(drawn.shape.brokers):
        faults.append(Fault(muted, "mute", 0.4, number))
        if random.random() < 0.8:
            killed = at + random.uniform(0.1, 0.4)
            faults.append(Fault(killed, "kill", random.uniform(0, 0.5), number))
    return replace(
        drawn,
        shape=replace(drawn.shape, rules=Rules(remembers_last=True)),
        configs=configs,
        delay_s=random.choice([0.002, 0.01]),
        appends=[*appends, drawn.appends[-1]],
        faults=sorted([*faults, *random.sample(drawn.faults, min(2, len(drawn.faults)))]),
    )


def _shape(random: Random) -> ClusterShape:
    brokers = random.choice([1, 2, 3, 3, 4])
    topics = ["t", "u"][: random.choice([1, 1, 2])]
    partitions = [
        TopicPartition(topic, number) for topic in topics for number in range(random.randint(1, 3))
    ]
    replication = random.randint(1, min(3, brokers))
    modern = random.random() < 0.7
    ids = {t: UUID(int=n + 1) for n, t in enumerate(topics)} if modern else {}
    return ClusterShape(
        brokers=brokers,
        partitions=partitions,
        topic_ids=ids,
        replication=replication,
        min_in_sync=random.randint(1, max(1, replication - 1)),
        first_epoch=random.choice([0, 0, 0, MAX_EPOCH - 1, MAX_EPOCH]),
        rules=Rules(old=not modern),
        hints=modern,
    )


def _configs(random: Random, shape: ClusterShape) -> dict[str, Any]:
    idempotent = random.random() < 0.75
    request_ms = random.choice([300, 1000, 2000])
    linger_ms = random.choice([0, 0, 5, 50])
    delivery_ms = random.choice([request_ms + linger_ms] * 2 + [2000 + linger_ms, 10_000, 30_000])
    configs = {
        "bootstrap.servers": ",".join(
            f"b{n}:{FIRST_PORT + n}" for n in range(1, shape.brokers + 1)
        ),
        "enable.idempotence": idempotent,
        "acks": "all" if idempotent else random.choice(["all", "1", "0"]),
        "max.in.flight.requests.per.connection": random.choice([1, 2, 5, 5, 5]),
        "batch.size": random.choice([130, 200, 1000]),
        "linger.ms": linger_ms,
        "buffer.memory": random.choice([3000, 20_000, 1_000_000]),
        "max.request.size": random.choice([600, 1_000_000]),
        "compression.type": random.choice(["none", "none", "none", "lz4", "gzip", "zstd"]),
        "request.timeout.ms": request_ms,
        "delivery.timeout.ms": delivery_ms,
        "retry.backoff.ms": random.choice([0, 10, 100]),
        "retry.backoff.max.ms": random.choice([100, 500]),
        "reconnect.backoff.max.ms": random.choice([50, 500]),
        "socket.connection.setup.timeout.ms": 500,
        "socket.connection.setup.timeout.max.ms": 1000,
        "metadata.max.age.ms": random.choice([300, 5000, 300_000]),
        "connections.max.idle.ms": random.choice([200, 540_000, 540_000]),
    }
    if random.random() < 0.08:
        configs["retries"] = random.randint(1, 3)
    return configs


def _appends(
    random: Random, shape: ClusterShape, storms: list[float], heal_at: float
) -> list[Append]:
    """Draw the load: in storms of faults, and some of it after the faults."""
    count = random.randint(3, 9)
    times = sorted(random.choice(storms) + random.uniform(0, 0.5) for _ in range(count))
    times.append(heal_at + random.uniform(1, 4))
    poisonous = random.random() < 0.15
    appends = []
    for at in times:
        some = random.sample(range(len(shape.partitions)), random.randint(1, len(shape.partitions)))
        rows = random.choice([1, 5, 20, 40])
        appends.append(
            Append(
                at=at,
                partitions=[random.choice(some) for _ in range(rows)],
                value_bytes=random.choice([8, 12, 40, 90]),
                poison=random.randrange(rows) if poisonous and random.random() < 0.3 else None,
            )
        )
    return appends


def _faults(random: Random, storms: list[float], heal_at: float) -> list[Fault]:
    """Draw faults, mostly in storms, when requests are in flight."""
    faults = []
    for _ in range(random.choice([0, 4, 8, 16, 24])):
        longest = random.choice([0.05, 0.5, 3.0, 10.0])
        at = random.uniform(0, heal_at)
        if random.random() < 0.8:
            at = min(heal_at, random.choice(storms) + random.uniform(-0.1, 0.8))
            at = max(0.0, at)
        kind = random.choice(FAULTS)
        faults.append(Fault(at, kind, random.uniform(0, longest), random.randrange(60)))
    return faults

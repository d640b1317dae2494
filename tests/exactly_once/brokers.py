"""The brokers of the model: coordinators, the commit log and partitions, as one tuple.

The answers are those that Kafka 4.3.1 (transaction.version 2) and 3.9.2 (version 1) give. Markers
are written at once, or in a step of their own (`slow`). No coordinator or leader moves.

A question of a machine is compiled to an operation, a tuple of small values. `apply` carries it out
on a world and returns a raw reply, which `reply_of` turns into that of the machine. So steps of
machines can be cached by what they depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.log_record import CommitRecord, LogEntry, LogReader, encode
from spark_kafka_sink.commit.names import TaskSlot, checked_owner
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    ActiveProducer,
    Added,
    AddPartitions,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    EndTxn,
    Initialized,
    InitProducerId,
    Listed,
    LogRead,
    MarkerRead,
    OpenTransaction,
    ProducersDescribed,
    ReadLog,
    ReadMarker,
    Reply,
    Unanswered,
    WriteRecord,
    Written,
)
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker
from spark_kafka_sink.records.default_record import DefaultRecord

OWNER: Final = checked_owner("p", "app", "t")
LOG: Final = TopicPartition("log", 0)
LOG_NUMBER: Final = 99
MAX_SLOTS: Final = 4
FIRST_PRODUCER_ID: Final = 100
OTHER: Final = 98  # the transactional id of another application

# States of a transaction.
IS_EMPTY, IS_ONGOING, IS_COMMITTED, IS_ABORTED, IS_COMMITTING, IS_ABORTING = range(6)
_STATES: Final = (
    EMPTY,
    ONGOING,
    COMPLETE_COMMIT,
    COMPLETE_ABORT,
    PREPARE_COMMIT,
    PREPARE_ABORT,
)
_ENDS: Final = (IS_COMMITTING, IS_ABORTING)
# What an entry of a log is, below the numbers of records. -1 and -2 have the same hash in CPython.
COMMIT_MARKER: Final = -4
ABORT_MARKER: Final = -2
_MARKERS: Final = {COMMIT_MARKER: Marker.COMMIT, ABORT_MARKER: Marker.ABORT}

# An id: its epoch, the state of its transaction, and the partitions in it.
Id: TypeAlias = tuple[int, int, tuple[int, ...]]
# An entry: the id, its epoch, and a record or a marker.
Entry: TypeAlias = tuple[int, int, int]
Operation: TypeAlias = tuple[Any, ...]
Raw: TypeAlias = tuple[Any, ...]


class World(NamedTuple):
    """All that brokers have. ids: the driver's, then the slots of each Spark partition."""

    ids: tuple[Id | None, ...]
    log: tuple[Entry, ...]
    data: tuple[tuple[Entry, ...], ...]


def first_world(partitions: int, *, other_is_open: bool = True) -> World:
    """Return a world without a run; the log has an open transaction of another application."""
    log: tuple[Entry, ...] = ((OTHER, 0, -3),) if other_is_open else ()
    return World((None,) * (1 + partitions * MAX_SLOTS), log, ((),) * partitions)


def number_of(slot: TaskSlot) -> int:
    """Return the number of a slot's transactional id."""
    return 1 + slot.partition * MAX_SLOTS + slot.slot


def slot_of(number: int) -> TaskSlot:
    """Return the slot of an id that is not the driver's."""
    return TaskSlot(*divmod(number - 1, MAX_SLOTS))


def producer_of(number: int, epoch: int) -> ProducerIdAndEpoch:
    """Return the producer id of an id, and an epoch."""
    return ProducerIdAndEpoch(FIRST_PRODUCER_ID + number, epoch)


def partition_of(number: int) -> TopicPartition:
    """Return a partition by its number."""
    return LOG if number == LOG_NUMBER else TopicPartition("t", number)


class Brokers:
    """Carries out operations at one transaction.version.

    reads_to_end: False for a reader of the log that stops at the last stable offset. fences: False
    for a driver that gets no other epoch. checks_done: False if DONE is written in any epoch. slow:
    whether the markers of a transaction are written in a step of their own.
    """

    def __init__(self, level: int, *, slow: bool = False) -> None:
        self.level = level
        self.slow = slow
        self.reads_to_end = True
        self.fences = True
        self.checks_done = True
        self._records: dict[CommitRecord, int] = {}
        self.record_of: list[CommitRecord] = []
        self._readings: dict[tuple[Entry, ...], LogRead] = {}
        self._names = {OWNER.driver_id: 0}

    def record_number(self, record: CommitRecord) -> int:
        """Return the number of a record."""
        if record not in self._records:
            self._records[record] = len(self.record_of)
            self.record_of.append(record)
        return self._records[record]

    def _number(self, transactional_id: str) -> int:
        if transactional_id not in self._names:
            slot = OWNER.slot_of(transactional_id)
            assert slot is not None
            assert slot.slot < MAX_SLOTS
            self._names[transactional_id] = number_of(slot)
        return self._names[transactional_id]

    def compiled(self, ask: Ask) -> Operation:
        """Return a question as an operation."""
        if isinstance(ask, (InitProducerId, AddPartitions, WriteRecord, EndTxn)):
            return self._compiled_write(ask)
        if isinstance(ask, DescribeTransaction):
            return ("describe", self._number(ask.transactional_id))
        if isinstance(ask, DescribeProducers):
            return ("producers", ask.partition.partition)
        if isinstance(ask, ReadMarker):
            number = ask.producer_id - FIRST_PRODUCER_ID
            at = LOG_NUMBER if ask.partition == LOG else ask.partition.partition
            return ("marker", at, ask.offset, number)
        return ("log",) if isinstance(ask, ReadLog) else ("list",)

    def _compiled_write(
        self, ask: InitProducerId | AddPartitions | WriteRecord | EndTxn
    ) -> Operation:
        number = self._number(ask.transactional_id)
        if isinstance(ask, InitProducerId):
            return ("init", number)
        epoch = ask.producer.epoch
        if isinstance(ask, EndTxn):
            return ("end", number, epoch, int(ask.commit), ask.version)
        if isinstance(ask, WriteRecord):
            return ("write", number, epoch, self.record_number(ask.record))
        partitions = (LOG_NUMBER if each == LOG else each.partition for each in ask.partitions)
        return ("add", number, epoch, tuple(partitions))

    def apply(self, world: World, operation: Operation) -> tuple[Raw, World]:
        """Carry out an operation."""
        act: Callable[..., tuple[Raw, World]] = getattr(self, f"_{operation[0]}")
        return act(world, *operation[1:])

    # -- what only reads ----------------------------------------------------------------------

    def _list(self, world: World) -> tuple[Raw, World]:
        found = (number for number, each in enumerate(world.ids) if each and each[1] == IS_ONGOING)
        return tuple(found), world

    def _describe(self, world: World, number: int) -> tuple[Raw, World]:
        found = world.ids[number]
        return (number, *found) if found else (), world

    def _producers(self, world: World, partition: int) -> tuple[Raw, World]:
        return world.data[partition], world

    def _marker(self, world: World, partition: int, offset: int, number: int) -> tuple[Raw, World]:
        log = world.log if partition == LOG_NUMBER else world.data[partition]
        for each in log[offset:]:
            if each[0] == number and each[2] < 0:
                return (each[2],), world
        return (), world

    def _log(self, world: World) -> tuple[Raw, World]:
        if self.reads_to_end:
            return world.log, world
        ended = {each[0] for each in world.log if each[2] in _MARKERS}
        first_open = next(
            (at for at, each in enumerate(world.log) if each[0] not in ended), len(world.log)
        )
        return world.log[:first_open], world

    # -- what changes the world ---------------------------------------------------------------

    def _init(self, world: World, number: int) -> tuple[Raw, World]:
        found = world.ids[number]
        if found is None:
            return (0, number, 0), _with_id(world, number, (0, IS_EMPTY, ()))
        epoch, state, _ = found
        if number == 0 and not self.fences:
            return (0, 0, epoch), world
        if state == IS_ONGOING:
            world = self._ended(world, number, epoch + 1, commit=False)
            epoch += 1
        if self.slow and state in (IS_ONGOING, *_ENDS):
            return (codes.CONCURRENT_TRANSACTIONS, number, -1), world
        return (0, number, epoch + 1), _with_id(world, number, (epoch + 1, IS_EMPTY, ()))

    def _add(
        self, world: World, number: int, epoch: int, partitions: tuple[int, ...]
    ) -> tuple[Raw, World]:
        found = world.ids[number]
        if found is None or found[0] != epoch:
            return (codes.PRODUCER_FENCED,), world
        if found[1] in _ENDS:
            return (codes.CONCURRENT_TRANSACTIONS,), world
        known = found[2] if found[1] == IS_ONGOING else ()
        together = tuple(sorted({*known, *partitions}))
        return (0,), _with_id(world, number, (epoch, IS_ONGOING, together))

    def produce(
        self, world: World, number: int, epoch: int, partition: int, what: int
    ) -> tuple[int, int, World]:
        """Append a record in the id's transaction; return the error and its offset."""
        found = world.ids[number]
        if found is None or found[0] != epoch:
            return codes.INVALID_PRODUCER_EPOCH, -1, world
        if self.level >= 2:
            (error,), world = self._add(world, number, epoch, (partition,))
            if error:
                return error, -1, world
        elif found[1] != IS_ONGOING or partition not in found[2]:
            return codes.TRANSACTION_ABORTABLE, -1, world
        entry = (number, epoch, what)
        if partition == LOG_NUMBER:
            return 0, len(world.log), world._replace(log=(*world.log, entry))
        log = world.data[partition]
        return 0, len(log), world._replace(data=_put(world.data, partition, (*log, entry)))

    def _write(self, world: World, number: int, epoch: int, record: int) -> tuple[Raw, World]:
        is_done = not self.record_of[record].transactions
        if is_done and not self.checks_done:
            found = world.ids[number]
            epoch = epoch if found is None else found[0]
        error, offset, world = self.produce(world, number, epoch, LOG_NUMBER, record)
        return (error, offset), world

    def _end(
        self,
        world: World,
        number: int,
        epoch: int,
        commit: int,
        version: int,
    ) -> tuple[Raw, World]:
        found = world.ids[number]
        if found is None:
            return (codes.INVALID_PRODUCER_ID_MAPPING, -1), world
        if number == 0 and not self.checks_done and found[1] == IS_ONGOING:
            epoch = found[0]
        if found[1] == IS_ONGOING and found[0] == epoch:
            bump = 1 if version >= 5 else 0
            world = self._ended(world, number, epoch + bump, commit=bool(commit))
            return (0, epoch + 1 if bump else -1), world
        if found[1] in _ENDS:
            return (self._still_ending(epoch, found, version, commit=bool(commit)), -1), world
        if version >= 5:
            return self._end_again_2(world, number, epoch, found, commit=bool(commit))
        return (self._end_again_1(epoch, found, commit=bool(commit)), -1), world

    def _still_ending(self, epoch: int, found: Id, version: int, *, commit: bool) -> int:
        current, state, _ = found
        if epoch == current - (1 if version >= 5 else 0):
            is_same = commit == (state == IS_COMMITTING)
            return codes.CONCURRENT_TRANSACTIONS if is_same else codes.INVALID_TXN_STATE
        return codes.CONCURRENT_TRANSACTIONS if epoch == current else codes.PRODUCER_FENCED

    def _ended(self, world: World, number: int, epoch: int, *, commit: bool) -> World:
        """End an open transaction; if brokers are slow, its markers are still to be written."""
        found = world.ids[number]
        assert found is not None
        state = IS_COMMITTING if commit else IS_ABORTING
        world = _with_id(world, number, (epoch, state, found[2]))
        return world if self.slow else self.complete(world, number)

    def ending(self, world: World) -> list[int]:
        """Return the ids whose markers are still to be written."""
        return [at for at, each in enumerate(world.ids) if each is not None and each[1] in _ENDS]

    def complete(self, world: World, number: int) -> World:
        """Write the markers of a transaction that is ending."""
        found = world.ids[number]
        assert found is not None
        is_commit = found[1] == IS_COMMITTING
        world = _mark(world, number, found[0], COMMIT_MARKER if is_commit else ABORT_MARKER)
        state = IS_COMMITTED if is_commit else IS_ABORTED
        return _with_id(world, number, (found[0], state, ()))

    def settled(self, world: World) -> World:
        """Write all markers that are still to be written."""
        for number in self.ending(world):
            world = self.complete(world, number)
        return world

    def _end_again_2(
        self, world: World, number: int, epoch: int, found: Id, *, commit: bool
    ) -> tuple[Raw, World]:
        current, state, _ = found
        if epoch == current:
            if commit:
                return (codes.INVALID_TXN_STATE, -1), world
            return (0, epoch + 1), _with_id(world, number, (epoch + 1, IS_ABORTED, ()))
        if epoch == current - 1 and state in (IS_COMMITTED, IS_ABORTED):
            is_same = commit == (state == IS_COMMITTED)
            return (0, current) if is_same else (codes.INVALID_TXN_STATE, -1), world
        return (codes.PRODUCER_FENCED, -1), world

    def _end_again_1(self, epoch: int, found: Id, *, commit: bool) -> int:
        current, state, _ = found
        if epoch != current:
            return codes.PRODUCER_FENCED
        is_same = state == (IS_COMMITTED if commit else IS_ABORTED)
        return codes.NONE if is_same else codes.INVALID_TXN_STATE

    def time_out(self, world: World, number: int) -> World:
        """Abort an open transaction because of its timeout."""
        found = world.ids[number]
        assert found is not None
        return self._ended(world, number, found[0] + 1, commit=False)

    # -- replies ------------------------------------------------------------------------------

    def reply_of(self, operation: Operation, raw: Raw | None) -> Reply:
        """Return the reply of a raw one; None is no response."""
        if raw is None:
            return Unanswered(codes.NETWORK_EXCEPTION, "lost")
        reply: Reply = getattr(self, f"_reply_{operation[0]}")(operation, raw)
        return reply

    def _reply_list(self, _: Operation, raw: Raw) -> Reply:
        named = {
            OpenTransaction(
                OWNER.driver_id if number == 0 else OWNER.task_id(slot_of(number)),
                FIRST_PRODUCER_ID + number,
            )
            for number in raw
        }
        return Listed(frozenset(named))

    def _reply_describe(self, _: Operation, raw: Raw) -> Reply:
        if not raw:
            return Described(error=codes.TRANSACTIONAL_ID_NOT_FOUND)
        number, epoch, state, partitions = raw
        return Described(
            _STATES[state],
            producer_of(number, epoch),
            timeout_ms=60_000,
            start_ms=0 if state == IS_ONGOING else -1,
            partitions=frozenset(map(partition_of, partitions)),
        )

    def _reply_init(self, _: Operation, raw: Raw) -> Reply:
        error, number, epoch = raw
        return Initialized(producer_of(number, epoch), error)

    def _reply_add(self, _: Operation, raw: Raw) -> Reply:
        return Added(raw[0])

    def _reply_write(self, _: Operation, raw: Raw) -> Reply:
        return Written(raw[1], error=raw[0])

    def _reply_end(self, operation: Operation, raw: Raw) -> Reply:
        error, epoch = raw
        producer = producer_of(operation[1], epoch) if epoch >= 0 else Ended().producer
        return Ended(producer, error)

    def _reply_producers(self, _: Operation, raw: Raw) -> Reply:
        return ProducersDescribed(active_producers(raw))

    def _reply_marker(self, _: Operation, raw: Raw) -> Reply:
        return MarkerRead(_MARKERS[raw[0]] if raw else None)

    def _reply_log(self, _: Operation, raw: Raw) -> Reply:
        if raw not in self._readings:
            reader = LogReader(OWNER.driver_id)
            reader.read(self._log_entry(offset, each) for offset, each in enumerate(raw))
            self._readings[raw] = LogRead(reader.reading(OWNER.driver_id), end=len(raw))
        return self._readings[raw]

    def _log_entry(self, offset: int, entry: Entry) -> LogEntry:
        number, _, what = entry
        producer_id = FIRST_PRODUCER_ID + number
        if what in _MARKERS:
            return LogEntry(producer_id, is_control=True, marker=_MARKERS[what])
        if number == OTHER:
            key, value = b"p/other/t", b"{}"
        else:
            key = OWNER.driver_id.encode()
            value = encode(OWNER.driver_id, self.record_of[what])
        record = DefaultRecord(offset, key, value)
        return LogEntry(producer_id, is_transactional=True, records=(record,))


def active_producers(log: tuple[Entry, ...]) -> tuple[ActiveProducer, ...]:
    """Return the producers of a partition, as its leader knows them; a batch has one record."""
    producers: dict[int, tuple[int, int, int]] = {}
    for offset, (number, epoch, what) in enumerate(log):
        if what < 0:
            producers[number] = (epoch, -1, -1)
            continue
        known, count, start = producers.get(number, (epoch, -1, -1))
        if known != epoch:
            count, start = -1, -1
        producers[number] = (epoch, count + 1, offset if start < 0 else start)
    return tuple(
        ActiveProducer(producer_of(number, epoch), last, start)
        for number, (epoch, last, start) in sorted(producers.items())
    )


def visible(log: tuple[Entry, ...]) -> list[int]:
    """Return the records of a partition that readers of committed records see."""
    found: list[int] = []
    for at, (number, _, what) in enumerate(log):
        if what < 0:
            continue
        end = next((each[2] for each in log[at:] if each[0] == number and each[2] < 0), None)
        if end == COMMIT_MARKER:
            found.append(what)
    return found


def _put(things: tuple[Any, ...], at: int, thing: object) -> tuple[Any, ...]:
    return (*things[:at], thing, *things[at + 1 :])


def _with_id(world: World, number: int, new: Id) -> World:
    return world._replace(ids=_put(world.ids, number, new))


def _mark(world: World, number: int, epoch: int, marker: int) -> World:
    """Write the marker of a transaction to its partitions."""
    found = world.ids[number]
    assert found is not None
    entry = (number, epoch, marker)
    for partition in found[2]:
        if partition == LOG_NUMBER:
            world = world._replace(log=(*world.log, entry))
        else:
            log = (*world.data[partition], entry)
            world = world._replace(data=_put(world.data, partition, log))
    return world

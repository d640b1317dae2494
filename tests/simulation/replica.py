"""A partition's log on one broker, with its producer states (ProducerStateManager)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simulation.batches import Batch
from spark_kafka_sink import error_codes as codes

INVALID_PRODUCER_EPOCH: Final = 47
INVALID_RECORD: Final = 87
_REMEMBERED_BATCHES: Final = 5


@dataclass(frozen=True, slots=True)
class Rules:
    """Differences between brokers, and checks that a test may disable to see that it is noticed.

    old: the rules before Kafka 2.5. An unknown producer had to begin with sequence 0
    (UNKNOWN_PRODUCER_ID), and a batch older than the last five was DUPLICATE_SEQUENCE_NUMBER.
    remembers_last: whether a new leader knows only the last batch of each producer, as after a
    restart from a snapshot (ProducerStateManager.writeSnapshot).
    """

    old: bool = False
    remembers_last: bool = False
    check_sequences: bool = True


class LogBatch(NamedTuple):
    """A batch with its position in a log."""

    base_offset: int
    batch: Batch

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        batch = self.batch
        is_marker = batch.is_commit is not None
        return self.base_offset + (1 if is_marker else len(batch.numbers) + len(batch.offsets))


@dataclass(slots=True)
class ProducerState:
    """A broker's state of a producer: its epoch and its last five batches.

    transaction_start: where it has written first since its last marker, -1 if it has not.
    """

    epoch: int
    transaction_start: int = -1
    recent: deque[LogBatch] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record, -1 without one."""
        return self.recent[-1].batch.last_sequence if self.recent else -1


class Appended(NamedTuple):
    """The result of an append: an error, or the offset of the batch."""

    code: int
    base_offset: int = -1


class Replica:
    """One log. It survives the end of the broker's process."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.entries: list[LogBatch] = []
        self.log_start_offset = 0
        self._producers: dict[int, ProducerState] = {}

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self.entries[-1].next_offset if self.entries else 0

    def append(self, batch: Batch) -> Appended:
        """Append as leader, unless the batch is a duplicate or its sequence is wrong."""
        if batch.poisoned is not None:
            return Appended(INVALID_RECORD)
        if batch.producer_id >= 0 and self._rules.check_sequences:
            known = self._producers.get(batch.producer_id)
            if known is not None and known.epoch == batch.epoch:
                for entry in known.recent:
                    if _range(entry.batch) == _range(batch):
                        return Appended(codes.NONE, entry.base_offset)
            code = self._refusal(batch, known)
            if code != codes.NONE:
                return Appended(code)
        entry = LogBatch(self.end_offset, batch)
        self._add(entry)
        return Appended(codes.NONE, entry.base_offset)

    def append_offsets(self, batch: Batch) -> Appended:
        """Append a batch of a group coordinator as leader; it has no sequence, only an epoch."""
        known = self._producers.get(batch.producer_id)
        if known is not None and batch.epoch < known.epoch:
            return Appended(INVALID_PRODUCER_EPOCH)
        entry = LogBatch(self.end_offset, batch)
        self._add(entry)
        return Appended(codes.NONE, entry.base_offset)

    def _refusal(self, batch: Batch, known: ProducerState | None) -> int:
        """Return why a batch cannot follow the producer's last (ProducerAppendInfo)."""
        if known is None:
            is_new = batch.base_sequence == 0 or not self._rules.old
            return codes.NONE if is_new else codes.UNKNOWN_PRODUCER_ID
        if batch.epoch < known.epoch:
            return INVALID_PRODUCER_EPOCH
        if batch.epoch > known.epoch:
            is_first = batch.base_sequence == 0
            return codes.NONE if is_first else codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        last = known.last_sequence
        if batch.base_sequence == (last + 1) % 2**31:
            return codes.NONE
        is_before = (last - batch.base_sequence) % 2**31 < 2**30
        if self._rules.old and is_before:
            return codes.DUPLICATE_SEQUENCE_NUMBER
        return codes.OUT_OF_ORDER_SEQUENCE_NUMBER

    def mark(self, producer_id: int, epoch: int, *, is_commit: bool) -> int:
        """Append a transaction marker as leader; return the offset after it."""
        marker = Batch(producer_id, epoch, -1, (), None, 0, is_commit=is_commit)
        self._add(LogBatch(self.end_offset, marker))
        return self.end_offset

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has written here since its last marker."""
        known = self._producers.get(producer_id)
        return known is not None and known.epoch == epoch and known.transaction_start >= 0

    def producers(self) -> Mapping[int, ProducerState]:
        """Return the producers by their ids."""
        return self._producers

    def copy_from(self, leader: Replica) -> None:
        """Fetch as follower: truncate to the leader's log, and copy the rest of it."""
        common = min(len(self.entries), len(leader.entries))
        while common and self.entries[common - 1] is not leader.entries[common - 1]:
            common -= 1
        if common < len(self.entries):
            del self.entries[common:]
        self.entries += leader.entries[common:]
        self.log_start_offset = leader.log_start_offset

    def take_over(self) -> None:
        """Become leader: rebuild the producer states from the log."""
        entries, self.entries = self.entries, []
        self._producers.clear()
        for entry in entries:
            self._add(entry)
        if self._rules.remembers_last:
            for known in self._producers.values():
                while len(known.recent) > 1:
                    known.recent.popleft()

    def forget(self) -> None:
        """Delete every record by retention, and with them the producer states."""
        self.log_start_offset = self.end_offset
        self._producers.clear()

    def _add(self, entry: LogBatch) -> None:
        self.entries.append(entry)
        batch = entry.batch
        if batch.producer_id < 0 or entry.base_offset < self.log_start_offset:
            return
        known = self._producers.get(batch.producer_id)
        if known is None or known.epoch != batch.epoch:
            known = self._producers[batch.producer_id] = ProducerState(batch.epoch)
        if not batch.is_transactional:
            known.transaction_start = -1
        elif known.transaction_start < 0:
            known.transaction_start = entry.base_offset
        if batch.is_commit is None:
            known.recent.append(entry)


def _range(batch: Batch) -> tuple[int, int]:
    return batch.base_sequence, batch.last_sequence

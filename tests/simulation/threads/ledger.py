"""Ledger: the rows that callers gave to a producer, their results, and the brokers' logs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from simulation.cluster import Cluster
from simulation.scheduler import SimulationError
from simulation.threads.plan import Plan
from simulation.transaction_checker import read_committed
from spark_kafka_sink.model import RecordMetadata, TopicPartition


@dataclass(slots=True)
class Row:
    """A row. is_taken: whether the producer accepted it, None during or after a broken call.

    append: the number of its call of append, None for a call of send.
    """

    number: int
    caller: str
    topic: str
    append: int | None = None
    is_taken: bool | None = None
    future: Future[RecordMetadata] | None = None
    has_callback: bool = False
    is_committed: bool = False
    calls: int = 0
    failures: int = 0

    @property
    def is_done(self) -> bool:
        """Whether its future, if it has one, is done."""
        return self.future is None or self.future.done()


class Ledger:
    """All rows by number. is_reported: whether a call has raised an error for rows of append."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.rows: dict[int, Row] = {}
        self.appends = 0
        self.is_reported = False
        self._logged_lost = 0
        # Whether a failure is expected.
        self.may_fail: Callable[[BaseException], bool] = lambda _: False

    def give(self, caller: str, topic: str, count: int, *, is_append: bool) -> list[int]:
        """Create rows; return their numbers."""
        self.appends += is_append
        numbers = list(range(len(self.rows), len(self.rows) + count))
        for number in numbers:
            append = self.appends if is_append else None
            self.rows[number] = Row(number, caller, topic, append)
        return numbers

    def called(self, number: int) -> None:
        """Record the callback of a row."""
        self.rows[number].calls += 1

    def failed(self, numbers: list[int]) -> None:
        """Record the rows of an on_failure call."""
        for number in numbers:
            self.rows[number].failures += 1

    def logged_lost(self, rows: int) -> None:
        """Record how many rows are lost, as an interrupted `close` has logged."""
        self._logged_lost = max(self._logged_lost, rows)

    # -- what is promised -------------------------------------------------------------------------

    def check_ends(self) -> None:
        """Check that each waiting row got its result once."""
        for row in self.rows.values():
            _require(row.is_done, f"the future of {row} never ended")
            _require(row.failures <= 1, f"{row} was reported as failed {row.failures} times")
            if row.future is None:
                continue
            due = int(row.has_callback)
            _require(row.calls == due, f"{row} was called back {row.calls} times")
            error = row.future.exception(0)
            _require(error is None or self.may_fail(error), f"{row} failed: {error!r}")

    def check_logs(self, cluster: Cluster, arrived: set[tuple[TopicPartition, int]]) -> None:
        """Check the brokers' logs."""
        found: dict[int, list[tuple[TopicPartition, int, int]]] = defaultdict(list)
        for tp in cluster.shape.partitions:
            last: dict[str, int] = {}
            for entry in cluster.final_log(tp).entries:
                for index, number in enumerate(entry.batch.numbers):
                    if self._plan.keeps_order and number not in found:
                        caller = self.rows[number].caller
                        before = last.get(caller, -1)
                        _require(before < number, f"{number} is behind {before} in {tp}")
                        last[caller] = number
                    found[number].append((tp, entry.base_offset + index, entry.base_offset))
        for row in self.rows.values():
            self._check_row(row, found.get(row.number, []), arrived)
        visible = set(found)
        if self._plan.is_transactional:
            logs = [cluster.final_log(tp) for tp in cluster.shape.partitions]
            visible = {number for log in logs for number in read_committed(log).numbers}
        self._check_appends(visible)

    def _check_row(
        self,
        row: Row,
        places: list[tuple[TopicPartition, int, int]],
        arrived: set[tuple[TopicPartition, int]],
    ) -> None:
        _require(row.is_taken is not False or not places, f"{row} was refused and is at {places}")
        _require(all(tp.topic == row.topic for tp, _, _ in places), f"{row} is at {places}")
        if self._plan.is_idempotent:
            _require(len(places) <= 1, f"{row} is there twice: {places}")
        for tp, _, base in places[:-1]:
            is_known = (tp, base) in arrived and not self._plan.is_hasty
            _require(not is_known, f"{row} was written again though its answer had come: {places}")
        if row.future is not None and row.future.exception(0) is None:
            raised = row.future.result(0)
            at = [(tp.topic, tp.partition, offset) for tp, offset, _ in places]
            where = raised.topic, raised.partition, raised.offset
            _require(where in at, f"{row} was acknowledged at {where} and is at {at}")

    def _check_appends(self, visible: set[int]) -> None:
        """Check the rows that readers see; in transactions, these are the committed rows."""
        lost = []
        for row in self.rows.values():
            is_lost = row.append is not None and row.is_taken and row.number not in visible
            is_reported = row.failures > 0 or self.is_reported or self._plan.is_transactional
            if is_lost and not is_reported:
                lost.append(row)
            is_there = row.number in visible or not row.is_committed
            _require(is_there, f"{row} was committed and is not there")
        logged = self._logged_lost
        _require(not lost or logged > 0, f"{lost[:1]} is lost and nobody got an error")
        _require(len(lost) <= logged, f"{len(lost)} rows are lost, but only {logged} in the log")
        broken_off = Counter(
            (row.append, row.number in visible)
            for row in self.rows.values()
            if row.append is not None and row.is_taken is None and not self._plan.has_slices
        )
        for append, _ in broken_off:
            is_complete = (append, True) not in broken_off or (append, False) not in broken_off
            _require(is_complete, f"append {append} was broken off in the middle")


def _require(holds: bool, sentence: str) -> None:  # noqa: FBT001 - an assertion with a sentence
    if not holds:
        raise SimulationError(sentence)

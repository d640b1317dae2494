"""Check the guarantees of the producer against the logs of the simulated cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulation.cluster import Cluster
from simulation.network import SimulatedSelector
from simulation.scenario import Scenario
from simulation.scheduler import Scheduler, SimulationError
from spark_kafka_sink.errors import (
    KafkaException,
    OutOfOrderSequenceException,
    RecordTooLargeException,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch_errors import OVERTAKEN
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.completion import Deliveries
from spark_kafka_sink.producer.producer_batch import ProducerBatch

# The time between a batch's deadline and the next poll.
_LATE_S = 0.1


class Ledger:
    """The numbers of the records in each batch.

    Records of a partition go into its batches in order, so counting is enough. A split batch counts
    as its parts.
    """

    def __init__(self) -> None:
        self.appended: dict[TopicPartition, list[int]] = {}
        self.created: dict[TopicPartition, list[ProducerBatch]] = {}

    def append(self, tp: TopicPartition, numbers: list[int]) -> None:
        """Add records in the order in which they were appended to a partition."""
        self.appended.setdefault(tp, []).extend(numbers)

    def see(self, batches: list[ProducerBatch]) -> None:
        """Add the batches that exist now, oldest first."""
        known = {leaf for created in self.created.values() for leaf in _unsplit(created)}
        for batch in batches:
            if batch not in known:
                self.created.setdefault(batch.topic_partition, []).append(batch)

    def numbers(self, batch: ProducerBatch) -> list[int]:
        """Return the records of a closed batch."""
        before = 0
        for other in _unsplit(self.created[batch.topic_partition]):
            if other is batch:
                break
            before += other.record_count
        return self.appended[batch.topic_partition][before : before + batch.record_count]


def _unsplit(batches: Iterable[ProducerBatch]) -> Iterator[ProducerBatch]:
    """Yield the batches, and the parts of split ones."""
    for batch in batches:
        if batch.parts:
            yield from _unsplit(batch.parts)
        else:
            yield batch


class Checker(Deliveries):
    """Processes the completed batches, instead of `Deliveries`."""

    def __init__(
        self,
        scenario: Scenario,
        cluster: Cluster,
        network: SimulatedSelector,
        scheduler: Scheduler,
        ledger: Ledger,
    ) -> None:
        super().__init__()
        self._scenario = scenario
        self._cluster = cluster
        self._network = network
        self._scheduler = scheduler
        self._ledger = ledger
        self._offsets: dict[TopicPartition, dict[int, int]] = {}
        self._done: set[ProducerBatch] = set()
        self._delivery_s = scenario.configs["delivery.timeout.ms"] / 1000
        self._request_s: float = scenario.configs["request.timeout.ms"] / 1000
        self.poisoned: set[int] = set()
        self.is_closed = False

    @property
    def recovery_s(self) -> float:
        """The time for requests to time out and connections to return, after all faults."""
        return 3 * self._request_s + 4.0 + self._network.producer_paused_s

    def check_call(self, name: str, began: float, limit_s: float) -> None:
        """Check that a waiting caller has not waited for too long."""
        due = began + limit_s + self._network.producer_paused_s + _LATE_S
        now = self._scheduler.now
        self._require(now <= due, f"{name} has not ended at {now:.3f}, begun at {began:.3f}")

    # -- while it runs ----------------------------------------------------------------------------

    def add(self, batch: ProducerBatch) -> None:
        """Process a completed batch."""
        super().add(batch)
        self._require(batch not in self._done, f"{batch!r} is done twice")
        self._done.add(batch)
        now = self._scheduler.now
        numbers = self._ledger.numbers(batch)
        self._scheduler.trace(
            "producer", "{} done: records {}..{} {}", batch.topic_partition, numbers[0],
            numbers[-1], batch.error or f"at {batch.base_offset}",
        )  # fmt: skip
        due = batch.created_at + self._delivery_s + self._network.producer_paused_s + _LATE_S
        self._require(now <= due, f"{batch!r} ended at {now:.3f}, after its deadline {due:.3f}")
        if batch.state is BatchState.SUCCEEDED:
            self._acknowledged(batch, numbers)
        else:
            self._failed(batch, numbers, now)

    def _acknowledged(self, batch: ProducerBatch, numbers: list[int]) -> None:
        offsets = self._offsets.setdefault(batch.topic_partition, {})
        written = self._cluster.written[batch.topic_partition]
        known = batch.base_offset >= 0
        for index, number in enumerate(numbers):
            offset = batch.base_offset + index if known else -1
            offsets[number] = offset
            self._require(
                not known or (number, offset) in written,
                f"{batch!r} was acknowledged, but no broker has record {number} at {offset}",
            )
        may_lack_offset = known or self._scenario.acks == "0" or self._scenario.shape.rules.old
        self._require(may_lack_offset, f"{batch!r} was acknowledged without an offset")

    def _failed(self, batch: ProducerBatch, numbers: list[int], now: float) -> None:
        if self.is_closed or self.poisoned.intersection(numbers):
            return
        error = batch.error
        if isinstance(error, RecordTooLargeException) and self._scenario.shape.topic_bytes:
            return
        if isinstance(error, OutOfOrderSequenceException) and batch.is_in_doubt:
            return
        if self._scenario.shape.rules.remembers_last and OVERTAKEN in str(error):
            return
        name = type(error).__name__
        self._require(isinstance(error, KafkaException), f"{batch!r} failed with {name}")
        if self._scenario.gives_up_early:
            return
        expiry = batch.created_at + self._delivery_s
        self._require(now >= expiry, f"{batch!r} failed before its time: {name}: {error}")
        enough = self._scenario.heal_at + self.recovery_s
        self._require(
            expiry < enough,
            f"{batch!r} failed though all was well for {expiry - self._scenario.heal_at:.1f} s: "
            f"{error}",
        )

    # -- at the end -------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Check the logs of the cluster against the acknowledgements."""
        for tp, numbers in self._ledger.appended.items():
            batches = list(_unsplit(self._ledger.created[tp]))
            count = sum(batch.record_count for batch in batches)
            self._require(count == len(numbers), f"{tp}: {count} of {len(numbers)} are in batches")
            for batch in batches:
                self._require(batch in self._done, f"{batch!r} never ended")
            self._check_log(tp)
        reported = sum(delivery.records for delivery in self.partitions.values())
        failed = sum(batch.record_count for batch in self._done if batch.error is not None)
        appended = sum(map(len, self._ledger.appended.values()))
        self._require(
            reported + failed == appended,
            f"{reported} delivered and {failed} failed records were reported of {appended}",
        )

    def _check_log(self, tp: TopicPartition) -> None:
        log = self._cluster.final_log(tp)
        found: dict[int, list[int]] = {}
        for entry in log.entries:
            for index, number in enumerate(entry.batch.numbers):
                found.setdefault(number, []).append(entry.base_offset + index)
        acknowledged = self._offsets.get(tp, {})
        if self._scenario.acks == "all":
            for number, offset in acknowledged.items():
                at = found.get(number, [])
                self._require(bool(at), f"{tp}: record {number} was acknowledged and is lost")
                self._require(
                    offset < 0 or offset in at,
                    f"{tp}: record {number} was acknowledged at {offset} and is at {at}",
                )
        if self._scenario.is_idempotent:
            self._check_exactly_once(tp, found, log.log_start_offset)
        elif self._scenario.in_flight == 1 and self._scenario.acks != "0":
            firsts = [at[0] for number, at in sorted(found.items()) if number in acknowledged]
            self._require(firsts == sorted(firsts), f"{tp}: records are out of order")

    def _check_exactly_once(
        self, tp: TopicPartition, found: dict[int, list[int]], log_start_offset: int
    ) -> None:
        """Check that records are in the log once, and in the order in which they were appended.

        Records that retention deleted may be written again, because a broker no longer knows them.
        """
        before = -1
        for number, offsets in sorted(found.items()):
            at = [offset for offset in offsets if offset >= log_start_offset]
            self._require(len(at) <= 1, f"{tp}: record {number} is there twice, at {at}")
            if at:
                self._require(at[0] > before, f"{tp}: record {number} is out of order, at {at[0]}")
                before = at[0]

    def _require(self, holds: bool, sentence: str) -> None:  # noqa: FBT001 - an assertion with a sentence
        if not holds:
            raise SimulationError(sentence)

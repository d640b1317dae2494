"""SliceAppender: puts slices of rows into the accumulator, one slice at a time.

Owns the turn (one slice is laid out and encoded at a time, so that a partition's offset deltas
follow one another) and the partitioner's state. Who has the turn never waits for memory, metadata
or the network, so that the I/O thread may take it too.

A caller may be interrupted anywhere (KeyboardInterrupt, or whatever a signal's handler raises).
What it has in its hands then is given up by the same steps as at the end, which may be taken twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random
from typing import Protocol

from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.producer.partitioner import Partitioner, TopicLoad
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.record_spans import SpanOwner
from spark_kafka_sink.producer.slices import GroupedRows, Rows, choose_partitions, encode_rows
from spark_kafka_sink.producer.topic_load import topic_load
from spark_kafka_sink.producer.topic_metadata import TopicMetadata
from spark_kafka_sink.producer_thread import ProducerThread
from spark_kafka_sink.records.varint import Int64s


class RowOwner(SpanOwner, Protocol):
    """Who waits for the rows of a slice one by one."""

    def lay_out(self, grouped: GroupedRows) -> None:
        """Take the rows in the order in which spans will number them; called before any is sent."""


class SliceProgress:
    """How far a slice has come, for who is interrupted.

    is_in_batches: whether its rows are in batches, all of them; full: the batches that are to be
    packed, which are not sent before that.
    """

    __slots__ = ("full", "is_in_batches")

    def __init__(self) -> None:
        self.full: list[ProducerBatch] = []
        self.is_in_batches = False


class SliceAppender:
    """Encodes slices into batches."""

    def __init__(self, thread: ProducerThread, config: ProducerConfig) -> None:
        self._thread = thread
        # Of the built-in partitioner alone, as in the Java client.
        is_built_in = config.partitioner_class is None
        self._adaptive = is_built_in and config.partitioner_adaptive_partitioning_enable
        self._partitioner = Partitioner(
            Random(),  # noqa: S311 - no secrets
            config.partitioner_class,
            ignore_keys=config.partitioner_ignore_keys,
        )
        self.turn = threading.Lock()

    def spread_evenly(self, start: int) -> None:
        """Spread rows without a key evenly from here on; see `KafkaProducer.spread_evenly`."""
        with self.turn:
            self._partitioner.spread_evenly(start)

    def append(
        self,
        rows: Rows,
        sizes: Int64s,
        topics: list[TopicMetadata],
        check_usable: Callable[[], None],
        progress: SliceProgress,
        *,
        created_at: float | None = None,
        owner: RowOwner | None = None,
    ) -> None:
        """Put rows into batches; the caller has the turn, and reserved and gives back memory.

        sizes: bounds of the rows' encoded sizes in bytes; topics: the metadata of each of
        ``rows.topics``; check_usable: called under the lock, raises where nothing may be appended;
        progress: told of the batches to `pack`, which needs no turn; created_at: since when the
        rows wait, None for now.
        """
        accumulator = self._thread.accumulator
        grouped = choose_partitions(rows, sizes, topics, self._partitioner, self._load)
        if owner is not None:
            owner.lay_out(grouped)
        try:
            with self._thread.lock:
                opens = accumulator.hold(grouped.targets)
            cuts, encoded = encode_rows(grouped, opens)
            with self._thread.lock:
                check_usable()
                now = time.monotonic()
                self._thread.metrics.appended(len(rows), int(sizes.sum()), int(sizes.max()), now)
                since = now if created_at is None else created_at
                with self._thread.whole:
                    progress.full += accumulator.append(
                        grouped.targets, cuts, encoded, since, owner
                    )
                    progress.is_in_batches = True
                self._let_go(grouped)
        except BaseException:
            with self._thread.lock:
                self._let_go(grouped)
            raise

    def _let_go(self, grouped: GroupedRows) -> None:
        self._thread.accumulator.let_go(grouped.targets)
        self._thread.wake()

    def _load(self, name: str, topic: TopicMetadata) -> TopicLoad:
        thread = self._thread
        with thread.lock:
            return topic_load(
                name, topic, thread.accumulator, thread.latencies, adaptive=self._adaptive
            )

    def pack(self, progress: SliceProgress) -> None:
        """Compress the batches that are full.

        Their memory is accounted for one by one, but the I/O thread is woken once for all, so that
        more of them go in one request: that saves a tenth of a broker's CPU (docs/performance.md).
        """
        for batch in progress.full:
            batch.pack()
            with self._thread.lock, self._thread.whole:
                self._thread.packed([batch])
        with self._thread.lock:
            self._thread.wake()

    def leave(self, progress: SliceProgress) -> None:
        """Leave the batches that are not packed yet to the I/O thread."""
        with self._thread.lock:
            with self._thread.whole:
                self._thread.packed(progress.full)
            self._thread.wake()

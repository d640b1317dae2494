"""RecordLimits: how large a record may be, with the batch around it.

Owns the limits of one producer and the one check against them. A record has to fit into a request
and into the producer's memory, and where it is not compressed, its topic has to take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from spark_kafka_sink.errors import RAISE_LIMIT, TOO_LARGE, TOO_LARGE_FOR_TOPIC, Option
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.columns import Rows
from spark_kafka_sink.records.encoder import record_size_bounds
from spark_kafka_sink.records.varint import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """The bytes that a batch with one record may have.

    by_option: for every record, by the option that sets the limit, named as the user writes it.
    by_topic: the max.message.bytes of topics, where it is known and the broker compares it with
    what the producer measures. max_request_size: that option with its value.
    """

    by_option: Mapping[str, int]
    max_request_size: str
    by_topic: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, *, max_request_size: int, buffer_memory: int) -> Self:
        """Return the limits of a producer that knows of no topic yet."""
        return cls(
            by_option={
                str(Option("max.request.size")): max_request_size,
                str(Option("buffer.memory")): buffer_memory,
            },
            max_request_size=str(Option("max.request.size", max_request_size)),
        )

    @property
    def any_record_bytes(self) -> int:
        """The size of a record in bytes that is certainly allowed if no topic's limit is known."""
        return min(self.by_option.values()) - RECORD_BATCH_OVERHEAD

    def with_topics(self, max_message_bytes: Mapping[str, int]) -> Self:
        """Return the limits with those of topics, instead of the earlier ones."""
        return replace(self, by_topic=max_message_bytes)

    def fit(self, sizes: Int64s) -> bool:
        """Return whether all records certainly fit; sizes: upper bounds, as for `check`."""
        least = min(*self.by_option.values(), *self.by_topic.values())
        return int(sizes.max(initial=0)) + RECORD_BATCH_OVERHEAD <= least

    def check(self, rows: Rows, sizes: Int64s) -> None:
        """Raise RecordTooLargeException for the first record that is too large.

        sizes: upper bounds, as `record_sizes` returns them. The error has a topic where it is the
        topic's limit.
        """
        largest = int(sizes.max(initial=0)) + RECORD_BATCH_OVERHEAD
        for option, limit in self.by_option.items():
            if largest > limit:
                row = int(np.flatnonzero(sizes + RECORD_BATCH_OVERHEAD > limit)[0])
                self.check_record(int(sizes[row]) + RECORD_BATCH_OVERHEAD, row=row, option=option)
        for number, topic in enumerate(rows.topics):
            if largest > self.by_topic.get(topic, largest):
                self._check_topic(rows, topic, number)

    def check_record(
        self,
        size_bytes: int,
        *,
        topic: str | None = None,
        partition: int | None = None,
        row: int | None = None,
        option: str | None = None,
    ) -> None:
        """Raise RecordTooLargeException for a record that does not fit a request or the memory.

        size_bytes: of a batch with the record; topic, partition and row: the subject of the error;
        option: checks only this option's limit, None for all options.
        """
        for name in self.by_option if option is None else [option]:
            if size_bytes > self.by_option[name]:
                raise TOO_LARGE.error(
                    topic=topic,
                    partition=partition,
                    row=row,
                    size=f"up to {size_bytes}",
                    limit=f"{name}={self.by_option[name]}",
                    hint=RAISE_LIMIT.format(option=name),
                )

    def _check_topic(self, rows: Rows, topic: str, number: int) -> None:
        """Raise RecordTooLargeException for the first record that its topic does not take.

        number: of the topic among ``rows.topics``.
        """
        limit = self.by_topic[topic]
        # A record that is too large to share a batch is alone in one, so its deltas are 0.
        alone = record_size_bounds(rows.columns, 0, 0) + RECORD_BATCH_OVERHEAD
        too_large = alone > limit
        if rows.topic_numbers is not None:
            too_large &= rows.topic_numbers == number
        if too_large.any():
            row = int(np.flatnonzero(too_large)[0])
            raise TOO_LARGE_FOR_TOPIC.error(
                topic=topic,
                row=row,
                record="the record",
                size=int(alone[row]),
                limit=f"max.message.bytes={limit}, while {self.max_request_size}",
            )

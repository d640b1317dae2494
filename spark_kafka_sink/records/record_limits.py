"""RecordLimits: the size limits for a record, including the header of a batch around it.

This module has the limits of one producer, and the check of records against them. A record must fit
into a request and into the producer's memory. If it is not compressed, it must also fit
max.message.bytes of its topic.
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
    """The maximum sizes in bytes of a batch with one record.

    by_option: the limits for records of all topics. The key is the option that sets the limit,
    named as the user writes it. by_topic: max.message.bytes by topic. A topic is missing if its
    limit is unknown, or if the broker applies the limit to another size than the producer can
    measure. max_request_size: the option max.request.size with its value, for messages.
    """

    by_option: Mapping[str, int]
    max_request_size: str
    by_topic: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, *, max_request_size: int, buffer_memory: int) -> Self:
        """Return the limits of a producer that does not know the limits of any topic yet."""
        return cls(
            by_option={
                str(Option("max.request.size")): max_request_size,
                str(Option("buffer.memory")): buffer_memory,
            },
            max_request_size=str(Option("max.request.size", max_request_size)),
        )

    @property
    def any_record_bytes(self) -> int:
        """The size in bytes of a record that every limit in `by_option` allows."""
        return min(self.by_option.values()) - RECORD_BATCH_OVERHEAD

    def with_topics(self, max_message_bytes: Mapping[str, int]) -> Self:
        """Return a copy in which `by_topic` is replaced by `max_message_bytes`."""
        return replace(self, by_topic=max_message_bytes)

    def fit(self, sizes: Int64s) -> bool:
        """Return whether all records certainly fit all limits.

        sizes: upper bounds of the record sizes, as `record_sizes` returns them.
        """
        least = min(*self.by_option.values(), *self.by_topic.values())
        return int(sizes.max(initial=0)) + RECORD_BATCH_OVERHEAD <= least

    def check(self, rows: Rows, sizes: Int64s) -> None:
        """Raise RecordTooLargeException for the first record that is too large.

        sizes: upper bounds of the record sizes, as `record_sizes` returns them. The exception has a
        topic only if the record exceeds the limit of its topic.
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
        """Raise RecordTooLargeException for a record that exceeds a limit in `by_option`.

        size_bytes: the size of a batch with only this record. topic, partition, row: the record's
        place, for the exception. option: the option whose limit is checked, None for all options.
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
        """Raise RecordTooLargeException for the first record that exceeds its topic's limit.

        number: the index of `topic` in ``rows.topics``.
        """
        limit = self.by_topic[topic]
        # A record of this size is alone in its batch, so its deltas are 0.
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

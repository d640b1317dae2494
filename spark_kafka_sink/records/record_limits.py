"""RecordLimits: the size limits for a batch that contains only one record.

This module contains the limits of one producer, and checks records against them. A check returns a
mask of the records that are too large, or raises an exception for one of them. A record must fit
into a request and into the producer's memory. If it is not compressed, it must also fit
max.message.bytes of its topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np

from spark_kafka_sink.errors import (
    RAISE_LIMIT,
    TOO_LARGE,
    TOO_LARGE_FOR_TOPIC,
    KafkaException,
    Option,
)
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.columns import Bools, Rows
from spark_kafka_sink.records.encoder import record_size_bounds
from spark_kafka_sink.records.varint import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """The maximum sizes in bytes of a batch with one record.

    by_option: the limits for records of all topics. The key is the option that sets the limit,
    named as the user writes it. by_topic: max.message.bytes by topic. A topic is missing if its
    limit is unknown, or if the broker applies the limit to a size that the producer cannot measure.
    max_request_size: the option max.request.size with its value, for error messages.
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
        """The size in bytes of the largest record that every limit in `by_option` allows."""
        return min(self.by_option.values()) - RECORD_BATCH_OVERHEAD

    def with_topics(self, max_message_bytes: Mapping[str, int]) -> Self:
        """Return a copy in which `by_topic` is replaced by `max_message_bytes`."""
        return replace(self, by_topic=max_message_bytes)

    def fit(self, largest_bytes: int) -> bool:
        """Return whether a record of at most `largest_bytes` certainly fits all limits."""
        least = min(*self.by_option.values(), *self.by_topic.values())
        return largest_bytes + RECORD_BATCH_OVERHEAD <= least

    def too_large(self, rows: Rows, sizes: Int64s) -> Bools:
        """Return a mask of the records that exceed any limit; sizes: as in `check`."""
        mask = np.zeros(len(sizes), np.bool_)
        for exceeded in self._exceeded(rows, sizes):
            mask |= exceeded.mask
        return mask

    def check(self, rows: Rows, sizes: Int64s) -> None:
        """Raise RecordTooLargeException if a record is too large.

        sizes: upper bounds of the record sizes, as `record_sizes` returns them. The limits are
        checked in the order of `_exceeded`. The exception is about the first record that exceeds
        the first exceeded limit. Its `topic` is set only if that limit is a topic's.
        """
        for exceeded in self._exceeded(rows, sizes):
            row = int(np.argmax(exceeded.mask))
            size = int(exceeded.sizes[row]) + RECORD_BATCH_OVERHEAD
            if exceeded.topic is None:
                self.check_record(size, row=row, option=exceeded.option)
            else:
                raise self._too_large_for_topic(exceeded.topic, row, size)

    def _exceeded(self, rows: Rows, sizes: Int64s) -> Iterator[_Exceeded]:
        """Yield each limit that a record exceeds: first those of options, then those of topics."""
        largest = int(sizes.max(initial=0)) + RECORD_BATCH_OVERHEAD
        for option, limit in self.by_option.items():
            if largest > limit:
                yield _Exceeded(sizes > limit - RECORD_BATCH_OVERHEAD, sizes, option)
        for number, topic in enumerate(rows.topics):
            limit = self.by_topic.get(topic, largest)
            if largest > limit:
                # A record of this size is alone in its batch, so its deltas are 0.
                alone = record_size_bounds(rows.columns, 0, 0)
                mask = alone > limit - RECORD_BATCH_OVERHEAD
                if rows.topic_numbers is not None:
                    mask &= rows.topic_numbers == number
                if mask.any():
                    yield _Exceeded(mask, alone, topic=topic)

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

    def _too_large_for_topic(self, topic: str, row: int, size_bytes: int) -> KafkaException:
        return TOO_LARGE_FOR_TOPIC.error(
            topic=topic,
            row=row,
            record="the record",
            size=size_bytes,
            limit=f"max.message.bytes={self.by_topic[topic]}, while {self.max_request_size}",
        )


class _Exceeded(NamedTuple):
    """A limit that records exceed.

    mask: which records exceed it. sizes: the record sizes that were compared with it, without the
    header of a batch. option, topic: the option or the topic that sets the limit. Exactly one of
    the two is not None.
    """

    mask: Bools
    sizes: Int64s
    option: str | None = None
    topic: str | None = None

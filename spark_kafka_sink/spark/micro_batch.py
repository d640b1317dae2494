"""A micro-batch that ``write_batch`` writes as a batch job: its writer, which knows its number.

Spark tells a batch job nothing of the stream that it belongs to, so ``write_batch`` hands the
number over as an option, whose value says where it is from. It is no option of users: no document
lists it, and with any other value it is refused as one that nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.spark.writer import KafkaArrowWriter

if TYPE_CHECKING:
    from spark_kafka_sink.spark.options import SinkOptions

BATCH_ID: Final = "pykafka.batch.id"
_FROM_HERE: Final = re.compile("write_batch:(-?[0-9]+)")


def as_option(batch_id: int) -> dict[str, str]:
    """Give the option that hands a number over."""
    return {BATCH_ID: f"write_batch:{batch_id}"}


def handed_over(options: Mapping[str, str]) -> int | None:
    """Give the number that `as_option` put among options with names in lower case, if it did."""
    found = _FROM_HERE.fullmatch(options.get(BATCH_ID, ""))
    return int(found[1]) if found else None


class MicroBatchWriter(KafkaArrowWriter):
    """Writes a micro-batch as a batch job; its report is a line, as a stream's."""

    def __init__(self, options: SinkOptions, batch_id: int) -> None:
        super().__init__(options)
        self._batch_id = batch_id
